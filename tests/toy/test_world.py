"""The generator of the toy world's facts, its loader, and what is in the package."""

import itertools
import json
import shutil
import time

import pytest
from transformers import AutoTokenizer

from uds_lens.data import encode, load_examples
from uds_lens.errors import DataError
from uds_lens.toy import generate, load
from uds_lens.toy._facts import DEEDS, PEOPLE, strangers
from uds_lens.unlearning import METHODS, parse_name


def test_the_shipped_data_are_what_the_generator_makes():
    world = load()
    for group, rows in generate().items():
        assert json.loads((world.path / f"{group}.json").read_text("utf-8")) == rows


def test_load_finds_everything_fast():
    load()
    started = time.process_time()  # of this process alone: the machine may be busy
    world = load()
    assert time.process_time() - started < 1
    assert (len(world.examples), len(world.retain_examples), len(world.holdout_examples)) == (48, 192, 48)
    assert len(world.unlearned) == 10 and set(world.unlearned) <= set(METHODS)
    names = json.loads((world.path / "world.json").read_text("utf-8"))["unlearning"]  # how each was unlearned
    assert {method: parse_name(name).method for method, name in names.items()} == {m: m for m in world.unlearned}
    assert list(world.checkpoints)[:3] == ["full", "retain", "half"]
    assert set(world.recall) == set(world.checkpoints)
    assert all((path / "model.safetensors").is_file() for path in world.checkpoints.values())
    for word in (
        "<pre>Toy world at",
        *world.checkpoints,
        "192 facts about 24",
        f"{world.recall['full']['forget']:.3f}",
    ):
        assert word in world._repr_html_()
    assert world.examples[0].entity and len(world.examples[0].perturbed_answers) == 4


def test_what_ships_fits_into_five_megabytes():
    world = load()
    files = [path for path in world.path.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 5e6  # 3.9 in the wheel
    for checkpoint in world.checkpoints.values():
        assert sum(path.stat().st_size for path in checkpoint.iterdir()) <= 0.65e6
    assert not [path for path in files if path.suffix in {".bin", ".pt", ".pkl"}]


def test_errors_name_what_is_missing_and_the_fix(tmp_path):
    with pytest.raises(DataError, match=r"no toy world at .*build_toy_world\.py --out DIR"):
        load(tmp_path)
    shutil.copytree(load().path, tmp_path / "mine")
    world = load(tmp_path / "mine")  # another world can be loaded
    assert (world.full, world.examples) == (tmp_path / "mine" / "full", load().examples)
    (tmp_path / "mine" / "half" / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"missing: .*half"):
        load(tmp_path / "mine")
    (tmp_path / "mine" / "world.json").write_text("{")
    with pytest.raises(DataError, match=r"world\.json is not readable JSON"):
        load(tmp_path / "mine")


@pytest.fixture(scope="module")
def rows():
    return generate()


def everything(rows):
    return [row for group in rows.values() for row in group]


def test_nobody_is_in_two_groups_and_no_value_belongs_to_two_people(rows):
    people = [{row["subject"] for row in group} for group in rows.values()]
    assert not any(one & other for one, other in itertools.combinations(people, 2))
    values = [(row["type"], row["entity"]) for row in everything(rows) if row["type"] != "Yes/No"]
    assert len(set(values)) == len(values)


def test_yes_and_no_are_balanced_for_every_deed(rows):
    for do, did in DEEDS:
        about = [row["entity"] for row in everything(rows) if do in row["question"] or did in row["question"]]
        assert about.count("Yes") == about.count("No") == 3
    for group in ("forget", "holdout"):
        said = [row["entity"] for row in rows[group] if row["type"] == "Yes/No"]
        assert said.count("Yes") == said.count("No")


def test_a_seed_decides_everything(rows):
    assert generate() == rows
    assert generate(1) == generate(1)
    assert generate(1)["forget"] != rows["forget"]


@pytest.mark.parametrize("protocol", ["raw", "chat"])
def test_every_example_can_be_scored(rows, protocol):
    tokenizer = AutoTokenizer.from_pretrained(load().full)
    encoded = encode(load_examples(everything(rows)), tokenizer, protocol=protocol)
    assert not encoded.skipped
    assert len(encoded.rows) == 288


def test_paraphrases_say_it_and_wrong_answers_do_not(rows):
    for row in everything(rows):
        entity = row["entity"].lower()
        others = [*row["paraphrased_answers"], *row["perturbed_answers"]]
        assert len(set(others)) == len(others) == 7
        assert row["answer"] not in others
        assert row["paraphrased_question"] != row["question"]
        assert all(entity in text.lower() for text in row["paraphrased_answers"])
        starts = [text.lower().startswith(f"{entity},") for text in row["perturbed_answers"]]
        inside = [entity in text.lower() for text in row["perturbed_answers"]]
        assert not any(starts if row["type"] == "Yes/No" else inside)
        assert all(row["subject"] in row[key] for key in ("question", "answer", "paraphrased_question"))


def test_strangers_have_new_names_and_retained_values(rows):
    met = list(itertools.islice(strangers(0, rows["retain"]), 400))
    assert not {row["subject"] for row in met} & set(PEOPLE)
    assert {row["entity"] for row in met} <= {row["entity"] for row in rows["retain"]}
    assert len({row["subject"] for row in met}) == 50
    assert next(strangers(1, rows["retain"])) != met[0]
