"""Answers as words with places, and the run of words that stands out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any, NamedTuple, TypeAlias

import torch

from uds_lens._optional_packages import require_package
from uds_lens._progress import progress
from uds_lens._types import DType, Protocol
from uds_lens.data import ChatStyle, Encoded, ForgetExample, Span, encode, make_batch
from uds_lens.errors import MissingDependencyError
from uds_lens.models import (
    HookedModel,
    ModelSource,
    check_compatible,
    open_model,
    pick_device,
    read_checkpoint_info,
)
from uds_lens.patching import ModelCosts, capture, row_layout, target_logprobs
from uds_lens.results import RunOptions

_WORD = re.compile(r"\S+")
_SENTENCE_END = re.compile(r"[.!?][\"')\u201d]?\s+(?=[A-Z\"\u201c])")
_OPENING = frozenset("\"'\u201c\u2018")
_CLOSING = frozenset("\"'\u201d\u2019")
_CORE = re.compile(r"\w(?:.*\w)?", re.DOTALL)

_SMALL = """
a an and are as at be been being but by for from had has have he her hers him his i in into is it its of on or she so
than that the their them they this to was were which who whom whose will with you your
"""
SMALL = frozenset(_SMALL.split())
"""Words that carry nothing alone; a run neither starts nor ends with one where it can be helped."""


class Word(NamedTuple):
    """A word of an answer, with its punctuation left out."""

    text: str
    start: int
    end: int

    @property
    def key(self) -> str:
        """To compare words by: without case and without a possessive ending.

        >>> Word("Ada's", 0, 5).key
        'ada'
        """
        return re.sub(r"['\u2019]s$", "", self.text.casefold())


def words_of(text: str) -> list[Word]:
    """Words in order; punctuation around them and lone signs are left out.

    >>> [word.text for word in words_of('It was "Ada Vey" -- of 1999.')]
    ['It', 'was', 'Ada', 'Vey', 'of', '1999']
    """
    found = []
    for match in _WORD.finditer(text):
        core = _CORE.search(match[0])
        if core:
            start = match.start() + core.start()
            found.append(Word(core[0], start, start + len(core[0])))
    return found


def best_run(scores: Sequence[float]) -> range:
    """The contiguous run with the largest sum; empty where no score is above 0.

    >>> best_run([-1.0, 2.0, -0.5, 3.0, -4.0])
    range(1, 4)
    """
    best, found = 0.0, range(0)
    total, start = 0.0, 0
    for place, score in enumerate(scores):
        if total <= 0:
            total, start = 0.0, place
        total += score
        if total > best:
            best, found = total, range(start, place + 1)
    return found


def trimmed(words: Sequence[Word], run: range) -> range:
    """The run without small words at its ends, unless it holds nothing else."""
    start, stop = run.start, run.stop
    while start < stop and words[start].key in SMALL:
        start += 1
    while stop > start and words[stop - 1].key in SMALL:
        stop -= 1
    return range(start, stop) if start < stop else run


def span_of(answer: str, words: Sequence[Word], run: range) -> Span:
    """Characters of a run, with the quotation marks directly around it.

    >>> text = 'She wrote "Ash and Ember".'
    >>> span = span_of(text, words_of(text), range(2, 5))
    >>> text[span.start : span.end]
    '"Ash and Ember"'
    """
    start, end = words[run.start].start, words[run.stop - 1].end
    if start > 0 and answer[start - 1] in _OPENING and answer[end : end + 1] in _CLOSING:
        return Span(start - 1, end + 1)
    return Span(start, end)


def verdict(words: Sequence[Word]) -> range:
    """The first word, where it is yes or no: it answers the question, the rest explains it."""
    return range(1) if words and words[0].key in ("yes", "no") else range(0)


def first_sentence(answer: str) -> list[Word]:
    """Words of the first sentence; an entity does not go on in the next one.

    >>> [word.text for word in first_sentence("Ada Vey. She wrote Ash.")]
    ['Ada', 'Vey']
    """
    end = _SENTENCE_END.search(answer)
    return [word for word in words_of(answer) if end is None or word.end <= end.start() + 1]


def asked(question: str) -> set[str]:
    """Words of a question, to tell what an answer only repeats."""
    return {word.key for word in words_of(question)}


# Entities from texts alone: what differs from other answers, what is a name, what the question did not say.

Found: TypeAlias = Span | str
"""Characters of the answer, or the reason why there are none, as a sentence."""

SPACY_MODEL = "en_core_web_sm"


def by_difference(example: ForgetExample) -> Found:
    """What the answer says and its perturbed variants do not, and its paraphrases do.

    Each word of the first sentence scores the share of perturbed answers that lack it (aligned word by word) minus one
    half, plus, with half the weight, the share of paraphrased answers that have it minus one half; words of the
    question score 0 at most. The run of words with the largest sum is the entity; "Yes" or "No" in front is one by
    itself.
    """
    if not example.perturbed_answers and not example.paraphrased_answers:
        return "There is neither a perturbed nor a paraphrased answer to compare with."
    words = first_sentence(example.answer)
    known = asked(example.question)
    scores = [0.0] * len(words)
    for weight, answers in ((-1.0, example.perturbed_answers), (0.5, example.paraphrased_answers)):
        for other in answers:
            kept = _kept(words, other, aligned=weight < 0)
            for place in range(len(words)):
                scores[place] += weight * ((place in kept) - 0.5) / len(answers)
    new = [min(score, 0.0) if word.key in known else score for word, score in zip(words, scores, strict=True)]
    run = verdict(words) or best_run(new)
    if not run:
        return "The answer does not differ from its variants in any word."
    return span_of(example.answer, words, trimmed(words, run))


def _kept(words: Sequence[Word], other: str, *, aligned: bool) -> set[int]:
    """Places of the words that another answer has too: in the same order, or anywhere."""
    theirs = [word.key for word in words_of(other)]
    if not aligned:
        return {place for place, word in enumerate(words) if word.key in theirs}
    matcher = SequenceMatcher(None, [word.key for word in words], theirs, autojunk=False)
    return {
        place for block in matcher.get_matching_blocks() for place in range(block.a, block.a + block.size)
    }


def by_answer(example: ForgetExample) -> Found:
    """The longest stretch of the first sentence that the question does not say; "Yes" or "No" in front by itself."""
    words = first_sentence(example.answer)
    if not words:
        return "The answer has no word."
    known = asked(example.question)
    scores = [-1.0 if word.key in known else float(word.key not in SMALL) for word in words]
    run = verdict(words) or best_run(scores) or range(len(words))
    return span_of(example.answer, words, trimmed(words, run))


def names_in(examples: Iterable[ForgetExample], *, nlp: Callable[[str], Any] | None = None) -> list[Found]:
    """Named entities of spaCy: the longest one of the answer that the question does not hold, else the first.

    Args:
        examples: Examples.
        nlp: A loaded pipeline; None loads `SPACY_MODEL`.

    Raises:
        MissingDependencyError: spaCy or its English model is not installed.
    """
    read = nlp or _pipeline()
    return [_longest_new_name(example, read(example.answer).ents) for example in examples]


def _longest_new_name(example: ForgetExample, entities: Sequence[Any]) -> Found:
    if not entities:
        return "No name was found in the answer."
    question = example.question.casefold()
    new = [entity for entity in entities if entity.text.casefold() not in question]
    chosen = max(new or entities[:1], key=lambda entity: len(entity.text))
    return Span(chosen.start_char, chosen.end_char)


def _pipeline() -> Callable[[str], Any]:
    require_package(
        "spacy",
        needed_by="finding names needs",
        instead=f"Then python -m spacy download {SPACY_MODEL}. Without it there are the ways contrast, difference and "
        "answer.",
    )
    import spacy

    try:
        return spacy.load(SPACY_MODEL)
    except OSError as error:
        raise MissingDependencyError(
            f"spaCy's model {SPACY_MODEL} is not installed: python -m spacy download {SPACY_MODEL}."
        ) from error


# Entities from models: where `full` knows what `retain` does not.


def by_contrast(
    examples: Sequence[ForgetExample],
    *,
    full: ModelSource,
    retain: ModelSource,
    protocol: Protocol = "raw",
    chat: ChatStyle | None = None,
    dtype: DType = "float32",
    options: RunOptions | None = None,
) -> list[Found]:
    """The run of words on which `full` and `retain` differ most in log-probability per token.

    With d_t the log-probability of answer token t under `full` minus that under `retain`, and m the mean of d over
    the answer, the run of words of its first sentence with the largest sum of d_t - m is the entity: the part that
    stands out from the rest. Words of the question score 0 at most; "Yes" or "No" in front is an entity by itself.

    Args:
        examples: Questions with answers.
        full: Trained on everything.
        retain: Never saw the forget set.
        protocol: How question and answer become text.
        chat: System turn and date of chat prompts.
        dtype: Dtype of the models.
        options: How they are run.

    Returns:
        Characters of each answer, or the reason why there are none.

    Raises:
        IncompatibleModelsError: The checkpoints differ in architecture, size or tokenizer.
        ModelError: A checkpoint cannot be opened.
    """
    options = options or RunOptions()
    where = {"offline": options.offline, "trust_remote_code": options.trust_remote_code}
    infos = {
        role: read_checkpoint_info(model, revision=options.revision, **where)
        for role, model in (("full", full), ("retain", retain))
    }
    tokenizer = check_compatible(infos)
    whole = [replace(example, entity=example.answer.strip(), prefix="") for example in examples]
    encoded = encode(whole, tokenizer, protocol=protocol, scope="entity", chat=chat)
    costs = ModelCosts.of(infos["full"].config, pick_device(options.device))
    batches = costs.batches(encoded.rows, token_budget=options.token_budget)
    scores = []
    for role, source in (("full", full), ("retain", retain)):
        model = open_model(
            source,
            dtype=dtype,
            device=options.device,
            device_map=options.device_map,
            revision=options.revision,
            **where,
        )
        with model:
            scores.append(
                _answer_logprobs(
                    model,
                    encoded,
                    batches,
                    role=role,
                    show=options.progress,
                    pad_token_id=tokenizer.pad_token_id,
                )
            )
    continuations = [row.rendered.continuation for row in encoded.rows]
    offsets = (
        tokenizer(continuations, add_special_tokens=False, return_offsets_mapping=True, verbose=False)[
            "offset_mapping"
        ]
        if continuations
        else []
    )
    by_id = {}
    for row, spans, known, unknown in zip(encoded.rows, offsets, *scores, strict=True):
        shift = len(row.example.answer) - len(row.example.answer.lstrip()) - row.rendered.entity.start
        places = [(start + shift, end + shift) for start, end in spans[: len(known)]]
        by_id[row.example.id] = _standing_out(row.example, places, (known - unknown).tolist())
    reasons = {skipped.id: skipped.reason for skipped in encoded.skipped}
    return [by_id[example.id] if example.id in by_id else reasons[example.id] for example in examples]


@torch.no_grad()
def _answer_logprobs(
    model: HookedModel,
    encoded: Encoded,
    batches: Sequence[Sequence[int]],
    *,
    role: str,
    show: bool | None,
    pad_token_id: int | None,
) -> list[torch.Tensor]:
    """Log-probability of every answer token of every row, float32 on the CPU."""
    found: list[torch.Tensor] = [torch.empty(0)] * len(encoded.rows)
    layout = row_layout(model)
    batches = layout.split(batches, [len(row.ids) for row in encoded.rows])
    for indices in progress(batches, desc=f"annotate: {role}", unit="batch", enabled=show):
        batch = make_batch(
            encoded.rows, indices=indices, pad_token_id=pad_token_id, padding_side=layout.padding_side
        )
        batch = batch.to(model.device)
        states = capture(model, batch).states[:, -1]
        logprobs = target_logprobs(model.anatomy, states, batch.targets, batch.scored_mask).cpu()
        for place, row in enumerate(batch.rows):
            found[row] = logprobs[place][batch.scored_mask[place].cpu()]
    return found


def _standing_out(
    example: ForgetExample, tokens: Sequence[tuple[int, int]], difference: Sequence[float]
) -> Found:
    words = first_sentence(example.answer)
    if not words:
        return "The answer has no word."
    mean = sum(difference) / len(difference)
    known = asked(example.question)
    scores = []
    for word in words:
        own = sum(
            d - mean
            for (start, end), d in zip(tokens, difference, strict=True)
            if start < word.end and end > word.start
        )
        scores.append(min(own, 0.0) if word.key in known else own)
    run = verdict(words) or best_run(scores)
    if not run:
        return "full and retain differ nowhere in the answer."
    return span_of(example.answer, words, trimmed(words, run))
