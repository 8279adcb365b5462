"""Settings of an elicitation, and records of its ledger; nothing here loads torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from uds_lens._settings import validated
from uds_lens._types import (
    AnswerProtocol,
    DType,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    RougeWords,
    Share,
    TemplateKwargs,
)
from uds_lens.data._prompts import CHAT_DATE, ChatStyle

Decoding: TypeAlias = Literal["greedy", "sampled"]

Access: TypeAlias = Literal["text", "samples", "gradients", "activations"]
"""Access to a model that a probe needs, least first."""

Injection: TypeAlias = Literal[
    "nothing", "format", "other facts", "answer prefix", "affirmative gradient", "gold answer"
]
"""Information that a probe gives away in addition to the question, least first."""


@validated
@dataclass(frozen=True, kw_only=True)
class ElicitOptions:
    """How the models are asked. Two results are comparable if these settings are equal.

    Raises:
        ConfigError: A value is outside its range.

    Example:
        >>> ElicitOptions(samples=0).decodings
        ('greedy',)
    """

    samples: NonNegativeInt = 50
    """Texts sampled per question and probe; 0 turns sampling off."""

    temperature: PositiveFloat = 2.0
    """Sampling temperature. Models that have memorised answers reveal less at 2 than at 1."""

    top_k: PositiveInt | None = 40
    """Sample from this many of the likeliest tokens. None samples from all tokens."""

    max_new_tokens: PositiveInt = 64
    """Longest text, in tokens."""

    seed: NonNegativeInt = 0
    """Random seed, combined with each example's id: every model gets the same random numbers."""

    protocol: AnswerProtocol = "auto"
    """How a question becomes text; `auto` follows a checkpoint's own record, else uses the chat template if the
    tokenizer has one, else raw prompts."""

    system_prompt: str | None = None
    """System turn before the question in chat prompts; None keeps the template's own."""

    chat_date: str = CHAT_DATE
    """Date given to chat templates that print one."""

    template_kwargs: TemplateKwargs = None
    """Extra arguments for the chat template, as a JSON object: `{"enable_thinking": false}`; None passes none."""

    dtype: DType = "float32"
    """Dtype of the models."""

    rouge_words: RougeWords = "ascii"
    """Words that ROUGE counts: those made of a-z and 0-9, as in published numbers, or (`unicode`) those of every
    script. With the former, ROUGE is NaN if most of a reference is in another script."""

    leak_threshold: Share = 0.8
    """Minimum recall for a text to count as a leak (leak@k)."""

    rows_at_once: PositiveInt = 256
    """Texts generated in one batch. Results do not depend on it beyond rounding."""

    max_hours: PositiveFloat = 2.0
    """Warn before a run that is estimated to take longer than this. Does not affect results."""

    def __post_init__(self) -> None:
        _ = self.chat

    @property
    def decodings(self) -> tuple[Decoding, ...]:
        """Return the decodings of every probe."""
        return ("greedy", "sampled") if self.samples else ("greedy",)

    @property
    def chat(self) -> ChatStyle:
        """Return the system turn and the date of chat prompts."""
        return ChatStyle(
            system_prompt=self.system_prompt, chat_date=self.chat_date, template_kwargs=self.template_kwargs
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the settings by name."""
        return asdict(self)


class ProbeRecord(NamedTuple):
    """One probe as it ran: a line of the ledger."""

    name: str
    access: Access
    injects: Injection
    opening: str
    """The target of an optimiser; cut off before scoring."""
    skipped: tuple[tuple[str, str], ...]
    """Ids of the rows that it could not ask, with reasons."""

    @property
    def capacity(self) -> bool:
        """Return whether it gives the answer away, so that it measures capacity, not knowledge."""
        return self.injects == "gold answer"


class Winner(NamedTuple):
    """The text with the highest recall for one example."""

    probe: str
    decoding: Decoding
    sample: int
    prompt: str
    text: str
    recall: float
