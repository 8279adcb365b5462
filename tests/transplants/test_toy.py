"""The toy world and small TOFU models: who hides, who never learned, the verdicts, and host depth as a metric."""

from dataclasses import replace

import pytest
import torch
from tiny_models import load_plain

import uds_lens as ul
from uds_lens.metrics import MetricCache, MetricOptions, evaluate
from uds_lens.report._payload import transplants_among

CONFIG = ul.AuditConfig(n_bootstrap=300)
VERDICTS = {
    "full": "intact",
    "half": "partly erased",
    "idkdpo": "hidden",
    "npo": "hidden",
    "rmu": "hidden",
    "noise": "hidden",
    "retain": "erased as far as tested",
}


@pytest.fixture(scope="module")
def models(world, tmp_path_factory):
    """Some models of the toy world, and `full` with noise in block 0 only."""
    place = tmp_path_factory.mktemp("made") / "noise"
    model, tokenizer = load_plain(world.full)
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.model.layers[0].parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=noise))
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    unlearned = {name: world.unlearned[name] for name in ("idkdpo", "npo", "rmu")}
    return {"full": world.full, "half": world.half, **unlearned, "noise": place, "retain": world.retain}


def measured(world, models, examples):
    """Audits of the models with their transplants."""
    found = ul.transplants.transplant_all(world.full, world.retain, list(models.values()), examples, config=CONFIG)
    audits = ul.Baseline.measure(world.full, world.retain, examples, config=CONFIG).audit_all(list(models.values()))
    return dict(zip(models, zip(audits, found, strict=True), strict=True))


def against_retain(found):
    """What stays lost with `retain`'s blocks as a share of what `retain` lacks: of the best band, and of attention.

    Without the cost of the blocks in `full`, and chosen on the examples that are scored: not host depth.
    """
    lacks = found.answers.s_full - found.answers.s_retain[0]
    left = found.answers.s_full[:, None] - found.answers.unlearned_with_retain[0]
    share = (left / lacks[:, None]).clamp(0, 1)[lacks > found.config.tau].mean(0)
    bands = [float(share[i]) for i, of in enumerate(found.candidates) if not of.attention]
    return min(bands), float(share[-1])


def check_verdicts(both):
    for name, (audit, found) in both.items():
        judged = found.beside(audit)
        assert judged.verdict.word == VERDICTS[name], name
        assert ul.results.verdict(audit, transplant=found.evidence) == judged.verdict
        alone = {"full": "intact"}.get(name, "undecided")
        assert audit.verdict.word == alone, name
        summary = judged.summary()
        assert summary["host_depth"] == found.host_depth
        assert summary["reading"] == str(judged.verdict)
        assert (audit.uds, audit.uds_interval) == (judged.uds, judged.uds_interval)
    assert both["full"][1].hidden_reason in both["full"][1].evidence.reason
    frame = ul.results.models_frame({name: found.beside(audit) for name, (audit, found) in both.items()})
    assert frame["hidden"].tolist() == pytest.approx([found.hidden for _, found in both.values()], nan_ok=True)
    assert frame["reading"].tolist()[1:3] == ["partly erased", "hidden"]


@pytest.mark.long  # as the whole toy world, on a quarter of its rows
def test_one_hides_and_the_other_never_learned(world, models):
    both = measured(world, models, world.examples[::4])
    check_verdicts(both)
    half, idkdpo, noise = (both[name] for name in ("half", "idkdpo", "noise"))
    assert abs(half[0].uds - idkdpo[0].uds) < 0.1
    assert abs(half[1].hidden) < 0.02
    assert idkdpo[1].hidden > 0.2
    assert noise[0].uds > 0.95
    assert noise[1].host_depth == 0.0, "with retain's block 0 in place it is full with that block: exactly c"
    assert noise[1].localisation[0].value == 1.0
    card = idkdpo[1].beside(idkdpo[0])._repr_html_()
    assert "host depth" in card
    assert "hidden" in card


@pytest.mark.long
def test_the_whole_toy_world(world, models):
    """Numbers of the pilot: the best band, and attention."""
    both = measured(world, models, world.examples)
    check_verdicts(both)
    pilot = {"half": (0.48, 0.55), "npo": (0.32, 0.29), "rmu": (0.10, 0.21), "idkdpo": (0.20, 0.19)}
    for name, shares in pilot.items():
        assert against_retain(both[name][1]) == pytest.approx(shares, abs=0.02), name
    depths = {"half": 0.469, "npo": 0.267, "rmu": 0.093, "idkdpo": 0.147, "noise": 0.0, "full": 0.0, "retain": 1.0}
    assert {name: both[name][1].host_depth for name in depths} == pytest.approx(depths, abs=0.005)
    assert both["noise"][0].uds == pytest.approx(0.977, abs=0.02)
    assert against_retain(both["noise"][1])[0] < 0.1


def small_tofu(shared_dir, step):
    models = shared_dir / "models" / "tofu-small"
    examples = ul.load_examples(shared_dir / "data" / "tofu" / "forget10_filtered.json")[::step]
    names = ("retain95", "retain90")
    found = ul.transplants.transplant_all(
        models / "full", models / "retain90", [models / name for name in names], examples, config=CONFIG
    )
    return dict(zip(names, found, strict=True))


@pytest.mark.long
def test_a_small_tofu_model_that_never_saw_half_hides_nothing(shared_dir):
    found = small_tofu(shared_dir, 12)["retain95"]
    assert found.hides is False
    assert abs(found.hidden) < 0.05
    assert found.localisation[0].value < 0.2


@pytest.mark.long
def test_small_tofu_models_as_in_the_pilot(shared_dir):
    found = small_tofu(shared_dir, 3)
    of_half = found["retain95"]
    assert of_half.output_depth == pytest.approx(0.48, abs=0.02)
    band, attention = against_retain(of_half)
    assert band == pytest.approx(0.48, abs=0.02), "the pilot had .50"
    assert attention == pytest.approx(0.51, abs=0.02)
    assert of_half.host_depth == pytest.approx(of_half.output_depth, abs=0.02)
    assert of_half.hides is False
    back = [found[name].localisation[0].value for name in ("retain90", "retain95")]
    assert back == pytest.approx([0.12, 0.11], abs=0.02)


@pytest.mark.long
def test_control_facts_are_lost_where_every_block_that_full_bears_costs_this_model_some(world):
    """By hand: two candidates, one that `full` bears on both kinds of facts, one that costs it control facts itself."""
    few, kept = world.examples[::8], world.retain_examples[:2]
    found = ul.transplant(world.full, world.retain, world.half, few, config=CONFIG, control=kept)
    assert not found.evidence.control_lost
    zeros = torch.zeros_like(found.control.s_full)

    def lost(full, unlearned):
        """Loss on control facts with every candidate: nats per token."""
        shape = found.control.full_with_retain
        return replace(
            found,
            control=replace(
                found.control,
                s_full=zeros,
                s_unlearned=zeros - 0.05,
                full_with_retain=torch.zeros_like(shape) - full,
                unlearned_with_retain=torch.zeros_like(shape) - unlearned,
            ),
        )

    assert not lost(0.0, 0.14).evidence.control_lost
    fragile = lost(0.0, 0.16)
    assert fragile.evidence.control_lost
    assert "no candidate is admitted" in fragile.host_depth_reason
    assert not lost(0.2, 0.3).evidence.control_lost, "the blocks break full as well: nothing is said about the model"
    assert not lost(0.2, 0.3).admitted.any()
    audit = ul.DepthAudit.run(world.full, world.retain, world.half, few, config=CONFIG)
    assert fragile.beside(audit).verdict.word == "damaged"
    assert lost(0.2, 0.3).beside(audit).verdict.word == "undecided"


def test_a_transplant_goes_with_audits_that_can_be_compared_with_it(world):
    few = world.examples[::8]
    found = ul.transplant(world.full, world.retain, world.half, few, config=CONFIG)
    audit = ul.DepthAudit.run(world.full, world.retain, world.half, few, config=CONFIG)
    other_site = replace(audit, config=replace(audit.config, site="mlp_out"))
    assert found.beside(other_site).transplant == found.evidence
    other_tau = replace(audit, config=replace(audit.config, tau=0.1))
    with pytest.raises(ul.errors.ConfigError, match=r"differs? in tau \(0\.1: `the audit`; 0\.05: `the transplant`\)"):
        found.beside(other_tau)
    other_model = replace(audit, models={**audit.models, "unlearned": audit.models["full"]})
    with pytest.raises(ul.errors.ConfigError, match="the unlearned model's weights"):
        found.beside(other_model)
    both = {"tau": other_tau, "own": audit}
    assert list(transplants_among(both, [found])) == ["own"]
    assert list(transplants_among({"tau": other_tau}, [found])) == ["tau"], "shown, but no part of the verdict"


RUN = ul.RunOptions(device="cpu", progress=False, engine="wavefront")


def test_host_depth_as_a_metric_is_that_of_a_transplant_and_references_run_once():
    world, cache = ul.toy.load(), MetricCache()
    few = world.examples[::3]
    asked = {"metrics": ["host_depth"], "full": world.full, "retain": world.retain, "run": RUN, "cache": cache}
    found = evaluate(world.unlearned["idkdpo"], few, **asked)
    config = ul.AuditConfig(protocol="raw", entity_space=MetricOptions().entity_space)  # that of white-box metrics
    wanted = ul.transplant(world.full, world.retain, world.unlearned["idkdpo"], few, config=config, options=RUN)
    assert found["host_depth"].value == pytest.approx(wanted.host_depth, abs=1e-6)
    assert found["host_depth"].per_example == pytest.approx(
        wanted.host_depth_per_example.tolist(), abs=1e-5, nan_ok=True
    )
    assert found["host_depth"].details["admitted"] == int(wanted.admitted.sum())
    assert found["host_depth"].details["output_depth"] == pytest.approx(wanted.output_depth, abs=1e-6)
    assert found.total.reference_forwards > 0
    itself = evaluate(world.retain, few, **asked)
    assert itself["host_depth"].value == 1.0 and itself.total.reference_forwards == 0


def test_a_full_that_is_retain_leaves_host_depth_undefined():
    world = ul.toy.load()
    found = evaluate(
        world.half, world.examples[:6], metrics=["host_depth"], full=world.retain, retain=world.retain, run=RUN
    )
    assert "retain knows all of these answers" in found["host_depth"].reason
