"""Entities marked by a language model: write the prompts and read the replies.

The library itself sends nothing to any model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uds_lens._storage.files import atomic_write_text, check_writable
from uds_lens.data import ForgetExample
from uds_lens.data._examples import Span, given_away, short
from uds_lens.data._readers import as_examples, read_rows
from uds_lens.errors import DataError

if TYPE_CHECKING:
    from uds_lens.data._readers import ExampleSource

_PROMPT = """\
Below are a question and its answer. Repeat the answer word for word, with [[ and ]] around the shortest run of words \
that answers the question: a name, a title, a place, an occupation, or the few words that describe the rest. Leave out \
the full stop. Where the answer begins with Yes or No, mark that word only. Write nothing else.

Question: {question}
Answer: {answer}"""


def language_model_prompts(
    rows: ExampleSource | Iterable[ForgetExample | Mapping[str, Any]], path: str | os.PathLike[str]
) -> None:
    """For each answer, write a prompt that asks a language model to mark the entity (JSON lines: `id`, `prompt`).

    Send the prompts to any model, save its replies as JSON lines with `id` and `reply`, and pass that file to
    `annotate(..., by="language_model", replies=...)`.

    Raises:
        DataError: The rows cannot be read.
        ResultFormatError: `path` exists but was not written by this function.
    """
    place = check_writable(path, directory=False)
    lines = (
        {"id": example.id, "prompt": _PROMPT.format(question=example.question, answer=example.answer)}
        for example in as_examples(rows)
    )
    atomic_write_text(place, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def read_replies(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read replies, keyed by id.

    Raises:
        DataError: A row lacks `id` or `reply`.
    """
    replies: dict[str, str] = {}
    for number, row in enumerate(read_rows(Path(path)), start=1):
        if not isinstance(row, Mapping) or "id" not in row or not isinstance(row.get("reply"), str):
            raise DataError(f"replies, row {number}: expected `id` and `reply` (a string); got {short(row)}.")
        replies[str(row["id"])] = row["reply"]
    return replies


def by_reply(example: ForgetExample, reply: str | None) -> Span | str:
    """Find the span that a reply marks.

    >>> by_reply(ForgetExample("0", "Who wrote it?", "It was Ada Vey."), "It was [[Ada Vey]].")
    Span(start=7, end=14)
    """
    if reply is None:
        return "There is no reply for this row."
    answer, told = example.answer.strip(), reply.strip()
    before, opened, rest = told.partition("[[")
    marked, closed, after = rest.partition("]]")
    if not opened or not closed or not marked.strip():
        return "The reply does not mark anything with [[ and ]]."
    if before + marked + after != answer:
        return "Without [[ and ]], the reply is not the answer word for word."
    start = example.answer.index(answer) + len(before) + len(marked) - len(marked.lstrip())
    span = Span(start, start + len(marked.strip()))
    entity, prefix = example.answer[span.start : span.end], example.answer[: span.start].rstrip()
    if given_away(ForgetExample(example.id, example.question, example.answer, prefix=prefix, entity=entity)):
        return "The question, or the answer before the entity, already contains the entity."
    return span
