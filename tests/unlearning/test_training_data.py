"""What training learns of an answer is what the metrics score of it."""

import pytest
from chat_templates import TEMPLATES, chat_tokenizer, open_unlearning_labels
from tiny_models import EXAMPLES, build_model

from uds_lens.unlearning import make_config
from uds_lens.unlearning._data import encoded, pairs_of
from uds_lens.unlearning._job import Parent


@pytest.mark.parametrize("name", TEMPLATES)
def test_training_labels_are_those_of_open_unlearning(name: str) -> None:
    config = make_config("npo")
    parent = Parent(build_model("llama"), chat_tokenizer(name), "tiny", "")
    found = encoded(parent, config, pairs_of(EXAMPLES))
    for example, sequence in zip(EXAMPLES, found, strict=True):
        theirs = open_unlearning_labels(
            parent.tokenizer, example.question, example.answer, date=config.chat_date
        )
        assert (list(sequence.ids), sequence.n_prompt) == theirs
