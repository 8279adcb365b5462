import pytest
import torch
from tiny_models import EXAMPLES, load_plain

from uds_lens.errors import ModelError
from uds_lens.generation import answer_end_ids, generate_answers, greedy
from uds_lens.models import open_model

QUESTIONS = [example.question for example in EXAMPLES]


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_greedy_side_by_side_is_transformers_generate_one_by_one(trio, opened, family):
    plain, tokenizer = load_plain(trio(family).full)
    prompts = tokenizer([f"Question: {q}\nAnswer:" for q in QUESTIONS[:4]])["input_ids"]
    found = greedy(opened(family), prompts, max_new_tokens=12)
    for prompt, new in zip(prompts, found, strict=True):
        ids = torch.tensor([prompt])
        whole = plain.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12, pad_token_id=3
        )
        expected = [token for token in whole[0, len(prompt) :].tolist() if token != tokenizer.eos_token_id]
        assert new == expected


def test_rows_leave_when_they_end(llama, monkeypatch):
    """An end token chosen for one row must not touch the others."""
    model = llama()
    prompts = model.tokenizer([f"Question: {q}\nAnswer:" for q in QUESTIONS])["input_ids"]
    free = greedy(model, prompts, max_new_tokens=10)
    stop = free[0][4]
    monkeypatch.setattr("uds_lens.generation._greedy.answer_end_ids", lambda model: frozenset({stop}))
    cut = greedy(model, prompts, max_new_tokens=10)
    expected = [row[: row.index(stop)] if stop in row else row for row in free]
    assert cut == expected
    assert any(len(row) == 10 for row in cut)
    assert len(cut[0]) < 10


def test_answers_come_in_the_order_of_the_questions(llama):
    options = {"protocol": "raw", "max_new_tokens": 5, "show": False}
    together = generate_answers(llama(), QUESTIONS, rows_at_once=3, **options)
    alone = [generate_answers(llama(), [question], **options)[0] for question in QUESTIONS]
    assert together == alone


def test_the_start_is_part_of_the_prompt(llama):
    options = {"protocol": "raw", "max_new_tokens": 5, "show": False}
    plain = generate_answers(llama(), QUESTIONS[:1], **options)
    started = generate_answers(llama(), QUESTIONS[:1], start="Sure, here is the answer:", **options)
    assert plain != started


def test_end_tokens_of_config_and_tokenizer(llama):
    model = llama()
    assert answer_end_ids(model) == {2}
    model.hf.generation_config.eos_token_id = [5, 6]
    try:
        assert answer_end_ids(model) == {2, 5, 6}
    finally:
        model.hf.generation_config.eos_token_id = 2


def test_a_broken_model_is_named_with_the_question(broken):
    with (
        open_model(broken, device="cpu") as model,
        pytest.raises(ModelError, match=r"broken.*NaN or infinite"),
    ):
        generate_answers(model, QUESTIONS, protocol="raw", max_new_tokens=2, show=False)
