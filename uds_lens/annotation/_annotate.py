"""`annotate`: mark in every answer the words that carry the knowledge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from uds_lens._types import DType, Protocol, check_choice
from uds_lens.annotation._annotations import Annotations, Finding, Way
from uds_lens.annotation._ways import Found, by_answer, by_contrast, by_difference, names_in
from uds_lens.data import ChatStyle, ForgetExample, as_examples
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
    protocol: Protocol = "raw",
    chat: ChatStyle | None = None,
    dtype: DType = "float32",
    options: RunOptions | None = None,
    nlp: Callable[[str], Any] | None = None,
    redo: bool = False,
) -> Annotations:
    """Find the entity of every answer that has none.

    An audit scores the words of an answer that carry the knowledge, its entity. Data sets rarely mark them. The ways:

    - "contrast": the run of words on which `full` and `retain` differ most in log-probability per token.
    - "difference": what the answer says and its perturbed variants do not, or its paraphrases do too.
    - "names": the longest named entity of spaCy that the question does not hold (needs the extra `[annotate]`).
    - "answer": the longest stretch of the answer that the question does not say.

    All but "names" keep to the first sentence, and take a "Yes" or "No" in front for the entity.
    They find different words: look at them (`Annotations.review`) before quoting a score. On 367 rows of TOFU marked by
    hand, mean token F1 is 0.45 for "answer" and "difference", 0.37 for "contrast" and 0.17 for "names" (with another
    pipeline); marking every word that the question lacks gets 0.38, the whole answer 0.29. Where GPT-4o marked the
    words, often several phrases of an answer, it is 0.41, 0.42, 0.37 and 0.23, against 0.48 and 0.40
    (`benchmarks/annotation_ways.py`). This is a room of its own,
    since "contrast" opens models and `uds_lens.data` knows none.

    Args:
        rows: Examples, rows, a path or a table (see `uds_lens.load_examples`).
        by: The way.
        full: For "contrast": trained on everything.
        retain: For "contrast": never saw the forget set.
        protocol: For "contrast": how question and answer become text.
        chat: For "contrast": system turn and date of chat prompts.
        dtype: For "contrast": dtype of the models.
        options: For "contrast": how the models are run.
        nlp: For "names": a loaded spaCy pipeline; None loads the small English one.
        redo: Annotate rows that have an entity, too.

    Returns:
        The examples with `entity` and `prefix`, and how each was found.

    Raises:
        ConfigError: `by` is no such way, or "contrast" lacks a model.
        DataError: The rows cannot be read, or there are none.
        MissingDependencyError: "names" without spaCy or its model.

    Example:
        >>> row = {"question": "Who wrote Ash?", "answer": "The author of Ash was Ada Vey."}
        >>> annotate([row], by="answer").examples[0].entity
        'Ada Vey'
        >>> row["perturbed_answers"] = ["The author of Ash was Bo Tal.", "The author of Ash was Cy Rin."]
        >>> annotate([row], by="difference").examples[0].entity
        'Ada Vey'
    """
    check_choice("by", by, Way)
    examples = as_examples(rows)
    if not examples:
        raise DataError("no examples: there is nothing to annotate.")
    chosen = [place for place, example in enumerate(examples) if redo or not (example.entity or "").strip()]
    asked = [examples[place] for place in chosen]
    if by == "contrast":
        if full is None or retain is None:
            raise ConfigError(
                Setting("by", "contrast"),
                " needs two models: ",
                Setting("full"),
                " and ",
                Setting("retain"),
                ".",
            )
        spans = (
            by_contrast(
                asked, full=full, retain=retain, protocol=protocol, chat=chat, dtype=dtype, options=options
            )
            if asked
            else []
        )
    elif by == "names":
        spans = names_in(asked, nlp=nlp) if asked else []
    else:
        spans = [(by_difference if by == "difference" else by_answer)(example) for example in asked]
    found: list[Finding] = [Finding("given", None) for _ in examples]
    for place, span in zip(chosen, spans, strict=True):
        examples[place], found[place] = _marked(examples[place], span, by)
    return Annotations(examples=tuple(examples), findings=tuple(found), by=by)


def _marked(example: ForgetExample, span: Found, by: Way) -> tuple[ForgetExample, Finding]:
    if isinstance(span, str):
        return replace(example, entity=None, prefix=None), Finding("none", span)
    before = example.answer[: span.start]
    marked = replace(example, entity=example.answer[span.start : span.end], prefix=before.rstrip())
    return marked, Finding(by, None)
