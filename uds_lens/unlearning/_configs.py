"""What the configurations of all methods share, and how their numbers are checked."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from uds_lens._settings import validated
from uds_lens._types import (
    AnswerProtocol,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)
from uds_lens.data._prompts import CHAT_DATE, ChatStyle

Schedule: TypeAlias = Literal["linear", "cosine", "constant_with_warmup"]
"""How the learning rate goes after warm-up: down to 0 linearly, down along a cosine, or not."""


@validated
@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """What all methods share: how long and how hard to train. Use the class of a method, not this one.

    Raises:
        ConfigError: A value is outside its range.
    """

    method: ClassVar[str] = ""
    """The method's word, as in `unlearn(method=...)`."""

    learning_rate: PositiveFloat = 1e-5
    """Peak learning rate of AdamW."""

    epochs: PositiveInt = 10
    """How often each forget example is visited."""

    batch_size: PositiveInt = 32
    """Forget examples per optimiser step, over all devices and accumulation steps; as many retain examples."""

    weight_decay: NonNegativeFloat = 0.01
    """Weight decay of AdamW."""

    warmup_epochs: NonNegativeFloat = 1.0
    """Epochs during which the learning rate rises from 0."""

    schedule: Schedule = "linear"
    """How the learning rate goes after warm-up."""

    max_grad_norm: PositiveFloat = 1.0
    """Gradients are scaled down to this norm."""

    protocol: AnswerProtocol = "auto"
    """How question and answer become text; `auto` is the chat template where the tokenizer has one, else raw."""

    system_prompt: str | None = None
    """Text of a system turn before the question, in chat prompts; None sends none."""

    chat_date: str = CHAT_DATE
    """Date given to chat templates that print one."""

    seed: NonNegativeInt = 0
    """Seed of the order of the data, of refusals and alternates, of the steering vector, and of dropout."""

    def __post_init__(self) -> None:
        self.chat.require(self.protocol)

    @property
    def chat(self) -> ChatStyle:
        """What chat prompts hold beside the question."""
        return ChatStyle(system_prompt=self.system_prompt, chat_date=self.chat_date)

    @property
    def counts_padding(self) -> bool:
        """Whether the loss runs over padding too, so that all passes of a batch must be as wide as the batch."""
        return False

    def to_dict(self) -> dict[str, Any]:
        """The settings by name."""
        return asdict(self)


@validated
@dataclass(frozen=True, kw_only=True)
class RetainConfig(MethodConfig):
    """What methods with a term on retain data share."""

    alpha: NonNegativeFloat = 1.0
    """Weight of the retain term."""


# Which positions a mean runs over: those that predict an answer, or all of them, as in Open-Unlearning.

Reduction: TypeAlias = Literal["answers", "open_unlearning"]
"""`answers`: the positions that predict an answer. `open_unlearning`: what Open-Unlearning's code averages over."""


@validated
@dataclass(frozen=True, kw_only=True)
class ReducedConfig(RetainConfig):
    """What KL, RMU and UNDIAL share: their means can be taken as in Open-Unlearning."""

    reduction: Reduction = "answers"
    """What means run over; `open_unlearning` makes models as published ones were made, with all that is odd there."""

    @property
    def counts_padding(self) -> bool:
        """Whether the loss runs over padding too."""
        return self.reduction == "open_unlearning"
