"""What an audit is asked on: samples, how small they may be, rows of any form, and data without entities."""

from dataclasses import replace

import pytest
from tiny_models import some_now

import uds_lens as ul
from uds_lens.audit._inputs import forget_set, sorted_by
from uds_lens.errors import ConfigError, DataError

pytestmark = pytest.mark.usefixtures("trusted")


def test_a_limit_measures_a_sample_of_every_subject_and_says_so(world, tmp_path):
    config = ul.AuditConfig(limit=12, n_bootstrap=100)
    audit = ul.DepthAudit.run(world.full, world.retain, world.retain, world.examples, config=config)
    assert audit.uds == 1.0
    assert len(audit.examples) == 12
    assert len({example.subject for example in audit.examples}) == 6
    assert audit.provenance["sample"] == {"limit": 12, "of": 48, "sample": "random", "seed": 0}
    said = "A random sample was measured: 12 of 48 examples, spread over the subjects (seed 0)."
    assert any(told.startswith(said) for told in audit.warnings) and said in audit._repr_html_()
    baseline = ul.Baseline.measure(world.full, world.retain, world.examples, config=config)
    assert list(baseline.examples) == list(audit.examples)
    again = baseline.audit(world.half)
    assert any(told.startswith(said) for told in again.warnings)
    again.save(tmp_path / "audit")
    assert ul.DepthAudit.load(tmp_path / "audit").warnings == again.warnings


def test_the_first_ones_by_name_only(world):
    first = forget_set(world.examples, ul.AuditConfig(limit=5, sample="first"))
    assert first.examples == world.examples[:5]
    assert first.sample == {"limit": 5, "of": 48, "sample": "first", "seed": 0, "sorted_by": "subject"}
    random = forget_set(world.examples, ul.AuditConfig(limit=5))
    assert random.examples != first.examples
    assert random.examples != forget_set(world.examples, ul.AuditConfig(limit=5, seed=1)).examples
    assert forget_set(world.examples, ul.AuditConfig(limit=48)) == (world.examples, None)


def test_what_the_first_rows_are_of(world):
    facts = list(world.examples)
    assert sorted_by(facts) == "subject"
    assert sorted_by([*facts[1:], facts[0]]) == "subject", "one row apart does not mix them"
    assert sorted_by([*facts[::2], *facts[1::2]]) is None
    types = [replace(example, subject=None) for example in facts]
    assert sorted_by(types) == "unknown", "mixed types do not tell that unnamed subjects are mixed"


def test_data_without_entities_fails_before_a_model_is_opened(world):
    plain = [replace(example, entity=None) for example in world.examples]
    nowhere = "no/such/model"
    for measure in (ul.DepthAudit.run, lambda f, r, _, e: ul.Baseline.measure(f, r, e)):
        with pytest.raises(DataError, match=r"none of the 48 examples has an `entity`.*uds-lens annotate"):
            measure(nowhere, nowhere, nowhere, plain)
        with pytest.raises(DataError, match="no examples: an audit needs at least one row"):
            measure(nowhere, nowhere, nowhere, [])
    assert len(forget_set([*plain[:3], world.examples[3]], ul.AuditConfig()).examples) == 4


WORLD = ul.toy.load()
RUN = ul.RunOptions(device="cpu", progress=False)
MODELS = (WORLD.full, WORLD.retain, WORLD.half)


@pytest.mark.parametrize("precision", some_now([0.3], of=[0.3, 0.03]))
def test_it_is_the_first_sample_that_is_precise_enough(precision: float) -> None:
    limit = ul.audit.limit_for(*MODELS, WORLD.examples, precision=precision, options=RUN)
    sizes = [16]  # six subjects: at least 16 rows; twice as many are more than half of all 48

    def share(size: int) -> float:
        audit = ul.DepthAudit.run(*MODELS, WORLD.examples, config=ul.AuditConfig(limit=size), options=RUN)
        low, high = audit.uds_interval
        assert audit.sample_error is not None
        return audit.sample_error.standard_error / (high - low)

    assert limit == next((size for size in sizes if share(size) <= precision), 48)


def test_what_it_cannot_do() -> None:
    with pytest.raises(ConfigError, match="precision must be above 0"):
        ul.audit.limit_for(*MODELS, WORLD.examples, precision=0)
    first = replace(ul.AuditConfig(), sample="first", limit=20)
    with pytest.raises(ConfigError, match="needs a random sample"):
        ul.audit.limit_for(*MODELS, WORLD.examples, config=first)
