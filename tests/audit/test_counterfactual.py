"""Stage 1 from full's own states on counterfactuals: identities, the mean over draws, the record, refusals, an edit."""

import dataclasses

import pytest
import torch
from tiny_models import load_plain
from torch.testing import assert_close

import uds_lens as ul
from uds_lens.audit import _inputs
from uds_lens.audit._resume import Question
from uds_lens.data import counterfactuals
from uds_lens.errors import ConfigError, UdsLensWarning
from uds_lens.patching._plain import capture_all

from .independent import forward, tokens_of

CONFIG = ul.AuditConfig(n_bootstrap=100, protocol="raw", stand_in="counterfactual", counterfactual="other", draws=2)
USUAL = ul.AuditConfig(n_bootstrap=100, protocol="raw")
OPTIONS = ul.RunOptions(device="cpu", engine="wavefront")
WORLD = ul.toy.load()
ROWS = [row for row in WORLD.examples if row.id.endswith(("/birthplace", "/award"))][:8]


def measured(drawn=None, rows=ROWS, monkeypatch=None, **settings):
    """Stage 1 with the counterfactuals of the library, or with these."""
    if monkeypatch is not None:
        monkeypatch.setattr(_inputs, "counterfactuals", lambda *given, **named: drawn)
    config = dataclasses.replace(CONFIG, **settings)
    return ul.Baseline.measure(WORLD.full, None, rows, config=config, options=OPTIONS)


@pytest.fixture(scope="module")
def baseline():
    return measured()


@pytest.fixture(scope="module")
def audit(baseline):
    return baseline.audit(WORLD.unlearned["npo"], options=OPTIONS)


def test_a_draw_that_is_the_example_itself_costs_nothing(monkeypatch):
    itself = measured([(row,) for row in ROWS], monkeypatch=monkeypatch, exact_noop=False)
    assert itself.s1_delta.abs().max() <= 1e-5
    with pytest.warns(UserWarning, match="UDS is NaN"):
        audit = itself.audit(WORLD.retain, options=OPTIONS)
    assert audit.reading == "withheld" and audit.fatal
    assert_close(itself.s_retain, itself.s_full, atol=1e-5, rtol=0)


def test_s1_is_the_mean_over_the_draws_of_each_example(baseline, monkeypatch):
    drawn = counterfactuals(ROWS, "other", draws=2)
    singly = [measured([rows[n : n + 1] for rows in drawn], monkeypatch=monkeypatch) for n in (0, 1)]
    one, other = (stage.s1_delta for stage in singly)
    assert_close(baseline.s_retain, (singly[0].s_retain + singly[1].s_retain) / 2, atol=1e-5, rtol=0)
    assert (one - other).abs().max() > 0.01
    assert_close(baseline.s1_delta, (one + other) / 2, atol=1e-5, rtol=0)
    fewer = measured([drawn[0][:1], *drawn[1:]], monkeypatch=monkeypatch)
    assert_close(fewer.s1_delta, torch.cat([one[:1], baseline.s1_delta[1:]]), atol=1e-5, rtol=0)
    assert fewer.provenance["counterfactual"] == {"from": "other", "draws": 2, "fewest": 1, "seed": 0}


def test_s1_agrees_with_a_patch_by_plain_transformers(baseline):
    """Windows are aligned from the end: the counterfactual name may have another number of tokens."""
    model, tokenizer = load_plain(WORLD.full)
    example, drawn = ROWS[0], counterfactuals(ROWS, "other", draws=2)[0]
    ids, entity = tokens_of(example, tokenizer)
    scored = [place - 1 for place in entity]

    def score(logits):
        return logits.log_softmax(-1)[scored, [ids[place] for place in entity]].mean()

    lost = []
    for row in drawn:
        other_ids, other_entity = tokens_of(row, tokenizer)
        assert [other_ids[place] for place in other_entity] == [ids[place] for place in entity]
        states = forward(model, other_ids)[1]
        for layer, state in enumerate(states):
            aligned = torch.zeros(1, len(ids), state.shape[-1])
            aligned[:, scored] = state[:, [place - 1 for place in other_entity]]
            patched = forward(model, ids, layer=layer, states=aligned, positions=scored)[0]
            lost.append(score(forward(model, ids)[0]) - score(patched))
    expected = torch.stack(lost).reshape(2, -1).mean(0).double()
    assert_close(baseline.s1_delta[0], expected, atol=1e-4, rtol=0)


def test_one_run_is_both_stages_and_stage_2_is_that_of_any_scale(audit):
    models = (WORLD.full, None, WORLD.unlearned["npo"])
    at_once = ul.DepthAudit.run(*models, ROWS, config=CONFIG, options=OPTIONS)
    assert_close(at_once.s1_delta, audit.s1_delta, atol=1e-6, rtol=0)
    assert at_once.uds == pytest.approx(audit.uds, abs=1e-5)
    usual = ul.DepthAudit.run(WORLD.full, WORLD.retain, models[2], ROWS, config=USUAL, options=OPTIONS)
    assert_close(audit.s2_delta, usual.s2_delta, atol=1e-5, rtol=0)
    assert (audit.s1_delta - usual.s1_delta).abs().max() > 0.1


def test_stage_2_only_at_layers_that_the_mean_over_the_draws_finds(baseline, audit):
    """In one run, too: there the layers that count are known once all draws of a batch were patched."""
    tau = round(float(baseline.s1_delta.quantile(0.6)), 2)
    some = dataclasses.replace(OPTIONS, stage_2="knowledge")
    config = dataclasses.replace(CONFIG, tau=tau)
    one_draw = measured(draws=1)
    expected = dataclasses.replace(audit, config=config)
    counting = expected.ke_mask
    assert 0 < counting.sum() < counting.numel()
    assert not torch.equal(counting, one_draw.s1_delta > tau)  # or the test would show nothing
    unlearned = WORLD.unlearned["npo"]
    ways = {
        "in one run": ul.DepthAudit.run(WORLD.full, None, unlearned, ROWS, config=config, options=some),
        "after stage 1": dataclasses.replace(baseline, config=config).audit(unlearned, options=some),
    }
    for way, found in ways.items():
        assert torch.equal(found.s2_delta.isnan(), ~counting), way
        assert_close(found.s2_delta[counting], expected.s2_delta[counting], atol=1e-5, rtol=0)
        assert_close(found.s1_delta, expected.s1_delta, atol=1e-6, rtol=0)
        assert found.uds == pytest.approx(expected.uds, abs=1e-5), way
        assert (found.stage_2_tau, expected.stage_2_tau) == (tau, None), way


def test_the_record_names_it_and_it_compares_with_its_like_only(audit, baseline, tmp_path):
    audit.save(tmp_path / "a")
    again = ul.DepthAudit.load(tmp_path / "a")
    assert again.config == CONFIG
    assert again.provenance["counterfactual"] == {"from": "other", "draws": 2, "fewest": 2, "seed": 0}
    assert again.models["retain"].name.endswith("on counterfactuals")
    assert again.equal_weights == []
    (text,) = (text for text in again.warnings if text.startswith("There is no retain model"))
    assert "on the same question about another subject (2 subjects for each example) are used instead" in text
    assert "retain" not in again.reading
    usual = ul.DepthAudit.run(WORLD.full, WORLD.retain, WORLD.unlearned["npo"], ROWS, config=USUAL, options=OPTIONS)
    with pytest.raises(ConfigError, match="they differ in stand_in"):
        ul.results.compare(again, usual)
    other = dataclasses.replace(baseline, config=dataclasses.replace(baseline.config, draws=1))
    with pytest.raises(ConfigError, match="they differ in draws"):
        ul.results.compare(audit, other.audit(WORLD.retain, options=OPTIONS))


def test_rows_without_a_counterfactual_are_skipped_with_the_reason():
    rows = [dataclasses.replace(ROWS[0], subject=None), *ROWS[1:]]
    stage = measured(rows=rows)
    assert [row.id for row in stage.skipped] == [ROWS[0].id] and "`subject`" in stage.skipped[0].reason
    assert [row.id for row in stage.examples] == [row.id for row in ROWS[1:]]


def test_control_facts_keep_their_own_states():
    kept = WORLD.retain_examples[::24]
    models = (WORLD.full, None, WORLD.unlearned["rmu"])
    audit = ul.DepthAudit.run(*models, ROWS, control=kept, config=CONFIG, options=OPTIONS)
    assert audit.control.s1_delta.abs().max() <= 1e-5 and audit.control_s2_delta.abs().max() > 0.01
    assert not any("retain hardly knows" in text for text in audit.warnings)


@pytest.mark.parametrize(
    ("settings", "retain", "message"),
    [
        ({}, WORLD.retain, "stand_in='counterfactual'.* needs no .*retain"),
        ({"stand_in": None, "counterfactual": "no_question", "draws": 3}, None, "retain.* is missing"),
    ],
)
def test_it_needs_no_retain_model_and_nothing_else_does_without(settings, retain, message):
    config = dataclasses.replace(CONFIG, **settings)
    with pytest.raises(ConfigError, match=message):
        ul.DepthAudit.run(WORLD.full, retain, WORLD.full, ROWS, config=config, options=OPTIONS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stand_in": "counterfactual", "scope": "all"}, "patches positions before the entity"),
        ({"draws": 8}, "draws belongs to counterfactual='other'; got counterfactual='no_question'"),
        ({"stand_in": "base", "counterfactual": "other"}, "stand_in='counterfactual'; got stand_in='base'"),
        ({"stand_in": "counterfactual", "draws": 0}, "draws must be"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        ul.AuditConfig(**settings)


def test_an_audit_is_taken_up_again_only_with_the_same_counterfactuals(baseline, audit, tmp_path):
    audit.save(tmp_path / "a")

    def asked(**settings):
        config = dataclasses.replace(CONFIG, **settings)
        return Question(str(WORLD.full), None, ROWS, config, OPTIONS).audit_at(
            tmp_path / "a", str(WORLD.unlearned["npo"])
        )

    assert asked() is not None
    assert asked(draws=1) is None and asked(counterfactual="no_question", draws=3) is None


def test_counterfactuals_that_cannot_be_read_fast_have_all_sources_read_plainly(audit, monkeypatch):
    calls, unlearned = [], WORLD.unlearned["npo"]

    def failing(model, batches, **settings):
        calls.append((model.name, settings["engine"]))
        if settings["engine"] != "naive" and model.name == str(WORLD.full):
            raise IndexError("index out of range in self")
        caches = capture_all(model, batches, **settings)
        wrong = settings["engine"] != "naive"  # which nothing may be made of
        return [dataclasses.replace(cache, states=cache.states * 1.5) for cache in caches] if wrong else caches

    monkeypatch.setattr("uds_lens.audit._runner.capture_all", failing)
    with pytest.warns(UdsLensWarning, match="it failed: IndexError: index out of range in self"):
        found = ul.DepthAudit.run(
            WORLD.full, None, unlearned, ROWS, config=CONFIG, options=dataclasses.replace(OPTIONS, engine="auto")
        )
    assert {(str(unlearned), "wavefront"), (str(WORLD.full), "wavefront"), (str(unlearned), "naive")} <= {*calls}
    assert_close(found.s1_delta, audit.s1_delta, atol=1e-4, rtol=0)
    assert_close(found.s2_delta, audit.s2_delta, atol=1e-4, rtol=0)


LAYER = 3
BIRTHPLACES = [row for row in WORLD.examples if row.id.endswith("/birthplace")]


@pytest.fixture(scope="module")
def edited(tmp_path_factory):
    """`full`, with the MLP of one layer made to answer the first question's last token with another vector.

    Closed form: with the input k of the down-projection W there, W + (v - W k) k^T / (k^T k) maps k to v.
    """
    place, (model, tokenizer) = tmp_path_factory.mktemp("edited"), load_plain(WORLD.full)
    row = ul.data.encode(BIRTHPLACES[:1], tokenizer, protocol="raw").rows[0]
    down, seen = model.model.layers[LAYER].mlp.down_proj, {}
    handle = down.register_forward_pre_hook(lambda module, args: seen.update(key=args[0][0, row.patched[0]]))
    with torch.no_grad():
        model(torch.tensor([row.ids]))
        handle.remove()
        key, value = seen["key"], -4.0 * down(seen["key"])
        down.weight.add_(torch.outer(value - down(key), key) / key.dot(key))
        assert torch.allclose(down(key), value, atol=1e-4)
    for part in (model, tokenizer):
        part.save_pretrained(place)
    return place


def test_an_edit_is_exactly_nothing_below_its_layer_and_something_from_it_on(edited):
    config = ul.AuditConfig(protocol="raw", n_bootstrap=100, stand_in="counterfactual", words="edit")
    audit = ul.DepthAudit.run(WORLD.full, None, edited, BIRTHPLACES, config=config, options=ul.RunOptions(device="cpu"))
    assert (audit.s2_delta[:, :LAYER] == 0).all()
    assert (audit.s2_delta[0, LAYER:] > 0).all()
    assert "There is no ignorant model, so the knowing model's own states" in " ".join(audit.warnings)
    frame = ul.weights.difference(WORLD.full, edited).to_frame()
    assert frame[frame["relative_norm"] > 0]["layer"].tolist() == [LAYER]
