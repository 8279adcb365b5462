"""Frames, analyses, warnings and the notebook card, from audits made by hand."""

import json
import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pandas as pd
import pytest
import torch
from altered_results import baseline
from results.conftest import NAN, made
from scipy.stats import rankdata

from uds_lens.data import SkippedExample
from uds_lens.errors import ConfigError, UdsLensWarning
from uds_lens.results import (
    AuditConfig,
    clip_shares,
    ke_counts,
    length_correlation,
    models_frame,
    spearman,
    tau_rank_correlation,
    tau_sweep,
    types_frame,
)
from uds_lens.results._statistics import rank_correlation

S1 = [[0.0, 1.0, 3.0], [0.02, 0.01, 0.0], [2.0, 0.0, 2.0]]
S2 = [[5.0, 0.5, 3.0], [1.0, 1.0, 1.0], [-1.0, 0.0, 4.0]]
DELTAS = ("s1_delta", "s2_delta", "s1_cosine", "s2_cosine", "s1_norm_ratio", "s2_norm_ratio")
TYPE_COLUMNS = ["type", "n", "n_measured", "n_tokens_mean", "n_ke_mean", "uds", "uds_low", "uds_high"]


@pytest.fixture
def audit():
    return made(S1, S2, types=["Name", "Name", "Award"], n_tokens=[2, 5, 3], skipped=1)


def column(frame, name):
    return [None if pd.isna(value) else value for value in frame[name].tolist()]


def test_the_long_frame(audit):
    frame = audit.to_frame()
    names = ["example_id", "row", "layer", "s1_delta", "s2_delta", "ke", "ler", "ler_raw", "weight"]
    assert list(frame) == names and len(frame) == 9
    rows = [(f"e{i}", 10 * i, layer) for i in range(3) for layer in range(3)]
    assert list(frame[["example_id", "row", "layer"]].itertuples(index=False, name=None)) == rows
    assert frame["s1_delta"].tolist() == [value for row in S1 for value in row]
    assert frame["s2_delta"].tolist() == [value for row in S2 for value in row]
    assert frame["ke"].tolist() == [False, True, True, False, False, False, True, False, True]
    assert column(frame, "ler") == [None, 0.5, 1.0, None, None, None, 0.0, None, 1.0]
    assert column(frame, "ler_raw") == [None, 0.5, 1.0, None, None, None, -0.5, None, 2.0]
    assert column(frame, "weight") == [None, 0.25, 0.75, None, None, None, 0.5, None, 0.5]
    assert frame["ke"].dtype == bool and frame["ler"].dtype == float
    scores = (frame["weight"] * frame["ler"]).groupby(frame["example_id"]).sum(min_count=1)
    assert scores.dropna().tolist() == [0.875, 0.5]


def test_the_examples_frame(audit):
    frame = audit.examples_frame()
    assert list(frame) == [
        *("example_id", "row", "type", "subject", "question", "answer", "prefix", "entity", "n_tokens"),
        *("s_full", "s_unlearned", "s_retain", "output_depth", "space_added", "n_ke", "first_ke", "last_ke"),
        *("first_erased", "last_erased", "uds", "reason"),
    ]
    assert frame["example_id"].tolist() == ["e0", "e1", "e2"]
    assert frame["question"].tolist() == ["Q0?", "Q1?", "Q2?"]
    assert frame["n_tokens"].tolist() == [2, 5, 3] and frame["n_ke"].tolist() == [2, 0, 2]
    assert column(frame, "first_ke") == [1, None, 0] and column(frame, "last_ke") == [2, None, 2]
    assert column(frame, "first_erased") == [1, None, 2] and column(frame, "last_erased") == [2, None, 2]
    assert column(frame, "uds") == [0.875, None, 0.5]
    why = "no layer where full encodes more than retain (S1 <= tau)"
    assert column(frame, "reason") == [None, why, None]
    assert str(frame["first_ke"].dtype) == str(frame["last_erased"].dtype) == "Int64"


def test_the_layers_frame(audit):
    frame = audit.layers_frame()
    statistics = ("mean", "std", "q25", "q75", "low", "high")
    assert list(frame) == [
        *("layer", "ke_share", "n_ke", "n_s2"),
        *(f"{name}_{statistic}" for name in ("s1", "s2", "ler") for statistic in statistics),
        *("over_share", "negative_share", "s1_norm_ratio", "s1_cosine", "s2_norm_ratio", "s2_cosine"),
    ]
    assert frame["n_ke"].tolist() == [1, 1, 2] and frame["n_s2"].tolist() == [3, 3, 3]
    assert frame["ke_share"].tolist() == pytest.approx([1 / 3, 1 / 3, 2 / 3])
    assert frame["s1_mean"].tolist() == pytest.approx([2.02 / 3, 1.01 / 3, 5 / 3])
    assert frame["s1_q25"].tolist() == pytest.approx([0.01, 0.005, 1.0])
    assert column(frame, "ler_mean") == [0.0, 0.5, 1.0]
    assert column(frame, "ler_std") == [None, None, 0.0]
    assert frame["over_share"].tolist() == [0.0, 0.0, 0.5]
    assert frame["negative_share"].tolist() == [1.0, 0.0, 0.0]
    assert frame["s2_cosine"].tolist() == [1.0, 1.0, 1.0]
    frame["s1_mean"] = 0.0
    assert audit.layers_frame()["s1_mean"].min() > 0, "computed once, given as a copy"


def test_frames_of_an_audit_without_a_scored_example():
    empty = made([], [], skipped=2, **dict.fromkeys(DELTAS, torch.empty(0, 3, dtype=torch.float64)))
    assert len(empty.to_frame()) == len(empty.examples_frame()) == 0
    frame = empty.layers_frame()
    assert frame["n_ke"].tolist() == [0, 0, 0]
    assert frame[["s1_mean", "ler_mean", "over_share", "s2_cosine"]].isna().all().all()
    assert list(empty.types_frame()) == TYPE_COLUMNS
    assert empty.skipped_frame()["id"].tolist() == ["s0", "s1"]
    assert math.isnan(empty.uds) and empty.tau_sweep()["uds"].isna().all()
    assert "No example could be scored." in empty.warnings and empty.summary()["n_examples"] == 2
    assert "not measurable" in empty._repr_html_() and "none (mean over" in baseline(empty)._repr_html_()


def test_the_tau_sweep(audit):
    frame = tau_sweep(audit, [0.0, 0.05, 1.5, 10.0])
    assert list(frame) == [
        *("tau", "ke_mean", "ke_std", "ke_min", "ke_max", "ke_median", "n_measured", "n_not_measurable", "uds")
    ]
    assert frame["ke_mean"].tolist() == pytest.approx([2.0, 4 / 3, 1.0, 0.0])
    assert frame["ke_min"].tolist() == [2, 0, 0, 0] and frame["ke_median"].tolist() == [2, 2, 1, 0]
    assert frame["n_measured"].tolist() == [3, 2, 2, 0]
    assert frame["n_not_measurable"].tolist() == [0, 1, 1, 3]
    assert column(frame, "uds") == pytest.approx([(0.875 + 1.0 + 0.5) / 3, 0.6875, 0.75, None])
    assert tau_sweep(audit)["tau"].tolist() == [0.0, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5]


def test_how_many_examples_have_how_many_layers(audit):
    frame = ke_counts(audit, [0.0, 0.05, 1.5, 10.0])
    assert frame.to_dict("list") == {0.0: [0, 0, 3, 0], 0.05: [1, 0, 2, 0], 1.5: [1, 1, 1, 0], 10.0: [3, 0, 0, 0]}
    sizes = audit.ke_mask.sum(-1)
    assert ke_counts(audit)[audit.config.tau].tolist() == [int((sizes == n).sum()) for n in range(4)]


def test_the_ranking_of_models_over_tau():
    audits = {str(x): made([[1.0, 0.2]], [[x, 0.2 * (1 - x)]]) for x in (0.1, 0.5, 0.9)}
    frame = tau_rank_correlation(audits, [0.05, 0.5, 3.0])
    assert list(frame) == ["tau", "rho", "n_models", "uds_mean", "largest_change"]
    assert column(frame, "rho") == pytest.approx([1.0, 1.0, None])
    assert frame["n_models"].tolist() == [3, 3, 0]
    assert column(frame, "uds_mean") == pytest.approx([0.5, 0.5, None])
    assert column(frame, "largest_change") == pytest.approx([0.0, 0.9 - 0.92 / 1.2, None])
    with pytest.raises(ConfigError, match="needs at least 3 audits; got 2"):
        tau_rank_correlation(dict(list(audits.items())[:2]))


def test_types(audit):
    frame = types_frame(audit)
    assert list(frame) == TYPE_COLUMNS
    assert frame["type"].tolist() == ["Award", "Name"]
    assert frame["n"].tolist() == [1, 2] and frame["n_measured"].tolist() == [1, 1]
    assert frame["n_tokens_mean"].tolist() == [3.0, 3.5] and frame["uds"].tolist() == [0.5, 0.875]
    assert frame["uds_low"].isna().all()
    with pytest.warns(UdsLensWarning, match=r"No example has a `type`.*annotate\(examples, by='answer'\)"):
        assert types_frame(made(S1, S2))["type"].tolist() == ["(none)"]
    assert sorted(types_frame(made(S1, S2, types=["Name", None, None]))["type"]) == ["(none)", "Name"]
    last = types_frame(made(S1, S2, types=["a", "b", "c"]))
    assert last["type"].tolist() == ["c", "a", "b"] and math.isnan(last["uds"].iloc[-1]), "not measurable"


def test_correlations():
    growing = made([[1.0]] * 4, [[0.1], [0.2], [0.4], [0.3]])
    assert length_correlation(growing).rho == pytest.approx(0.8) and length_correlation(growing).n == 4
    assert math.isnan(spearman([1, 2], [1, 2]).rho) and math.isnan(spearman([1, 1, 1], [1, 2, 3]).rho)
    assert spearman([3, 2, 1, NAN], [1, 2, 3, 4]) == pytest.approx((-1.0, 1 / 3, 3)), "2 of 6 orders"
    assert rank_correlation([3, 2, 1, NAN], [1, 2, 3, 4]) == pytest.approx(-1.0)


def test_the_p_value_of_a_correlation_is_that_of_all_orders():
    left, right = [1, 2, 2, 4, 5, 7], [2, 1, 3, 3, 9, 4]
    ranks = [rankdata(values) for values in (left, right)]
    every = np.array([np.corrcoef(order, ranks[1])[0, 1] for order in permutations(ranks[0])])
    found = spearman(left, right)
    above = (every >= found.rho - 1e-12).mean()
    assert found.p_value == pytest.approx(min(1.0, 2 * min(above, (every <= found.rho + 1e-12).mean())))
    # random orders and the t distribution meet where one takes over from the other
    draw = np.random.default_rng(0)
    one = draw.normal(size=101)
    other = 0.2 * one + draw.normal(size=101)
    near, far = (spearman(one[:n].tolist(), other[:n].tolist()).p_value for n in (100, 101))
    assert 0.01 < near < 0.9 and near == pytest.approx(far, abs=0.03)
    assert spearman(list(range(30)), list(range(30))).p_value > 0


def test_a_correlation_over_rows_that_share_subjects_is_tested_over_subjects():
    """Forty rows of two subjects say no more than two: the p-value of independent rows was tiny."""
    n = 40
    audit = made(
        [[1.0]] * n, [[0.1 + 0.8 * (i >= n // 2)] for i in range(n)], n_tokens=[1 + (i >= n // 2) for i in range(n)]
    )
    assert length_correlation(audit).p_value < 0.001
    about = [replace(example, subject=f"s{i >= n // 2}") for i, example in enumerate(audit.examples)]
    told = length_correlation(replace(audit, examples=tuple(about)))
    assert told.rho == pytest.approx(1.0) and told.p_value == 0.5, "2 of 4 sign patterns"


def test_clip_shares():
    uneven = made([[1.0, 1.0, 0.0], [1.0, 1.0, 2.0]], [[1.5, 1.0, 5.0], [-0.1, 2.0, 0.0]])
    assert clip_shares(uneven) == pytest.approx(
        {"over_layers": 0.4, "negative_layers": 0.2, "over_examples": 0.5, "negative_examples": 0.0}
    )
    both = made([[1.0], [1.0], [0.0]], [[2.0], [-1.0], [9.0]])
    assert clip_shares(both)["over_examples"] == clip_shares(both)["negative_examples"] == 0.5
    assert all(map(math.isnan, clip_shares(made([[0.0]], [[1.0]])).values()))


def test_the_summary_is_plain(audit):
    summary = audit.summary()
    json.dumps(summary)
    assert summary["uds"] == 0.6875 and summary["ke_layers_mean"] == pytest.approx(4 / 3)
    counts = [summary[f"n_{name}"] for name in ("examples", "measured", "not_measurable", "skipped")]
    assert counts == [4, 2, 1, 1]
    assert (summary["uds_low"], summary["uds_high"]) == tuple(audit.uds_interval)
    assert summary["config"] == audit.config.to_dict()
    assert summary["warnings"] == list(audit.warnings)
    assert summary["warning_marks"] == [caution.mark for caution in audit.cautions]


# Warnings.

MANY = 40
KNOWN = [[1.0, 1.0]] * MANY
HALF = [[0.5, 0.5]] * MANY
SWAPPED = ([[0.06, -3.0]] * 24 + KNOWN[:16], [[0.03, 0.0]] * 24 + HALF[:16])
"""On 24 of 40 examples retain's states help, on the mean over layers, although one layer costs more than tau."""


def lines(value):
    return torch.full((MANY, 2), value, dtype=torch.float64)


UNKNOWN = torch.full((MANY,), -3.0, dtype=torch.float64)
SAME = "retain and the audited model have identical weights."


@pytest.mark.parametrize(
    ("audit", "words", "mark"),
    [
        (lambda: made(KNOWN, KNOWN, prints={"unlearned": "r" * 32}), SAME, "retain = unlearned"),
        (lambda: made(KNOWN, HALF, prints={"retain": "f" * 32}), "full and retain have identical", "full = retain"),
        (lambda: made([[0.0, 0.0]] * MANY, HALF), "No example is measurable: patching", "not measurable"),
        (lambda: made(KNOWN[:5], HALF[:5]), "Only 5 examples are measurable", "5 measurable"),
        (
            lambda: made(KNOWN + [[0.0, 0.0]] * 20, HALF + [[0.0, 0.0]] * 20),
            "20 of 60 examples are not measurable",
            "33% not measurable",
        ),
        (lambda: made(KNOWN, HALF, skipped=3), "3 of 43 rows were skipped: no entity is given (3)", "3 skipped"),
        (lambda: made(*SWAPPED), "Are full and retain swapped? On 60% of", "full and retain swapped?"),
        (lambda: made(KNOWN, HALF, s_full=UNKNOWN), "full hardly knows the forget", "hardly known to full"),
        (lambda: made(KNOWN, [[-0.2, 0.5]] * MANY), "On 50% of the knowledge-encoding", "50% negative LER"),
        (lambda: made(KNOWN, HALF, s2_cosine=lines(0.4)), "Off-distribution patches", "off-distribution"),
        (lambda: made(KNOWN, HALF, s2_norm_ratio=lines(2.5)), "Off-distribution patches", "off-distribution"),
        (lambda: made(KNOWN, HALF, s2_norm_ratio=lines(0.3)), "Off-distribution patches", "off-distribution"),
        (lambda: made(KNOWN, HALF, config=AuditConfig(dtype="bfloat16")), "Measured in bfloat16", "bfloat16"),
    ],
)
def test_each_warning_has_its_cause(audit, words, mark):
    (caution,) = audit().cautions
    assert caution.text.startswith(words) and caution.text.endswith(".")
    assert caution.mark == mark


def test_tables_of_models_name_prompts_and_mark_cautions():
    chat = AuditConfig(protocol="chat", n_bootstrap=200)
    plain, off = made(KNOWN, HALF, skipped=1), made(KNOWN, HALF, s2_cosine=lines(0.4), config=chat)
    frame = models_frame({"plain": plain, "off": off})
    assert frame["prompts"].tolist() == ["raw", "chat template"]
    assert frame["marks"].tolist() == ["", "off-distribution"], "notes do not mark a row"
    assert "chat template" in off._repr_html_()


def test_reasons_of_skipped_rows_are_counted_without_their_texts():
    reasons = [
        "No entity is given.",
        "The entity 'it\\'s \"x\"' occurs 2 times in the answer and no prefix says which one is meant.",
        "The entity 'Ada' occurs 3 times in the answer and no prefix says which one is meant.",
        "The row needs 700 tokens up to its entity, more than the tokenizer's limit (model_max_length) of 512.",
    ]
    rows = tuple(SkippedExample(str(i), i, reason, "Q?") for i, reason in enumerate(reasons))
    (sentence,) = replace(made(KNOWN, HALF), skipped=rows).warnings
    assert sentence == (
        "4 of 44 rows were skipped: the entity ... occurs ... times in the answer and no prefix says which one is "
        "meant (2); no entity is given (1); the row needs ... tokens up to its entity, more than the tokenizer's limit "
        "(model_max_length) of 512 (1)."
    )


def test_warnings_come_most_serious_first():
    config = AuditConfig(dtype="float16")
    audit = made([[0.0]], [[0.0]], skipped=1, prints={"unlearned": "f" * 32}, config=config)
    assert [sentence.split()[0] for sentence in audit.warnings] == ["No", "full", "1", "Measured"]
    assert [caution.level for caution in audit.cautions] == ["fatal", "note", "note", "note"]
    assert audit.summary()["equal_weights"] == [["full", "unlearned"]] and made(S1, S2).equal_weights == []


def test_cards_name_the_numbers_and_escape_foreign_texts(audit):
    card = baseline(audit)._repr_html_()
    assert "models/full" in card and "models/retain" in card and "2 of 4 examples" in card
    assert "1.3 of 3 (mean over examples, S1 &gt; 0.05)" in card
    html = audit._repr_html_()
    assert "<b>0.688</b>" in html and "95% CI" in html and "2 of 4 examples" in html
    assert all(sentence.split(":")[0] in html for sentence in audit.warnings) and audit.warnings
    assert "99.5% CI" in made(S1, S2, config=AuditConfig(confidence=0.995, n_bootstrap=200))._repr_html_()
    assert "<b>not measurable</b>" in made([[0.0]], [[0.0]])._repr_html_()
    hostile = dict.fromkeys(("full", "unlearned"), "<script>alert(1)</script>&")
    for card in (made(S1, S2, names=hostile), baseline(made(S1, S2, names=hostile))):
        assert "<script>" not in card._repr_html_()
        assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;" in card._repr_html_()
