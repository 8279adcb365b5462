"""`uds-lens elicit` from the outside."""

import json
import re
import shutil

import pytest
from tiny_models import EXAMPLES


@pytest.fixture
def examples(tmp_path):
    file = tmp_path / "forget.json"
    rows = [{"question": e.question, "answer": e.answer, "entity": e.entity, "subject": "x"} for e in EXAMPLES]
    file.write_text(json.dumps(rows))
    return file


def test_the_list(uds_lens):
    outcome = uds_lens("elicit", "--list")
    assert outcome.code == 0 and "cloze" in outcome.out and "preset quick" in outcome.out
    found = json.loads(uds_lens("elicit", "--list", "--json").out)
    assert {"probe": "icl", "injects": "other facts"}.items() <= found["probes"][3].items()


def asking(paths, data) -> list:
    """The command with all three models."""
    models = ("--model", paths.unlearned, "--retain", paths.retain, "--full", paths.full)
    return ["elicit", *models, "--examples", data]


def test_an_elicitation(trio, examples, tmp_path, uds_lens):
    paths, out = trio("llama"), tmp_path / "result"
    words = asking(paths, examples)
    words += ["--probe", "plain", "--probe", "cloze", "--samples", 2, "--max-new-tokens", 4, "--out", out]
    outcome = uds_lens(*words, "--limit", 3, "--device", "cpu")
    assert outcome.code == 0, outcome.err
    (said,) = [line for line in uds_lens.doing if line.startswith("prompts: ")]
    assert said.startswith("prompts: chat template (") and said.endswith("raw prompts: --protocol raw")
    printed = " ".join(outcome.out.split())
    assert "Beyond retain: model minus retain" in printed and "Saved in" in printed
    assert "A random sample was asked: 3 of" in printed and "how the results would vary over other subjects" in printed
    again = json.loads(uds_lens(*words, "--limit", 3, "--device", "cpu", "--json").out)
    assert {row["probe"] for row in again["summary"]} == {"plain", "cloze", "any probe"}
    assert again["ledger"][1]["injects"] == "answer prefix" and again["summary"][0]["n"] == 3
    assert again["summary"][0]["beyond_sample_error"] >= 0


def test_without_retain_there_are_weaker_controls(trio, examples, tmp_path, uds_lens):
    words = ["elicit", "--model", trio("llama").unlearned, "--examples", examples, "--holdout-data", examples]
    words += ["--probe", "plain", "--samples", 0, "--max-new-tokens", 2, "--limit", 2, "--device", "cpu"]
    outcome = uds_lens(*words, "--out", tmp_path / "result")
    assert outcome.code == 0, outcome.err
    printed = " ".join(outcome.out.split())
    assert "Weaker controls" in printed and "No retain model" in printed
    (row,) = json.loads(uds_lens(*words, "--out", tmp_path / "result", "--json").out)["controls"]
    assert row["beyond_holdout"] == 0 and row["n"] == 0  # one subject: no reference of another


def test_what_could_not_be_asked_is_said_once(trio, tmp_path, uds_lens):
    file, paths = tmp_path / "forget.json", trio("llama")
    rows = [{"question": e.question, "answer": e.answer, "entity": e.entity} for e in EXAMPLES]
    file.write_text(json.dumps(rows))
    words = asking(paths, file)
    words += ["--probe", "plain", "--probe", "icl", "--samples", 0, "--max-new-tokens", 2, "--device", "cpu"]
    outcome = uds_lens(*words, "--out", tmp_path / "result")
    assert outcome.code == 0, outcome.err
    (row,) = [line for line in outcome.out.splitlines() if line.startswith("icl ")]
    assert row.rstrip().endswith("not asked")
    intervals = [line for line in outcome.out.splitlines() if line.startswith(("plain ", "any probe "))]
    assert len(intervals) == 2 and all(re.search(r"\[\S+, \S+\] ", line) for line in intervals)
    printed = " ".join(outcome.out.split())
    assert printed.count("icl was not run: it applies to no row (first reason: the row has no subject") == 1
    assert "icl (greedy" not in printed and "nan" not in printed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--model, --examples, --out missing"),
        (("--model", "m", "--examples", "{data}", "--out", "{foreign}"), "choose another"),
        (("--model", "m", "--examples", "missing.json", "--out", "{new}"), "missing.json"),
        (("--model", "m", "--examples", "{data}", "--out", "{new}", "--probe", "hypnosis"), "no probe 'hypnosis'"),
    ],
)
def test_refusals_are_one_line(uds_lens, examples, tmp_path, words, said):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "mine.txt").write_text("mine")
    places = {"foreign": tmp_path / "foreign", "new": tmp_path / "new", "data": examples}
    outcome = uds_lens("elicit", *(word.format(**places) for word in words))
    assert outcome.code == 1 and outcome.out == ""
    assert said in " ".join(outcome.err.split()) and outcome.err.count("error:") == 1
    assert (tmp_path / "foreign" / "mine.txt").read_text() == "mine"


def test_the_result_of_another_model_is_kept_unless_it_is_to_be_replaced(trio, examples, tmp_path, uds_lens):
    """Weights are compared, not names: a copy is the same model, and other weights in the same place are not."""
    paths, out = trio("llama"), tmp_path / "result"
    settings = ("--examples", examples, "--probe", "plain", "--samples", 0, "--max-new-tokens", 2, "--limit", 2)
    words = (*settings, "--device", "cpu", "--out", out)
    assert uds_lens("elicit", "--model", paths.unlearned, *words).code == 0
    before = (out / "manifest.json").read_bytes()
    copied = shutil.copytree(paths.unlearned, tmp_path / "copy")
    assert uds_lens("elicit", "--model", copied, *words).code == 0
    shutil.copytree(paths.full, copied, dirs_exist_ok=True)
    before = (out / "manifest.json").read_bytes()
    outcome = uds_lens("elicit", "--model", copied, *words)
    assert outcome.code == 1 and outcome.out == ""
    printed = " ".join(outcome.err.split())
    assert f"holds an elicitation of '{copied}' with other models" in printed.replace("\n", "")
    assert "choose another --out, or replace it with --redo" in printed
    assert (out / "manifest.json").read_bytes() == before
    assert uds_lens("elicit", "--model", paths.full, *words, "--redo").code == 0
    assert (out / "manifest.json").read_bytes() != before
