"""`annotate`: mark in every answer the words that carry the knowledge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from uds_lens._settings import as_settings
from uds_lens._types import check_choice
from uds_lens.annotation._annotations import AnnotateOptions, Annotations, Finding, Way
from uds_lens.annotation._ways import by_answer, by_contrast, by_difference, by_name
from uds_lens.data import ForgetExample, as_examples
from uds_lens.errors import ConfigError, DataError, Setting
from uds_lens.models import ModelSource
from uds_lens.results import RunOptions

if TYPE_CHECKING:
    from uds_lens.data._readers import ExampleSource


def annotate(
    rows: ExampleSource | Iterable[ForgetExample | Mapping[str, Any]],
    *,
    by: Way,
    full: ModelSource | None = None,
    retain: ModelSource | None = None,
    options: AnnotateOptions | None = None,
    run: RunOptions | None = None,
    nlp: Callable[[str], Any] | None = None,
    redo: bool = False,
) -> Annotations:
    """Find the entity of every answer that has none.

    An audit scores the words of an answer that carry the knowledge, its entity. Data sets rarely mark them. The ways:

    - "contrast": the run of words on which `full` and `retain` differ most in log-probability per token.
    - "difference": the words of the answer that its perturbed variants lack, or its paraphrases have too.
    - "names": the longest named entity of spaCy that the question does not contain (needs the extra `[annotate]`).
    - "answer": the longest stretch of the answer that the question does not contain.

    All but "names" are limited to the first sentence, and take a leading "Yes" or "No" as the entity.
    They find different words: look at them (`Annotations.review`) before quoting a score. On 367 rows of TOFU marked by
    hand, mean token F1 is 0.45 for "answer" and "difference", 0.37 for "contrast" and 0.17 for "names" (with another
    pipeline); marking every word that is not in the question gets 0.38, the whole answer 0.29. Where GPT-4o marked the
    words, often several phrases of an answer, it is 0.41, 0.42, 0.37 and 0.23, against 0.48 and 0.40
    (`benchmarks/annotation_ways.py`).

    Args:
        rows: Examples, rows, a path or a table (see `uds_lens.load_examples`).
        by: The way.
        full: For "contrast": trained on everything.
        retain: For "contrast": never saw the forget set.
        options: For "contrast": prompts and dtype; default `AnnotateOptions()`.
        run: For "contrast": where to run; default `RunOptions()`.
        nlp: For "names": a loaded spaCy pipeline; None loads the small English one.
        redo: Annotate rows that have an entity, too.

    Returns:
        The examples with `entity` and `prefix`, and how each was found.

    Raises:
        ConfigError: `by` is no such way, or "contrast" lacks a model.
        DataError: The rows cannot be read, or there are none.
        MissingDependencyError: "names" without spaCy or its model.
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
    return Annotations(examples=tuple(examples), findings=tuple(findings), by=by)
