"""Scores of answers against the plain model; a prompt shared by several answers runs once, with the same numbers."""

import pytest
import torch
from tiny_models import EXAMPLES, load_plain

from uds_lens.data import answer_sequences
from uds_lens.data._tokens import TokenSequence
from uds_lens.elicitation._gcg import SharedBeginning
from uds_lens.metrics._answers import may_share_prompts, score_answers
from uds_lens.models import open_model
from uds_lens.patching import _costs

PAIRS = [(example.question, example.answer) for example in EXAMPLES]
ANSWERS = ("She was born in Port Vel.", "In the harbour.", "Port Vel", "It was a ship, and a long one at that.")
SHARED = [(example.question, answer) for example in EXAMPLES[:3] for answer in ANSWERS]


def tokenised(model, pairs=PAIRS):
    return [each.scored for each in answer_sequences(model.tokenizer, pairs)]


def scored(model, pairs=PAIRS, **options):
    names = [question for question, _ in pairs]
    return score_answers(model, tokenised(model, pairs), names=names, show=False, **options)


@pytest.mark.parametrize("family", ["llama", "mistral"])  # sliding windows of 8 tokens reach into the question
@pytest.mark.parametrize("pairs", [PAIRS, SHARED])
def test_tokens_against_the_plain_model_in_one_batch_or_many(trio, opened, monkeypatch, family, pairs):
    model, (plain, _) = opened(family), load_plain(trio(family).full)
    found, alone = scored(model, pairs), scored(model, pairs, token_budget=1)
    monkeypatch.setattr(_costs, "LOGITS_AT_ONCE", {"cpu": 3 * 200})
    chunks = scored(model, pairs)
    for i, row in enumerate(tokenised(model, pairs)):
        with torch.no_grad():
            logits = plain(torch.tensor([row.ids])).logits[0, list(row.scored)].double()
        logp, targets = logits.log_softmax(-1), torch.tensor(row.targets)
        own = logp[torch.arange(len(targets)), targets]
        assert torch.allclose(found.logprobs[i].double(), own, atol=1e-5)
        assert torch.allclose(found.logprobs[i], alone.logprobs[i], atol=1e-5)
        assert found.hits[i].tolist() == (logp.argmax(-1) == targets).tolist()
        assert found.first_choices[i].tolist() == logp.argmax(-1).tolist()
        mu = (logp.exp() * logp).sum(-1)
        sigma = ((logp.exp() * logp.square()).sum(-1) - mu.square()).sqrt()
        for scores in (found, chunks):
            assert torch.allclose(scores.standardised[i].double(), (own - mu) / sigma, atol=1e-4)


def test_answers_too_long_for_the_model_have_no_token(llama):
    long = ("Who?", "Ada Veylin was born in the harbour. " * 30)
    found = scored(llama(), [long, *PAIRS[:1]])
    assert [len(values) > 0 for values in found.logprobs] == [False, True]
    none = score_answers(llama(), [], show=False)
    assert none.hits == none.logprobs == ()


def test_a_long_prompt_is_not_repeated_for_many_answers_at_once(llama, token_layers):
    """64 tokens of budget: at most 256 in keys and values, and a prompt alone has a hundred."""
    prompt = (1, *range(10, 110))
    rows = [TokenSequence(ids=(*prompt, 5), targets=(5, n), scored=(100, 101), patched=()) for n in range(6, 12)]
    found = score_answers(llama(), rows, token_budget=64, show=False)
    assert set(token_layers) == {(1, 101), (2, 1)}
    assert len({round(float(each[0]), 4) for each in found.logprobs}) == 1


def test_an_answer_that_is_only_its_end(llama):
    (longer,) = tokenised(llama(), [("Who?", "Ada Veylin.")])
    prompt = longer.ids[: longer.scored[0] + 1]
    end = TokenSequence(ids=prompt, targets=(2,), scored=(len(prompt) - 1,), patched=())
    together = score_answers(llama(), [end, longer], show=False)
    alone = score_answers(llama(), [end], show=False)
    assert together.logprobs[0].tolist() == pytest.approx(alone.logprobs[0].tolist(), abs=1e-5)


def test_hooks_of_the_caller_see_whole_sequences(trio):
    with open_model(trio("llama").full, device="cpu") as model:
        rows, seen = tokenised(model, SHARED[:4]), []
        block = model.hf.model.layers[1]
        with block.register_forward_hook(lambda module, args, output: seen.append(output.shape[1])):
            score_answers(model, rows, token_budget=1, show=False)
    assert sorted(seen) == sorted(len(row.ids) for row in rows)


def test_a_model_with_recurrent_layers_runs_whole_sequences(trio):
    """It keeps states of what it read, which cannot be reused for another answer."""
    hybrid = open_model(trio("qwen3-next").full, device="cpu")
    rows = tokenised(hybrid, SHARED[:4])
    assert may_share_prompts(hybrid)  # nothing tells before it has run
    score_answers(hybrid, rows, show=False)
    assert not may_share_prompts(hybrid)
    target, prompts = (5, 6), [[7, 8, 9, 10], [7, 8, 9, 11], [7, 8, 3, 10]]
    losses = [
        SharedBeginning(hybrid, target, rows_at_once=2, cached=cached).losses(prompts, [7, 8, 9, 10], 1)
        for cached in (True, False)
    ]
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-4)
