import json

import pytest
from tiny_models import EXAMPLES

from uds_lens.data import load_tofu
from uds_lens.errors import ConfigError, DataError
from uds_lens.metrics import MetricData, load_tofu_data, open_metric_data


def write(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


@pytest.fixture
def tofu(tmp_path):
    rows = [{"question": f"Who wrote book {i}?", "answer": f"Author {i} wrote it."} for i in range(4)]
    variants = {
        "paraphrased_answer": "It was the author.",
        "perturbed_answer": ["It was Bram.", "It was Cleo."],
    }
    write(tmp_path / "forget10.json", rows)
    write(tmp_path / "forget10_perturbed.json", [{**row, **variants} for row in rows])
    write(tmp_path / "forget10_filtered.json", [{**rows[1], "prefix": "", "entity": "Author 1"}])
    write(tmp_path / "holdout10.json", [{"question": "Who else?", "answer": "Somebody."}])
    write(tmp_path / "retain_perturbed.json", [{**rows[0], **variants}])
    write(tmp_path / "world_facts_perturbed.json", [{**rows[0], "perturbed_answer": ["Rome"]}])
    return tmp_path


def test_tofu_directory(tofu):
    data = load_tofu_data(tofu)
    assert data.sizes() == {
        "forget": 4,
        "holdout": 1,
        "retain": 1,
        "real_authors": 0,
        "world_facts": 1,
        "entities": 1,
    }
    assert data.forget[0].paraphrased_answers == ("It was the author.",)
    assert [text.owner for text in data.texts("forget/perturbed")] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert data.with_entities[0].entity == "Author 1"
    assert data.missing("real_authors/perturbed") == "there is no real-authors set"
    assert (
        data.missing("world_facts/paraphrased")
        == "no example of the world-facts set has a paraphrased answer"
    )
    assert data.missing("forget/perturbed") is None


def test_the_split_chooses_its_holdout(tofu):
    (tofu / "forget05.json").write_text((tofu / "forget10.json").read_text())
    assert load_tofu_data(tofu, split="forget05").sizes()["holdout"] == 0


def test_a_broken_file_is_not_an_absent_one(tofu):
    (tofu / "holdout10.json").write_text('{"question": "Who?"')
    with pytest.raises(DataError, match="holdout10"):
        load_tofu_data(tofu)
    with pytest.raises(DataError, match="no split 'forget01'"):
        load_tofu_data(tofu, split="forget01")


def test_what_an_error_says_does_not_make_a_split_absent(tofu, monkeypatch):
    def load(source, split):
        if split == "holdout10":
            raise DataError("holdout10.json: no question in row 1, which holds \"no split 'holdout10'\".")
        return load_tofu(source, split)

    monkeypatch.setattr("uds_lens.metrics.metric_data.load_tofu", load)
    with pytest.raises(DataError, match="no question in row 1"):
        load_tofu_data(tofu)


def test_sources_of_the_command_line(tofu):
    assert open_metric_data(f"tofu:{tofu}", limit=1).sizes()["forget"] == 1
    assert open_metric_data(str(tofu)).sizes()["holdout"] == 1
    alone = open_metric_data(str(tofu / "forget10.json"), limit=2)
    assert alone.sizes() == {**dict.fromkeys(alone.sizes(), 0), "forget": 2}


def test_limits():
    data = MetricData(forget=EXAMPLES, holdout=EXAMPLES[:3])
    assert data.limited(2).sizes()["holdout"] == 2
    assert data.limited(None) is data
    assert data.limited(2).sizes()["entities"] == 2
    assert data.limited(2).sample == {
        "limit": 2,
        "of": {"forget": len(EXAMPLES), "holdout": 3, "retain": 0, "real_authors": 0, "world_facts": 0},
        "sample": "random",
        "seed": 0,
    }
    assert list(data.limited(2, sample="first").forget) == list(EXAMPLES[:2])
    assert data.sample is None is data.limited(99).sample
    with pytest.raises(ConfigError, match="at least 1"):
        data.limited(0)
    with pytest.raises(DataError, match="no forget examples"):
        MetricData(forget=[])


def test_shared_tofu(shared_dir):
    sizes = load_tofu_data(shared_dir / "data" / "tofu").sizes()
    assert sizes["forget"] == sizes["retain"] == 400
    assert sizes["entities"] == 367
    assert sizes["holdout"] == 400 or sizes["holdout"] > 300
