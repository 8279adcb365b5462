"""What `annotate` found: examples with entities, how each was found, a file and a page to look at."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from uds_lens.checked_arguments import arguments_checked
from uds_lens.data import ForgetExample
from uds_lens.storage import atomic_write_text, require_fresh

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

    @arguments_checked
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

    @arguments_checked
    def review(self, path: str | os.PathLike[str]) -> Path:
        """Write one HTML page with every answer, its entity in colour; it opens offline and runs no script."""
        from uds_lens.annotation.review import review_page

        place = require_fresh(path, directory=False)
        atomic_write_text(place, review_page(self))
        return place

    def __repr__(self) -> str:
        told = ", ".join(f"{count} {way}" for way, count in self.counts.items())
        return f"Annotations({len(self.examples)} examples: {told})"
