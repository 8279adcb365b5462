"""`Annotations`: examples with their entities, which can be saved as a file or reviewed as a web page."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from uds_lens._settings import validated
from uds_lens._storage.files import atomic_write_text, check_writable, generator
from uds_lens._types import AnswerProtocol, DType, TemplateKwargs
from uds_lens.data import ForgetExample
from uds_lens.data._examples import entity_span
from uds_lens.data._prompts import CHAT_DATE, ChatStyle

if TYPE_CHECKING:
    import pandas as pd

Way: TypeAlias = Literal["contrast", "difference", "names", "answer", "language_model"]  # how entities are found

FORMAT = "uds_lens.Annotations"


@validated
@dataclass(frozen=True, kw_only=True)
class AnnotateOptions:
    """Prompt format and dtype for the method "contrast".

    Raises:
        ConfigError: A value is outside its range.
    """

    protocol: AnswerProtocol = "auto"
    """Prompt format; `auto` uses the format recorded with the checkpoints, if any, then the tokenizer's chat template,
    if any, and otherwise raw prompts."""

    system_prompt: str | None = None
    """System message for chat prompts; None keeps the template's default."""

    chat_date: str = CHAT_DATE
    """Date passed to chat templates that include one."""

    template_kwargs: TemplateKwargs = None
    """Extra arguments for the chat template, as a JSON object: `{"enable_thinking": false}`; None passes no extra
    arguments."""

    dtype: DType = "float32"
    """Dtype of the models."""

    def __post_init__(self) -> None:
        self.chat.require(self.protocol)

    @property
    def chat(self) -> ChatStyle:
        """Return the settings of chat prompts."""
        return ChatStyle(
            system_prompt=self.system_prompt, chat_date=self.chat_date, template_kwargs=self.template_kwargs
        )


class Finding(NamedTuple):
    """How one entity was found."""

    way: Literal["contrast", "difference", "names", "answer", "language_model", "given", "none"]
    """The method, or "given" if the row already had an entity, or "none" if no entity was found."""
    reason: str | None
    """A sentence saying why no entity was found; None if an entity was found."""


@dataclass(frozen=True)
class Annotations:
    """Examples with entities."""

    examples: tuple[ForgetExample, ...]
    """The examples in row order. Rows without an entity are kept, but an audit skips them."""
    findings: tuple[Finding, ...]
    """For each example, how the entity was found."""
    by: Way
    """The requested method."""

    @property
    def counts(self) -> dict[str, int]:
        """Number of examples per method, including "given" and "none"."""
        return dict(Counter(finding.way for finding in self.findings))

    def to_frame(self) -> pd.DataFrame:
        """Return one row per example.

        `example_id`, `question`, `answer`, `prefix`, `entity`, `type`, `entity_by`, `reason`.
        """
        import pandas as pd

        frame = pd.DataFrame(list(map(asdict, self.examples))).rename(columns={"id": "example_id"})
        frame = frame[["example_id", "question", "answer", "prefix", "entity", "type"]]
        ways, reasons = zip(*self.findings, strict=True)
        return frame.assign(entity_by=ways, reason=reasons)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the examples as JSON for `load_examples`; the field `entity_by` says how each entity was found.

        Raises:
            ResultFormatError: `path` exists but was not written by `save`.
        """
        place = check_writable(path, directory=False, format=FORMAT)
        rows = []
        for example, finding in zip(self.examples, self.findings, strict=True):
            cells = asdict(example).items()
            filled = {name: value for name, value in cells if value not in (None, ()) and name != "row"}
            rows.append({**filled, "entity_by": finding.way})
        content = {"format": FORMAT, "by": self.by, "rows": rows}
        atomic_write_text(place, json.dumps(content, ensure_ascii=False, indent=1) + "\n")

    def review(self, path: str | os.PathLike[str]) -> Path:
        """Write an HTML page, without scripts or downloads, that shows every answer with its entity highlighted."""
        place = check_writable(path, directory=False)
        atomic_write_text(place, review_page(self))
        return place

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {way}" for way, count in self.counts.items())
        return f"Annotations({len(self.examples)} examples: {counts})"


_STYLE = """
:root { color-scheme: light dark; --mark: #ffd86b; --given: #bfe3d0; --none: #f2b8b5; }
@media (prefers-color-scheme: dark) { :root { --mark: #7a5c00; --given: #1f5c43; --none: #7d2e2a; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: .4rem .8rem .4rem 0; border-bottom: 1px solid #8884; }
td { overflow-wrap: anywhere; }
mark { background: var(--mark); color: inherit; border-radius: 3px; padding: 0 .15em; }
mark.given { background: var(--given); }
.none { background: var(--none); border-radius: 3px; padding: 0 .15em; }
.question { opacity: .75; }
"""


def review_page(annotations: Annotations) -> str:
    """Return the review page as HTML, with all data escaped."""
    counts = ", ".join(f"{count} {escape(way)}" for way, count in annotations.counts.items())
    rows = "".join(
        f'<tr><td>{escape(example.id)}</td><td><div class="question">{escape(example.question)}</div>'
        f"<div>{_answer(example, finding)}</div></td><td>{escape(finding.way)}</td></tr>\n"
        for example, finding in zip(annotations.examples, annotations.findings, strict=True)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"{generator()}<title>Entities to review</title>"
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>\n'
        f"<h1>Entities to review</h1>\n<p>{len(annotations.examples)} answers: {counts}. Highlighted: the words that "
        'an audit scores. <mark>Found</mark>, <mark class="given">given</mark>, <span class="none">none</span>.</p>\n'
        f"<table><thead><tr><th>id</th><th>question and answer</th><th>by</th></tr></thead>\n"
        f"<tbody>{rows}</tbody></table>\n</body></html>\n"
    )


def _answer(example: ForgetExample, finding: Finding) -> str:
    span, answer = entity_span(example), example.answer
    if isinstance(span, str):
        return f'{escape(answer)} <span class="none">{escape(finding.reason or span)}</span>'
    kind = ' class="given"' if finding.way == "given" else ""
    cuts = answer[: span.start], answer[span.start : span.end], answer[span.end :]
    before, entity, after = map(escape, cuts)
    return f"{before}<mark{kind}>{entity}</mark>{after}"
