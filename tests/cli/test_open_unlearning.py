"""Folders of Open-Unlearning runs on the command line: rank, meta, dashboard, table."""

import json
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from open_unlearning_saves import BASES, METHODS, SPLITS, evaluation, write_config, write_run, write_saves

from uds_lens._cli.metrics import _as_open_unlearning
from uds_lens.data import CHAT_STYLES
from uds_lens.metrics import METRICS, MetricOptions

PRESET = ("--preset", "open-unlearning")


@pytest.fixture(scope="module")
def saves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_saves(tmp_path_factory.mktemp("ou") / "saves")
    write_config(root / "unlearn" / "tofu_lost", {"mode": "unlearn"})
    write_config(root / "finetune" / "tofu_trained", {"mode": "train"})
    return root


@pytest.fixture(scope="module")
def without_depth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_saves(tmp_path_factory.mktemp("ou") / "saves", uds=False)


@pytest.mark.long
def test_rank_at_once_pools_nothing_and_says_what_is_left_out(saves: Path, uds_lens) -> None:
    code, out, err = uds_lens("rank", saves, *PRESET, "--resamples", 20, "--json")
    assert code == 0
    setups = {each["setup"]: each["methods"] for each in json.loads(out)["setups"]}
    assert set(setups) == {f"{base}, {split}" for base in BASES for split in SPLITS}
    for rows in setups.values():
        assert [row["n_configs"] for row in rows] == [1] * 4  # neither other setups, nor the checkpoint before training
        assert [row["method"] for row in rows] == [name.lower() for name in METHODS]  # from little known to much
        assert [row["depth"] for row in rows] == sorted((row["depth"] for row in rows), reverse=True)
        assert all(0.89 < row["utility_rel"] < 0.91 for row in rows)  # of the full of this base model and split
    told = " ".join(err.split())
    assert "used as the full reference and therefore not ranked: tofu_Llama" in told
    assert "used as the retain reference" in told
    assert "intermediate checkpoints, left out" in told and "this library has no such metrics: mia_recall" in told
    assert "without results: tofu_lost" in told and "tofu_trained" not in told
    one = json.loads(uds_lens("rank", saves, *PRESET, "--base", BASES[0], "--split", "forget10", "--json").out)
    assert len(one["methods"]) == 4 and one["p_first"]


def test_rank_of_the_folder_of_the_unlearned_models_finds_the_references_beside_it(saves: Path, uds_lens) -> None:
    words = (*PRESET, "--base", BASES[1], "--split", "forget05", "--resamples", 20, "--json")
    both = [json.loads(uds_lens("rank", place, *words).out)["methods"] for place in (saves, saves / "unlearn")]
    assert [row["score_with"] for row in both[0]] == [row["score_with"] for row in both[1]]


def test_rank_without_depth_says_so(without_depth: Path, uds_lens) -> None:
    code, out, _ = uds_lens("rank", without_depth, *PRESET, "--base", BASES[0], "--split", "forget10")
    told = " ".join(out.split())
    assert code == 0 and "no uds: ranked without depth" in told and "4 models, ranked without depth" in told
    words = ("--base", BASES[0], "--split", "forget10", "--resamples", 20, "--json")
    rows = json.loads(uds_lens("rank", without_depth, *PRESET, *words).out)["methods"]
    assert all(row["score_without"] > 0 and row["score_with"] is None and row["depth"] is None for row in rows)


def test_meta_judges_the_pools_of_each_setup(saves: Path, uds_lens, tmp_path) -> None:
    """Open-Unlearning's own models with and without the knowledge, by their names."""
    root = shutil.copytree(saves / "eval", tmp_path / "saves" / "eval").parent
    rng = np.random.default_rng(0)
    for base in BASES[:2]:
        for side, variant, level in (("pos", "full", 0.8), ("neg", "retain90", 0.2)):
            for rate in ("1e-05", "2e-05", "5e-05"):
                name = f"{side}_tofu_{base}_{variant}_lr{rate}_wd0.01_epoch5"
                content = evaluation(level, utility=0.5, auc=level, rng=rng)
                write_run(root / "eval" / name / "evals_forget10", content)
    told = json.loads(uds_lens("meta", root, *PRESET, "--metric", "es", "--metric", "prob", "--json").out)
    found = {each["setup"]: each["faithful"] for each in told["setups"]}
    assert found.keys() == {f"{base}, forget10" for base in BASES[:2]}
    assert all((row["auc"], row["n_p"], row["n_n"]) == (1, 3, 3) for rows in found.values() for row in rows)


@pytest.mark.long
def test_dashboard_writes_a_page_for_each_setup(saves: Path, uds_lens, tmp_path) -> None:
    words = ("dashboard", saves, *PRESET, "--base", BASES[0], "--out", tmp_path / "d.html")
    code, out, _ = uds_lens(*words)
    pages = {f"d_{BASES[0]}_{split}.html" for split in SPLITS}
    assert code == 0 and {file.name for file in tmp_path.iterdir()} == pages and out.count("4 models in") == 2
    text = (tmp_path / f"d_{BASES[0]}_forget10.html").read_text()
    assert f"tofu_{BASES[0]}_full" in text and "forget05_NPO" not in text


def test_metrics_are_those_of_the_defaults_with_their_prompts() -> None:
    names, options = _as_open_unlearning(None, MetricOptions(), True)
    assert {"es", "paraprob", "truth_ratio", "s_mia_min_k", "model_utility"} <= set(names) <= set(METRICS)
    assert options.chat == CHAT_STYLES["open_unlearning"]
    own = MetricOptions(system_prompt="Mine.")
    assert _as_open_unlearning(["em"], own, False) == (["em"], own)


def test_table_has_a_row_per_model_in_three_formats(saves: Path, uds_lens, tmp_path) -> None:
    code, _, _ = uds_lens("table", saves, *PRESET, "--out", tmp_path / "t.csv")
    frame = pd.read_csv(tmp_path / "t.csv")
    assert code == 0 and len(frame) == 24 + 12
    models = frame[frame["method"].isin([name.lower() for name in METHODS])]
    assert len(models) == 24 and (models["uds_low"] < models["uds"]).all() and models["lr"].eq(1e-5).all()
    assert {"es", "model_utility", "s_mia_min_k", "base", "split"} <= set(frame.columns)
    row = models.iloc[0]
    shown = f"{row['uds']:.3f} [{row['uds_low']:.3f}, {row['uds_high']:.3f}]"
    lines = uds_lens("table", saves, *PRESET, "--format", "md").out.splitlines()
    assert len(lines) == 2 + 36 and any(shown in line for line in lines)
    assert {line.count("|") for line in lines} == {lines[0].count("|")}
    latex = uds_lens("table", saves, *PRESET, "--format", "latex", "--checkpoints").out
    assert latex.count(r"\\") == 1 + 36 + 24 and r"Model Utility $\uparrow$" in latex and "checkpoint-0" in latex
    assert latex.startswith("\\begin{table}") and r"\caption{" in latex and "es_low" not in latex
    assert uds_lens("table", tmp_path / "t.csv", "--out", tmp_path / "t.csv").err.count("--out names the table") == 1
    (tmp_path / "mine.csv").write_text("model,notes\na,b\n")
    assert "was not written by uds_lens" in uds_lens("table", saves, "--out", tmp_path / "mine.csv").err


def test_saved_audits_stand_beside_the_runs(saves: Path, without_depth: Path, uds_lens, make_audit, tmp_path) -> None:
    audit = make_audit(0.5)
    name, other = (f"tofu_{BASES[0]}_forget10_{method}" for method in ("NPO", "RMU"))
    models = {**audit.models, "unlearned": replace(audit.models["unlearned"], name=f"saves/unlearn/{name}")}
    replace(audit, models=models).save(tmp_path / "audits" / "a")
    words = (*PRESET, "--audits", tmp_path / "audits")
    for root, others in ((saves, True), (without_depth, False)):
        frame = pd.read_csv(StringIO(uds_lens("table", root, *words, "--format", "csv").out)).set_index("model")
        assert frame.loc[f"unlearn/{name}", "uds"] == 0.5
        # what UDS_EVAL.json says stays where there is no audit
        assert pd.notna(frame.loc[f"unlearn/{other}", "uds"]) == others
        assert frame["method"].isin(["full", "retain"]).sum() == 12
    words = (*words, "--base", BASES[0], "--split", "forget10", "--resamples", 0, "--json")
    depths = {row["method"]: row["depth"] for row in json.loads(uds_lens("rank", saves, *words).out)["methods"]}
    assert depths["npo"] == 0.5 and depths["rmu"] != 0.5
