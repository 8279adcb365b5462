"""What `annotate` found: examples with entities, how each was found, a file and a page to look at."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from uds_lens._storage import atomic_write_text, generator, require_fresh
from uds_lens.data import ForgetExample, entity_span

if TYPE_CHECKING:
    import pandas as pd


Way: TypeAlias = Literal["contrast", "difference", "names", "answer"]
"""How entities are found."""


FORMAT = "uds_lens.Annotations"
"""What a saved file says it is."""


class Finding(NamedTuple):
    """How one entity was found."""

    way: Literal["contrast", "difference", "names", "answer", "given", "none"]
    """One of the ways, "given" where the row had one, "none" where nothing was found."""
    reason: str | None
    """Why nothing was found, as a sentence."""


@dataclass(frozen=True)
class Annotations:
    """Examples with entities."""

    examples: tuple[ForgetExample, ...]
    """In the order of the rows; those without an entity are kept, and an audit skips them."""
    findings: tuple[Finding, ...]
    """How the entity of each was found."""
    by: Way
    """The way that was asked for."""

    @property
    def counts(self) -> dict[str, int]:
        """Examples per way: found, given, none."""
        return dict(Counter(finding.way for finding in self.findings))

    def to_frame(self) -> pd.DataFrame:
        """One row per example: `example_id`, `question`, `answer`, `prefix`, `entity`, `entity_by`, `reason`."""
        import pandas as pd

        return pd.DataFrame(
            {
                "example_id": [example.id for example in self.examples],
                **{
                    name: [getattr(example, name) for example in self.examples]
                    for name in ("question", "answer", "prefix", "entity")
                },
                "entity_by": [finding.way for finding in self.findings],
                "reason": [finding.reason for finding in self.findings],
            }
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the examples as JSON that `load_examples` reads, each with `entity_by`: how its entity was found.

        Raises:
            ResultFormatError: Something stands there that `save` did not write.
        """
        place = require_fresh(path, directory=False, format=FORMAT)
        rows = []
        for example, finding in zip(self.examples, self.findings, strict=True):
            told = asdict(example).items()
            cells = {name: value for name, value in told if value not in (None, ()) and name != "row"}
            rows.append({**cells, "entity_by": finding.way})
        content = {"format": FORMAT, "by": self.by, "rows": rows}
        atomic_write_text(place, json.dumps(content, ensure_ascii=False, indent=1) + "\n")

    def review(self, path: str | os.PathLike[str]) -> Path:
        """Write one HTML page with every answer, its entity in colour; it opens offline and runs no script."""
        place = require_fresh(path, directory=False)
        atomic_write_text(place, review_page(self))
        return place

    def __repr__(self) -> str:
        told = ", ".join(f"{count} {way}" for way, count in self.counts.items())
        return f"Annotations({len(self.examples)} examples: {told})"


# A page to look at entities before they are measured: every answer, its entity in colour.

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
    """The page as HTML; every text from outside is escaped."""
    counts = ", ".join(f"{count} {escape(way)}" for way, count in annotations.counts.items())
    rows = "".join(map(_row, annotations.examples, annotations.findings))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"{generator()}<title>Entities to review</title>"
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>\n'
        f"<h1>Entities to review</h1>\n<p>{len(annotations.examples)} answers: {counts}. In colour: the words that an "
        'audit scores. <mark>Found</mark>, <mark class="given">given</mark>, <span class="none">none</span>.</p>\n'
        f"<table><thead><tr><th>id</th><th>question and answer</th><th>by</th></tr></thead>\n"
        f"<tbody>{rows}</tbody></table>\n</body></html>\n"
    )


def _row(example: ForgetExample, finding: Finding) -> str:
    return (
        f'<tr><td>{escape(example.id)}</td><td><div class="question">{escape(example.question)}</div>'
        f"<div>{_answer(example, finding)}</div></td><td>{escape(finding.way)}</td></tr>\n"
    )


def _answer(example: ForgetExample, finding: Finding) -> str:
    span = entity_span(example)
    if isinstance(span, str):
        why = finding.reason or span
        return f'{escape(example.answer)} <span class="none">{escape(why)}</span>'
    kind = ' class="given"' if finding.way == "given" else ""
    before, inside, after = (
        escape(part)
        for part in (
            example.answer[: span.start],
            example.answer[span.start : span.end],
            example.answer[span.end :],
        )
    )
    return f"{before}<mark{kind}>{inside}</mark>{after}"
