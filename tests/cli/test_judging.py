"""`uds-lens meta`, `rank` and `dashboard`: tables of many models on the command line."""

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from meta.test_our_results import results
from open_unlearning_saves import BASES, SPLITS, write_saves
from report import model_tables as made
from synthetic_audits import with_control

from uds_lens import meta


@pytest.fixture(scope="module")
def study() -> made.Study:
    return made.study(40)


@pytest.fixture
def models(study: made.Study, tmp_path: Path) -> Path:
    """Pool models and unlearned ones in one file."""
    path = tmp_path / "models.csv"
    pd.concat([study.models, study.pools]).to_csv(path, index=False)
    return path


def written(path: Path, frame: pd.DataFrame) -> Path:
    frame.to_csv(path, index=False)
    return path


@pytest.mark.long
def test_meta_judges_the_pools(models: Path, study, uds_lens, tmp_path) -> None:
    words = ("meta", models, "--metric", "uds", "--metric", "es", "--out", tmp_path / "t")
    code, out, err = uds_lens(*words, "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    expected = meta.faithfulness(study.pools, metrics=["uds", "es"])
    assert [row["auc"] for row in told["faithful"]] == pytest.approx(expected["auc"].tolist())
    assert told["pairs"][0]["difference"] == pytest.approx(expected["auc"].iloc[0] - expected["auc"].iloc[1])
    assert told["robust"] is None
    assert sorted(file.name for file in (tmp_path / "t").glob("[!.]*")) == ["cuts.csv", "faithful.csv", "pairs.csv"]
    printed = uds_lens(*words).out  # in the place of its own tables
    assert f"{expected['auc'].iloc[0]:.3f}" in printed
    assert "the other intervals hold for these variants only" in " ".join(printed.split())


def test_meta_judges_robustness(study, uds_lens, tmp_path) -> None:
    before = study.models[["model", "uds", "es", "utility_rel"]]
    after = before.assign(es=before["es"] * 0.9)
    frames = {
        "quantised": after,
        "relearned": after,
        "retain_before": pd.DataFrame({"model": ["r"], "uds": [1.0], "es": [0.1]}),
        "retain_relearned": pd.DataFrame({"model": list("abc"), "uds": [0.8, 0.7, 0.9], "es": [0.2, 0.3, 0.25]}),
    }
    words = ["meta", written(tmp_path / "m.csv", pd.concat([before, study.pools[["uds", "es", "model", "knows"]]]))]
    for name, frame in frames.items():
        words += [f"--{name.replace('_', '-')}", written(tmp_path / f"{name}.csv", frame)]
    told = json.loads(uds_lens(*words, "--json").out)
    cuts = meta.thresholds(study.pools, metrics=["uds", "es"])
    tables = meta.Tables(before=before, thresholds=cuts, **frames)
    expected = meta.robustness_by_filter(tables, metrics=["uds", "es"])
    assert [row["q"] for row in told["robust"]] == pytest.approx([None if math.isnan(q) else q for q in expected["q"]])
    printed = uds_lens(*words)
    said = " ".join(printed.out.split())
    assert printed.code == 0 and "Rob, all" in said and "utility and threshold" in said
    assert "models treated as independent, because the table has no column 'method' or 'run'" in said
    one = json.loads(uds_lens(*words, "--one-directional", "--json").out)
    assert [row["q"] for row in one["robust"]] != [row["q"] for row in told["robust"]]


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        (lambda f: f, ["--metric", "nowhere"], "lacks the column 'nowhere'"),
        (lambda f: f[f["knows"].astype(bool)], [], "both pools need models"),
        (lambda f: f.groupby("knows").head(2), [], "both pools need models, at least 5 in all"),
        (lambda f: f.assign(mine=0.5), ["--metric", "mine"], "means knowledge or erasure, with --direction"),
        (lambda f: f[["model", "knows"]], [], "no metric whose direction is known"),
        (lambda f: f, ["--direction", "uds=up"], "--direction must be NAME=knowledge or NAME=erasure; got 'uds=up'"),
        (lambda f: f.drop(columns="knows"), [], "lacks the column 'knows'"),
        (lambda f: f.assign(uds="high"), [], "must hold numbers"),
    ],
)
def test_meta_says_what_is_wrong(change, words, message, study, uds_lens, tmp_path) -> None:
    code, out, err = uds_lens("meta", written(tmp_path / "m.csv", change(study.pools)), *words)
    assert (code, out) == (1, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and message in err and len(err) < 500


def test_rank_is_the_librarys(models: Path, study, uds_lens, tmp_path) -> None:
    words = ("rank", models, "--resamples", 20, "--min-utility", 0.7, "--select-by", "with")
    told = json.loads(uds_lens(*words, "--json").out)
    expected = meta.rank(study.models, min_utility=0.7, select_by="with")
    assert [row["method"] for row in told["methods"]] == expected["method"].tolist()
    assert [row["score_with"] for row in told["methods"]] == pytest.approx(expected["score_with"].tolist())
    assert sum(told["p_first"]["configurations"].values()) >= 0.99
    code, out, _ = uds_lens(*words, "--by", "without", "--out", tmp_path / "ranking.csv")
    first = meta.rank(study.models, min_utility=0.7, select_by="with", with_uds=False)["method"].iloc[0]
    assert code == 0 and "P(first)" in out and "tie at" in out and "ranked without depth" in out
    assert pd.read_csv(tmp_path / "ranking.csv")["method"].iloc[0] == first


def test_rank_and_table_show_what_stands_next_to_depth(study, uds_lens, tmp_path) -> None:
    words = ("--resamples", 0)
    plain = uds_lens("rank", written(tmp_path / "m.csv", study.models), *words).out
    assert " host " not in plain
    frame = study.models.assign(output_depth=study.models["uds"], host_depth=0.125)
    frame["hidden"] = np.linspace(0.0, 0.5, len(frame))
    table = written(tmp_path / "n.csv", frame)
    out = " ".join(uds_lens("rank", table, *words).out.split())
    assert " depth output host hidden utility " in out and "These columns are not part of the score." in out
    hidden = frame.set_index("model")["hidden"]
    for row in json.loads(uds_lens("rank", table, *words, "--json").out)["methods"]:
        assert row["hidden"] == pytest.approx(hidden[row["model"]])
        assert row["host_depth"] == 0.125
    assert {"output_depth", "host_depth", "hidden"} <= {*pd.read_csv(io.StringIO(uds_lens("table", table).out))}


def test_a_table_of_audits_alone_and_of_metrics_has_names_arrows_and_intervals(uds_lens, make_audit, tmp_path) -> None:
    audits = {"npo": with_control(make_audit(0.25)), "rmu": make_audit(0.75)}
    for name, audit in audits.items():
        models = {**audit.models, "unlearned": replace(audit.models["unlearned"], name=f"ckpt/{name}")}
        replace(audit, models=models).save(tmp_path / "audits" / name)
    latex = uds_lens("table", tmp_path / "audits", "--format", "latex").out
    assert r"model & UDS $\uparrow$ & damage $\downarrow$ & N \\" in " ".join(latex.split())
    for name, audit in audits.items():
        low, high = audit.uds_interval
        assert f"{name} & {audit.uds:.3f} [{low:.3f}, {high:.3f}] & " in latex
    damage = audits["npo"].damage_estimate
    assert f"& {damage.value:.3f} [{damage.interval.low:.3f}, {damage.interval.high:.3f}] &" in latex
    frame = pd.read_csv(io.StringIO(uds_lens("table", tmp_path / "audits").out))
    assert frame["uds"].tolist() == [audit.uds for audit in audits.values()] and "damage_low" in frame
    assert "holds saved audits" in uds_lens("rank", tmp_path / "audits").err
    made = results("one", es=0.3)
    ids, values = tuple("abcdef"), (0.1, 0.5, 0.3, 0.2, 0.4, 0.3)
    made.metrics["es"] = replace(made.metrics["es"], ids=ids, per_example=values)
    made.save(tmp_path / "runs" / "one.json")
    low, high = made["es"].interval
    told = uds_lens("table", tmp_path / "runs", "--format", "md").out
    assert "Extraction Strength ↓" in told and f"0.300 [{low:.3f}, {high:.3f}]" in told


UNDEFINED = "no model has a value for"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda f: f.drop(columns="uds"),
            "lacks 'uds', a part of the score: --audits DIR adds the UDS of saved audits",
        ),
        (lambda f: f.drop(columns="s_mia_loss"), "--retain RUN adds the normalised attacks"),
        (lambda f: f.drop(columns="utility_rel"), "--full RUN adds the relative utility"),
        (lambda f: f.drop(columns="method"), "no model has a method (models: npo_lr1e5_a0_ep5_0"),
        (
            lambda f: f.assign(em=math.nan),
            f"{UNDEFINED} 'em' (empty in the file): --memorization NAME chooses other metrics",
        ),
        (lambda f: f.assign(s_mia_loss=math.nan), "--retain RUN adds the normalised attacks"),
        (lambda f: f.assign(utility_rel=math.nan), f"{UNDEFINED} 'utility_rel': --full RUN adds the relative utility"),
        (lambda f: f.assign(uds=math.nan), f"{UNDEFINED} 'uds' (empty in the file): --audits DIR"),
        (lambda f: f.assign(utility_rel="0,9"), "the column 'utility_rel' must hold numbers; got '0,9'"),
        (lambda f: f.assign(utility_rel=0.1), "lower --min-utility"),
    ],
)
def test_rank_says_what_is_wrong(change, message, study, uds_lens, tmp_path) -> None:
    table = written(tmp_path / "m.csv", change(study.models))
    code, out, err = uds_lens("rank", table, "--min-utility", 0.5, "--json")
    assert (code, out) == (1, "") and message in err and err.count("\n") == 1 and len(err) < 500


@pytest.mark.long
def test_rank_takes_tables_of_several_base_models_and_splits(uds_lens, tmp_path) -> None:
    root = write_saves(tmp_path / "saves")
    asked = {"retain": root / "eval", "full": root / "eval", "utility": "model_utility"}
    table = written(tmp_path / "m.csv", meta.read_open_unlearning(root, **asked).frame)
    parts = ("--memorization", "es", "--membership", "s_mia_min_k", "--resamples", 0)
    for words in (("rank", table), ("rank", root, *(w for name in asked for w in (f"--{name}", asked[name])))):
        code, out, _ = uds_lens(*words, *parts, "--out", tmp_path / "r.csv")
        assert code == 0 and all(f"\n{base}, {split}\n" in out for base in BASES for split in SPLITS)
        assert pd.read_csv(tmp_path / "r.csv").groupby(["base", "split"]).size().tolist() == [4] * 6
    page = tmp_path / "d.html"
    assert uds_lens("dashboard", table, "--base", BASES[0], "--split", SPLITS[0], "--out", page).code == 0


def test_dashboard_writes_one_page(models: Path, uds_lens, tmp_path) -> None:
    page = tmp_path / "d.html"
    code, out, err = uds_lens("dashboard", models, "--out", page, "--title", "Mine & more", "--min-utility", 0.8)
    assert (code, out, err) == (0, f"100 models in {page}: open it in a browser.\n", "")
    text = page.read_text(encoding="utf-8")
    assert "<h1>Mine &amp; more</h1>" in text and '"minUtility":0.8' in text and '"pools uds"' in text


@pytest.mark.parametrize("command", ["rank", "dashboard", "meta"])
def test_a_place_without_models_is_told(command, uds_lens, tmp_path) -> None:
    assert "nothing at" in uds_lens(command, tmp_path / "gone").err
    (tmp_path / "empty").mkdir()
    code, _, err = uds_lens(command, tmp_path / "empty")
    assert code == 1 and "holds no table of models" in err and err.count("\n") == 1


def test_the_papers_values_come_along(uds_lens, tmp_path) -> None:
    folder = "published"
    told = json.loads(uds_lens("meta", folder, "--json").out)["summary"]
    overall = {row["metric"]: row["overall"] for row in told}
    assert overall["uds"] == pytest.approx(0.951, abs=5e-4)
    assert (
        "different values for em 0.7495, printed 0.750; mia_zlib 0.6415, printed 0.641; fisher_masked_0.0001 0.7136, "
        "printed 0.713, which were rounded twice or truncated."
    ) in " ".join(uds_lens("meta", folder).out.split())
    out = " ".join(uds_lens("rank", folder, "--resamples", 0).out.split())
    assert "18-way tie" in out and "npo would be represented by npo_lr5e5_b01_a5_ep10 (depth +0.199)" in out
    told = json.loads(uds_lens("dashboard", folder, "--out", tmp_path / "p.html", "--json").out)
    assert told["models"] == 150
    code, out, _ = uds_lens("table", folder, "--format", "latex")
    rows = [line.split(" & ") for line in out.splitlines() if line.endswith(r"\\")]
    assert code == 0 and len(rows) == 1 + 152 and [row[1] for row in rows[1:3]] == ["full", "retain"]


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (("rank", "--resamples", 0, "--out"), "models.csv"),
        (("dashboard", "--out"), "models.html"),
        (("meta", "--metric", "uds", "--out"), "cuts.csv"),
    ],
)
def test_nothing_foreign_is_overwritten(words, place, models: Path, uds_lens, tmp_path, monkeypatch) -> None:
    if words[0] != "dashboard":  # whose pages are named by what it reads
        read = "uds_lens._cli.model_tables.References.read"
        monkeypatch.setattr(read, lambda *_, **__: pytest.fail("it looks first"))
    foreign = tmp_path / place
    if not foreign.exists():
        foreign.write_text("mine")
    before = foreign.read_bytes()
    code, out, err = uds_lens(words[0], models, *words[1:], tmp_path if words[0] == "meta" else foreign)
    assert (code, out, foreign.read_bytes()) == (1, "", before) and "was not written by uds_lens" in err


def test_rank_reads_our_own_metrics(uds_lens, tmp_path) -> None:
    runs = {"ckpt/one": 0.9, "ckpt/two": 0.6, "ckpt/three": 0.3}
    for name, uds in runs.items():
        found = results(name, es=0.2, s_mia_min_k=0.8, uds=uds, utility_rel=0.9)
        found.save(tmp_path / "runs" / f"{Path(name).name}.json")
    words = ["rank", tmp_path / "runs", "--memorization", "es", "--membership", "s_mia_min_k", "--resamples", 0]
    code, _, err = uds_lens(*words)
    assert code == 1 and "no model has a method (models: one, three, two" in " ".join(err.split())
    (tmp_path / "methods.csv").write_text("model,method\none,npo\ntwo,rmu\n")
    code, out, err = uds_lens(*words, "--methods", tmp_path / "methods.csv", "--json")
    assert (code, err) == (0, "note: left out because they have no method: three\n")
    assert [(row["method"], row["depth"]) for row in json.loads(out)["methods"]] == [("npo", 0.9), ("rmu", 0.6)]


def test_rank_warns_of_constant_parts_and_few_models(study, uds_lens, tmp_path) -> None:
    table = written(tmp_path / "m.csv", study.models.iloc[1:4].assign(es=0.5))
    code, out, _ = uds_lens("rank", table, "--resamples", 20)
    told = " ".join(out.split())
    assert code == 0 and "! only 3 models have a score" in told and "! es is 0.5 for all 3 models" in told
    notes = json.loads(uds_lens("rank", table, "--resamples", 20, "--json").out)["notes"]
    assert len(notes) == 3 and "the order of methods is undecided" in notes[0]
    assert "every method has one eligible configuration" in notes[2]
    enough = written(tmp_path / "all.csv", study.models)
    assert json.loads(uds_lens("rank", enough, "--resamples", 0, "--json").out)["notes"] == []


def test_models_measured_in_other_ways_are_marked_in_a_table_and_not_ranked(uds_lens, tmp_path) -> None:
    for name, tokens in (("one", 200), ("two", 7)):
        made = results(name, es=0.5, s_mia_min_k=0.8, uds=0.5, utility_rel=0.9)
        replace(made, options=replace(made.options, max_new_tokens=tokens)).save(tmp_path / "runs" / f"{name}.json")
    code, out, err = uds_lens("table", tmp_path / "runs")
    assert code == 0 and "max_new_tokens (200: `one`; 7: `two`)" in err
    told = pd.read_csv(io.StringIO(out))
    assert told["conditions"].tolist() == ['{"max_new_tokens": 200}', '{"max_new_tokens": 7}']
    (tmp_path / "methods.csv").write_text("model,method\none,npo\ntwo,rmu\n")
    score = ("--methods", tmp_path / "methods.csv", "--memorization", "es", "--membership", "s_mia_min_k")
    for command in ("rank", "dashboard"):
        code, _, err = uds_lens(command, tmp_path / "runs", *score)
        assert code != 0 and "not comparable" in err and "max_new_tokens" in err


def test_rank_shows_the_probability_that_can_vary(uds_lens, tmp_path, monkeypatch) -> None:
    """One configuration a method: places can only change with the examples; over configurations P was 1 and 0."""
    monkeypatch.setenv("COLUMNS", "120")
    for name, es in (("one", (0.1, 0.5, 0.3)), ("two", (0.4, 0.2, 0.2))):
        made = results(name, es=float(np.mean(es)), s_mia_min_k=0.8, uds=0.5, utility_rel=0.9)
        made.metrics["es"] = replace(made.metrics["es"], ids=("a", "b", "c"), per_example=es)
        made.save(tmp_path / "runs" / f"{name}.json")
    (tmp_path / "methods.csv").write_text("model,method\none,npo\ntwo,rmu\n")
    parts = ("--memorization", "es", "--membership", "s_mia_min_k")
    words = ("rank", tmp_path / "runs", "--methods", tmp_path / "methods.csv", *parts)
    told = json.loads(uds_lens(*words, "--json").out)
    assert told["p_first"]["configurations"] == {"npo": None, "rmu": None}
    shares = told["p_first"]["examples"]
    assert 0.3 < shares["rmu"] < 0.95 and any("P(first) over them is undefined" in note for note in told["notes"])
    out = " ".join(uds_lens(*words).out.split())
    assert f"{shares['rmu']:.2f} two" in out and "share of resamples of the examples" in out
    assert "! every method has one eligible configuration" in out

    # without values per example nothing can vary at all
    table = meta.read_metrics(tmp_path / "runs").frame.assign(method=["npo", "rmu"])
    out = " ".join(uds_lens("rank", written(tmp_path / "m.csv", table), *parts).out.split())
    assert "P(first)" in out and "0.900 - two" in out and "! every method has one" in out

    page = tmp_path / "d.html"
    told = json.loads(uds_lens("dashboard", *words[1:], "--out", page, "--json").out)
    text = page.read_text(encoding="utf-8")
    assert '"ranks without with examples":' in text and "ranks without with configurations" not in text
    assert 'data-figure="ranks examples"' in text and any("every method has one" in n for n in told["notes"])


def test_dashboard_says_on_the_terminal_what_it_lacks(study, uds_lens, tmp_path) -> None:
    models = study.models.assign(em=math.nan)
    pools = study.pools.groupby("knows").head(3).assign(es=0.5, em=math.nan)
    both = pd.concat([models, pools])
    cases = {
        "all": (both, ["no model has a value for em (empty in the file)", "! em: no model of P", "! es: constant"]),
        "few": (both, ["F is computed from only 3 models with the knowledge and 3 without"]),
        "three": (study.models.iloc[1:4].assign(es=0.5), ["! only 3 models have a score", "! es is 0.5 for all 3"]),
        "missing": (study.models.drop(columns="es"), ["! Methods are not ranked", "lacks the column 'es'"]),
        "words": (study.models.assign(utility_rel="0,9"), ["the column 'utility_rel' must hold numbers; got '0,9'"]),
        "small": (pd.concat([study.models, pools.iloc[[0, 3]]]), ["! Metrics are not judged"]),
    }
    for name, (frame, sentences) in cases.items():
        page = tmp_path / f"{name}.html"
        code, out, _ = uds_lens("dashboard", written(tmp_path / f"{name}.csv", frame), "--out", page)
        told = " ".join(out.split())
        assert code == 0 and page.exists() and all(each in told for each in sentences), (name, told)
    told = json.loads(uds_lens("dashboard", tmp_path / "few.csv", "--out", page, "--json").out)
    assert any("F is computed from only 3 models" in note for note in told["notes"])


def test_meta_of_constant_metrics_alone_is_an_error(study, uds_lens, tmp_path) -> None:
    table = written(tmp_path / "same.csv", study.pools.assign(es=0.5, em=1.0))
    for words in (("--json",), ("--metric", "em", "--out", tmp_path / "t")):
        code, out, err = uds_lens("meta", table, "--metric", "es", *words)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert "nothing can be judged. es: constant: all models have the same value" in err
    assert not (tmp_path / "t").exists()
    code, out, _ = uds_lens("meta", table, "--metric", "es", "--metric", "uds")
    assert code == 0 and "! es: constant: all models have the same value" in " ".join(out.split())
