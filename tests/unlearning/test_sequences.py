"""Training sequences: natural tokens, answer-only labels, one end token."""

import pytest
from transformers import AutoTokenizer

from uds_lens.errors import DataError
from uds_lens.unlearning.sequences import answer_sequences, end_token, pad_sequences, trained_prompt


@pytest.fixture(scope="module")
def tokenizer(tiny):
    return AutoTokenizer.from_pretrained(tiny.full)


def test_raw_sequences_are_the_text_tokenised_at_once(tokenizer) -> None:
    question, answer = "Where was Ada Vey born?", "Ada Vey was born in Veyville."
    (sequence,) = answer_sequences(tokenizer, [(question, answer)])
    whole = tokenizer(f"Question: {question}\nAnswer: {answer}")["input_ids"]
    assert list(sequence.ids) == [*whole, tokenizer.eos_token_id]
    learnt = sequence.ids[sequence.n_prompt :]
    assert tokenizer.decode(learnt) == f" {answer}<eos>"
    assert sequence.ids.count(tokenizer.bos_token_id) == 1


def test_chat_sequences_end_their_turn(tokenizer) -> None:
    (sequence,) = answer_sequences(tokenizer, [("Who?", "Bo Lund.")], protocol="chat")
    turns = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Bo Lund."}]
    whole = tokenizer.apply_chat_template(turns, tokenize=False).rstrip("\n")
    assert tokenizer.decode(sequence.ids) == whole
    assert tokenizer.decode(sequence.ids[sequence.n_prompt :]) == "Bo Lund.<|turn|>"
    assert end_token(tokenizer, protocol="chat") == tokenizer.convert_tokens_to_ids("<|turn|>")
    assert end_token(tokenizer) == tokenizer.eos_token_id


def test_the_space_belongs_to_the_answer(tokenizer) -> None:
    assert trained_prompt("Who?", tokenizer) == "Question: Who?\nAnswer:"
    assert trained_prompt("Who?", tokenizer, protocol="chat").endswith("<|assistant|>\n")


def test_labels_are_the_answers_only(tokenizer) -> None:
    rows = answer_sequences(tokenizer, [("Who?", "Bo Lund."), ("Where was Bo Lund born?", "In Lundville.")])
    batch = pad_sequences(rows, pad_token_id=tokenizer.pad_token_id)
    for row, sequence in enumerate(rows):
        n = len(sequence.ids)
        assert batch["input_ids"][row, :n].tolist() == list(sequence.ids)
        assert batch["attention_mask"][row].sum().item() == n
        labels = batch["labels"][row]
        assert labels[labels != -100].tolist() == list(sequence.ids[sequence.n_prompt :])
        assert (labels[: sequence.n_prompt] == -100).all()
        assert (labels[n:] == -100).all()


def test_too_long_is_said_with_the_question(tokenizer) -> None:
    with pytest.raises(DataError, match=r"'Who\?' with its answer has \d+ tokens, more than the model's 8"):
        answer_sequences(tokenizer, [("Who?", "Bo Lund.")], max_tokens=8)
