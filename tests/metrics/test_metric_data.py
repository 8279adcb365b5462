"""Sets of questions: TOFU's files, what is missing, and samples in which all metrics ask the same questions."""

import json
import warnings
from dataclasses import replace

import pytest
from tiny_models import EXAMPLES

from uds_lens.data import ForgetExample
from uds_lens.errors import ConfigError, DataError, UdsLensWarning
from uds_lens.metrics import MetricData, load_tofu_data, open_metric_data


@pytest.fixture
def tofu(tmp_path):
    rows = [{"question": f"Who wrote book {i}?", "answer": f"Author {i} wrote it."} for i in range(4)]
    variants = {"paraphrased_answer": "It was the author.", "perturbed_answer": ["It was Bram.", "It was Cleo."]}
    files = {
        "forget10": rows,
        "forget10_perturbed": [{**row, **variants} for row in rows],
        "forget10_filtered": [{**rows[1], "prefix": "", "entity": "Author 1"}],
        "holdout10": [{"question": "Who else?", "answer": "Somebody."}],
        "retain_perturbed": [{**rows[0], **variants}],
        "world_facts_perturbed": [{**rows[0], "perturbed_answer": ["Rome"]}],
    }
    for name, part in files.items():
        (tmp_path / f"{name}.json").write_text("\n".join(map(json.dumps, part)), encoding="utf-8")
    return tmp_path


def test_tofu_directory(tofu):
    data = load_tofu_data(tofu)
    expected = {"forget": 4, "holdout": 1, "retain": 1, "real_authors": 0, "world_facts": 1, "entities": 1}
    assert data.sizes() == expected
    assert data.forget[0].paraphrased_answers == ("It was the author.",)
    assert [text.owner for text in data.texts("forget/perturbed")] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert data.with_entities[0].entity == "Author 1"
    assert data.missing("real_authors/perturbed") == "there is no real-authors set"
    paraphrased = "no example of the world-facts set has a paraphrased answer"
    assert data.missing("world_facts/paraphrased") == paraphrased
    assert data.missing("forget/perturbed") is None
    (tofu / "forget05.json").write_text((tofu / "forget10.json").read_text())
    assert load_tofu_data(tofu, split="forget05").sizes()["holdout"] == 0


def test_a_broken_file_is_not_an_absent_one(tofu):
    for broken in ('{"question": "Who?"', '{"answer": "no split \'holdout10\'"}'):
        (tofu / "holdout10.json").write_text(broken)
        with pytest.raises(DataError, match="holdout10"):
            load_tofu_data(tofu)
    with pytest.raises(DataError, match="no split 'forget01'"):
        load_tofu_data(tofu, split="forget01")


def test_sources_of_the_command_line(tofu):
    assert open_metric_data(f"tofu:{tofu}", limit=1).sizes()["forget"] == 1
    assert open_metric_data(str(tofu)).sizes()["holdout"] == 1
    alone = open_metric_data(str(tofu / "forget10.json"), limit=2)
    assert alone.sizes() == {**dict.fromkeys(alone.sizes(), 0), "forget": 2}
    assert open_metric_data(tofu / "forget10.json", limit=2) == alone
    rows = [{"question": "Who?", "answer": "Ada."}, {"question": "Where?", "answer": "There."}]
    assert open_metric_data(rows, retain=EXAMPLES[:1], holdout=rows[:1]).sizes()["forget"] == 2


def test_limits():
    data = MetricData(forget=EXAMPLES, holdout=EXAMPLES[:3])
    few = data.limited(2)
    assert few.sizes()["holdout"] == few.sizes()["entities"] == 2
    of = {"forget": len(EXAMPLES), "holdout": 3, "retain": 0, "real_authors": 0, "world_facts": 0}
    assert few.sample == {"limit": 2, "of": of, "sample": "random", "seed": 0, "subjects": {}}
    assert list(data.limited(2, sample="first").forget) == list(EXAMPLES[:2])
    assert data.limited(None) is data and data.sample is None is data.limited(99).sample
    with pytest.raises(ConfigError, match=">= 1"):
        data.limited(0)
    with pytest.raises(DataError, match="no forget examples"):
        MetricData(forget=[])


def facts(n, *, entity=None, name="", start=0):
    return [
        ForgetExample(f"{name}{i}", f"Who wrote book {i}?", f"Author {i}.", entity=entity, row=i - start)
        for i in range(start, start + n)
    ]


@pytest.mark.parametrize("sample", ["random", "first"])
def test_entities_follow_the_questions_that_were_drawn(sample):
    entities = [replace(each, entity="Author", row=i) for i, each in enumerate(facts(40)[3::3])]
    found = MetricData(forget=facts(40), entities=entities).limited(20, sample=sample, seed=3)
    drawn = {each.question for each in found.forget}
    assert len(drawn) == 20
    assert [e.question for e in found.entities] == [e.question for e in entities if e.question in drawn]
    assert found.sample["of"]["entities"] == len(entities)


def test_entities_follow_by_custom_ids_where_the_words_differ():
    forget = facts(30, name="fact ")
    reworded = [replace(each, question=f"Tell me: {each.question}", entity="Author") for each in forget[::-1]]
    found = MetricData(forget=forget, entities=reworded).limited(10)
    assert {e.id for e in found.entities} == {e.id for e in found.forget}
    # Row numbers are not ids: row 3 of another file is another question.
    strangers = [replace(each, id=str(each.row)) for each in facts(30, entity="Author", start=100)]
    assert len(MetricData(forget=facts(30), entities=strangers).limited(10).entities) == 10


def test_rows_with_entities_about_other_questions_are_left_out_and_said():
    data = MetricData(forget=facts(30), entities=facts(36, entity="Author"))
    with pytest.warns(UdsLensWarning, match="6 of 36 rows with entities have a question that is not in the forget set"):
        found = data.limited(10)
    assert [e.id for e in found.entities] == [e.id for e in found.forget]
    data = MetricData(forget=facts(30), entities=facts(1, entity="Author"))
    none = next(found for s in range(9) if not (found := data.limited(1, seed=s)).entities)
    assert none.missing("entities") == "none of the 1 sampled questions has an entity span"


def test_the_sample_of_tofu_is_one_sample(shared_dir):
    whole = load_tofu_data(shared_dir / "data" / "tofu")
    sizes = whole.sizes()
    assert sizes["forget"] == sizes["retain"] == 400 and sizes["entities"] == 367 and sizes["holdout"] > 300
    for limit in (60, 200):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            data = whole.limited(limit)
        assert {e.id for e in data.entities} <= {e.id for e in data.forget}
        assert len(data.entities) > 0.85 * limit
        assert {e.subject for e in data.forget} == {e.subject for e in whole.forget}
        assert data.sample["subjects"]["forget"] == {"asked": 20, "of": 20}
