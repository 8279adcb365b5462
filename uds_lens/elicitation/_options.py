"""How audits are decoded and run: the same for every model and every audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from uds_lens._settings import validated
from uds_lens._types import (
    AnswerProtocol,
    DType,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Share,
)
from uds_lens.data._prompts import CHAT_DATE, ChatStyle
from uds_lens.elicitation._prompts import Access, Injection

Decoding: TypeAlias = Literal["greedy", "sampled"]
"""The likeliest text, or several drawn ones."""


@validated
@dataclass(frozen=True, kw_only=True)
class ElicitOptions:
    """What is asked of the models. Two results are comparable when these are equal.

    Raises:
        ConfigError: A value is outside its range.

    Example:
        >>> ElicitOptions(samples=0).decodings
        ('greedy',)
    """

    samples: NonNegativeInt = 50
    """Drawn texts per question and audit; 0 leaves sampling out."""

    temperature: PositiveFloat = 2.0
    """Logits are divided by it where texts are drawn. At 2, models that memorised say less of it than at 1."""

    top_k: PositiveInt | None = 40
    """Tokens to draw from; None draws from all."""

    max_new_tokens: PositiveInt = 64
    """Longest text, in tokens."""

    seed: NonNegativeInt = 0
    """Of everything that is drawn; the same numbers for every model, keyed by example."""

    protocol: AnswerProtocol = "auto"
    """How a question becomes text; `auto` takes the chat template where the tokenizer has one."""

    system_prompt: str | None = None
    """Text of a system turn before the question, in chat prompts; None sends none."""

    chat_date: str = CHAT_DATE
    """Date given to chat templates that print one."""

    dtype: DType = "float32"
    """Dtype of the models."""

    leak_threshold: Share = 0.8
    """Recall from which a text counts as having given the answer away (leak@k)."""

    rows_at_once: PositiveInt = 256
    """Texts generated side by side. Results do not depend on it beyond rounding."""

    max_hours: PositiveFloat = 2.0
    """A run that is estimated to take longer begins with a warning. It changes no result."""

    def __post_init__(self) -> None:
        _ = self.chat

    @property
    def decodings(self) -> tuple[Decoding, ...]:
        """What every audit is decoded with."""
        return ("greedy", "sampled") if self.samples else ("greedy",)

    @property
    def chat(self) -> ChatStyle:
        """What chat prompts hold beside the question."""
        return ChatStyle(system_prompt=self.system_prompt, chat_date=self.chat_date)

    def to_dict(self) -> dict[str, Any]:
        """The settings by name."""
        return asdict(self)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> ElicitOptions:
        """Settings back from `to_dict`; a name that does not exist raises `ConfigError`."""
        return cls(**settings)


# Records of an elicitation: the ledger's line of an audit, and the text that told most.


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
