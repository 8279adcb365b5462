"""`uds-lens metrics`: the list, one evaluation from end to end, that options arrive, and what it refuses."""

import json
import shutil
import sys

import pandas as pd
import pytest
from tiny_models import ROWS

import uds_lens as ul


@pytest.fixture
def examples(tmp_path):
    file = tmp_path / "forget.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    return file


def test_the_list(uds_lens):
    code, printed, _ = uds_lens("metrics", "--list")
    assert code == 0
    assert all(name in printed for name in ul.metrics.METRICS)
    found = json.loads(uds_lens("metrics", "--list", "--json").out)
    assert [row["name"] for row in found] == list(ul.metrics.METRICS)
    assert found[0]["direction"] == "knowledge"


def test_facts_to_keep_and_holdout_come_from_files(trio, examples, tmp_path, uds_lens):
    out = tmp_path / "m.json"
    code, printed, _ = uds_lens(
        *("metrics", "--model", trio("llama").full, "--examples", examples, "--retain-data", examples),
        *("--holdout-data", examples, "--out", out, "--device", "cpu", "--metric", "prob"),
        *("--metric", "retain_q_prob", "--metric", "mia_loss"),
    )
    assert code == 0
    saved = ul.metrics.MetricResults.load(out)
    assert saved["retain_q_prob"].value == saved["prob"].value > 0
    assert saved["mia_loss"].value == 0.5, "the same rows on both sides"
    assert "Probability, retain" in printed


def test_an_evaluation(trio, examples, tmp_path, uds_lens):
    models, out = trio("llama"), tmp_path / "runs" / "metrics.json"
    words = ("metrics", "--model", models.unlearned, "--retain", models.retain, "--full", models.full)
    words += ("--examples", examples, "--out", out, "--device", "cpu", "--max-new-tokens", 4, "--limit", 3)
    words += ("--metric", "es", "--metric", "uds", "--metric", "mia_loss", "--metric", "rouge", "--strict-es")
    words += ("--chat-style", "open_unlearning")
    code, printed, _ = uds_lens(*words)
    assert code == 0
    saved = ul.metrics.MetricResults.load(out)
    assert list(saved.metrics) == ["es", "rouge", "mia_loss", "uds"]
    assert saved.options.strict_es
    assert saved.options.chat_date == "10 Apr 2025"
    assert "You are a helpful assistant." in saved.provenance["first_prompt"]
    assert saved.sizes["forget"] == 3
    assert f"{saved['es'].value:.3f}" in printed
    assert set(saved.sample_errors) == {"es", "rouge", "uds"} & {m.name for m in saved if m.n > 0}
    low, high = saved.sample_errors["es"].interval
    assert f"{low:.3f} - {high:.3f}" in printed and "Sampling error" in " ".join(printed.split())
    frame = saved.to_frame().set_index("metric")["sample_standard_error"]
    assert frame["es"] == saved.sample_errors["es"].standard_error
    reason = "there is no holdout set (questions of the same kind that no model has seen)"
    assert f"NaN, because {reason}: MIA-LOSS." in " ".join(printed.split())
    code, printed, _ = uds_lens(*words, "--json")
    assert json.loads(printed)["format"] == "uds_lens.MetricResults"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--model, --examples, --out missing. For example: uds-lens metrics --model "),
        (("--model", "m", "--out", "x.json"), "error: --examples missing. For example: "),
        (("--model", "m", "--examples", "no/such/file.json", "--out", "x.json"), "no such file"),
    ],
)
def test_refusals_are_one_line(uds_lens, words, said):
    code, _, err = uds_lens("metrics", *words)
    assert code != 0
    assert said in err
    assert err.count("\n") == 1


OWN = """
import uds_lens as ul

@ul.metrics.metric(
    name="from_a_file",
    label="From a file",
    meaning=ul.metrics.Meaning("knowledge", zero="never known", one="always known"),
    passes=ul.metrics.needs_answers("forget"),
)
def from_a_file(evidence):
    hits = evidence.answers("forget").hits
    return ul.metrics.mean_outcome(evidence.ids("forget"), [float(each[0]) for each in hits])
"""


def test_a_metric_of_ones_own_file(trio, examples, tmp_path, uds_lens):
    file, out = tmp_path / "my_metrics_of_this_test.py", tmp_path / "m.json"
    file.write_text(OWN, encoding="utf-8")
    try:
        assert "from_a_file" in uds_lens("metrics", "--import", file, "--help").out
        assert "from_a_file 0 = never known, 1 = forget" in " ".join(uds_lens("metrics", "--list").out.split())
        words = ("--model", trio("llama").full, "--examples", examples, "--out", out, "--device", "cpu")
        code, printed, _ = uds_lens("metrics", "--import", file, *words, "--metric", "from_a_file")
        assert code == 0
        assert "From a file" in printed
        assert list(ul.metrics.MetricResults.load(out).metrics) == ["from_a_file"]
    finally:
        ul.metrics.withdraw_metric("from_a_file")
        sys.modules.pop("my_metrics_of_this_test", None)


def words(models, examples, out) -> tuple:
    return (
        *("metrics", "--model", models.unlearned, "--model", models.full, "--name", "npo", "--name", "before"),
        *("--examples", examples, "--out", out, "--device", "cpu", "--metric", "em", "--metric", "mia_min_k"),
    )


def test_several_models_in_one_table(trio, examples, tmp_path, uds_lens):
    out = tmp_path / "runs"
    code, printed, err = uds_lens(*words(trio("llama"), examples, out))
    assert (code, err) == (0, "")
    saved = {name: ul.metrics.MetricResults.load(out / f"{name}.json") for name in ("npo", "before")}
    table = pd.read_csv(out / "table.csv").set_index("model")
    assert table.index.tolist() == ["npo", "before"]
    assert table["em"].tolist() == pytest.approx([found["em"].value for found in saved.values()])
    label = ul.metrics.METRICS["em"].label
    (row,) = [" ".join(line.split()) for line in printed.splitlines() if line.startswith(f"{label} ")]
    told = [found["em"] for found in saved.values()]
    assert row.endswith(" ".join(f"{em.value:.3f} [{em.interval.low:.2f}, {em.interval.high:.2f}]" for em in told))
    assert "! all: Only" in printed and f"behind {label}" in " ".join(printed.split())
    assert "\nPrompts: chat template (white-box metrics: raw).\n" in printed
    assert [line for line in uds_lens.doing if "saved, " in line] == [
        "npo: 2 metrics; saved, 1 of 2",
        "before: 2 metrics; saved, 2 of 2",
    ]
    found = json.loads(uds_lens(*words(trio("llama"), examples, out), "--json").out)
    assert list(found) == ["npo", "before"]


def test_earlier_metrics_are_not_lost(trio, examples, tmp_path, uds_lens):
    out = tmp_path / "m.json"
    same = ("metrics", "--model", trio("llama").full, "--examples", examples, "--out", out, "--device", "cpu")
    assert uds_lens(*same, "--metric", "em", "--metric", "es").code == 0
    before = out.read_bytes()
    code, printed, err = uds_lens(*same, "--metric", "es", "--metric", "prob")
    assert (code, printed) == (1, "") and out.read_bytes() == before
    assert "holds em, which this run does not measure: choose another --out, or replace it with --redo" in err
    for changed, said in ((("--min-k", "0.5"), "with other options"), (("--limit", "2"), "on other examples")):
        code, _, err = uds_lens(*same, "--metric", "em", "--metric", "es", *changed)
        assert code == 1 and said in err and out.read_bytes() == before
    other = [trio("llama").retain if word == trio("llama").full else word for word in same]
    code, _, err = uds_lens(*other, "--metric", "em", "--metric", "es")
    assert code == 1 and "with weights that differ from those of" in err and out.read_bytes() == before
    copied = shutil.copytree(trio("llama").full, tmp_path / "copy")
    renamed = [copied if word == trio("llama").full else word for word in same]
    assert uds_lens(*renamed, "--metric", "em", "--metric", "es").code == 0, "the same weights by another name"
    shutil.copytree(trio("llama").retain, copied, dirs_exist_ok=True)
    code, _, err = uds_lens(*renamed, "--metric", "em", "--metric", "es")
    assert code == 1 and "with weights that differ from those of" in err, "other weights by the same name"
    more = [word for name in ("em", "es", "prob") for word in ("--metric", name)]
    assert uds_lens(*same, *more).code == 0
    assert uds_lens(*same, "--metric", "es", "--redo").code == 0
    assert list(ul.metrics.MetricResults.load(out).metrics) == ["es"]


def test_data_are_not_overwritten(trio, examples, uds_lens, monkeypatch):
    monkeypatch.setattr(ul.metrics, "evaluate", lambda *_, **__: pytest.fail("measured"))
    before = examples.read_bytes()
    code, _, err = uds_lens("metrics", "--model", trio("llama").full, "--examples", examples, "--out", examples)
    assert code == 1 and "was not written by uds_lens" in err
    assert examples.read_bytes() == before


def test_the_fluency_classifier_is_looked_for_first(trio, examples, tmp_path, uds_lens, monkeypatch):
    monkeypatch.setattr(ul.metrics, "evaluate", lambda *_, **__: pytest.fail("measured"))
    code, _, err = uds_lens(
        *("metrics", "--model", trio("llama").full, "--examples", examples, "--out", tmp_path / "o.json"),
        *("--metric", "fluency", "--fluency", tmp_path / "no-classifier", "--offline"),
    )
    assert code == 1 and err.count("\n") == 1
    assert "cannot be loaded" in err and "--fluency heuristic" in err


def test_the_table_keeps_models_of_earlier_runs(trio, examples, tmp_path, uds_lens):
    paths, out = trio("llama"), tmp_path / "runs"
    both = ("metrics", "--model", paths.unlearned, "--model", paths.full, "--examples", examples, "--out", out)
    assert uds_lens(*both, "--device", "cpu", "--metric", "em").code == 0
    code, _, err = uds_lens(*both, "--device", "cpu", "--metric", "em", "--name", "a", "--name", "b")
    assert (code, err) == (0, "")
    table = pd.read_csv(out / "table.csv").set_index("model")["em"]
    assert table.index.tolist() == ["a", "b", "full", "unlearned"]
    assert table["a"] == table["unlearned"]
