"""Rows side by side give what each gives alone: every family, audits, scored answers, texts that are generated.

What is alone is computed here from plain transformers models, one row at a time, without a cache.
"""

import copy
import functools
from dataclasses import replace

import pytest
import torch
from audit import independent
from tiny_models import EXAMPLES, FAMILIES, HYBRIDS, LONG_ROPE, each_family, load_plain

from uds_lens._compat.transformers import longest_text
from uds_lens.data import ForgetExample, answer_sequences, encode
from uds_lens.generation import SamplingSettings, greedy, sample_continuations
from uds_lens.metrics._answers import score_answers
from uds_lens.metrics._definitions.es import extraction_strength
from uds_lens.metrics._definitions.prob import probability
from uds_lens.results import AuditConfig, DepthAudit, RunOptions

EVERY = each_family(["llama", "gemma2", "bamba", "dynamic"], of=(*FAMILIES, *HYBRIDS, *LONG_ROPE))
OPTIONS = RunOptions(device="cpu", progress=False)
QUIET = pytest.mark.filterwarnings("ignore::uds_lens.errors.UdsLensWarning")  # which layouts: tests/patching

LONG = ForgetExample(
    id="long",
    question="In which of the old towns was her second book written?",
    answer="It was written in Orsk.",
    prefix="It was written in",
    entity="Orsk",
    row=8,
)
"""With example 2, a second row of more than 24 tokens."""

ASKED = [EXAMPLES[1], EXAMPLES[2], LONG, EXAMPLES[3], EXAMPLES[7]]


@pytest.fixture(scope="module")
def plain(trio):
    """The plain model of a family, anew each time: dynamic frequencies remember the longest text that was read."""
    loaded = functools.cache(lambda family: load_plain(trio(family).full))
    return lambda family: (copy.deepcopy(loaded(family)[0]), loaded(family)[1])


@QUIET
@pytest.mark.parametrize(  # tests/audit/test_parity.py has the others
    "family", each_family([], of=(*HYBRIDS, *LONG_ROPE))
)
def test_an_audit_is_that_of_each_row_alone(trio, family):
    paths = trio(family)
    asked, tokenizer = ASKED[:3], load_plain(paths.full)[1]
    if family in LONG_ROPE:  # a row whose last token is the first beyond the limit: it is only predicted, but counts
        edge = next(
            row
            for n in range(20)
            for row in [replace(LONG, id="edge", question=f"In which{' old' * n} town?", row=9)]
            if len(encode([row], tokenizer, protocol="raw").rows[0].ids) == 24
        )
        asked = [*asked, edge]
    found = DepthAudit.run(*paths, asked, config=AuditConfig(protocol="raw"), options=OPTIONS)
    assert len(found.examples) == len(asked)
    for row, example in enumerate(asked):
        alone = independent.audit(*paths, [example], cut=family in LONG_ROPE)
        for name in ("s_full", "s1_delta", "s2_delta"):
            expected = torch.tensor(alone[name][0], dtype=torch.float64)
            torch.testing.assert_close(getattr(found, name)[row], expected, atol=2e-5, rtol=1e-5)


@QUIET
@pytest.mark.parametrize("family", EVERY)
def test_answers_are_scored_as_alone(opened, plain, family):
    model = opened(family)
    pairs = [(example.question, answer) for example in ASKED for answer in (example.answer, "A ship.")]
    rows = [each.scored for each in answer_sequences(model.tokenizer, pairs)]
    limit = longest_text(model.hf.config)  # longer rows are left out
    found = score_answers(model, rows, show=False)
    for row, logprobs, hits in zip(rows, found.logprobs, found.hits, strict=True):
        if len(row.ids) > limit:
            assert not len(logprobs)
            continue
        with torch.no_grad():
            logits = plain(family)[0](torch.tensor([row.ids]), use_cache=False).logits[0, list(row.scored)]
        expected = logits.double().log_softmax(-1)
        own = expected[torch.arange(len(row.targets)), list(row.targets)]
        torch.testing.assert_close(logprobs.double(), own, atol=5e-5, rtol=1e-5)
        assert probability(logprobs.tolist()) == pytest.approx(probability(own.tolist()), rel=1e-4)
        right = (expected.argmax(-1) == torch.tensor(row.targets)).tolist()
        assert extraction_strength(hits.tolist()) == extraction_strength(right)


def whole_texts(model, prompt, ends, new_tokens):
    """The greedy continuation of one prompt, from whole forwards."""
    ids = list(prompt)
    while len(ids) < len(prompt) + new_tokens:
        with torch.no_grad():
            token = int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax())
        if token in ends:
            break
        ids.append(token)
    return ids[len(prompt) :]


def asked(tokenizer):
    """Prompts of many lengths, two of them equal; some pass 24 tokens as they are continued."""
    prompts = tokenizer([f"Question: {example.question}\nAnswer:" for example in ASKED])["input_ids"]
    return [*prompts, [*prompts[0][:-1], 9]]


@QUIET
@pytest.mark.parametrize("family", each_family(["llama", "dynamic"], of=(*FAMILIES, *HYBRIDS, *LONG_ROPE)))
def test_texts_that_end_early_leave_the_others_as_they_are(opened, plain, family):
    prompts = asked(opened(family).tokenizer)
    free = [whole_texts(plain(family)[0], prompt, (), 8) for prompt in prompts]
    tokens = sorted({token for text in free for token in text})
    ends = frozenset({max(tokens, key=lambda token: len({(*text, token).index(token) for text in free}))})
    expected = [whole_texts(plain(family)[0], prompt, ends, 8) for prompt in prompts]
    assert len({len(text) for text in expected}) > 1
    assert greedy(opened(family), prompts, max_new_tokens=8, ends=ends) == expected
    sampled = sample_continuations(
        opened(family),
        prompts,
        ends=ends,
        settings=SamplingSettings(max_new_tokens=8, samples=2, temperature=1e-4),
        seeds=range(6),
    )
    assert sampled.tokens == [[text, text] for text in expected]


@pytest.mark.long
@QUIET
@pytest.mark.parametrize("family", ["longrope", "recurrent-gemma"])
def test_every_audit_of_elicitation_says_what_it_says_of_each_row_alone(trio, family):
    from uds_lens.elicitation import GCG, ActPert, ElicitOptions, SoftGCG, elicit

    probes = ["plain", "icl", GCG(tokens=2, steps=1, candidates=4), SoftGCG(tokens=2, steps=1), ActPert(layer=1)]
    options = ElicitOptions(samples=2, temperature=1.0, max_new_tokens=6)
    rows = [
        ForgetExample(id=f"{n}", question=question, answer="In the old town of Orsk.", subject="Ada")
        for n, question in enumerate(("Was Ada a poet?", "Is Ada a poet?", "Where in the old town did Ada grow up?"))
    ]
    settings = {"probes": probes, "options": options, "run": OPTIONS}
    together = elicit(trio(family).unlearned, rows, **settings)
    alone = elicit(trio(family).unlearned, rows[2:], **settings)
    for part in alone.parts:
        if part.probe == "icl" or not part.responses:  # its prompts hold other rows
            continue
        other = next(
            p for p in together.parts if (p.role, p.probe, p.decoding) == (part.role, part.probe, part.decoding)
        )
        (response,) = [each for each in other.responses if each.row == 2]
        assert response.texts == part.responses[0].texts, (part.probe, part.decoding)
