"""Greedy answers: their order, their ends and known beginnings; tests/test_rows_alone.py has their tokens."""

import pytest
import torch
from tiny_models import EXAMPLES

from uds_lens.data._tokens import TokenSequence, answer_prompt, prompt_ids
from uds_lens.generation import GenerationSettings, SamplingSettings, generate_answers, greedy, sample_continuations
from uds_lens.generation._decoding import answer_end_ids, known_beginning
from uds_lens.metrics._answers import score_answers

QUESTIONS = [example.question for example in EXAMPLES]
LIMIT = 9


def answers(model, questions=QUESTIONS[:4], *, rows_at_once=64, **options):
    settings = GenerationSettings(max_new_tokens=LIMIT, rows_at_once=rows_at_once, progress=False)
    return generate_answers(model, questions, protocol="raw", settings=settings, **options)


def test_answers_come_in_the_order_of_the_questions_and_begin_as_told(llama):
    together = answers(llama(), rows_at_once=3)
    assert together == [answers(llama(), [question])[0] for question in QUESTIONS[:4]]
    assert answers(llama(), start="Sure, here is the answer:") != together


def test_end_tokens_of_config_and_tokenizer(llama):
    model = llama()
    assert answer_end_ids(model) == {2}
    model.hf.generation_config.eos_token_id = [5, 6]
    try:
        assert answer_end_ids(model) == {2, 5, 6}
    finally:
        model.hf.generation_config.eos_token_id = 2


def test_a_repetition_penalty_is_that_of_transformers_and_the_models_own_is_not_used(llama):
    model = llama()
    ids = prompt_ids(
        model.tokenizer,
        [answer_prompt(question, protocol="raw", tokenizer=model.tokenizer) for question in QUESTIONS[:4]],
        protocol="raw",
    )

    def theirs(penalty):
        given = {"max_new_tokens": LIMIT, "do_sample": False, "repetition_penalty": penalty, "pad_token_id": 3}
        found = []
        for prompt in ids:
            new = model.hf.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)).long(), **given)
            text = new[0, len(prompt) :].tolist()
            found.append(text[: text.index(2)] if 2 in text else text)
        return found

    plain, penalised = theirs(1.0), theirs(1.7)
    assert plain != penalised
    assert greedy(model, ids, max_new_tokens=LIMIT, repetition_penalty=1.7) == penalised
    settings = SamplingSettings(max_new_tokens=LIMIT, repetition_penalty=1.7)
    sampled = sample_continuations(model, ids, ends=answer_end_ids(model), settings=settings)
    assert [texts[0] for texts in sampled.tokens] == penalised
    first_choices = known_beginning(reference(ids[0], plain[0]), plain[0])
    told = [model.tokenizer.decode(text, skip_special_tokens=True).strip() for text in penalised]
    settings = GenerationSettings(max_new_tokens=LIMIT, repetition_penalty=1.7, progress=False)
    known = [first_choices, None, None, None]
    assert generate_answers(model, QUESTIONS[:4], protocol="raw", settings=settings, known=known) == told
    model.hf.generation_config.repetition_penalty = 1.7
    try:
        assert greedy(model, ids, max_new_tokens=LIMIT) == plain
    finally:
        model.hf.generation_config.repetition_penalty = None


def reference(prompt, answer):
    """A prompt with an answer, whose tokens are scored."""
    ids = (*prompt, *answer)
    scored = tuple(range(len(prompt) - 1, len(ids) - 1))
    return TokenSequence(ids=ids[:-1], targets=tuple(answer), scored=scored, patched=())


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_known_beginnings_save_tokens_and_change_no_text(opened, family):
    """References that agree with the model's own answer in the first tokens."""
    model, questions, steps = opened(family), QUESTIONS[:4], []
    plain = answers(model)
    prompts = prompt_ids(model.tokenizer, [answer_prompt(q) for q in questions], protocol="raw")
    own = greedy(model, prompts, max_new_tokens=LIMIT + 5)
    longest = max(len(tokens) for tokens in own)
    for right in (0, 4, LIMIT, LIMIT + 3):
        rows = [
            reference(prompt, [*tokens[:right], (tokens[right] + 1) % 200 if right < len(tokens) else 2, 7])
            for prompt, tokens in zip(prompts, own, strict=True)
        ]
        choices = score_answers(model, rows, show=False).first_choices
        known = [known_beginning(row, c.tolist()) for row, c in zip(rows, choices, strict=True)]
        assert [each.tokens[:right] for each in known] == [tuple(tokens[:right]) for tokens in own]
        with model.anatomy.layers[0].register_forward_pre_hook(lambda module, args: steps.append(1)):
            assert answers(model, known=known) == plain
        assert len(steps) == max(0, min(LIMIT, longest) - right - 1) or longest < LIMIT
        steps.clear()


def test_an_answer_that_ends_where_the_reference_ends_is_not_generated(llama, monkeypatch):
    model = llama()
    prompt = prompt_ids(model.tokenizer, [answer_prompt(QUESTIONS[0])], protocol="raw")[0]
    own = greedy(model, [prompt], max_new_tokens=5)[0]
    place = "uds_lens.generation._decoding"
    monkeypatch.setattr(f"{place}.answer_end_ids", lambda *args, **options: frozenset({own[3]}))
    row = reference(prompt, own[:4])
    known = [known_beginning(row, score_answers(model, [row], show=False).first_choices[0].tolist())]
    plain = answers(model, QUESTIONS[:1])
    monkeypatch.setattr(f"{place}.greedy", None)
    assert answers(model, QUESTIONS[:1], known=known) == plain


def test_nothing_is_known_of_another_prompt_or_without_scores(llama):
    known = known_beginning(reference([1, 5, 6], [7, 8]), [7, 8])
    assert answers(llama(), QUESTIONS[:1], known=[known]) == answers(llama(), QUESTIONS[:1])
    assert known_beginning(reference([1, 5], [7]), []) is None
