"""Answers whose beginning is known are the answers that are generated without knowing it."""

import pytest
import torch
from tiny_models import EXAMPLES

from uds_lens.data import TokenSequence, answer_prompt, prompt_ids
from uds_lens.generation import generate_answers, greedy, known_beginning
from uds_lens.metrics import score_answers

LIMIT = 9
QUESTIONS = [example.question for example in EXAMPLES]


def reference(prompt, answer):
    """A prompt with an answer, whose tokens are scored."""
    ids = (*prompt, *answer)
    scored = tuple(range(len(prompt) - 1, len(ids) - 1))
    return TokenSequence(ids=ids[:-1], targets=tuple(answer), scored=scored, patched=())


@pytest.fixture(params=["llama", "gemma2", "gpt2"])
def model(request, opened):
    return opened(request.param)


@pytest.mark.parametrize("right", [0, 1, 4, LIMIT, LIMIT + 3])
def test_texts_are_the_same_and_fewer_tokens_are_generated(model, right):
    """References that agree with the model's own answer in that many tokens."""
    options = {"protocol": "raw", "max_new_tokens": LIMIT, "show": False}
    plain = generate_answers(model, QUESTIONS, **options)
    prompts = prompt_ids(model.tokenizer, [answer_prompt(q) for q in QUESTIONS], protocol="raw")
    own = greedy(model, prompts, max_new_tokens=LIMIT + 5)
    rows = [
        reference(prompt, [*tokens[:right], (tokens[right] + 1) % 200 if right < len(tokens) else 2, 7])
        for prompt, tokens in zip(prompts, own, strict=True)
    ]
    scores = score_answers(model, rows, show=False)
    known = [known_beginning(row, c.tolist()) for row, c in zip(rows, scores.first_choices, strict=True)]
    assert [known_.tokens[:right] for known_ in known] == [tuple(tokens[:right]) for tokens in own]
    steps = []
    handle = model.anatomy.layers[0].register_forward_pre_hook(lambda module, args: steps.append(1))
    assert generate_answers(model, QUESTIONS, known=known, **options) == plain
    handle.remove()
    longest = max(len(tokens) for tokens in own)
    assert len(steps) == max(0, min(LIMIT, longest) - right - 1) or longest < LIMIT


def test_an_answer_that_ends_where_the_reference_ends_is_not_generated(llama, monkeypatch):
    """The model's choice for the end of the reference is an end token."""
    model = llama()
    prompt = prompt_ids(model.tokenizer, [answer_prompt(QUESTIONS[0])], protocol="raw")[0]
    own = greedy(model, [prompt], max_new_tokens=5)[0]
    monkeypatch.setattr(
        "uds_lens.generation._greedy.answer_end_ids", lambda *args, **options: frozenset({own[3]})
    )
    row = reference(prompt, own[:4])
    known = [known_beginning(row, score_answers(model, [row], show=False).first_choices[0].tolist())]
    options = {"protocol": "raw", "max_new_tokens": LIMIT, "show": False}
    plain = generate_answers(model, QUESTIONS[:1], **options)
    monkeypatch.setattr("uds_lens.generation._greedy.greedy", None)
    assert generate_answers(model, QUESTIONS[:1], known=known, **options) == plain


def test_nothing_is_known_of_another_prompt(llama):
    row = reference([1, 5, 6], [7, 8])
    known = known_beginning(row, torch.tensor([7, 8]).tolist())
    options = {"protocol": "raw", "max_new_tokens": 4, "show": False}
    plain = generate_answers(llama(), QUESTIONS[:1], **options)
    assert generate_answers(llama(), QUESTIONS[:1], known=[known], **options) == plain


def test_answers_that_were_not_scored_are_not_known():
    assert known_beginning(reference([1, 5], [7]), []) is None
