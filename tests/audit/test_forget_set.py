"""What an audit is asked on: samples, rows of any form, and data without entities."""

from dataclasses import replace

import pytest

import uds_lens as ul
from uds_lens.audit._inputs import forget_set, sorted_by
from uds_lens.errors import DataError

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
