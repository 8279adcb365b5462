"""The formulas of the metrics: by hand, against plain loops and independent implementations, and where undefined."""

import json
import math
import zlib
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, strategies as st

from uds_lens import metrics as m
from uds_lens.metrics import MetricOptions
from uds_lens.metrics._declaration import Evidence, Undefined, harmonic_mean
from uds_lens.metrics._definitions.membership_attacks import ATTACKS, mia, s_mia
from uds_lens.metrics._white_box import cka_erasure, weighted_erasure

HITS = st.lists(st.booleans(), min_size=2, max_size=12)
SCORES = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=8)
LOGPROBS = [-1.0, -5.0, -3.0, -2.0, -4.0]
TEXT = "Ada Veylin wrote the Ash Ledger, and then the Ash Ledger again."


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (m.probability([math.log(p) for p in (0.5, 0.25, 0.125)]), (0.5 * 0.25 * 0.125) ** (1 / 3)),
        (m.truth_ratio([0.4, 0.1], [0.05]), 0.2 / 0.25),  # p_c = sqrt(0.4 * 0.1) = 0.2
        (m.truth_ratio([0.0], [0.5]), 0),
        (m.geometric_mean([0.9, 0.0]), 0),
        (m.option_probability(0.3, [0.1, 0.1, 0.1]), 0.5),
        (m.kept_truth([0.4], [0.2, 0.05]), 0.75),  # p_w = sqrt(0.2 * 0.05) = 0.1
        (m.kept_truth([0.1], [0.4]), 0),
        (m.kept_truth([0.0], [0.4]), 0),
        (m.mean_nll(LOGPROBS), 3.0),
        (m.zlib_score(LOGPROBS, TEXT), 3.0 / len(zlib.compress(TEXT.encode()))),
        (m.min_k_score([*LOGPROBS, -9.0], k=0.4), 4.5),  # the last position does not count
        (m.min_k_score([*LOGPROBS, -9.0], k=0.79), 4.0),
        (m.min_k_score([*LOGPROBS, -9.0], k=0.01), 5.0),
        (m.min_k_score([*LOGPROBS, -9.0], k=1.0), 3.0),
        (m.normalised_auc(0.5, 0.5), 1),
        (m.normalised_auc(1.0, 0.4), 0),
        (m.normalised_auc(0.3, 0.4), 0.75),
        (m.normalised_auc(0.5, 0.4), 0.75),
        (m.auc([1.0, math.nan], [2.0]), 1),
        (m.extraction_strength([False, False, False, False, True]), 0.25),
        (m.extraction_strength([False, False, False, False, True], strict=True), 0.0),
    ],
)
def test_by_hand(value, expected):
    assert value == pytest.approx(expected)


@pytest.mark.parametrize(
    "value",
    [
        m.probability([]),
        m.truth_ratio([], [0.5]),
        m.truth_ratio([0.5], []),
        m.truth_ratio([0.0], [0.0]),
        m.geometric_mean([0.5, math.nan]),
        m.option_probability(0.3, []),
        m.option_probability(0.0, [0.0]),
        m.kept_truth([], [0.4]),
        m.kept_truth([0.0], [0.0]),
        m.mean_nll([]),
        m.zlib_score([], "x"),
        m.min_k_score([-1.0]),
        m.min_k_score([]),
        m.normalised_auc(0.5, 0.0),
        m.normalised_auc(math.nan, 0.5),
        m.auc([1.0], [math.nan]),
        m.auc([], [1.0]),
        m.extraction_strength([True]),
        m.exact_memorization([True]),
        m.linear_cka(torch.ones(4, 2), torch.randn(4, 2)),
        weighted_erasure(torch.tensor([1.0, 0.25, math.nan]), torch.zeros(3)),
    ],
)
def test_undefined_is_nan(value):
    assert math.isnan(value)


@given(SCORES, SCORES)
def test_auc_counts_pairs(forget, holdout):
    won = sum((h > f) + 0.5 * (h == f) for f in forget for h in holdout)
    assert m.auc(forget, holdout) == pytest.approx(won / (len(forget) * len(holdout)))


def es_as_open_unlearning_writes_it(hits):
    """The loop over k, ended by the first suffix that matches; k keeps its last value if none does."""
    for k in range(len(hits)):
        if all(hits[k:]):
            break
    return 1 - k / len(hits)


@given(HITS)
def test_es_and_em_against_plain_loops(hits):
    kept = hits[:-1]
    assert m.extraction_strength(hits) == pytest.approx(es_as_open_unlearning_writes_it(kept))
    assert m.exact_memorization(hits) == pytest.approx(sum(kept) / len(kept))
    k = next((k for k in range(len(kept) + 1) if all(kept[k:])), len(kept))
    assert m.extraction_strength(hits, strict=True) == pytest.approx(1 - k / len(kept))


def by_gram_matrices(x, y):
    """HSIC of linear kernels: trace(K H L H), normalised."""
    n = len(x)
    centre = torch.eye(n, dtype=torch.float64) - torch.ones(n, n, dtype=torch.float64) / n
    k, other = (centre @ (z.double() @ z.double().T) @ centre for z in (x, y))
    return float((k * other).sum() / (k.square().sum() * other.square().sum()).sqrt())


@pytest.mark.parametrize("n", [5, 40])
def test_linear_cka_against_hsic_and_under_rotation_scale_and_shift(n):
    torch.manual_seed(0)
    x, y = torch.randn(n, 12, dtype=torch.float64), torch.randn(n, 8)
    rotation = torch.linalg.qr(torch.randn(12, 12, dtype=torch.float64)).Q
    assert m.linear_cka(x, y) == pytest.approx(by_gram_matrices(x, y), abs=1e-12)
    assert m.linear_cka(x, 3 * x @ rotation + 1) == pytest.approx(1)
    assert m.linear_cka(x, y) < 0.95


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


def test_an_attack_without_a_value_says_why_and_which_side():
    """Min-K leaves out the last position, so answers of one token have no score; `s_mia` blamed retain."""
    lengths = {("forget", "model"): 1, ("holdout", "model"): 3, ("forget", "retain"): 3, ("holdout", "retain"): 1}

    class Given(Evidence):
        of_model = math.nan
        options = MetricOptions()

        def __init__(self):
            pass

        def answers(self, name, role="model"):
            rows = [torch.linspace(-2.0, -1.0, lengths[name, role])] * 2
            return SimpleNamespace(logprobs=rows, standardised=rows)

        def texts(self, name):
            return ["a", "b"]

        ids = texts

        def value(self, name):
            if math.isnan(self.of_model):
                raise Undefined("mia_min_k is NaN: told there")
            return self.of_model

    evidence = Given()
    attack = ATTACKS["mia_min_k"][1]
    found = mia(evidence, attack=attack)
    assert math.isnan(found.value) and found.reason == "no forget answer is long enough for this attack"
    assert len(found.ids) == len(found.per_example) == 4
    assert mia(evidence, attack=ATTACKS["mia_loss"][1]).reason is None
    with pytest.raises(Undefined, match="told there"):
        s_mia(evidence, attack=attack, of="mia_min_k")
    evidence.of_model = 0.5
    with pytest.raises(Undefined, match="the AUC of retain is nan: no holdout answer is long enough"):
        s_mia(evidence, attack=attack, of="mia_min_k")
