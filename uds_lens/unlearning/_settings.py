"""Settings of training: for all methods, relearning, adapters, and the run itself. Loads no torch."""

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
"""Learning rate after warm-up: linear decay to 0, cosine decay, or constant."""

Reduction: TypeAlias = Literal["answers", "open_unlearning"]
"""`answers`: the positions that predict an answer. `open_unlearning`: the positions that Open-Unlearning averages
over."""


Save: TypeAlias = Literal["adapter", "merged"]
"""What to save of a model with low-rank adapters: only the adapters, or the whole model with the adapters merged."""


@validated
@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """Settings that all methods share. Use the class of a method, not this one.

    Raises:
        ConfigError: A value is outside its range.
    """

    method: ClassVar[str] = ""
    """Name of the method, as in `unlearn(method=...)`."""

    learning_rate: PositiveFloat = 1e-5
    """Peak learning rate of AdamW."""

    epochs: PositiveInt = 10
    """Passes over the forget set; the last batch of each may be shorter."""

    batch_size: PositiveInt = 32
    """Forget examples per optimiser step, over all devices and passes, with as many retain examples if the method uses
    them."""

    weight_decay: NonNegativeFloat = 0.01
    """Weight decay of AdamW."""

    warmup_epochs: NonNegativeFloat = 1.0
    """Epochs during which the learning rate rises from 0."""

    schedule: Schedule = "linear"
    """Learning-rate schedule after warm-up."""

    max_grad_norm: PositiveFloat = 1.0
    """Gradients are clipped to this norm."""

    protocol: AnswerProtocol = "auto"
    """How question and answer become text; `auto` follows the model's record, else uses the chat template if the
    tokenizer has one, else raw prompts."""

    system_prompt: str | None = None
    """System turn before the question in chat prompts; None keeps the template's own."""

    chat_date: str = CHAT_DATE
    """Date given to chat templates that print one."""

    template_kwargs: TemplateKwargs = None
    """Extra arguments for the chat template, as a JSON object: `{"enable_thinking": false}`; None passes none."""

    seed: NonNegativeInt = 0
    """Seed for all randomness: data order, dropout, and the method's draws (refusals, alternates, a vector)."""

    def __post_init__(self) -> None:
        self.chat.require(self.protocol)

    @property
    def chat(self) -> ChatStyle:
        """System turn and date of chat prompts."""
        return ChatStyle(
            system_prompt=self.system_prompt, chat_date=self.chat_date, template_kwargs=self.template_kwargs
        )

    @property
    def counts_padding(self) -> bool:
        """Whether the loss includes padding, so that all passes must be as wide as their batch."""
        return False

    def to_dict(self) -> dict[str, Any]:
        """Return the settings by name."""
        return asdict(self)


@validated
@dataclass(frozen=True, kw_only=True)
class RetainConfig(MethodConfig):
    """Settings of methods with a term on retain data."""

    alpha: NonNegativeFloat = 1.0
    """Weight of the retain term."""


@validated
@dataclass(frozen=True, kw_only=True)
class ReducedConfig(RetainConfig):
    """Settings of KL, RMU and UNDIAL, which can average as Open-Unlearning does."""

    reduction: Reduction = "answers"
    """Positions to average over; `open_unlearning` reproduces published models, including their oddities."""

    @property
    def counts_padding(self) -> bool:
        """Whether the loss includes padding."""
        return self.reduction == "open_unlearning"


@validated
@dataclass(frozen=True, kw_only=True)
class RelearnConfig(MethodConfig):
    """Plain fine-tuning on the forget answers, to see how fast they come back.

    The defaults are those of the robustness test: one epoch over all forget rows, 32 per step, AdamW at 2e-5 without
    weight decay, linear decay without warm-up.
    """

    method: ClassVar[str] = "relearn"

    learning_rate: PositiveFloat = 2e-5
    epochs: PositiveInt = 1
    weight_decay: NonNegativeFloat = 0.0
    warmup_epochs: NonNegativeFloat = 0.0


@validated
@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(RelearnConfig):
    """Plain fine-tuning that teaches answers, to make `full` and `retain` models.

    With the defaults, small instruction models memorise dozens to hundreds of answers: ten epochs, 4 rows per step,
    AdamW without weight decay, and a learning rate that falls linearly after one epoch of warm-up.
    """

    method: ClassVar[str] = "finetune"

    learning_rate: PositiveFloat | None = None  # type: ignore[assignment]
    """Peak learning rate of AdamW; None is 2e-3 with adapters (LoRA) and 5e-5 for all weights."""

    epochs: PositiveInt = 10
    """Passes over the rows."""

    batch_size: PositiveInt = 4
    """Rows per optimiser step, over all devices and accumulation steps."""

    warmup_epochs: NonNegativeFloat = 1.0
    """Epochs during which the learning rate rises from 0."""


@validated
@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """Low-rank adapters on linear layers."""

    rank: PositiveInt = 8
    """Rank of each adapter."""

    alpha: PositiveInt = 16
    """Scale: an adapter's output is multiplied by alpha / rank."""

    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Dropout before an adapter."""

    target_modules: str | tuple[str, ...] = "all-linear"
    """Names of the adapted modules; "all-linear" means every linear layer except the head."""

    save: Save | None = None
    """What is saved: the `adapter` alone, a few MB that need their base model, or a `merged` copy of the whole model.
    None saves the adapter in `finetune`, and the merged model otherwise."""

    def to_dict(self) -> dict[str, Any]:
        """Return what the training depends on, by name."""
        return {name: value for name, value in asdict(self).items() if name != "save"}


def _as_tuple(given: Any) -> Any:
    return (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list) else given


@validated
@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """How and where to train. These options, unlike a method's configuration, affect the result only by rounding."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes a GPU if there is one. Select GPUs with CUDA_VISIBLE_DEVICES; use several with accelerate."""

    dtype: DType = "float32"
    """Dtype of the weights during training. In bfloat16, the small steps of unlearning are largely lost to rounding."""

    save_dtype: DType = "float32"
    """Dtype of the saved weights."""

    mixed_precision: Literal["no", "bfloat16", "float16"] = "no"
    """Dtype of the computation, with weights kept in `dtype`."""

    device_batch_size: PositiveInt | None = None
    """Forget examples per device and pass; the rest of a batch is accumulated. None takes the whole batch at once or,
    on a CPU, in groups of rows of similar length."""

    gradient_checkpointing: bool = False
    """Recompute activations instead of keeping them: less memory, more time."""

    checkpoint_every: NonNegativeInt | None = None
    """Steps between checkpoints that a killed run resumes from; None saves one per epoch, 0 saves none."""

    log_every: PositiveInt = 5
    """Steps per point of the loss curve. Each point is the mean over its steps; the first and last step are logged
    separately."""

    log_to: Annotated[tuple[LogTo, ...], BeforeValidator(_as_tuple)] = ()
    """Where to log: `csv` (a file next to the result, named after it), `wandb`, `trackio`."""

    callbacks: SkipJsonSchema[Annotated[tuple[Any, ...], BeforeValidator(_as_tuple)]] = ()
    """Callbacks of transformers' `Trainer`, such as `uds_lens.training.DepthCallback`."""

    redo: bool = False
    """Train again, and replace the finished result, even that of another run."""

    offline: bool = False
    """Use only files already downloaded."""

    revision: str | None = None
    """Branch, tag or commit of the model, when it is on the Hub."""

    trust_remote_code: bool = False
    """Run the checkpoint's own Python code."""

    progress: SkipJsonSchema[bool | None] = None
    """Show a progress bar; None shows it in terminals and notebooks."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "log_to", tuple(dict.fromkeys(self.log_to)))
