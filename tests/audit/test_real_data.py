"""TOFU forget10 on small Llamas trained on it: the order of the UDS paper's Table 2."""

import pytest

from uds_lens.audit import Baseline
from uds_lens.data import load_examples
from uds_lens.results import RunOptions


@pytest.mark.long
def test_models_trained_on_less_of_the_forget_set_score_higher(shared_dir):
    models = shared_dir / "models" / "tofu-small"
    examples = load_examples(shared_dir / "data" / "tofu" / "forget10_filtered.json")[::12]
    options = RunOptions(device="cpu")
    baseline = Baseline.measure(models / "full", models / "retain90", examples, options=options)
    names = ("full", "retain99", "retain95", "retain90")
    options = RunOptions(device="cpu", engine="wavefront")
    audits = baseline.audit_all([models / name for name in names], options=options)
    full, retain99, retain95, retain90 = (audit.uds for audit in audits)
    assert 0.0 == full < retain99 < retain95 < retain90 == 1.0
    assert audits[0].n_measured >= 28
    assert baseline.provenance["engine"] == "wavefront"
    assert not audits[0].skipped
    assert retain99 < 0.35 < retain95 < 0.75
