"""Runs in the layouts that Open-Unlearning's releases write."""

import inspect
import json
import math

import numpy as np
import pandas as pd
import pytest
from open_unlearning_saves import write_config

from uds_lens.errors import ConfigError, DataError, ResultFormatError, UdsLensWarning
from uds_lens.meta import ScoreParts, rank, read_open_unlearning, select, shifts, stability
from uds_lens.meta._tables import of_setup, setups

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
    return {str(i): {"prob": p, "avg_loss": x} for i, (p, x) in enumerate(zip(probabilities, losses, strict=True))}


EVAL = {
    "extraction_strength": {"agg_value": 0.25, "value_by_index": {"0": {"score": 0.5}, "1": {"score": 0.0}}},
    "forget_Q_A_PARA_Prob": {"agg_value": 0.3, "value_by_index": examples_of([[1.0, 1.4], [2.0, 2.0]])},
    "forget_Q_A_PERT_Prob": {"agg_value": 0.2, "value_by_index": examples_of([[1.0, 3.0, 2.0], [1.0, 1.0, 1.0]])},
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
    assert math.isnan(row["truth_ratio"]) and "a different quantity" in reason(table, "truth_ratio")
    assert math.isnan(row["s_mia_loss"]) and "retain=" in reason(table, "s_mia_loss")
    assert math.isnan(row["utility_rel"]) and "full=" in reason(table, "utility_rel")
    assert "jailbreak_rouge" not in row and "uds" not in row


def test_an_evaluation(tmp_path):
    table = read_open_unlearning(write(tmp_path / "run", SUMMARY, EVAL), examples=True)
    row = table.frame.iloc[0]
    by_hand = np.mean([np.exp(-c) / (np.exp(-c) + np.exp(-w)) for c, w in ((1.2, 2.0), (2.0, 1.0))])
    assert row["truth_ratio"] == pytest.approx(by_hand)
    assert (row["es"], row["mia_min_k"], row["paraprob"]) == (0.25, 0.4, 0.3)  # the evaluation comes first
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
    nan = set(table.frame.columns[table.frame.iloc[0].isna()])
    assert nan - {"lr", "epochs", "method", "config", "base", "split"} == set(table.reasons["metric"])
    others = {**EVAL, "forget_Q_A_PERT_Prob": {"value_by_index": examples_of([[1.0]])}}
    table = read_open_unlearning(write(tmp_path, evaluation=others))
    assert "different examples" in reason(table, "truth_ratio")


def test_a_folder_of_runs_with_its_references(tmp_path):
    other = RUN.replace("NPO", "RMU")
    for name, es, auc in ((RUN, 0.1, 0.3), (other, 0.3, 0.6)):
        folder = tmp_path / name / "checkpoint-80" / "evals"
        write(folder, {**SUMMARY, "extraction_strength": es, "mia_loss": auc})
    retain = write(tmp_path / "tofu_retain90" / "evals", {**SUMMARY, "mia_loss": 0.4})
    full = write(tmp_path / "tofu_full" / "evals", {**SUMMARY, "model_utility": 0.7}) / "TOFU_SUMMARY.json"
    table = read_open_unlearning(tmp_path, retain=retain, full=full, utility="model_utility")
    frame = table.frame
    assert frame["model"].tolist() == [f"{RUN}/checkpoint-80", f"{other}/checkpoint-80"]
    assert frame["method"].tolist() == ["npo", "rmu"]
    assert frame["s_mia_loss"].tolist() == pytest.approx([0.75, 0.5]) and (frame["s_mia_zlib"] == 1).all()
    assert frame["utility_rel"].tolist() == pytest.approx([0.59 / 0.7] * 2)
    unknown = set(frame.columns[frame.isna().all()])
    assert unknown == set(table.reasons["metric"]) and {"truth_ratio", "para_rouge"} <= unknown


def test_examples_fit_the_ranking(tmp_path):
    write(tmp_path / RUN, SUMMARY, EVAL)
    attack = {**EVAL["mia_min_k"], "agg_value": 1.0}
    retain = write(tmp_path / "retain", SUMMARY, {**EVAL, "mia_min_k": attack})
    table = read_open_unlearning(tmp_path, retain=retain, examples=True)
    frame = table.frame.assign(s_mia_min_k=1.0)  # its one pair is ordered as retain's
    ways = dict.fromkeys(("es", "rouge", "mia_min_k"), "knowledge")
    names = {"memorization": ("es",), "depth": "rouge", "utility": "model_utility", "direction": ways}
    # An attack is no mean; that s_mia_min_k is computed from mia_min_k is in its declaration.
    for membership, fixed in (("mia_min_k", ("mia_min_k",)), ("s_mia_min_k", ())):
        parts = ScoreParts(**names, membership=(membership,))
        assert stability(frame, examples=table.examples, parts=parts, n_resamples=20).fixed == fixed


@pytest.mark.parametrize(
    ("summary", "evaluation", "message"),
    [
        ("[1]", None, "holds a list"),
        ("{", None, "not JSON"),
        ({**SUMMARY, "mia_loss": "0.4"}, None, "'mia_loss' must be a number"),
        ({**SUMMARY, "mia_loss": [0.4]}, None, "got a list"),
        ('{"mia_loss": Infinity}', None, "must be finite"),
        (None, {"extraction_strength": {"agg_value": {"x": 1}}}, "'agg_value' must be a number"),
        (None, {**EVAL, "forget_Q_A_PERT_Prob": {"value_by_index": [1]}}, "must be an object"),
        (None, {**EVAL, "forget_Q_A_PERT_Prob": {"value_by_index": {"0": 3}}}, "object or null"),
        (None, {**EVAL, "forget_Q_A_PERT_Prob": {"value_by_index": {"0": {"avg_loss": [[1]]}}}}, "must be a number"),
    ],
)
def test_files_that_are_something_else(tmp_path, summary, evaluation, message):
    write(tmp_path, summary, evaluation)
    with pytest.raises(ResultFormatError, match=message) as error:
        read_open_unlearning(tmp_path)
    assert len(str(error.value)) < 500


def test_folders_without_runs(unchecked, tmp_path):
    with pytest.raises(ResultFormatError, match="pass an Open-Unlearning run"):
        read_open_unlearning(tmp_path)
    write(tmp_path / "a", SUMMARY)
    write(tmp_path / "b", SUMMARY)
    with pytest.raises(ResultFormatError, match=r"retain=.* holds 2 runs"):
        read_open_unlearning(tmp_path / "a", retain=tmp_path)
    with pytest.raises(ResultFormatError, match="except those of retain"):
        read_open_unlearning(tmp_path / "a", retain=tmp_path / "a")
    with pytest.raises(ConfigError, match="utility must be one of"):
        inspect.unwrap(read_open_unlearning)(tmp_path, utility="all")  # past the type checker of the tests
    assert isinstance(read_open_unlearning(tmp_path / "a" / "TOFU_SUMMARY.json").frame, pd.DataFrame)


BASES, SPLITS = ("Llama-3.2-1B-Instruct", "Llama-3.1-8B-Instruct"), ("forget05", "forget10")


def saves(root, *, evaluation=None):
    """A folder as Open-Unlearning's scripts fill it: unlearned models, retain and full, each of two bases and splits.

    Every pair has its own utility of full and AUC of retain, so that a wrong partner shows.
    """
    truth = {}
    for i, base in enumerate(BASES):
        for j, split in enumerate(SPLITS):
            utility, auc = 0.6 + 0.1 * i + 0.05 * j, 0.3 + 0.1 * i + 0.05 * j
            retain = f"tofu_{base}_retain{100 - int(split[6:])}"
            write(root / "eval" / retain, {**SUMMARY, "mia_loss": auc}, evaluation)
            full = root / "eval" / f"tofu_{base}_full" / f"evals_{split}"
            write(full, {**SUMMARY, "model_utility": utility}, evaluation)
            for method in ("NPO", "RMU"):
                task = f"tofu_{base}_{split}_{method}"
                unlearned = {**SUMMARY, "model_utility": 0.5, "mia_loss": 0.2}
                write(root / "unlearn" / task / "evals", unlearned, evaluation)
                truth[f"unlearn/{task}"] = (base, split, 0.5 / utility, 1 - (auc - 0.2) / auc)
    return truth


def test_base_models_and_splits_are_columns_and_each_run_has_its_own_references(tmp_path):
    truth = saves(tmp_path)
    asked = {"retain": tmp_path / "eval", "full": tmp_path / "eval", "utility": "model_utility"}
    frame = read_open_unlearning(tmp_path, **asked).frame.set_index("model")
    assert set(frame.index) == set(truth)  # references are no rows
    for name, (base, split, relative, closeness) in truth.items():
        row = frame.loc[name]
        assert (row["base"], row["split"]) == (base, split)
        assert (row["utility_rel"], row["s_mia_loss"]) == (pytest.approx(relative), pytest.approx(closeness))
    # a run of an unknown base has no full model of several
    write(tmp_path / "unlearn" / "my_npo_run" / "evals", {**SUMMARY, "model_utility": 0.5})
    table = read_open_unlearning(tmp_path, full=tmp_path / "eval", utility="model_utility")
    assert table.frame.set_index("model")["utility_rel"].isna().tolist().count(True) == 1
    why = table.reasons.set_index(["model", "metric"])["reason"]
    assert "several runs of full" in why["unlearn/my_npo_run", "utility_rel"]


def test_a_reference_of_another_base_or_split_is_no_reference(tmp_path):
    saves(tmp_path)
    one = tmp_path / "eval" / f"tofu_{BASES[0]}_retain90"
    full = tmp_path / "eval" / f"tofu_{BASES[0]}_full" / "evals_forget10"
    table = read_open_unlearning(tmp_path / "unlearn", retain=one, full=full, utility="model_utility")
    known = table.frame["s_mia_loss"].notna()
    assert set(table.frame[known]["base"]) == {BASES[0]} and set(table.frame[known]["split"]) == {"forget10"}
    why = table.reasons.set_index(["model", "metric"])["reason"]
    other = f"tofu_{BASES[1]}_forget05_NPO"
    reason = f"no run of retain for {BASES[1]}, forget05: there are {BASES[0]}, forget10"
    assert why[other, "s_mia_loss"] == reason
    assert "no run of full" in why[other, "utility_rel"]
    # Model Utility asks nothing of the split, fluency is that of answers to the forget set
    same = table.frame[table.frame["base"] == BASES[0]]
    assert same["utility_rel"].notna().all()
    fluent = read_open_unlearning(tmp_path / "unlearn", full=full).frame
    assert fluent[fluent["utility_rel"].notna()]["split"].unique().tolist() == ["forget10"]


def test_the_hydra_config_says_what_was_run(tmp_path):
    """In `saves/unlearn/TASK/.hydra`, with the results in `evals`; a name that says something else is not believed."""
    write(tmp_path / "mine" / "evals", SUMMARY)
    write(tmp_path / "tofu_X_forget01_NPO", SUMMARY)

    def config(split, **paths):
        model = {part: {"pretrained_model_name_or_path": path} for part, path in paths.items()}
        return {"model": model, "eval": {"tofu": {"forget_split": split}}}

    ours = {"model_args": "ou/tofu_Llama-3.2-3B-Instruct_full", "tokenizer_args": "org/Llama-3.2-3B-Instruct"}
    configs = {
        "mine": config("${forget_split}", **ours) | {"forget_split": "forget05"},
        "tofu_X_forget01_NPO": config("forget10", tokenizer_args="org/X"),
    }
    for name, content in configs.items():
        write_config(tmp_path / name, content)
    with pytest.warns(UdsLensWarning, match=r"the split is forget01 in the name but forget10 in \.hydra/config\.yaml"):
        frame = read_open_unlearning(tmp_path).frame.set_index("model")
    assert frame.loc["mine", ["base", "split"]].tolist() == ["Llama-3.2-3B-Instruct", "forget05"]
    assert frame.loc["tofu_X_forget01_NPO", ["base", "split"]].tolist() == ["X", "forget10"]
    for text in ("a: [", "x" * (2 << 20), "a: !!python/object/apply:os.system [ls]"):
        (tmp_path / "mine" / ".hydra" / "config.yaml").write_text(text)
        with pytest.raises(ResultFormatError, match="is not YAML"):
            read_open_unlearning(tmp_path / "mine")
    (tmp_path / "mine" / ".hydra" / "config.yaml").write_text("- 1")
    assert read_open_unlearning(tmp_path / "mine").frame[["base", "split"]].isna().all().all()


def test_several_base_models_are_never_ranked_as_one(tmp_path):
    saves(tmp_path)
    table = read_open_unlearning(tmp_path / "unlearn", utility="model_utility")
    names = {"memorization": ("es",), "membership": ("rouge",), "depth": "prob", "utility": "model_utility"}
    ways = {"es": "knowledge", "rouge": "knowledge", "prob": "knowledge"}
    words = r"4 different base models and splits \(Llama-3.1-8B-Instruct, forget05; .*base and split"
    for call in (rank, shifts, stability):
        with pytest.raises(DataError, match=words):
            call(table.frame, parts=ScoreParts(**names, direction=ways))
    one = select(table, base="llama-3.2-1b-instruct", split="forget05")
    assert len(one) == 2 and set(one.reasons["model"]) == set(one.frame["model"])
    assert rank(one.frame, parts=ScoreParts(**names, direction=ways))["n_configs"].tolist() == [1, 1]
    assert len(select(table, split="forget05")) == 4 and len(select(table)) == 8
    with pytest.raises(DataError, match=r"no model has Phi; the table has Llama-3\.1-8B-Instruct, forget05;"):
        select(table, base="Phi")


def test_every_group_has_the_examples_of_its_own_retain(tmp_path):
    saves(tmp_path, evaluation=EVAL)
    table = read_open_unlearning(tmp_path, retain=tmp_path / "eval", full=tmp_path / "eval", examples=True)
    for setup in setups(table.frame):
        one = of_setup(table, setup)
        assert set(one.frame["model"]) | {"retain"} <= set(one.examples["model"])
    # two runs of retain of one setup: which is meant cannot be told
    write(tmp_path / "eval" / "again" / f"tofu_{BASES[0]}_retain90", SUMMARY)
    with pytest.raises(ResultFormatError, match=r"2 runs of retain \(Llama-3.2-1B-Instruct, forget10\)"):
        read_open_unlearning(tmp_path, retain=tmp_path / "eval")


def test_muse_runs_with_the_folder_names_of_its_script(tmp_path):
    """The script evaluates into `saves/unlearn/TRAINER/evals`: which task that was is in Hydra's record alone."""
    base = "Llama-2-7b-hf"

    def muse(folder, known, kept):
        names = {"forget_knowmem_ROUGE": known, "forget_verbmem_ROUGE": known / 2, "retain_knowmem_ROUGE": kept}
        content = {name: {"agg_value": value} for name, value in names.items()} | {"mia_min_k": EVAL["mia_min_k"]}
        write(folder)
        (folder / "MUSE_EVAL.json").write_text(json.dumps(content))
        others = {"privleak": 5.0, "mia_gradnorm": 0.125, "mia_recall": 0.1}
        (folder / "MUSE_SUMMARY.json").write_text(json.dumps({**names, **others}))

    muse(tmp_path / "unlearn" / "NPO" / "evals", 0.3, 0.4)
    config = {"task_name": f"muse_{base}_News_NPO", "data_split": "News", "eval": {"muse": {"data_split": "Books"}}}
    config["model"] = {"tokenizer_args": {"pretrained_model_name_or_path": f"meta-llama/{base}"}}
    write_config(tmp_path / "unlearn" / "NPO" / "evals", config)
    for role, known in (("target", 0.6), ("retrain", 0.2)):
        muse(tmp_path / "eval" / f"muse_{base}_News_{role}", known, 0.5)
    write(tmp_path / "unlearn" / RUN / "evals", SUMMARY)
    table = read_open_unlearning(tmp_path, utility="model_utility")
    row = table.frame.set_index("model").loc["unlearn/NPO"]
    assert (row["base"], row["split"], row["method"]) == (base, "News", "npo")
    assert (row["forget_verbmem_rouge"], row["utility_rel"], row["s_mia_min_k"]) == (0.15, pytest.approx(0.8), 1)
    assert table.references["role"].tolist() == ["retain", "full"]
    assert any("mia_recall" in note for note in table.notes) and row["mia_gradnorm"] == 0.125
    why = table.reasons.set_index(["model", "metric"])["reason"]
    assert why["unlearn/NPO", "model_utility"] == "not among the results of this run"
    parts = ScoreParts.preset("open_unlearning_muse")
    scored = select(table, split="News").frame.assign(es=0.2, uds=0.5)
    assert rank(scored, parts=parts)["score_with"].item() > 0


def test_results_of_lm_evaluation_harness(tmp_path):
    task = tmp_path / "unlearn" / RUN
    write(task / "evals", SUMMARY)
    (task / "evals" / "LMEval_SUMMARY.json").write_text('{"mmlu/acc": 0.4, "mmlu/acc_stderr": 0.01, "mmlu/alias": "m"}')
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "LMEval_SUMMARY.json").write_text("{}")
    write(tmp_path / "unlearn" / RUN.replace("NPO", "RMU"), SUMMARY)
    table = read_open_unlearning(tmp_path)
    assert table.frame.set_index("model").loc[f"unlearn/{RUN}", "mmlu/acc"] == 0.4
    assert "mmlu/acc_stderr" not in table.frame.columns
    assert "not read: 1 LMEval_SUMMARY.json that belong to no run" in table.notes
    without = table.reasons[table.reasons["metric"] == "mmlu/acc"]
    assert set(without["model"]) == {f"unlearn/{RUN.replace('NPO', 'RMU')}"}
