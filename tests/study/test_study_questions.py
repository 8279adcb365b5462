"""Which questions a study asks, and what it says of them."""

import warnings
from pathlib import Path

import pytest

from uds_lens import study
from uds_lens.data import sample_examples
from uds_lens.errors import ConfigError, UdsLensWarning, _seen
from uds_lens.study._folder import StudyFolder
from uds_lens.study._models import read_questions
from uds_lens.study._plan import QuestionSets, as_mapping
from uds_lens.toy import load

TOFU_SMALL = Path(__file__).parents[2] / "studies" / "tofu_small"


def test_a_limit_is_a_sample_spread_over_the_subjects():
    world = load()
    asked = read_questions(QuestionSets(forget="toy:forget", retain="toy:retain", limit=12))
    assert list(asked.forget) == sample_examples(world.examples, 12)
    assert list(asked.retain) == sample_examples(world.retain_examples, 12)
    assert asked.holdout == () and asked.entities is None
    subjects = len({each.subject for each in world.examples})
    assert asked.sample["subjects"]["forget"] == {"asked": min(12, subjects), "of": subjects}
    other = read_questions(QuestionSets(forget="toy:forget", limit=12, seed=1))
    assert other.forget != asked.forget
    assert read_questions(QuestionSets(forget="toy:forget")).sample is None


def test_first_rows_are_taken_by_name_only_and_with_the_caution(small, fake, tmp_path):
    data = {"forget": "toy:forget", "limit": 4, "sample": "first"}
    assert list(read_questions(QuestionSets(**data)).forget) == load().examples[:4]
    _seen.clear()  # another test may have been warned already
    with pytest.warns(UdsLensWarning, match="Only the first rows .* The data are sorted by subject"):
        found = study.run({**small, "data": data}, tmp_path / "first", runner=fake())
    assert "so the first rows are not representative" in found.sample
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = study.run(small, tmp_path / "random", runner=fake())
    assert found.sample.startswith("Random sample of at most 4 examples per set (forget: of 48,")
    folder = StudyFolder(tmp_path / "random")
    parts = [part for model in folder.models for state in model.states for part in folder.parts(model, state)]
    assert {part.sample["sample"] for part in parts} == {"random"}
    with pytest.raises(ConfigError, match="'random', 'first', 'first_of_each'"):
        study.plan({**small, "data": {**data, "sample": "frist"}})


@pytest.mark.skipif(not TOFU_SMALL.is_dir(), reason="the folder of studies does not come with the package")
def test_the_two_studies_of_the_small_llamas_ask_as_their_plans_say(shared_dir):
    if shared_dir.resolve() != (TOFU_SMALL / "../../../shared").resolve():
        pytest.skip("the plan looks for models and data beside the repository")
    asked, again = (
        read_questions(study.plan(TOFU_SMALL / name).data) for name in ("plan.toml", "plan_stratified.toml")
    )
    assert len({each.subject for each in asked.entities}) == 6
    assert again.sample["subjects"]["forget"] == {"asked": 20, "of": 20}
    assert {e.id for e in again.entities} <= {e.id for e in again.forget}


@pytest.mark.skipif(not TOFU_SMALL.is_dir(), reason="the folder of studies does not come with the package")
def test_the_two_studies_of_the_small_llamas_differ_in_what_they_ask_alone():
    first, second = (as_mapping(study.plan(TOFU_SMALL / name)) for name in ("plan.toml", "plan_stratified.toml"))
    assert first["data"].pop("sample") == "first_of_each" and second["data"].pop("sample") == "random"
    assert first.pop("name") != second.pop("name")
    assert first == second
