"""The formulas of the metrics: by hand, against plain loops and independent implementations, and where undefined."""

import json
import math
import zlib

import pytest
import torch
from hypothesis import given, strategies as st

from uds_lens.metrics import (
    auc,
    cka_erasure,
    exact_memorization,
    extraction_strength,
    geometric_mean,
    harmonic_mean,
    kept_truth,
    linear_cka,
    mean_nll,
    min_k_score,
    normalised_auc,
    option_probability,
    probability,
    truth_ratio,
    zlib_score,
)
from uds_lens.metrics._white_box import weighted_erasure

HITS = st.lists(st.booleans(), min_size=2, max_size=12)
CHANCES = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=5)
SCORES = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=8)
LOGPROBS = [-1.0, -5.0, -3.0, -2.0, -4.0]
TEXT = "Ada Veylin wrote the Ash Ledger, and then the Ash Ledger again."


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (probability([math.log(p) for p in (0.5, 0.25, 0.125)]), (0.5 * 0.25 * 0.125) ** (1 / 3)),
        (truth_ratio([0.4, 0.1], [0.05]), 0.2 / 0.25),  # p_c = sqrt(0.4 * 0.1) = 0.2
        (truth_ratio([0.0], [0.5]), 0),
        (geometric_mean([0.9, 0.0]), 0),
        (option_probability(0.3, [0.1, 0.1, 0.1]), 0.5),
        (kept_truth([0.4], [0.2, 0.05]), 0.75),  # p_w = sqrt(0.2 * 0.05) = 0.1
        (kept_truth([0.1], [0.4]), 0),
        (kept_truth([0.0], [0.4]), 0),
        (mean_nll(LOGPROBS), 3.0),
        (zlib_score(LOGPROBS, TEXT), 3.0 / len(zlib.compress(TEXT.encode()))),
        (min_k_score([*LOGPROBS, -9.0], k=0.4), 4.5),  # the last position does not count
        (min_k_score([*LOGPROBS, -9.0], k=0.79), 4.0),
        (min_k_score([*LOGPROBS, -9.0], k=0.01), 5.0),
        (min_k_score([*LOGPROBS, -9.0], k=1.0), 3.0),
        (normalised_auc(0.5, 0.5), 1),
        (normalised_auc(1.0, 0.4), 0),
        (normalised_auc(0.3, 0.4), 0.75),
        (normalised_auc(0.5, 0.4), 0.75),
        (auc([1.0, math.nan], [2.0]), 1),
        (extraction_strength([False, False, False, False, True]), 0.25),
        (extraction_strength([False, False, False, False, True], strict=True), 0.0),
        *(
            (score([False, True, end]), 0.5)
            for score in (extraction_strength, exact_memorization)
            for end in (False, True)
        ),
    ],
)
def test_by_hand(value, expected):
    assert value == pytest.approx(expected)


@pytest.mark.parametrize(
    "value",
    [
        probability([]),
        truth_ratio([], [0.5]),
        truth_ratio([0.5], []),
        truth_ratio([0.0], [0.0]),
        geometric_mean([0.5, math.nan]),
        option_probability(0.3, []),
        option_probability(0.0, [0.0]),
        kept_truth([], [0.4]),
        kept_truth([0.0], [0.0]),
        mean_nll([]),
        zlib_score([], "x"),
        min_k_score([-1.0]),
        min_k_score([]),
        normalised_auc(0.5, 0.0),
        normalised_auc(math.nan, 0.5),
        auc([1.0], [math.nan]),
        auc([], [1.0]),
        extraction_strength([True]),
        exact_memorization([True]),
        linear_cka(torch.ones(4, 2), torch.randn(4, 2)),
        weighted_erasure(torch.tensor([1.0, 0.25, math.nan]), torch.zeros(3)),
    ],
)
def test_undefined_is_nan(value):
    assert math.isnan(value)


@given(CHANCES, CHANCES)
def test_truth_ratio_turns_around_when_its_sides_are_swapped(correct, wrong):
    assert truth_ratio(correct, wrong) + truth_ratio(wrong, correct) == pytest.approx(1)


@given(SCORES, SCORES)
def test_auc_counts_pairs(forget, holdout):
    won = sum((h > f) + 0.5 * (h == f) for f in forget for h in holdout)
    assert auc(forget, holdout) == pytest.approx(won / (len(forget) * len(holdout)))


def es_as_open_unlearning_writes_it(hits):
    """The loop over k, ended by the first suffix that matches; k keeps its last value if none does."""
    for k in range(len(hits)):
        if all(hits[k:]):
            break
    return 1 - k / len(hits)


@given(HITS)
def test_es_and_em_against_plain_loops(hits):
    kept = hits[:-1]
    assert extraction_strength(hits) == pytest.approx(es_as_open_unlearning_writes_it(kept))
    assert exact_memorization(hits) == pytest.approx(sum(kept) / len(kept))
    k = next((k for k in range(len(kept) + 1) if all(kept[k:])), len(kept))
    assert extraction_strength(hits, strict=True) == pytest.approx(1 - k / len(kept))


def by_gram_matrices(x, y):
    """HSIC of linear kernels: trace(K H L H), normalised."""
    n = len(x)
    centre = torch.eye(n, dtype=torch.float64) - torch.ones(n, n, dtype=torch.float64) / n
    k, m = (centre @ (z.double() @ z.double().T) @ centre for z in (x, y))
    return float((k * m).sum() / (k.square().sum() * m.square().sum()).sqrt())


@pytest.mark.parametrize("n", [5, 40])
def test_linear_cka_against_hsic_and_under_rotation_scale_and_shift(n):
    torch.manual_seed(0)
    x, y = torch.randn(n, 12, dtype=torch.float64), torch.randn(n, 8)
    rotation = torch.linalg.qr(torch.randn(12, 12, dtype=torch.float64)).Q
    assert linear_cka(x, y) == pytest.approx(by_gram_matrices(x, y), abs=1e-12)
    assert linear_cka(x, 3 * x @ rotation + 1) == pytest.approx(1)
    assert linear_cka(x, y) < 0.95


def test_cka_erasure_identities_clip_and_weights():
    c_fr = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)
    for c_ur, expected in ((torch.ones_like(c_fr), 1), (c_fr, 0), (c_fr - 0.1, 0), ((1 + c_fr) / 2, 0.5)):
        assert cka_erasure(c_fr, c_ur).tolist() == pytest.approx([expected] * 3)
    erasure = torch.tensor([1.0, 0.25, math.nan])
    assert weighted_erasure(erasure, torch.tensor([1.0, 3.0, 0.0])) == pytest.approx(0.4375)
    assert weighted_erasure(erasure, torch.tensor([1.0, -3.0, math.nan])) == 1.0


PARTS = {
    "mem": ["one_minus_es", "one_minus_em", "one_minus_paraprob", "one_minus_truth"],
    "privacy_mia": ["s_loss", "s_zlib", "s_mink", "s_minkpp"],
    "privacy": ["privacy_mia", "uds"],
    "model_utility": [f"{s}_{w}" for s in ("retain", "ra", "wf") for w in ("q_prob", "q_rouge", "truth_ratio")],
    "utility": ["model_utility", "fluency"],
    "overall": ["mem", "privacy", "utility_rel"],
}


def test_aggregates_of_the_papers_models_follow_from_their_published_parts(shared_dir):
    models = json.loads((shared_dir / "data" / "published" / "method_results.json").read_text())["models"]
    for aggregate, names in PARTS.items():
        known = [row for row in models if None not in [row.get(name) for name in (aggregate, *names)]]
        assert len(known) > 100
        for row in known:
            expected = harmonic_mean([row[name] for name in names])
            assert row[aggregate] == pytest.approx(expected, abs=1e-3), row["model"]
