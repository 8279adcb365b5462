"""What the configurations of all methods share, and how their numbers are checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import Field, asdict, dataclass, fields
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from uds_lens._settings import require_known, require_named, shown
from uds_lens._types import AnswerProtocol, check_choice
from uds_lens.data._prompts import CHAT_DATE, ChatStyle
from uds_lens.errors import ConfigError, Setting

Schedule: TypeAlias = Literal["linear", "cosine", "constant_with_warmup"]
"""How the learning rate goes after warm-up: down to 0 linearly, down along a cosine, or not."""

C = TypeVar("C", bound="MethodConfig")


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """What all methods share: how long and how hard to train. Use the class of a method, not this one.

    Raises:
        ConfigError: A value is outside its range.
    """

    method: ClassVar[str] = ""
    """The method's word, as in `unlearn(method=...)`."""

    learning_rate: float = 1e-5
    """Peak learning rate of AdamW."""

    epochs: int = 10
    """How often each forget example is visited."""

    batch_size: int = 32
    """Forget examples per optimiser step, over all devices and accumulation steps; as many retain examples."""

    weight_decay: float = 0.01
    """Weight decay of AdamW."""

    warmup_epochs: float = 1.0
    """Epochs during which the learning rate rises from 0."""

    schedule: Schedule = "linear"
    """How the learning rate goes after warm-up."""

    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""

    protocol: AnswerProtocol = "auto"
    """How question and answer become text; `auto` is the chat template where the tokenizer has one, else raw."""

    system_prompt: str | None = None
    """Text of a system turn before the question, in chat prompts; None sends none."""

    chat_date: str = CHAT_DATE
    """Date given to chat templates that print one."""

    seed: int = 0
    """Seed of the order of the data, of refusals and alternates, of the steering vector, and of dropout."""

    def __new__(cls: type[C], *values: Any, **settings: Any) -> C:
        """Refuse settings that the method does not have with a `ConfigError` that names the nearest."""
        require_named(cls.__name__, values)
        require_known(cls.__name__, settings, list(cls.__dataclass_fields__))
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if kind_of(field) == "float" and type(value) is int and _finite(value):
                object.__setattr__(self, field.name, float(value))
        self.require_positive("learning_rate", "epochs", "batch_size", "max_grad_norm")
        self.require_not_negative("weight_decay", "warmup_epochs", "seed")
        check_choice("schedule", self.schedule, Schedule)
        check_choice("protocol", self.protocol, AnswerProtocol)
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

    def require_positive(self, *names: str) -> None:
        """Raise `ConfigError` unless these settings are numbers above 0; call it in `__post_init__`."""
        self._require(names, "> 0", lambda value: value > 0)

    def require_not_negative(self, *names: str) -> None:
        """Raise `ConfigError` unless these settings are numbers of at least 0; call it in `__post_init__`."""
        self._require(names, ">= 0", lambda value: value >= 0)

    def _require(self, names: tuple[str, ...], what: str, holds: Callable[[Any], bool]) -> None:
        kinds = {field.name: kind_of(field) for field in fields(self)}
        for name in names:
            value = getattr(self, name)
            whole = kinds[name].startswith("int")
            right_kind = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
            if not right_kind or not _finite(value) or not holds(value):
                raise ConfigError(
                    Setting(name), f" must be a {'whole ' if whole else ''}number {what}; got {shown(value)}."
                )


@dataclass(frozen=True, kw_only=True)
class RetainConfig(MethodConfig):
    """What methods with a term on retain data share."""

    alpha: float = 1.0
    """Weight of the retain term."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_not_negative("alpha")


def _finite(value: float) -> bool:
    """Whether a number is finite as a float; whole numbers have no bound of their own."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def kind_of(field: Field[Any]) -> str:
    """The type of a field as text, whether or not its module postpones annotations: `float`, `int | None`."""
    kind: Any = field.type
    return kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))


# Which positions a mean runs over: those that predict an answer, or all of them, as in Open-Unlearning.

Reduction: TypeAlias = Literal["answers", "open_unlearning"]
"""`answers`: the positions that predict an answer. `open_unlearning`: what Open-Unlearning's code averages over."""


@dataclass(frozen=True, kw_only=True)
class ReducedConfig(RetainConfig):
    """What KL, RMU and UNDIAL share: their means can be taken as in Open-Unlearning."""

    reduction: Reduction = "answers"
    """What means run over; `open_unlearning` makes models as published ones were made, with all that is odd there."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("reduction", self.reduction, Reduction)

    @property
    def counts_padding(self) -> bool:
        """Whether the loss runs over padding too."""
        return self.reduction == "open_unlearning"
