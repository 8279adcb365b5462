"""Training batches: answer-only labels."""

from transformers import AutoTokenizer

from uds_lens.data import answer_sequences
from uds_lens.unlearning._likelihood import pad_sequences


def test_labels_are_the_answers_only(tiny) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny.full)
    rows = answer_sequences(tokenizer, [("Who?", "Bo Lund."), ("Where was Bo Lund born?", "In Lundville.")])
    batch = pad_sequences(rows, pad_token_id=tokenizer.pad_token_id)
    for row, sequence in enumerate(rows):
        n = len(sequence.ids)
        assert batch["input_ids"][row, :n].tolist() == list(sequence.ids)
        assert batch["attention_mask"][row].sum().item() == n
        labels = batch["labels"][row]
        assert labels[labels != -100].tolist() == list(sequence.labelled)
        assert (labels[: sequence.n_prompt] == -100).all()
        assert (labels[n:] == -100).all()
