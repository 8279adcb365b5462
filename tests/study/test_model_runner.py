"""The real runner, on tiny models: what it makes and measures is what the other rooms make and measure."""

from dataclasses import replace

import pytest
import torch
from study.conftest import toy_plan
from synthetic_audits import synthetic_audit
from synthetic_elicitations import synthetic_elicitation

import uds_lens as ul
from uds_lens import study
from uds_lens.study._folder import StudyFolder
from uds_lens.study._measuring import ModelRunner, elicitation_values, unpacked_four_bit


@pytest.mark.long
@pytest.mark.usefixtures("trusted")
@pytest.mark.filterwarnings("ignore::uds_lens.errors.UdsLensWarning")
def test_a_study_measures_what_evaluate_measures(tmp_path, monkeypatch):
    world = ul.toy.load()
    plan = toy_plan(
        ["em", "prob"],
        limit=3,
        train={"forget": [{"source": "toy:forget", "sample": 4}]},
        unlearn=[{"method": "ga", "settings": {"learning_rate": 1e-3, "epochs": 1, "batch_size": 4}}],
        perturb={"relearn": {"seeds": [1], "retain_seeds": [], "settings": {"batch_size": 2}}},
    )
    plan["measure"]["audit"] = {"n_bootstrap": 100}
    found = study.run(plan, tmp_path / "s")
    assert found.is_complete, found.failed
    table = study.table(tmp_path / "s").set_index(["model_id", "state", "metric"])
    examples = ul.data.sample_examples(world.examples, 3)
    expected = ul.metrics.evaluate(world.full, examples, metrics=["em", "prob"])
    assert table.loc[("full", "before", "prob"), "value"] == pytest.approx(expected["prob"].value)
    assert table.loc[("full", "before", "uds"), "value"] == 0
    (made,) = (tmp_path / "s" / "models").iterdir()
    name = made.name.rpartition("-")[0]
    ga = table.loc[name]
    own = ul.metrics.evaluate(made, examples, metrics=["prob"])
    assert ga.loc[("before", "prob"), "value"] == pytest.approx(own["prob"].value)
    assert ga.loc[("relearned", "prob"), "parent"] == ga.loc[("before", "prob"), "fingerprint"]
    assert ga.loc[("before", "prob"), "parent"] == table.loc[("full", "before", "prob"), "fingerprint"]
    assert ga.loc[("before", "prob"), "value"] != ga.loc[("relearned", "prob"), "value"]
    assert not list((tmp_path / "s" / "scratch").iterdir())
    audit = ul.DepthAudit.load(tmp_path / "s" / "audits" / f"{name}--relearned-1")
    assert ga.loc[("relearned", "uds"), "value"] == pytest.approx(audit.uds)
    assert audit.provenance["sample"]["sample"] == "random"
    assert any("A random sample was measured: 3 of 48 examples" in told for told in audit.warnings)
    for change in ({"tau": 0.5}, {"confidence": 0.5, "n_bootstrap": 200}):
        other = {**plan, "measure": {**plan["measure"], "audit": {"n_bootstrap": 100, **change}}}
        with monkeypatch.context() as patched:  # no model is needed
            patched.setattr(ModelRunner, "make", lambda *args: pytest.fail("made again"))
            assert study.run(other, tmp_path / "s").is_complete
        again = study.table(tmp_path / "s").set_index(["model_id", "state", "metric"]).loc[name]
        scored = ul.DepthAudit.load(tmp_path / "s" / "audits" / f"{name}--relearned-1")
        assert scored.config == replace(audit.config, **change)
        assert scored.s2_delta.equal(audit.s2_delta)
        for metric, value in zip(("uds", "uds_low", "uds_high"), (scored.uds, *scored.uds_interval), strict=True):
            assert again.loc[("relearned", metric), "value"] == pytest.approx(value, nan_ok=True)
        assert again.loc[("relearned", "prob"), "value"] == ga.loc[("relearned", "prob"), "value"]
    other["measure"]["audit"]["site"] = "attn_out"
    found = study.status(StudyFolder.begin(study.plan(other), tmp_path / "s"))
    assert not found.is_complete, "other deltas have to be measured"


@pytest.mark.long
def test_unpacked_four_bit_is_close_to_the_packed_one(tmp_path):
    world = ul.toy.load()
    plain = unpacked_four_bit(world.full, tmp_path / "plain")
    packed = ul.unlearning.quantise(world.full, out=tmp_path / "packed", device="cpu")
    found = [
        ul.metrics.evaluate(place, world.examples[:4], metrics=["prob"])["prob"].value for place in (plain, packed)
    ]
    assert found[0] == pytest.approx(found[1], abs=0.02)
    with ul.open_model(world.full, device="cpu") as full, ul.open_model(plain, device="cpu") as other:
        before, after = full.hf.state_dict(), other.hf.state_dict()
        moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert any("mlp" in name for name in moved)
    assert not (tmp_path / "plain-packed").exists()


def test_each_metric_is_asked_as_its_published_number_was(tmp_path):
    """Rules go by metric, role and state; the first that fits counts, and what none names is asked as before."""
    world = ul.toy.load()
    plan = toy_plan(["prob", "em", "es"], limit=2)
    rules = [{"style": "paper_pools", "metrics": ["prob"], "roles": ["retain"]}]
    rules += [{"style": "paper_scores", "metrics": ["prob", "em"]}]
    study.run({**plan, "measure": {**plan["measure"], "prompts": rules}}, tmp_path / "s")
    found = study.table(tmp_path / "s").set_index(["model_id", "metric"])
    examples = ul.data.sample_examples(world.examples, 2)
    asked = {("full", "prob"): "paper_scores", ("retain", "prob"): "paper_pools", ("retain", "em"): "paper_scores"}
    for (model, metric), style in asked.items():
        options = ul.metrics.MetricOptions.preset(style)
        own = ul.metrics.evaluate(world.checkpoints[model], examples, metrics=[metric], options=options)[metric]
        assert found.loc[(model, metric), "value"] == pytest.approx(own.value, abs=1e-9)
    assert found.loc[("full", "prob"), "options_hash"] != found.loc[("retain", "prob"), "options_hash"]
    with_rules = {name: found.loc[("full", name), "options_hash"] for name in ("prob", "es")}
    bare = StudyFolder.begin(study.plan(plan), tmp_path / "bare")
    keys = [bare.keys.options_hash(bare.models[0], bare.models[0].states[0], name) for name in ("prob", "es")]
    assert [with_rules["prob"] == keys[0], with_rules["es"] == keys[1]] == [False, True]
    unmeasured = [{"style": "paper_pools", "metrics": ["rouge"]}]
    with pytest.raises(ul.errors.ConfigError, match="names 'rouge', which"):
        study.plan({**plan, "measure": {**plan["measure"], "prompts": unmeasured}})


def test_an_elicitation_gives_each_number_a_name_of_its_own_and_each_gap_its_reason():
    results = synthetic_elicitation(synthetic_audit())
    cloze = next(probe for probe in results.probes if probe.name == "cloze")
    nowhere = cloze._replace(skipped=tuple((example.id, "no entity here") for example in results.examples))
    parts = [replace(part, responses=()) if part.probe == "cloze" else part for part in results.parts]
    probes = [nowhere if probe is cloze else probe for probe in results.probes]
    rows = elicitation_values(replace(results, probes=probes, parts=parts), took=0.0).rows
    found = {row.metric: row for row in rows}
    assert len(found) == len(rows) and all((row.value == row.value) == (row.reason is None) for row in rows)
    table = results.summary().set_index(["probe", "decoding", "statistic"])["unlearned"]
    names = {"": ("greedy", "mean"), ".sampled_mean": ("sampled", "mean"), ".sampled_best": ("sampled", "best")}
    for name, key in names.items():
        assert found[f"elicitation.plain{name}.unlearned"].value == table[("plain", *key)]
    assert found["elicitation.cloze.share"].reason == "no row was asked: no entity here"
