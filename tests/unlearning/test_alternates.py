"""Alternate answers: not the truth, seeded, hotter where the model insists."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from uds_lens.data import ForgetExample
from uds_lens.errors import DataError, ResultFormatError
from uds_lens.unlearning import AltPOConfig
from uds_lens.unlearning._data import read_alternates, sample_alternates, states_truth, write_alternates

CONFIG = AltPOConfig(n_alternates=3, max_new_tokens=12)


@pytest.fixture(scope="module")
def model(tiny):
    return AutoModelForCausalLM.from_pretrained(tiny.full).eval(), AutoTokenizer.from_pretrained(tiny.full)


def test_alternates_are_seeded_and_not_the_truth(model, tiny) -> None:
    state = torch.get_rng_state()
    drawn = sample_alternates(*model, tiny.forget, config=CONFIG)
    assert torch.get_rng_state().equal(state), "the caller's random numbers are left alone"
    assert [len(texts) for texts in drawn] == [3] * len(tiny.forget)
    assert not any(states_truth(text, row) for texts, row in zip(drawn, tiny.forget, strict=True) for text in texts)
    assert drawn == sample_alternates(*model, tiny.forget, config=CONFIG)
    other = AltPOConfig(n_alternates=3, max_new_tokens=12, seed=1)
    assert drawn != sample_alternates(*model, tiny.forget, config=other)


@pytest.mark.filterwarnings("ignore::uds_lens.errors.UdsLensWarning")
@pytest.mark.parametrize(("family", "rows_at_once"), [("recurrent-gemma", 1), ("llama", 3)])
def test_a_model_whose_rows_padding_changes_is_sampled_one_at_a_time(trio, monkeypatch, family, rows_at_once) -> None:
    from tiny_models import EXAMPLES

    place = trio(family).full
    plain = AutoModelForCausalLM.from_pretrained(place).eval(), AutoTokenizer.from_pretrained(place)
    sizes, generate = [], plain[0].generate
    monkeypatch.setattr(
        plain[0], "generate", lambda **options: sizes.append(len(options["input_ids"])) or generate(**options)
    )
    config = AltPOConfig(n_alternates=1, max_new_tokens=4, protocol="raw")
    assert len(sample_alternates(*plain, EXAMPLES[1:4], config=config)) == 3
    assert max(sizes) == rows_at_once


def test_an_entity_decides_where_there_is_one() -> None:
    example = ForgetExample("0", "Who?", "The author of it all is Ada Vey.", entity="Ada Vey")
    assert states_truth("ADA VEY did", example)
    assert not states_truth("The author of it all is Bo.", example)


def test_a_model_that_says_nothing_else_is_an_error(model, tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uds_lens.unlearning._data.states_truth", lambda text, example: True)
    with pytest.raises(DataError, match="no alternate answer was found for 1 questions"):
        sample_alternates(*model, tiny.forget[:1], config=CONFIG)


def test_file_round_trip(tiny, tmp_path) -> None:
    texts = [["a", "b"], ["c", "d\n"], [], ["é"]]
    write_alternates(tmp_path / "alternates.json", tiny.forget, texts)
    assert read_alternates(tmp_path / "alternates.json") == texts
    text = (tmp_path / "alternates.json").read_text()
    (tmp_path / "alternates.json").write_text(text.replace('"c"', '"x"'))
    with pytest.raises(ResultFormatError, match="altered"):
        read_alternates(tmp_path / "alternates.json")
