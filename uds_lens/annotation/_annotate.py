"""`annotate`: mark the words in each answer that carry the knowledge.

Most methods score the words of the answer's first sentence and take the highest-scoring run of words as the entity.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from uds_lens._compat.transformers import rope_limit
from uds_lens._optional_packages import require_package
from uds_lens._progress import progress
from uds_lens._settings import as_settings
from uds_lens._types import check_choice
from uds_lens.annotation._annotations import AnnotateOptions, Annotations, Finding, Way
from uds_lens.annotation._language_model import by_reply, read_replies
from uds_lens.annotation._prompt_types import prompt_type
from uds_lens.audit._inputs import where_of
from uds_lens.data import Encoded, ForgetExample, encode, make_batch
from uds_lens.data._examples import Span
from uds_lens.data._prompts import announce_protocol
from uds_lens.data._readers import as_examples
from uds_lens.errors import ConfigError, DataError, MissingDependencyError, Setting
from uds_lens.models import HookedModel, open_model, read_checkpoint_info
from uds_lens.models._compatibility import check_compatible, deciding_record, protocol_of, require_embedded
from uds_lens.models._hooked import ModelSource, pick_device
from uds_lens.patching import capture, row_layout, target_logprobs
from uds_lens.patching._costs import ModelCosts
from uds_lens.results import RunOptions

if TYPE_CHECKING:
    from uds_lens.data._readers import ExampleSource


_WORD = re.compile(r"\S+")
_SENTENCE_END = re.compile(r"[.!?][\"')\u201d]?\s+(?=[A-Z\"\u201c])")
_OPENING = frozenset("\"'\u201c\u2018")
_CLOSING = frozenset("\"'\u201d\u2019")
_CORE = re.compile(r"\w(?:.*\w)?", re.DOTALL)

_SMALL_WORDS = """
a an and are as at be been being but by for from had has have he her hers him his i in into is it its of on or she so
than that the their them they this to was were which who whom whose will with you your
"""
_SMALL = frozenset(_SMALL_WORDS.split())
"""Function words, which are trimmed from both ends of a run unless the run contains nothing else."""

_SPACY_MODEL = "en_core_web_sm"

Found: TypeAlias = Span | str  # character span in the answer, or a sentence saying why no entity was found


class Word(NamedTuple):
    """A word in an answer, without surrounding punctuation."""

    text: str
    start: int
    end: int

    @property
    def key(self) -> str:
        """The word in lower case without a possessive ending, as used in comparisons.

        >>> Word("Ada's", 0, 5).key
        'ada'
        """
        return re.sub(r"['\u2019]s$", "", self.text.casefold())


def words_of(text: str) -> list[Word]:
    """Split a text into words, dropping surrounding punctuation and stand-alone symbols.

    >>> [word.text for word in words_of('It was "Ada Vey" -- of 1999.')]
    ['It', 'was', 'Ada', 'Vey', 'of', '1999']
    """
    cores = ((match.start(), _CORE.search(match[0])) for match in _WORD.finditer(text))
    return [Word(core[0], start + core.start(), start + core.end()) for start, core in cores if core]


def first_sentence(answer: str) -> list[Word]:
    """Return the words of the first sentence.

    >>> [word.text for word in first_sentence("Ada Vey. She wrote Ash.")]
    ['Ada', 'Vey']
    """
    end = _SENTENCE_END.search(answer)
    return [word for word in words_of(answer) if end is None or word.end <= end.start() + 1]


def best_run(scores: Sequence[float]) -> range:
    """Return the contiguous run of words with the largest total score, or an empty range if no score is above 0.

    >>> best_run([-1.0, 2.0, -0.5, 3.0, -4.0])
    range(1, 4)
    """
    best, run = 0.0, range(0)
    total, start = 0.0, 0
    for place, score in enumerate(scores):
        if total <= 0:
            total, start = 0.0, place
        total += score
        if total > best:
            best, run = total, range(start, place + 1)
    return run


def span_of(answer: str, words: Sequence[Word], run: range) -> Span:
    """Return the character span of a run of words, including any quotation marks directly around the run.

    >>> text = 'She wrote "Ash and Ember".'
    >>> span = span_of(text, words_of(text), range(2, 5))
    >>> text[span.start : span.end]
    '"Ash and Ember"'
    """
    start, end = words[run.start].start, words[run.stop - 1].end
    if start > 0 and answer[start - 1] in _OPENING and answer[end : end + 1] in _CLOSING:
        return Span(start - 1, end + 1)
    return Span(start, end)


def _standing_out(
    example: ForgetExample, words: Sequence[Word], scores: Sequence[float], otherwise: Found | range
) -> Found:
    """Return the run of words with the largest total score, without function words at its ends, or a leading Yes or No.

    A word that also occurs in the question scores at most 0.
    """
    in_question = _keys(example.question)
    new = [min(score, 0.0) if word.key in in_question else score for word, score in zip(words, scores, strict=True)]
    run = range(1) if words and words[0].key in ("yes", "no") else best_run(new) or otherwise
    if not isinstance(run, range):
        return run
    content = [place for place in run if words[place].key not in _SMALL]
    return span_of(example.answer, words, range(content[0], content[-1] + 1) if content else run)


def _keys(text: str) -> set[str]:
    return {word.key for word in words_of(text)}


def by_answer(example: ForgetExample) -> Found:
    """Find the longest run of words in the first sentence that do not occur in the question."""
    words = first_sentence(example.answer)
    if not words:
        return "The answer contains no words."
    in_question = _keys(example.question)
    scores = [-1.0 if word.key in in_question else float(word.key not in _SMALL) for word in words]
    return _standing_out(example, words, scores, range(len(words)))


def by_difference(example: ForgetExample) -> Found:
    """Find the words that the answer shares with its paraphrases but not with its perturbed versions.

    A word's score is `(a - 1/2) + (b - 1/2) / 2`, where a is the fraction of perturbed answers that lack the word
    (after word alignment) and b is the fraction of paraphrased answers that contain it.
    """
    if not example.perturbed_answers and not example.paraphrased_answers:
        return "There is no perturbed or paraphrased answer to compare with."
    words = first_sentence(example.answer)
    keys, scores = [word.key for word in words], [0.0] * len(words)
    for answer in example.perturbed_answers:
        theirs = [word.key for word in words_of(answer)]
        blocks = SequenceMatcher(None, keys, theirs, autojunk=False).get_matching_blocks()
        common = {place for block in blocks for place in range(block.a, block.a + block.size)}
        for place in range(len(words)):
            scores[place] -= ((place in common) - 0.5) / len(example.perturbed_answers)
    for answer in example.paraphrased_answers:
        theirs_anywhere = _keys(answer)
        for place, key in enumerate(keys):
            scores[place] += 0.5 * ((key in theirs_anywhere) - 0.5) / len(example.paraphrased_answers)
    return _standing_out(example, words, scores, "The answer does not differ from its variants in any word.")


def by_name(examples: Sequence[ForgetExample], nlp: Callable[[str], Any] | None = None) -> list[Found]:
    """Find each answer's longest named entity (spaCy) that is not in the question, or else its first named entity."""
    if nlp is None:
        require_package(
            "spacy",
            needed_by="finding names needs",
            instead=f"Then run python -m spacy download {_SPACY_MODEL}. Methods that do not need spaCy "
            "are contrast, difference and answer.",
        )
        import spacy

        try:
            nlp = spacy.load(_SPACY_MODEL)
        except OSError as error:
            raise MissingDependencyError(
                f"spaCy's model {_SPACY_MODEL} is not installed: run python -m spacy download {_SPACY_MODEL}."
            ) from error
    spans: list[Found] = []
    for example in examples:
        names = nlp(example.answer).ents
        new = [name for name in names if name.text.casefold() not in example.question.casefold()]
        chosen = max(new or names[:1], key=lambda name: len(name.text), default=None)
        spans.append("No name was found in the answer." if chosen is None else Span(chosen.start_char, chosen.end_char))
    return spans


def by_contrast(
    examples: Sequence[ForgetExample],
    *,
    full: ModelSource,
    retain: ModelSource,
    options: AnnotateOptions,
    run: RunOptions,
) -> list[Found]:
    """Find the run of words whose token log-probabilities differ most between `full` and `retain`.

    Let d_t be the log-probability of answer token t under `full` minus its log-probability under `retain`, and let m be
    the mean of d_t over the answer. The entity is the run of words in the first sentence for which the sum of d_t - m
    is largest.
    """
    where, sources = where_of(run), {"full": full, "retain": retain}
    infos = {role: read_checkpoint_info(s, **where) for role, s in sources.items()}
    tokenizer = check_compatible(infos)
    whole = [replace(example, entity=example.answer.strip(), prefix="") for example in examples]
    protocol = protocol_of(options.protocol, infos, tokenizer)
    recorded = deciding_record(infos) is not None
    announce_protocol(options.protocol, protocol, recorded, tokenizer=tokenizer, chat=options.chat)
    encoded = encode(
        whole,
        tokenizer,
        protocol=protocol,
        scope="entity",
        chat=options.chat,
        last_token=rope_limit(infos["full"].config) is not None,
    )
    costs = ModelCosts.of(infos["full"].config, pick_device(run.device))
    batches = costs.batches(encoded.rows, token_budget=run.token_budget)
    logprobs = []
    for role, source in sources.items():
        with open_model(source, dtype=options.dtype, device=run.device, device_map=run.device_map, **where) as model:
            require_embedded(model.hf, ((row.example.question, row.ids) for row in encoded.rows), name=model.name)
            fitting = row_layout(model).split(batches, [len(row.ids) for row in encoded.rows])
            shown = progress(fitting, desc=f"annotating: {role}", unit="batch", enabled=run.progress)
            logprobs.append(_answer_logprobs(model, encoded, shown, tokenizer.pad_token_id))
    reasons: dict[str, Found] = {skipped.id: skipped.reason for skipped in encoded.skipped}
    by_id = dict(reasons)
    for row, known, unknown in zip(encoded.rows, *logprobs, strict=True):
        shift = len(row.example.answer) - len(row.example.answer.lstrip()) - row.rendered.entity.start
        places = [(start + shift, end + shift) for start, end in row.characters]
        by_id[row.example.id] = _by_tokens(row.example, places, (known - unknown).tolist())
    return [by_id[example.id] for example in examples]


@torch.no_grad()
def _answer_logprobs(
    model: HookedModel, encoded: Encoded, batches: Any, pad_token_id: int | None
) -> list[torch.Tensor]:
    """Return the log-probabilities of each row's answer tokens, as float32 on the CPU."""
    logprobs: list[torch.Tensor] = [torch.empty(0)] * len(encoded.rows)
    side = row_layout(model).padding_side
    for indices in batches:
        batch = make_batch(encoded.rows, indices=indices, pad_token_id=pad_token_id, padding_side=side)
        batch = batch.to(model.device)
        states = capture(model, batch).states[:, -1]
        values = target_logprobs(model.anatomy, states, batch.targets, batch.scored_mask).cpu()
        for place, row in enumerate(batch.rows):
            logprobs[row] = values[place][batch.scored_mask[place].cpu()]
    return logprobs


def _by_tokens(example: ForgetExample, tokens: Sequence[tuple[int, int]], difference: Sequence[float]) -> Found:
    words = first_sentence(example.answer)
    if not words:
        return "The answer contains no words."
    mean = sum(difference) / len(difference)
    scores = [
        sum(
            d - mean
            for (start, end), d in zip(tokens, difference, strict=True)
            if start < word.end and end > word.start
        )
        for word in words
    ]
    return _standing_out(example, words, scores, "full and retain do not differ on any word in the answer.")


def annotate(
    rows: ExampleSource | Iterable[ForgetExample | Mapping[str, Any]],
    *,
    by: Way,
    full: ModelSource | None = None,
    retain: ModelSource | None = None,
    options: AnnotateOptions | None = None,
    run: RunOptions | None = None,
    nlp: Callable[[str], Any] | None = None,
    replies: str | os.PathLike[str] | None = None,
    redo: bool = False,
) -> Annotations:
    """Find the entity in every row that has no entity yet, and fill in missing prompt types.

    An audit scores the entity, which is the part of an answer that carries the knowledge. Few data sets mark the
    entity. There are five methods:

    - "contrast": the run of words whose token log-probabilities differ most between `full` and `retain`.
    - "difference": the words that are missing from the perturbed answers or shared by the paraphrased answers.
    - "names": the longest named entity found by spaCy that is not in the question (needs the extra `[annotate]`).
    - "answer": the longest run of words in the answer that do not occur in the question.
    - "language_model": the words marked by a model of your choice, given the prompts from `language_model_prompts`. A
    reply is rejected, and the reason recorded, if it changes the answer or marks words that the question already
    contains.

    "contrast", "difference" and "answer" look only at the first sentence of an answer. If that sentence starts with
    "Yes" or "No", that word is the entity. The methods disagree, so review the entities (`Annotations.review`) before
    reporting a score. On 367 TOFU rows annotated by hand, the mean token F1 is 0.45 for both "answer" and "difference",
    0.37 for "contrast" and 0.17 for "names" (measured with another spaCy pipeline). Two baselines score 0.38 (marking
    every word that is not in the question) and 0.29 (marking the whole answer). Against annotations by GPT-4o, which
    often mark several phrases per answer, the four methods score 0.41, 0.42, 0.37 and 0.23 in the same order, and the
    two baselines score 0.48 and 0.40 (`benchmarks/annotation_ways.py`).

    Args:
        rows: The rows to annotate, in any form that `uds_lens.load_examples` accepts.
        by: The method.
        full: For "contrast": the model trained on all data.
        retain: For "contrast": the model that never saw the forget set.
        options: For "contrast": prompt format and dtype; default `AnnotateOptions()`.
        run: For "contrast": device and memory settings; default `RunOptions()`.
        replies: For "language_model": a file with `id` and `reply` in each row.
        nlp: For "names": a loaded spaCy pipeline; None loads the small English pipeline.
        redo: Also annotate rows that already have an entity.

    Returns:
        The examples with `entity`, `prefix` and `type`, and a record of how each entity was found. Existing types are
        kept; a missing type is inferred from the wording of the question and the form of the entity.

    Raises:
        ConfigError: `by` is not one of these methods, "contrast" lacks a model, or "language_model" lacks replies.
        DataError: The rows cannot be read, or there are no rows.
        MissingDependencyError: "names" was requested, but spaCy or its English model is not installed.
        IncompatibleModelsError: `full` and `retain` differ in architecture, size or tokenizer.
        ModelError: A checkpoint cannot be opened.

    Example:
        >>> row = {"question": "Who wrote Ash?", "answer": "The author of Ash was Ada Vey."}
        >>> annotate([row], by="answer").examples[0].entity
        'Ada Vey'
        >>> row["perturbed_answers"] = ["The author of Ash was Bo Tal.", "The author of Ash was Cy Rin."]
        >>> annotate([row], by="difference").examples[0].entity
        'Ada Vey'
    """
    check_choice("by", by, Way)
    options = as_settings(AnnotateOptions, options, name="options")
    run = as_settings(RunOptions, run, name="run")
    examples = as_examples(rows)
    if not examples:
        raise DataError("no examples: there is nothing to annotate.")
    places = [place for place, example in enumerate(examples) if redo or not (example.entity or "").strip()]
    chosen = [examples[place] for place in places]
    if by == "contrast":
        if full is None or retain is None:
            needed = " needs two models: ", Setting("full"), " and ", Setting("retain"), "."
            raise ConfigError(Setting("by", "contrast"), *needed)
        spans = by_contrast(chosen, full=full, retain=retain, options=options, run=run) if chosen else []
    elif by == "language_model":
        if replies is None:
            raise ConfigError(
                Setting("by", "language_model"),
                " needs ",
                Setting("replies"),
                ", a file with a model's replies to the prompts from language_model_prompts.",
            )
        told = read_replies(replies)
        spans = [by_reply(example, told.get(example.id)) for example in chosen]
    elif by == "names":
        spans = by_name(chosen, nlp) if chosen else []
    else:
        spans = [(by_difference if by == "difference" else by_answer)(example) for example in chosen]
    findings = [Finding("given", None) for _ in examples]
    for place, span in zip(places, spans, strict=True):
        example = examples[place]
        if isinstance(span, str):
            examples[place] = replace(example, entity=None, prefix=None)
            findings[place] = Finding("none", span)
        else:
            entity, prefix = example.answer[span.start : span.end], example.answer[: span.start].rstrip()
            examples[place] = replace(example, entity=entity, prefix=prefix)
            findings[place] = Finding(by, None)
    typed = (replace(example, type=example.type or prompt_type(example)) for example in examples)
    return Annotations(examples=tuple(typed), findings=tuple(findings), by=by)
