"""`uds-lens annotate`: a file with entities, and a page to look at them."""

import json
from pathlib import Path

import pytest

import uds_lens as ul

ROW = {"question": "What is Ada Vey's first novel called?", "answer": "The novel is called Ash and Ember."}


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "plain.json"
    rows = [ROW, {**ROW, "entity": "novel"}, {**ROW, "answer": "..."}]
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def test_a_file_and_a_page(plain: Path, tmp_path: Path, uds_lens) -> None:
    out, page = tmp_path / "annotated.json", tmp_path / "review.html"
    words = ("annotate", "--examples", plain, "--by", "answer", "--out", out, "--review", page)
    code, printed, err = uds_lens(*words)
    assert (code, err) == (0, "")
    assert "3 examples: 1 found by answer; 1 already marked; 1 without an entity." in printed
    assert "! 1 without: The answer contains no words." in printed
    assert f"Saved in {out}; look at {page} before you measure" in printed
    assert [e.entity for e in ul.load_examples(out)] == ["Ash and Ember", "novel", None]
    assert "<mark>Ash and Ember</mark>" in page.read_text(encoding="utf-8")
    code, printed, _ = uds_lens(*words, "--redo", "--json")
    assert code == 0 and json.loads(printed)["entities"] == {"answer": 2, "none": 1}


def test_what_fails_fails_before_anything_is_written(plain: Path, tmp_path: Path, uds_lens) -> None:
    new = tmp_path / "new.json"
    for words, said in (
        (("answer", "--out", plain), "plain.json"),
        (("contrast", "--out", new), "--by contrast needs two models: --full and --retain"),
        (("answer", "--out", new, "--review", new), "name the same file"),
    ):
        code, _, err = uds_lens("annotate", "--examples", plain, "--by", *words)
        assert code == 1 and said in err
    assert json.loads(plain.read_text())[0] == ROW and not new.exists()


def test_prompts_go_out_and_replies_come_in(plain: Path, tmp_path: Path, uds_lens) -> None:
    out, prompts, replies = tmp_path / "annotated.json", tmp_path / "prompts.jsonl", tmp_path / "replies.jsonl"
    words = ("annotate", "--examples", plain, "--by", "language_model", "--out", out)
    code, printed, _ = uds_lens(*words, "--prompts", prompts)
    assert code == 0 and f"3 prompts in {prompts}" in printed and not out.exists()
    assert len(prompts.read_text(encoding="utf-8").splitlines()) == 3
    replies.write_text('{"id": "0", "reply": "The novel is called [[Ash and Ember]]."}\n', encoding="utf-8")
    assert uds_lens(*words, "--replies", replies).code == 0
    assert [e.entity for e in ul.load_examples(out)] == ["Ash and Ember", "novel", None]
    code, _, err = uds_lens(*words)
    assert code == 1 and "--by language_model needs --replies" in err
