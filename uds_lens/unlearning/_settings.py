"""Training settings for methods, relearning, adapters and the run itself. Does not import torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from annotated_types import Ge, Lt
from pydantic import BeforeValidator
from pydantic.json_schema import SkipJsonSchema

from uds_lens._settings import validated
from uds_lens._types import (
    AnswerProtocol,
    DType,
    LogTo,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TemplateKwargs,
)
from uds_lens.data._prompts import CHAT_DATE, ChatStyle

Schedule: TypeAlias = Literal["linear", "cosine", "constant_with_warmup"]
"""Learning-rate schedule after warm-up: linear decay to 0, cosine decay, or constant."""

Reduction: TypeAlias = Literal["answers", "open_unlearning"]
"""Positions to average over: `answers` uses the positions that predict an answer; `open_unlearning` uses the same
positions as Open-Unlearning."""


Save: TypeAlias = Literal["adapter", "merged"]
"""What to save after training low-rank adapters: only the adapters, or the whole model with the adapters merged."""


@validated
@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """Settings shared by all methods. Use a method's own class instead of this base class.

    Raises:
        ConfigError: A value is outside its range.
    """

    method: ClassVar[str] = ""
    """Name of the method, as in `unlearn(method=...)`."""

    learning_rate: PositiveFloat = 1e-5
    """Peak learning rate of AdamW."""

    epochs: PositiveInt = 10
    """Number of passes over the forget set. The last batch of a pass may be smaller."""

    batch_size: PositiveInt = 32
    """Forget examples per optimiser step, over all devices and accumulation steps, with an equal number of retain
    examples if the method uses them."""

    weight_decay: NonNegativeFloat = 0.01
    """Weight decay of AdamW."""

    warmup_epochs: NonNegativeFloat = 1.0
    """Number of epochs over which the learning rate warms up from 0."""

    schedule: Schedule = "linear"
    """Learning-rate schedule after warm-up."""

    max_grad_norm: PositiveFloat = 1.0
    """Gradients are clipped to this norm."""

    protocol: AnswerProtocol = "auto"
    """Prompt format; `auto` uses the format recorded with the model, if any, then the tokenizer's chat template, if
    any, and otherwise raw prompts."""

    system_prompt: str | None = None
    """System message for chat prompts; None keeps the template's default."""

    chat_date: str = CHAT_DATE
    """Date passed to chat templates that include one."""

    template_kwargs: TemplateKwargs = None
    """Extra arguments for the chat template, as a JSON object: `{"enable_thinking": false}`; None passes no extra
    arguments."""

    seed: NonNegativeInt = 0
    """Random seed for data order, dropout, and the method's own draws (refusals, alternates, steering vector)."""

    def __post_init__(self) -> None:
        self.chat.require(self.protocol)

    @property
    def chat(self) -> ChatStyle:
        """Settings of chat prompts."""
        return ChatStyle(
            system_prompt=self.system_prompt, chat_date=self.chat_date, template_kwargs=self.template_kwargs
        )

    @property
    def counts_padding(self) -> bool:
        """Whether the loss includes padding, so that all passes of a batch must have the same width."""
        return False

    def to_dict(self) -> dict[str, Any]:
        """Return the settings by name."""
        return asdict(self)


@validated
@dataclass(frozen=True, kw_only=True)
class RetainConfig(MethodConfig):
    """Settings of methods with a retain term."""

    alpha: NonNegativeFloat = 1.0
    """Weight of the retain term."""


@validated
@dataclass(frozen=True, kw_only=True)
class ReducedConfig(RetainConfig):
    """Settings of KL, RMU and UNDIAL, which can average in the same way as Open-Unlearning."""

    reduction: Reduction = "answers"
    """Positions to average over. `open_unlearning` reproduces published models, including their quirks."""

    @property
    def counts_padding(self) -> bool:
        """Whether the loss includes padding."""
        return self.reduction == "open_unlearning"


@validated
@dataclass(frozen=True, kw_only=True)
class RelearnConfig(MethodConfig):
    """Plain fine-tuning on the forget answers, to see how fast a model relearns them.

    The defaults match the robustness test: one epoch over all forget rows with 32 rows per step, and AdamW at 2e-5 with
    linear decay, no warm-up and no weight decay.
    """

    method: ClassVar[str] = "relearn"

    learning_rate: PositiveFloat = 2e-5
    epochs: PositiveInt = 1
    weight_decay: NonNegativeFloat = 0.0
    warmup_epochs: NonNegativeFloat = 0.0


@validated
@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(RelearnConfig):
    """Plain fine-tuning on question-answer rows, to make `full` and `retain` models.

    The defaults let small instruction models memorise dozens to hundreds of answers: ten epochs, 4 rows per step, AdamW
    without weight decay, and a learning rate that decays linearly after one epoch of warm-up.
    """

    method: ClassVar[str] = "finetune"

    learning_rate: PositiveFloat | None = None  # type: ignore[assignment]
    """Peak learning rate of AdamW; None means 2e-3 with adapters (LoRA) and 5e-5 without."""

    epochs: PositiveInt = 10
    """Passes over the rows."""

    batch_size: PositiveInt = 4
    """Rows per optimiser step, over all devices and accumulation steps."""

    warmup_epochs: NonNegativeFloat = 1.0
    """Number of epochs over which the learning rate warms up from 0."""


@validated
@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """Low-rank adapters on linear layers."""

    rank: PositiveInt = 8
    """Rank of each adapter."""

    alpha: PositiveInt = 16
    """Scale of the adapters, whose output is multiplied by alpha / rank."""

    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Dropout before an adapter."""

    target_modules: str | tuple[str, ...] = "all-linear"
    """Names of the modules that get adapters; "all-linear" means all linear layers except the head."""

    save: Save | None = None
    """What to save: only the `adapter` (a few MB, which need the base model), or a `merged` copy of the whole model.
    None saves the adapter in `finetune` and the merged model otherwise."""

    def to_dict(self) -> dict[str, Any]:
        """Return the settings that affect training, by name."""
        return {name: value for name, value in asdict(self).items() if name != "save"}


def _as_tuple(given: Any) -> Any:
    return (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list) else given


@validated
@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of a training run. Unlike a method's configuration, they affect the result only through rounding."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device; `auto` uses a GPU if available. Select GPUs with CUDA_VISIBLE_DEVICES, and use several with
    accelerate."""

    dtype: DType = "float32"
    """Dtype of the weights during training. In bfloat16, unlearning's small updates are largely lost to rounding."""

    save_dtype: DType = "float32"
    """Dtype of the saved weights."""

    mixed_precision: Literal["no", "bfloat16", "float16"] = "no"
    """Dtype for mixed-precision computation; the weights stay in `dtype`."""

    device_batch_size: PositiveInt | None = None
    """Forget examples per device and pass, accumulated up to the batch size. None processes the whole batch at once or,
    on a CPU, in groups of rows with similar lengths."""

    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass, which saves memory but takes more time."""

    checkpoint_every: NonNegativeInt | None = None
    """Steps between checkpoints for resuming an interrupted run; None saves one per epoch, 0 saves none."""

    log_every: PositiveInt = 5
    """Steps per point of the loss curve. Each point is a mean over these steps; the first and last steps are logged
    separately."""

    log_to: Annotated[tuple[LogTo, ...], BeforeValidator(_as_tuple)] = ()
    """Logging targets: `csv` (a file next to the result, with the same name), `wandb` or `trackio`."""

    callbacks: SkipJsonSchema[Annotated[tuple[Any, ...], BeforeValidator(_as_tuple)]] = ()
    """Callbacks for transformers' `Trainer`, such as `uds_lens.training.DepthCallback`."""

    redo: bool = False
    """Train again and replace any finished result, even the result of another run."""

    offline: bool = False
    """Use only files that are already downloaded."""

    revision: str | None = None
    """Branch, tag or commit of a model on the Hub."""

    trust_remote_code: bool = False
    """Run the checkpoint's own Python code."""

    progress: SkipJsonSchema[bool | None] = None
    """Show a progress bar; None shows it in terminals and notebooks."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "log_to", tuple(dict.fromkeys(self.log_to)))
