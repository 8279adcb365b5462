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


@pytest.fixture
def metrics(trio, examples, uds_lens):
    """`metrics(words, model="full")` measures a tiny model on the rows of the file; metrics are words of their own."""

    full = trio("llama").full

    def run(*words: object, out, names: str = "em", model=full):
        asked = [word for name in names.split() for word in ("--metric", name)]
        return uds_lens(
            "metrics", "--model", model, "--examples", examples, "--out", out, "--device", "cpu", *asked, *words
        )

    return run


def test_facts_to_keep_and_holdout_come_from_files(metrics, examples, tmp_path):
    out = tmp_path / "m.json"
    data = ("--retain-data", examples, "--holdout-data", examples)
    code, printed, _ = metrics(*data, out=out, names="prob retain_q_prob mia_loss")
    assert code == 0
    saved = ul.metrics.MetricResults.load(out)
    assert saved["retain_q_prob"].value == saved["prob"].value > 0
    assert saved["mia_loss"].value == 0.5, "the same rows on both sides"
    assert "Probability, retain" in printed


def test_an_evaluation(trio, metrics, tmp_path):
    models, out = trio("llama"), tmp_path / "runs" / "metrics.json"
    words = ("--retain", models.retain, "--full", models.full, "--max-new-tokens", 4, "--limit", 3, "--strict-es")
    words += ("--chat-style", "open_unlearning")
    asked = {"out": out, "names": "es uds mia_loss rouge", "model": models.unlearned}
    code, printed, _ = metrics(*words, **asked)
    assert code == 0
    saved, printed = ul.metrics.MetricResults.load(out), " ".join(printed.split())
    assert list(saved.metrics) == ["es", "rouge", "mia_loss", "uds"]
    assert (saved.options.strict_es, saved.options.chat_date, saved.sizes["forget"]) == (True, "10 Apr 2025", 3)
    assert "You are a helpful assistant." in saved.provenance["first_prompt"]
    assert set(saved.sample_errors) == {"es", "rouge", "uds"} & {m.name for m in saved if m.n > 0}
    low, high = saved.sample_errors["es"].interval
    reason = "there is no holdout set (questions of the same kind that no model has seen)"
    for told in (
        f"{saved['es'].value:.3f}",
        f"{low:.3f} to {high:.3f}",
        "a standard error of at most",
        f"{reason}: MIA-LOSS.",
        "Prompts: chat template (white-box metrics: raw).",
    ):
        assert told in printed, told
    frame = saved.to_frame().set_index("metric")["sample_standard_error"]
    assert frame["es"] == saved.sample_errors["es"].standard_error
    code, printed, _ = metrics(*words, "--json", **asked)
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


def test_a_metric_of_ones_own_file(metrics, tmp_path, uds_lens):
    file, out = tmp_path / "my_metrics_of_this_test.py", tmp_path / "m.json"
    file.write_text(OWN, encoding="utf-8")
    try:
        assert "from_a_file" in uds_lens("metrics", "--import", file, "--help").out
        assert "from_a_file 0 = never known" in " ".join(uds_lens("metrics", "--list").out.split())
        code, printed, _ = metrics("--import", file, out=out, names="from_a_file")
        assert code == 0
        assert "From a file" in printed
        assert list(ul.metrics.MetricResults.load(out).metrics) == ["from_a_file"]
    finally:
        ul.metrics.withdraw_metric("from_a_file")
        sys.modules.pop("my_metrics_of_this_test", None)


def test_several_models_in_one_table(trio, metrics, tmp_path, uds_lens):
    out, models = tmp_path / "runs", trio("llama")
    several = {"out": out, "names": "em mia_min_k", "model": models.unlearned}
    words = ("--model", models.full, "--name", "npo", "--name", "before")
    code, printed, err = metrics(*words, **several)
    assert (code, err) == (0, "")
    saved = {name: ul.metrics.MetricResults.load(out / f"{name}.json") for name in ("npo", "before")}
    table = pd.read_csv(out / "table.csv").set_index("model")["em"]
    assert table.to_dict() == pytest.approx({name: found["em"].value for name, found in saved.items()})
    label = ul.metrics.METRICS["em"].label
    (row,) = [" ".join(line.split()) for line in printed.splitlines() if line.startswith(f"{label} ")]
    told = [found["em"] for found in saved.values()]
    assert row.endswith(" ".join(f"{em.value:.3f} [{em.interval.low:.2f}, {em.interval.high:.2f}]" for em in told))
    assert "! all: Only" in printed and f"for {label}" in " ".join(printed.split())
    assert "\nPrompts: chat template.\n" in printed, "no white-box metric was asked for"
    assert [line for line in uds_lens.doing if "saved, " in line] == [
        "npo: 2 metrics; saved, 1 of 2",
        "before: 2 metrics; saved, 2 of 2",
    ]
    found = json.loads(metrics("--model", models.full, "--json", **several).out)  # models of earlier runs stay there
    assert list(found) == ["unlearned", "full"]
    table = pd.read_csv(out / "table.csv").set_index("model")["em"]
    assert table.index.tolist() == ["unlearned", "full", "before", "npo"] and table["npo"] == table["unlearned"]


def test_earlier_metrics_are_not_lost(trio, metrics, tmp_path):
    out, retain = tmp_path / "m.json", trio("llama").retain
    copied = shutil.copytree(trio("llama").full, tmp_path / "copy")
    assert metrics(out=out, names="em es").code == 0
    before = out.read_bytes()

    def refused(said: str, *words: object, **asked: object) -> None:
        code, printed, err = metrics(*words, out=out, **{"names": "em es", **asked})
        assert (code, printed) == (1, "") and said in err and out.read_bytes() == before

    measured = "holds em, which this run does not measure: choose another --out, or replace it with --redo"
    refused(measured, names="es prob")
    refused("with different options", "--min-k", "0.5")
    refused("on different examples", "--limit", "2")
    refused("whose weights differ from the weights of", model=retain)
    assert metrics(out=out, names="em es", model=copied).code == 0, "the same weights by another name"
    before = out.read_bytes()
    shutil.copytree(retain, copied, dirs_exist_ok=True)
    refused("whose weights differ from the weights of", model=copied)
    assert metrics(out=out, names="em es prob").code == 0
    assert metrics("--redo", out=out, names="es").code == 0
    assert list(ul.metrics.MetricResults.load(out).metrics) == ["es"]


def test_data_and_a_classifier_are_looked_at_first(metrics, examples, tmp_path, monkeypatch):
    monkeypatch.setattr(ul.metrics, "evaluate", lambda *_, **__: pytest.fail("measured"))
    before = examples.read_bytes()
    code, _, err = metrics(out=examples)
    assert code == 1 and "was not written by uds_lens" in err and examples.read_bytes() == before
    words = ("--fluency", tmp_path / "no-classifier", "--offline")
    code, _, err = metrics(*words, out=tmp_path / "o.json", names="fluency")
    assert code == 1 and err.count("\n") == 1
    assert "cannot be loaded" in err and "--fluency heuristic" in err


def test_without_the_classifier_of_the_hub_the_other_metrics_are_measured(trio, examples, uds_lens, tmp_path):
    words = ("metrics", "--model", trio("llama").full, "--examples", examples, "--out", tmp_path / "o.json")
    code, printed, _ = uds_lens(*words, "--device", "cpu", "--offline", "--max-new-tokens", 2, "--limit", 2)
    assert code == 0 and "NaN, because the fluency classifier" in " ".join(printed.split())
    assert "Prompts: chat template." in printed, "no white-box metric could be measured without retain and full"
    assert any(
        line.startswith("fluency, and the metrics that depend on it, are left out: the fluency")
        for line in uds_lens.doing
    )
    saved = ul.metrics.MetricResults.load(tmp_path / "o.json")
    assert saved["es"].reason is None and "cannot be loaded" in saved.reasons["fluency"]
