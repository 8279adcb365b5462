"""Elicitation settings and ledger records; importing this module does not import torch."""

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
"""Kinds of model access that probes need, from least to most."""

Injection: TypeAlias = Literal[
    "nothing", "format", "other facts", "answer prefix", "affirmative gradient", "gold answer"
]
"""Kinds of information that probes give away in addition to the question, from least to most."""


@validated
@dataclass(frozen=True, kw_only=True)
class ElicitOptions:
    """Settings for asking the models. Results are comparable only if these settings are equal.

    Raises:
        ConfigError: A value is outside its range.

    Example:
        >>> ElicitOptions(samples=0).decodings
        ('greedy',)
    """

    samples: NonNegativeInt = 50
    """Number of texts sampled per question and probe; 0 disables sampling."""

    temperature: PositiveFloat = 2.0
    """Sampling temperature. Models reveal memorised answers less often at a temperature of 2 than at 1."""

    top_k: PositiveInt | None = 40
    """Sample from this many of the most likely tokens; None samples from all tokens."""

    max_new_tokens: PositiveInt = 64
    """Maximum length of a generated text, in tokens."""

    seed: NonNegativeInt = 0
    """Random seed. It is combined with each example's id, so every model gets the same random numbers."""

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

    rouge_words: RougeWords = "ascii"
    """Words that ROUGE counts. `ascii` counts only words made of a-z and 0-9, as in published numbers, and gives NaN if
    a reference is mostly in another script; `unicode` counts words in any script."""

    leak_threshold: Share = 0.8
    """Minimum recall for a text to count as a leak (leak@k)."""

    rows_at_once: PositiveInt = 256
    """Texts generated per batch. Results are the same up to rounding."""

    def __post_init__(self) -> None:
        _ = self.chat

    @property
    def decodings(self) -> tuple[Decoding, ...]:
        """Return the decoding methods in use."""
        return ("greedy", "sampled") if self.samples else ("greedy",)

    @property
    def chat(self) -> ChatStyle:
        """Return the settings of chat prompts."""
        return ChatStyle(
            system_prompt=self.system_prompt, chat_date=self.chat_date, template_kwargs=self.template_kwargs
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the settings by name."""
        return asdict(self)


class ProbeRecord(NamedTuple):
    """Ledger entry of one probe."""

    name: str
    access: Access
    injects: Injection
    opening: str
    """Target text of an optimiser, which is cut off before scoring; empty for other probes."""
    skipped: tuple[tuple[str, str], ...]
    """Ids of the skipped rows, with the reasons."""

    @property
    def capacity(self) -> bool:
        """Return whether the probe gives the answer away, so that it measures capacity instead of knowledge."""
        return self.injects == "gold answer"


class Winner(NamedTuple):
    """The text with the highest recall for one example."""

    probe: str
    decoding: Decoding
    sample: int
    prompt: str
    text: str
    recall: float
