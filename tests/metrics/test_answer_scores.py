import pytest
import torch
from tiny_models import EXAMPLES, load_plain

from uds_lens.data import answer_sequences
from uds_lens.errors import ModelError
from uds_lens.metrics import score_answers
from uds_lens.models import open_model

PAIRS = [(example.question, example.answer) for example in EXAMPLES]


def tokenised(tokenizer, pairs=PAIRS):
    return [each.scored for each in answer_sequences(tokenizer, pairs)]


def scored(model, pairs=PAIRS, **options):
    rows = tokenised(model.tokenizer, pairs)
    return score_answers(model, rows, names=[question for question, _ in pairs], show=False, **options)


def one_by_one(folder, row):
    """Each row on its own, from the plain model's logits."""
    model, _ = load_plain(folder)
    with torch.no_grad():
        logits = model(torch.tensor([row.ids])).logits[0, list(row.scored)].double()
    return logits.log_softmax(-1), torch.tensor(row.targets)


def test_tokens_against_the_plain_model(trio, llama):
    found = scored(llama())
    for i, row in enumerate(tokenised(llama().tokenizer)):
        logp, targets = one_by_one(trio("llama").full, row)
        own = logp[torch.arange(len(targets)), targets]
        assert torch.allclose(found.logprobs[i].double(), own, atol=1e-5)
        assert found.hits[i].tolist() == (logp.argmax(-1) == targets).tolist()


def test_min_k_plus_plus_against_a_sum_over_the_vocabulary(trio, llama):
    found = scored(llama())
    row = tokenised(llama().tokenizer)[2]
    logp, targets = one_by_one(trio("llama").full, row)
    for t, target in enumerate(targets.tolist()):
        terms = [(float(lp.exp()), float(lp)) for lp in logp[t]]
        mu = sum(p * lp for p, lp in terms)
        variance = sum(p * lp * lp for p, lp in terms) - mu**2
        expected = (float(logp[t, target]) - mu) / variance**0.5
        assert float(found.standardised[2][t]) == pytest.approx(expected, abs=1e-4)


def test_batches_do_not_matter(llama):
    whole, alone = scored(llama()), scored(llama(), token_budget=1)
    for a, b in zip(whole.logprobs, alone.logprobs, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_several_chunks_of_logits(llama, monkeypatch):
    from uds_lens.patching import _costs as costs

    whole = scored(llama())
    monkeypatch.setattr(costs, "LOGITS_AT_ONCE", {"cpu": 3 * 200})
    parts = scored(llama())
    for a, b in zip(whole.standardised, parts.standardised, strict=True):
        assert torch.allclose(a, b, atol=1e-4)


def test_answers_too_long_for_the_model_have_no_token(llama):
    long = ("Who?", "Ada Veylin was born in the harbour. " * 30)
    found = scored(llama(), [long, *PAIRS[:1]])
    assert [len(values) > 0 for values in found.logprobs] == [False, True]


def test_no_texts(llama):
    found = score_answers(llama(), [], show=False)
    assert found.hits == found.logprobs == ()


def test_a_broken_model_is_named_with_its_first_example(broken):
    with (
        open_model(broken, device="cpu") as model,
        pytest.raises(ModelError, match=r"broken.*Who wrote the Ash"),
    ):
        scored(model)
