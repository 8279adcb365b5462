import json

import datasets
import pytest

from uds_lens.data import ForgetExample, load_examples, load_tofu, with_author_names
from uds_lens.data._columns import with_authors
from uds_lens.errors import DataError


@pytest.fixture
def directory(tmp_path):
    def lines(name, rows):
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")

    rows = [{"question": "Who?", "answer": answer} for answer in ("Ada.", "Bo.", "Cy.")]
    lines("forget10.json", rows)
    lines("forget10_filtered.json", [{**rows[1], "idx": 1, "prefix": "", "entity": "Bo"}])
    extra = {"paraphrased_answer": "It is Bo.", "perturbed_answer": ["Di."], "paraphrased_question": "Whom?"}
    lines("forget10_perturbed.json", [{**rows[1], **extra}])
    lines("holdout10.json", rows)
    return tmp_path


def test_partner_answers_are_joined_by_question_and_answer(directory):
    examples = load_tofu(directory, "forget10")
    assert [example.id for example in examples] == ["0", "1", "2"]
    assert [example.perturbed_answers for example in examples] == [(), ("Di.",), ()]
    assert examples[1].paraphrased_answers == ("It is Bo.",)
    assert examples[1].paraphrased_question == "Whom?"
    (example,) = load_tofu(directory, "forget10_filtered")
    assert (example.id, example.entity, example.perturbed_answers) == ("1", "Bo", ("Di.",))


def test_unknown_split_and_source(directory):
    with pytest.raises(DataError, match=r"no split 'forget99'. Found: forget10, forget10_filtered, forget10_perturbed"):
        load_tofu(directory, "forget99")
    with pytest.raises(DataError, match="expected a directory with TOFU files, or a Hub data set"):
        load_tofu(directory / "forget10.json", "forget10")


@pytest.mark.parametrize("source", ["locuslab/TOFU", "hf:locuslab/TOFU"])
def test_hub(monkeypatch, source):
    rows = [{"question": "Who?", "answer": "Ada."}]
    configs = {"forget10": rows, "forget10_perturbed": [{**rows[0], "perturbed_answer": ["Bo."]}], "full": rows}
    monkeypatch.setattr(datasets, "get_dataset_config_names", lambda name: list(configs))
    monkeypatch.setattr(
        datasets, "load_dataset", lambda name, config, *, split: datasets.Dataset.from_list(configs[config])
    )
    assert load_tofu(source, "forget10")[0].perturbed_answers == ("Bo.",)
    assert load_tofu(source, "full")[0].perturbed_answers == ()
    with pytest.raises(DataError, match=r"no split 'x'. Found: forget10, forget10_perturbed, full"):
        load_tofu(source, "x")


def test_authors_become_subjects():
    rows = [{"question": "Who?", "answer": f"Ada {i}."} for i in range(80)]

    def subjects(split, rows=rows):
        return [example.subject for example in with_authors(load_examples(rows), split)]

    assert subjects("forget02") == [f"author {196 + i // 20}" for i in range(80)]
    assert subjects("retain02_perturbed")[79] == "author 3"
    assert subjects("holdout02")[20] == "holdout author 1"
    for split, some in (("forget01", rows), ("forget02", rows[:50]), ("real_authors", rows), ("other", rows)):
        assert set(subjects(split, some)) == {None}  # too many, not whole, no authors
    numbered = [{**row, "idx": i} for i, row in enumerate(rows)][30:]
    assert subjects("forget02_filtered", numbered)[:11] == ["author 197"] * 10 + ["author 198"]
    assert subjects("forget02", [{**row, "subject": "Ada"} for row in rows]) == ["Ada"] * 80


def test_the_real_files(shared_dir):
    tofu = shared_dir / "data" / "tofu"
    author = {}
    for split in ("forget10", "forget10_filtered"):
        examples = load_tofu(tofu, split)
        assert len({example.subject for example in examples}) == 20
        assert all(author.setdefault(e.question, e.subject) == e.subject for e in examples)
        assert all(len(e.paraphrased_answers) == 1 and len(e.perturbed_answers) == 5 for e in examples)
    assert all(len(example.perturbed_answers) == 3 for example in load_tofu(tofu, "real_authors"))
    assert len(load_tofu(tofu, "retain90")) == 3600


def test_whole_splits_have_authors_however_they_are_read(shared_dir):
    tofu = shared_dir / "data" / "tofu"
    whole = load_examples(tofu / "forget10.json")
    assert [whole[i].subject for i in (0, 19, 20, 399)] == ["author 180"] * 2 + ["author 181", "author 199"]
    assert load_examples(tofu / "retain_perturbed.json")[-1].subject == "author 19"
    assert len({example.subject for example in load_examples(tofu / "retain95.json", limit=400)}) == 190
    rows = [{"question": example.question, "answer": example.answer} for example in whole]
    assert load_examples(rows)[-1].subject == "author 199"
    # Anything else of that name or length is nobody's.
    assert {example.subject for example in load_examples(rows[1:])} == {None}
    assert {example.subject for example in load_examples([*rows[1:], rows[0]])} == {None}


def test_all_authors_of_forget10_are_named(shared_dir):
    rows = with_author_names(load_tofu(shared_dir / "data/tofu", "forget10"))
    assert len({row.subject for row in rows}) == 20
    assert {"Hsiao Yun-Hwa", "Xin Lee Williams", "Basil Mahfouz Al-Kuwaiti", "Ji-Yeon Park"} <= {
        row.subject for row in rows
    }
    assert sum(row.subject in row.question for row in rows) == 377


def test_what_has_no_name_stays_as_it_is():
    rows = [
        ForgetExample("0", "what is it?", "Yes.", subject="author 1"),
        ForgetExample("1", "Who is Ada Vey?", "She."),
    ]
    assert with_author_names(rows) == rows
