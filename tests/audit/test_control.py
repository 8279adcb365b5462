"""Control facts and several retain models, measured: alike the forget set, with the identities, and taken up again."""

import dataclasses

import pytest
import torch
from torch.testing import assert_close

import uds_lens as ul
from uds_lens.audit._resume import Question
from uds_lens.errors import ConfigError, DataError

CONFIG = ul.AuditConfig(n_bootstrap=100)
OPTIONS = ul.RunOptions(device="cpu", engine="wavefront")


@pytest.fixture(scope="module")
def world():
    found = ul.toy.load()
    return dataclasses.replace(found, examples=found.examples[::6], retain_examples=found.retain_examples[::16])


def unscorable(world):
    return dataclasses.replace(world.retain_examples[0], id="lost", question="Lost?", entity="not there", prefix=None)


@pytest.fixture(scope="module")
def baseline(world):
    """Two retain models, `retain` and `half`, with a control of which one row cannot be scored."""
    facts, retains = [*world.retain_examples, unscorable(world)], [world.retain, world.half]
    return ul.Baseline.measure(world.full, retains, world.examples, control=facts, config=CONFIG, options=OPTIONS)


def of_rmu(world, retain, examples, config=CONFIG, **more):
    """An audit of one of the unlearned models in one run."""
    rmu = world.unlearned["rmu"]
    return ul.DepthAudit.run(world.full, retain, rmu, examples, config=config, options=OPTIONS, **more)


@pytest.fixture(scope="module")
def audits(baseline, world):
    models = {"full": world.full, "retain": world.retain, "half": world.half, "rmu": world.unlearned["rmu"]}
    found = baseline.audit_all(list(models.values()), options=OPTIONS)
    return dict(zip(models, found, strict=True))


def test_control_facts_are_measured_as_a_forget_set_is(world, baseline, audits):
    alone = of_rmu(world, world.retain, world.retain_examples, dataclasses.replace(CONFIG, tau=0.0))
    control = baseline.control
    assert [fact.id for fact in control.examples] == [fact.id for fact in world.retain_examples]
    assert [row.id for row in control.skipped] == ["lost"]
    assert control.ids_hash == alone.provenance["ids_hash"]
    assert_close(control.s_full, alone.s_full, atol=1e-4, rtol=0)
    assert_close(baseline.retains[0].control_s1_delta, alone.s1_delta, atol=1e-4, rtol=0)
    assert_close(audits["rmu"].control_s2_delta, alone.s2_delta, atol=1e-4, rtol=0)
    assert_close(audits["rmu"].control_s_unlearned, alone.s_unlearned, atol=1e-4, rtol=0)


def test_the_forget_set_is_measured_as_without_a_control(world, baseline, audits):
    plain = of_rmu(world, world.retain, world.examples)
    assert plain.control is None and plain.retains == ()
    assert plain.provenance["ids_hash"] == baseline.provenance["ids_hash"]
    assert_close(baseline.retains[0].s1_delta, plain.s1_delta, atol=1e-4, rtol=0)
    assert_close(audits["rmu"].s2_delta, plain.s2_delta, atol=1e-4, rtol=0)
    assert audits["rmu"].uds_by_retain[0] == pytest.approx(plain.uds, abs=1e-3)


def test_identities_hold_for_each_retain_model(baseline, audits):
    assert_close(baseline.s1_delta, torch.stack([r.s1_delta for r in baseline.retains]).mean(0))
    assert audits["full"].uds_by_retain == (0.0, 0.0)
    assert audits["retain"].uds_by_retain[0] == 1.0 and audits["half"].uds_by_retain[1] == 1.0
    assert audits["half"].uds_by_retain[0] < 1.0
    assert torch.equal(audits["full"].control_s2_delta, torch.zeros_like(audits["full"].control_s2_delta))
    assert torch.equal(audits["half"].control_s2_delta, baseline.retains[1].control_s1_delta)
    assert "nothing was lost" in audits["full"].damage_estimate.reason
    assert abs(audits["rmu"].damage) < 0.05, "the toy world's methods keep what they are to keep"


def test_both_stages_at_once_give_the_same(world, baseline, audits):
    at_once = of_rmu(world, [world.retain, world.half], world.examples, control=world.retain_examples)
    assert_close(at_once.control_s2_delta, audits["rmu"].control_s2_delta, atol=1e-4, rtol=0)
    assert at_once.uds_by_retain == pytest.approx(audits["rmu"].uds_by_retain, abs=1e-3)
    with baseline.recorded(options=OPTIONS) as recorded:
        one = recorded.audit(world.unlearned["rmu"])
    assert_close(one.control_s2_delta, audits["rmu"].control_s2_delta, atol=1e-4, rtol=0)


def test_a_saved_baseline_goes_on(world, baseline, tmp_path):
    baseline.save(tmp_path / "baseline")
    again = ul.Baseline.load(tmp_path / "baseline")
    assert again.key == baseline.key and repr(again) == repr(baseline) and "retain=2 models" in repr(again)
    assert again.audit(world.half, options=OPTIONS).uds_by_retain[1] == 1.0
    without = dataclasses.replace(baseline, control=None)
    assert without.key != baseline.key != dataclasses.replace(baseline, retains=()).key


def test_an_earlier_result_answers_the_same_question_only(world, audits, tmp_path):
    place = tmp_path / "half"
    audits["half"].save(place)
    facts, retains = [*world.retain_examples, unscorable(world)], [str(world.retain), str(world.half)]

    def found(retain=retains, control=facts):
        question = Question(str(world.full), retain, world.examples, CONFIG, OPTIONS, control=control)
        return question.audit_at(place, str(world.half))

    assert found() is not None
    assert found(control=None) is None and found(control=facts[:-1]) is None
    assert found(retain=retains[0]) is None and found(retain=retains[::-1]) is None


def test_what_is_no_control_is_refused_before_a_model_is_opened(world):
    nowhere = "no/such/model"
    with pytest.raises(DataError, match="control contains 2 of the examples to forget"):
        ul.DepthAudit.run(nowhere, nowhere, nowhere, world.examples, control=world.examples[:2])
    plain = [dataclasses.replace(fact, entity=None) for fact in world.retain_examples]
    with pytest.raises(DataError, match="control: none of the 12 examples has an `entity`"):
        ul.Baseline.measure(nowhere, nowhere, world.examples, control=plain)
    with pytest.raises(ConfigError, match="retain must name at least one model"):
        ul.Baseline.measure(nowhere, [], world.examples)


def test_a_limit_holds_for_both_sets(world):
    limited = ul.AuditConfig(n_bootstrap=100, limit=3)
    audit = of_rmu(world, [world.retain], world.examples, limited, control=world.retain_examples)
    assert (len(audit.examples), len(audit.control.examples), audit.retains) == (3, 3, ())
    assert audit.control.sample["of"] == 12
