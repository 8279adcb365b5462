"""Runs in the layouts that Open-Unlearning's releases write."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from uds_lens.errors import ConfigError, ResultFormatError
from uds_lens.meta import ScoreParts, rank, read_open_unlearning, stability

RUN = "tofu_Llama-3.2-1B-Instruct_forget10_NPO_lr2e-05_beta0.1_alpha1_epoch10"
SUMMARY = {
    "exact_memorization": 0.6,
    "extraction_strength": 0.06,
    "forget_Q_A_PARA_Prob": 0.05,
    "forget_Q_A_Prob": 0.12,
    "forget_Q_A_ROUGE": 0.38,
    "forget_Q_A_gibberish": 0.9,
    "forget_quality": 0.99,
    "forget_truth_ratio": 0.63,
    "mia_loss": 0.39,
    "mia_min_k": 0.38,
    "mia_min_k_plus_plus": 0.48,
    "mia_zlib": 0.31,
    "model_utility": 0.59,
    "privleak": 0.08,
    "ra_Q_A_PERT_Prob": 0.006,  # older releases list the parts too
    "ra_Q_A_Prob_normalised": 0.39,
    "retain_Truth_Ratio": 0.51,
}


def examples_of(losses):
    probabilities = [None if x is None else np.exp(-np.mean(x)).item() for x in losses]
    return {
        str(i): {"prob": p, "avg_loss": x} for i, (p, x) in enumerate(zip(probabilities, losses, strict=True))
    }


EVAL = {
    "extraction_strength": {"agg_value": 0.25, "value_by_index": {"0": {"score": 0.5}, "1": {"score": 0.0}}},
    "forget_Q_A_PARA_Prob": {"agg_value": 0.3, "value_by_index": examples_of([[1.0, 1.4], [2.0, 2.0]])},
    "forget_Q_A_PERT_Prob": {
        "agg_value": 0.2,
        "value_by_index": examples_of([[1.0, 3.0, 2.0], [1.0, 1.0, 1.0]]),
    },
    "forget_Q_A_ROUGE": {
        "agg_value": 0.4,
        "value_by_index": {"0": {"rougeL_recall": 0.4, "generation": "<script>alert(1)</script>"}},
    },
    "forget_truth_ratio": {"agg_value": 0.77, "value_by_index": {"0": {"score": 0.5}}},
    "mia_min_k": {
        "forget": {"agg_value": 1.0, "value_by_index": {"0": {"score": 2.0}}},
        "holdout": {"agg_value": 1.0, "value_by_index": {"0": {"score": 3.0}}},
        "auc": 0.4,
        "agg_value": 0.4,
    },
    "model_utility": {"agg_value": 0.6},
    "mia_loss": {"agg_value": None},
}


def write(folder, summary=None, evaluation=None):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("TOFU_SUMMARY.json", summary), ("TOFU_EVAL.json", evaluation)):
        if content is not None:
            (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def reason(table, metric):
    return table.reasons.set_index("metric")["reason"][metric]


def test_a_summary_alone(tmp_path):
    table = read_open_unlearning(write(tmp_path / RUN / "evals", SUMMARY))
    (row,) = table.frame.to_dict("records")
    assert row["model"] == RUN and row["method"] == "npo" and (row["lr"], row["epochs"]) == (2e-5, 10)
    assert row["config"] == "lr2e-05_beta0.1_alpha1_epoch10"
    assert (row["es"], row["em"], row["mia_min_kpp"], row["fluency"]) == (0.06, 0.6, 0.48, 0.9)
    assert row["utility"] == pytest.approx(2 / (1 / 0.59 + 1 / 0.9))
    assert math.isnan(row["truth_ratio"]) and "another quantity" in reason(table, "truth_ratio")
    assert math.isnan(row["s_mia_loss"]) and "retain=" in reason(table, "s_mia_loss")
    assert math.isnan(row["utility_rel"]) and "full=" in reason(table, "utility_rel")
    assert "jailbreak_rouge" not in row and "uds" not in row


def test_an_evaluation(tmp_path):
    table = read_open_unlearning(write(tmp_path / "run", SUMMARY, EVAL), examples=True)
    row = table.frame.iloc[0]
    by_hand = np.mean([np.exp(-c) / (np.exp(-c) + np.exp(-w)) for c, w in ((1.2, 2.0), (2.0, 1.0))])
    assert row["truth_ratio"] == pytest.approx(by_hand)
    assert (row["es"], row["mia_min_k"], row["paraprob"]) == (
        0.25,
        0.4,
        0.3,
    )  # the evaluation before the summary
    assert row["mia_loss"] == 0.39  # null there: the summary's
    long = table.examples.set_index(["metric", "example_id"])["value"]
    assert long["paraprob", "0"] == pytest.approx(np.exp(-1.2)) and long["mia_min_k", "holdout/0"] == 3.0
    assert long["rouge", "0"] == 0.4 and long["truth_ratio"].mean() == pytest.approx(by_hand)


def test_nulls_have_reasons(tmp_path):
    broken = {
        **EVAL,
        "forget_Q_A_PARA_Prob": {"agg_value": None, "value_by_index": examples_of([[1.0, 1.4], None])},
        "extraction_strength": {"value_by_index": {"0": None}},
        "model_utility": {"agg_value": float("nan")},
    }
    table = read_open_unlearning(write(tmp_path, evaluation=broken))
    row = table.frame.iloc[0]
    assert row["truth_ratio"] == pytest.approx(1 / (1 + np.exp(1.2 - 2.0)))  # of the example that has both
    assert math.isnan(row["paraprob"])
    assert reason(table, "paraprob") == "forget_Q_A_PARA_Prob has no value in TOFU_EVAL.json"
    assert math.isnan(row["es"]) and math.isnan(row["model_utility"]) and math.isnan(row["em"])
    assert "does not measure it by default" in reason(table, "em")
    nan = set(table.frame.columns[table.frame.iloc[0].isna()]) - {"lr", "epochs", "method", "config"}
    assert nan == set(table.reasons["metric"])
    others = {**EVAL, "forget_Q_A_PERT_Prob": {"value_by_index": examples_of([[1.0]])}}
    assert "different examples" in reason(
        read_open_unlearning(write(tmp_path, evaluation=others)), "truth_ratio"
    )


def test_a_folder_of_runs_with_its_references(tmp_path):
    for name, es, auc in ((RUN, 0.1, 0.3), (RUN.replace("NPO", "RMU"), 0.3, 0.6)):
        write(
            tmp_path / name / "checkpoint-80" / "evals",
            {**SUMMARY, "extraction_strength": es, "mia_loss": auc},
        )
    retain = write(tmp_path / "tofu_retain90" / "evals", {**SUMMARY, "mia_loss": 0.4})
    full = write(tmp_path / "tofu_full" / "evals", {**SUMMARY, "model_utility": 0.7}) / "TOFU_SUMMARY.json"
    table = read_open_unlearning(tmp_path, retain=retain, full=full, utility="model_utility")
    frame = table.frame
    assert frame["model"].tolist() == [f"{RUN}/checkpoint-80", f"{RUN.replace('NPO', 'RMU')}/checkpoint-80"]
    assert frame["method"].tolist() == ["npo", "rmu"]
    assert frame["s_mia_loss"].tolist() == pytest.approx([0.75, 0.5]) and (frame["s_mia_zlib"] == 1).all()
    assert frame["utility_rel"].tolist() == pytest.approx([0.59 / 0.7] * 2)
    unknown = set(frame.columns[frame.isna().all()])
    assert unknown == set(table.reasons["metric"]) and {"truth_ratio", "para_rouge"} <= unknown
    parts = ScoreParts(memorization=("es", "em"), membership=("s_mia_loss", "s_mia_zlib"), depth="mine")
    ways = {
        "es": "knowledge",
        "em": "knowledge",
        **dict.fromkeys(("s_mia_loss", "s_mia_zlib", "mine"), "erasure"),
    }
    ranked = rank(frame.assign(mine=0.5), parts=parts, direction=ways)
    assert ranked["method"].tolist() == ["npo", "rmu"]


def test_examples_fit_the_ranking(tmp_path):
    write(tmp_path / RUN, SUMMARY, EVAL)
    table = read_open_unlearning(tmp_path, examples=True)
    parts = ScoreParts(
        memorization=("es",), membership=("mia_min_k",), depth="rouge", utility="model_utility"
    )
    ways = dict.fromkeys(parts.metrics, "knowledge")
    found = stability(table.frame, examples=table.examples, parts=parts, direction=ways, n_resamples=20)
    assert found.fixed == ("mia_min_k",)  # an attack is no mean


def test_attacks_of_retain_come_along(tmp_path):
    write(tmp_path / RUN, SUMMARY, EVAL)
    retain = write(
        tmp_path / "retain", SUMMARY, {**EVAL, "mia_min_k": {**EVAL["mia_min_k"], "agg_value": 1.0}}
    )
    table = read_open_unlearning(tmp_path, retain=retain, examples=True)
    frame = table.frame.assign(s_mia_min_k=1.0)  # its one pair is ordered as retain's
    parts = ScoreParts(
        memorization=("es",), membership=("s_mia_min_k",), depth="rouge", utility="model_utility"
    )
    ways = {"es": "knowledge", "rouge": "knowledge"}
    found = stability(frame, examples=table.examples, parts=parts, direction=ways, n_resamples=20)
    assert found.fixed == ()  # that s_mia_min_k is made of mia_min_k is in its declaration


@pytest.mark.parametrize(
    ("summary", "evaluation", "message"),
    [
        ("[1]", None, "holds a list"),
        ("{", None, "no JSON"),
        ({**SUMMARY, "mia_loss": "0.4"}, None, "'mia_loss' must be a number"),
        ({**SUMMARY, "mia_loss": [0.4]}, None, "got a list"),
        ('{"mia_loss": Infinity}', None, "must be finite"),
        (None, {"extraction_strength": {"agg_value": {"x": 1}}}, "'agg_value' must be a number"),
        (None, {**EVAL, "forget_Q_A_PERT_Prob": {"value_by_index": [1]}}, "must be an object"),
        (None, {**EVAL, "forget_Q_A_PERT_Prob": {"value_by_index": {"0": 3}}}, "object or null"),
        (
            None,
            {**EVAL, "forget_Q_A_PERT_Prob": {"value_by_index": {"0": {"avg_loss": [[1]]}}}},
            "must be a number",
        ),
    ],
)
def test_files_that_are_something_else(tmp_path, summary, evaluation, message):
    write(tmp_path, summary, evaluation)
    with pytest.raises(ResultFormatError, match=message) as error:
        read_open_unlearning(tmp_path)
    assert len(str(error.value)) < 500


def test_folders_without_runs(tmp_path):
    with pytest.raises(ResultFormatError, match="name a run"):
        read_open_unlearning(tmp_path)
    write(tmp_path / "a", SUMMARY)
    write(tmp_path / "b", SUMMARY)
    with pytest.raises(ResultFormatError, match=r"retain=.* holds 2 runs"):
        read_open_unlearning(tmp_path / "a", retain=tmp_path)
    with pytest.raises(ResultFormatError, match="beside those of retain"):
        read_open_unlearning(tmp_path / "a", retain=tmp_path / "a")
    with pytest.raises(ConfigError, match="utility must be one of"):
        read_open_unlearning(tmp_path, utility="all")
    assert isinstance(read_open_unlearning(tmp_path / "a" / "TOFU_SUMMARY.json").frame, pd.DataFrame)
