"""`uds-lens elicit` from the outside."""

import json
import re
import shutil

import pytest
from tiny_models import EXAMPLES


@pytest.fixture
def examples(tmp_path):
    return written(tmp_path / "forget.json", subject="x")


def written(file, **more):
    rows = [{"question": e.question, "answer": e.answer, "entity": e.entity, **more} for e in EXAMPLES]
    file.write_text(json.dumps(rows))
    return file


@pytest.fixture
def elicit(trio, examples, tmp_path, uds_lens):
    """`elicit(*words)` asks one model, or several, with short answers; it returns what was printed."""

    def run(*words, model=None, probes=("plain",), samples=0, tokens=2):
        asked = [word for name in probes for word in ("--probe", name)]
        asked += ["--samples", samples, "--max-new-tokens", tokens, "--device", "cpu", "--out", tmp_path / "result"]
        outcome = uds_lens(
            "elicit", "--model", model or trio("llama").unlearned, "--examples", examples, *asked, *words
        )
        assert outcome.code == 0, outcome.err
        return outcome.out

    return run


def test_the_list(uds_lens):
    outcome = uds_lens("elicit", "--list")
    assert outcome.code == 0 and "cloze" in outcome.out and "preset quick" in outcome.out
    found = json.loads(uds_lens("elicit", "--list", "--json").out)
    assert {"probe": "icl", "injects": "other facts"}.items() <= found["probes"][3].items()


def test_an_elicitation(trio, elicit, uds_lens):
    words = ("--retain", trio("llama").retain, "--full", trio("llama").full, "--limit", 3)
    asked = {"probes": ("plain", "cloze"), "samples": 2, "tokens": 4}
    printed = " ".join(elicit(*words, **asked).split())
    (said,) = [line for line in uds_lens.doing if line.startswith("prompts: ")]
    assert said.startswith("prompts: chat template (") and said.endswith("raw prompts: --protocol raw")
    assert "Beyond retain: model minus retain" in printed and "Saved in" in printed
    assert "A random sample was asked: 3 of" in printed and "how much the results would vary" in printed
    again = json.loads(elicit(*words, "--json", **asked))
    assert {row["probe"] for row in again["summary"]} == {"plain", "cloze", "any probe"}
    assert again["ledger"][1]["injects"] == "answer prefix" and again["summary"][0]["n"] == 3
    assert again["summary"][0]["beyond_sample_error"] >= 0


def test_without_retain_there_are_weaker_controls(examples, elicit):
    words = ("--holdout-data", examples, "--limit", 2)
    printed = " ".join(elicit(*words).split())
    assert "Weaker controls" in printed and "No retain model" in printed
    (row,) = json.loads(elicit(*words, "--json"))["controls"]
    assert row["beyond_holdout"] == 0 and row["n"] == 0  # one subject: no reference of another


def test_what_could_not_be_asked_is_said_once(trio, tmp_path, elicit):
    words = ("--retain", trio("llama").retain, "--full", trio("llama").full)
    out = elicit(*words, "--examples", written(tmp_path / "no_subjects.json"), probes=("plain", "icl"))
    (row,) = [line for line in out.splitlines() if line.startswith("icl ")]
    assert row.rstrip().endswith("not asked")
    intervals = [line for line in out.splitlines() if line.startswith(("plain ", "any probe "))]
    assert len(intervals) == 2 and all(re.search(r"\[\S+, \S+\] ", line) for line in intervals)
    printed = " ".join(out.split())
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


def test_the_result_of_another_model_is_kept_unless_it_is_to_be_replaced(trio, examples, tmp_path, elicit, uds_lens):
    """Weights are compared, not names: a copy is the same model, and other weights in the same place are not."""
    paths, manifest = trio("llama"), tmp_path / "result" / "manifest.json"
    elicit("--limit", 2)
    copied = shutil.copytree(paths.unlearned, tmp_path / "copy")
    elicit("--limit", 2, model=copied)
    shutil.copytree(paths.full, copied, dirs_exist_ok=True)
    before = manifest.read_bytes()
    words = ("--probe", "plain", "--samples", 0, "--max-new-tokens", 2, "--limit", 2, "--out", tmp_path / "result")
    outcome = uds_lens("elicit", "--model", copied, "--examples", examples, *words, "--device", "cpu")
    assert outcome.code == 1 and outcome.out == ""
    printed = " ".join(outcome.err.split())
    assert f"holds an elicitation of '{copied}' with different models" in printed
    assert "choose another --out, or replace it with --redo" in printed
    assert manifest.read_bytes() == before
    elicit("--limit", 2, "--redo", model=paths.full)
    assert manifest.read_bytes() != before
