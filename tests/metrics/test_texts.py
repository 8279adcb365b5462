import pytest
from tiny_models import EXAMPLES, build_tokenizer

from uds_lens.errors import DataError
from uds_lens.metrics import AnswerText, answer_sequences
from uds_lens.metrics.texts import answer_protocol, question_text


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


TEXTS = [AnswerText(i, e.question, e.answer) for i, e in enumerate(EXAMPLES)]


def test_raw_rows_are_the_tokens_of_the_whole_text(tokenizer):
    for row, text in zip(answer_sequences(TEXTS, tokenizer, protocol="raw"), TEXTS, strict=True):
        joint = tokenizer(f"Question: {text.question}\nAnswer: {text.answer}")["input_ids"]
        assert list(row.ids) == joint
        assert (*row.targets,) == (*joint[row.scored[0] + 1 :], tokenizer.eos_token_id)
        answer = tokenizer(f" {text.answer}", add_special_tokens=False)["input_ids"]
        assert list(row.targets[:-1]) == answer


def test_chat_rows_start_with_the_template_and_end_with_the_end_token(tokenizer):
    (row,) = answer_sequences(TEXTS[:1], tokenizer, protocol="chat")
    header = f"<bos><user> {TEXTS[0].question}\nReply:"  # Jinja drops a template's last line break
    head, answer = (
        tokenizer(text, add_special_tokens=False)["input_ids"] for text in (header, f" {TEXTS[0].answer}")
    )
    assert list(row.ids) == head + answer
    assert row.ids.count(tokenizer.bos_token_id) == 1
    assert list(row.targets) == [*answer, tokenizer.eos_token_id]


def test_prompts_of_generations():
    assert question_text("Who?", protocol="raw") == "Question: Who?\nAnswer:"
    assert question_text("Who?", protocol="raw", start="Sure:") == "Question: Who?\nAnswer: Sure:"


def test_auto_follows_the_template(tokenizer):
    assert answer_protocol("auto", tokenizer) == "chat"
    assert answer_protocol("raw", tokenizer) == "raw"
    plain = build_tokenizer()
    plain.chat_template = None
    assert answer_protocol("auto", plain) == "raw"


def test_a_tokenizer_without_end_token_is_refused():
    tokenizer = build_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(DataError, match="no end token"):
        answer_sequences(TEXTS, tokenizer, protocol="raw")
    assert answer_sequences([], tokenizer, protocol="raw") == []
