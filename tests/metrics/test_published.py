"""The aggregates of the UDS paper's 152 models follow from their published parts."""

import json

import pytest

from uds_lens.metrics import harmonic_mean

PARTS = {
    "mem": ["one_minus_es", "one_minus_em", "one_minus_paraprob", "one_minus_truth"],
    "privacy_mia": ["s_loss", "s_zlib", "s_mink", "s_minkpp"],
    "privacy": ["privacy_mia", "uds"],
    "model_utility": [
        f"{s}_{w}" for s in ("retain", "ra", "wf") for w in ("q_prob", "q_rouge", "truth_ratio")
    ],
    "utility": ["model_utility", "fluency"],
    "overall": ["mem", "privacy", "utility_rel"],
}


@pytest.mark.parametrize("aggregate", PARTS)
def test_aggregates_of_the_published_models(shared_dir, aggregate):
    models = json.loads((shared_dir / "data" / "published" / "method_results.json").read_text())["models"]
    checked = 0
    for row in models:
        parts = [row.get(name) for name in PARTS[aggregate]]
        if row.get(aggregate) is None or None in parts:
            continue
        assert row[aggregate] == pytest.approx(harmonic_mean(parts), abs=1e-3), row["model"]
        checked += 1
    assert checked > 100
