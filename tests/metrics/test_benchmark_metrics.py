"""Metrics that benchmarks report: by hand, and against a few lines on plain logits and gradients."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from chat_templates import chat_tokenizer, open_unlearning_labels
from metrics.conftest import RUN, SHORT, ask
from scipy.stats import ks_2samp
from sklearn.metrics import roc_auc_score
from tiny_models import build_model

from uds_lens import metrics as m
from uds_lens.generation import rouge_l_f1
from uds_lens.metrics import MetricOptions, evaluate
from uds_lens.models import HookedModel

STYLE = MetricOptions.preset("open_unlearning")
ASKED = ["forget_quality", "privleak", "mia_reference", "mia_gradnorm"]


@pytest.fixture(scope="module")
def pair():
    return [build_model("llama", version, vocab_size=208) for version in ("unlearned", "retain")]


@pytest.fixture(scope="module")
def found(pair, data):
    tokenizer = chat_tokenizer("llama-3")
    model, retain = (HookedModel(plain, tokenizer, name="m", owned=False) for plain in pair)
    return evaluate(model, data, metrics=ASKED, retain=retain, options=STYLE, run=RUN)


def labelled(question, answer):
    """Token ids, and the place of the first label."""
    ids, first = open_unlearning_labels(
        chat_tokenizer("llama-3"), question, answer, system=STYLE.system_prompt, date=STYLE.chat_date
    )
    return torch.tensor([ids]), first


def logprobs(model, ids, first):
    return model(ids).logits[0, first - 1 : -1].log_softmax(-1).gather(-1, ids[0, first:, None])[:, 0]


def loss(model, question, answer):
    with torch.no_grad():
        return -float(logprobs(model, *labelled(question, answer)).double().mean())


def attacked(data, score):
    """Scores of the forget set and the holdout set, and their AUC with the latter as positives."""
    members, others = ([score(e.question, e.answer) for e in rows] for rows in (data.forget, data.holdout))
    scores = [*members, *others]
    return scores, roc_auc_score([0] * len(members) + [1] * len(others), scores)


def test_reference_attack(pair, data, found):
    scores, value = attacked(data, lambda *pair_: loss(pair[0], *pair_) - loss(pair[1], *pair_))
    assert found["mia_reference"].per_example == pytest.approx(scores, abs=1e-5)
    assert found["mia_reference"].value == value


def test_gradnorm_attack(pair, data, found):
    def norm(question, answer):
        pair[0].zero_grad()
        (-logprobs(pair[0], *labelled(question, answer))[:-1].mean()).backward()
        return float(torch.stack([p.grad.norm() for p in pair[0].parameters()]).mean())

    scores, value = attacked(data, norm)
    pair[0].zero_grad()
    assert found["mia_gradnorm"].per_example == pytest.approx(scores, rel=1e-4)
    assert found["mia_gradnorm"].value == value


@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_gradients_of_other_families_with_tied_weights_leave_the_model_as_it_was(family, data):
    plain = build_model(family, vocab_size=208, tie_word_embeddings=True)
    plain.requires_grad_(False)
    first = next(plain.parameters())
    first.grad = torch.ones_like(first)
    handle = HookedModel(plain, chat_tokenizer("chatml"), name="m", owned=False)
    options = MetricOptions(protocol="raw")
    measured = evaluate(handle, data, metrics=["mia_gradnorm"], options=options, run=RUN)["mia_gradnorm"]
    assert not any(p.requires_grad for p in plain.parameters())
    assert bool((first.grad == 1).all()) and all(p.grad is None for p in list(plain.parameters())[1:])
    ids = handle.tokenizer(f"Question: {data.forget[0].question}\nAnswer:")["input_ids"]
    whole = handle.tokenizer(f"Question: {data.forget[0].question}\nAnswer: {data.forget[0].answer}")["input_ids"]
    plain.requires_grad_(True)
    plain.zero_grad()
    (-logprobs(plain, torch.tensor([whole]), len(ids)).mean()).backward()  # the end token is the label left out
    norms = torch.stack([p.grad.norm() for p in plain.parameters()])
    assert measured.per_example[0] == pytest.approx(float(norms.mean()), rel=1e-4)


def test_forget_quality(pair, data, found):
    def ratios(model):
        for e in data.forget:
            right, wrong = (
                sum(loss(model, e.question, text) for text in texts) / len(texts)
                for texts in (e.paraphrased_answers, e.perturbed_answers)
            )
            yield math.exp(-wrong) / (math.exp(-right) + 1e-10)

    wanted = ks_2samp(list(ratios(pair[0])), list(ratios(pair[1]))).pvalue
    assert found["forget_quality"].value == pytest.approx(wanted, abs=1e-5)
    assert found["forget_quality"].details["log10"] == pytest.approx(math.log10(wanted))


def test_forget_quality_counts_the_ways_to_split_the_values():
    model, retain = [0.1, 0.4, 0.5, 0.9], [0.2, 0.6, 0.7]

    def distance(*sides):
        below = [[sum(x <= at for x in side) / len(side) for at in all_] for side in sides]
        return max(abs(left - right) for left, right in zip(*below, strict=True))

    all_ = sorted([*model, *retain])
    splits = [(set(s), set(all_) - set(s)) for s in itertools.combinations(all_, len(model))]
    wanted = sum(distance(*split) >= distance(model, retain) - 1e-12 for split in splits) / len(splits)
    assert m.forget_quality([*model, math.nan], retain) == pytest.approx(wanted)
    assert m.forget_quality(model, model) == 1
    assert math.isnan(m.forget_quality([math.nan], retain))


def test_privleak(found, pair, data):
    """Open-Unlearning turns both AUCs around first, since those of MUSE are 1 minus its own."""

    def score(model):
        def lowest(question, answer):
            with torch.no_grad():
                kept = logprobs(model, *labelled(question, answer))[:-1].sort().values
            return -float(kept[: max(1, int(0.4 * len(kept)))].mean())

        return 1 - attacked(data, lowest)[1]

    model, retain = map(score, pair)
    assert found["privleak"].value == pytest.approx((model - retain) / (retain + 1e-10) * 100, abs=1e-5)
    assert math.isnan(m.privleak(0.5, 1.0)) and math.isnan(m.privleak(math.nan, 0.5))


def test_a_model_that_is_retain(pair, data):
    retain = HookedModel(pair[1], chat_tokenizer("llama-3"), name="m", owned=False)
    itself = evaluate(retain, data, metrics=ASKED, retain=retain, options=STYLE, run=RUN)
    assert [itself[name].value for name in ASKED[:3]] == [1.0, 0.0, 0.5]
    alone = evaluate(retain, data, metrics=ASKED, options=STYLE, run=RUN)
    assert alone.reasons == dict.fromkeys(ASKED[:3], "no retain model was given")
    without = evaluate(retain, [replace(data.forget[0], entity=None, prefix=None)], metrics=ASKED, run=RUN)
    assert without.reasons["mia_gradnorm"].startswith("there is no holdout set")


def f1(reference, answer):
    """F1 of the longest common subsequence of words."""
    left, right = reference.split(), answer.split()
    table = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i, j in itertools.product(range(len(left)), range(len(right))):
        same = left[i] == right[j]
        table[i + 1][j + 1] = table[i][j] + 1 if same else max(table[i][j + 1], table[i + 1][j])
    common = table[-1][-1]
    return 2 * common / (len(left) + len(right))


def test_rouge_f1_of_knowmem_and_verbmem(trio, data, monkeypatch):
    assert rouge_l_f1(["a b c d"], ["a c x b d e"]) == pytest.approx([f1("a b c d", "a c x b d e")])
    assert math.isnan(rouge_l_f1([""], ["a"])[0])
    names = ["forget_knowmem_rouge", "retain_knowmem_rouge", "forget_verbmem_rouge", "rouge"]
    passages = [replace(e, id=f"p{e.id}", question=f"{e.answer} And", entity=None, prefix=None) for e in data.forget]
    texts = iter(["It was grey.\n\nQuestion: It was", "Question: no", "so " * 200, "Two", "Three"] * 9)
    seen = []

    def generate(model, questions, *, bare=False, **settings):
        seen.append((bare, questions[0]))
        return [next(texts) for _ in questions]

    monkeypatch.setattr("uds_lens.metrics._passes.generate_answers", generate)
    rows = [replace(e, answer="it was a grey one") for e in data.forget]
    measured = ask(trio("llama").full, replace(data, forget=rows, passages=passages), names)
    known = measured["forget_knowmem_rouge"].per_example
    assert known[0] == pytest.approx(f1("it was a grey one", "it was grey")) and known[1] == 0
    assert measured["rouge"].per_example[0] == pytest.approx(3 / 5)
    assert (True, passages[0].question) in seen and sum(bare for bare, _ in seen) == 1 and len(seen) == 3
    assert measured["forget_verbmem_rouge"].n == 5


def test_passages_are_continued_as_they_are(trio, data):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = trio("llama").full
    plain, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    passages = [replace(data.forget[0], question="Ada Veylin was born", answer="in Orsk", entity=None, prefix=None)]
    options = replace(SHORT, protocol="chat")
    measured = ask(folder, replace(data, passages=passages), ["forget_verbmem_rouge"], options=options)
    ids = torch.tensor([tokenizer(passages[0].question)["input_ids"]])
    with torch.no_grad():
        whole = plain.generate(ids, do_sample=False, max_new_tokens=SHORT.max_new_tokens, eos_token_id=2)
    new = tokenizer.decode(whole[0, ids.shape[1] :], skip_special_tokens=True)
    assert measured.generations["passages"] == (new.strip(),)


def test_an_empty_set_of_passages_leaves_results_as_they_were(data):
    from uds_lens.metrics._data import data_hash

    assert "passages" not in data.sizes() and "passages" not in data.limited(2).sample["of"]
    some = replace(data, passages=data.forget)
    assert some.sizes()["passages"] == 5 and some.limited(2).sizes()["passages"] == 2
    assert data_hash(some) != data_hash(data)
    plain = [{"question": "Who?", "answer": "Ada."}]
    assert m.open_metric_data(plain, passages=plain).sizes()["passages"] == 1
