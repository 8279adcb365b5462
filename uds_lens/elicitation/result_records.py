"""Records of an elicitation: the ledger's line of an audit, and the text that told most."""

from __future__ import annotations

from typing import NamedTuple

from uds_lens.elicitation.options import Decoding
from uds_lens.elicitation.prompt import Access, Injection


class AuditRecord(NamedTuple):
    """One audit as it was run: the ledger."""

    name: str
    access: Access
    injects: Injection
    opening: str
    """What an optimiser worked for; cut off before scoring."""
    skipped: tuple[tuple[str, str], ...]
    """Ids of rows it could not ask, with reasons."""

    @property
    def capacity(self) -> bool:
        """Whether it hands over the answer itself, so that it measures capacity, not knowledge."""
        return self.injects == "gold answer"


class Winner(NamedTuple):
    """The text that told most of one row."""

    audit: str
    decoding: Decoding
    sample: int
    prompt: str
    text: str
    recall: float
