"""How a training run is carried out: where, in which precision, with how much memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from uds_lens._settings import validated
from uds_lens._types import DType, LogTo, NonNegativeInt, PositiveInt


def _listed(given: Any) -> Any:
    """One word, or a list of words, as a tuple."""
    return (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list) else given


@validated
@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Where and how to train. What is learnt is in the method's configuration; this changes it by rounding only."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes a GPU if there is one. Choose among several with CUDA_VISIBLE_DEVICES, use all with accelerate."""

    dtype: DType = "float32"
    """Dtype of the weights while they train. In bfloat16 the small steps of unlearning are largely rounded away."""

    save_dtype: DType = "float32"
    """Dtype of the saved weights."""

    mixed_precision: Literal["no", "bfloat16", "float16"] = "no"
    """Dtype of the arithmetic, with weights kept in `dtype`."""

    device_batch_size: PositiveInt | None = None
    """Forget examples per device and pass; the rest of a batch is accumulated. None takes the whole batch at once, on a
    CPU in groups of similar length."""

    gradient_checkpointing: bool = False
    """Recompute activations instead of keeping them: less memory, more time."""

    checkpoint_every: NonNegativeInt | None = None
    """Steps between checkpoints that a killed run resumes from; None is once per epoch, 0 never."""

    log_every: PositiveInt = 5
    """Steps between points of the loss curve, each the mean over these steps; the first and last step stand alone."""

    log_to: Annotated[tuple[LogTo, ...], BeforeValidator(_listed)] = ()
    """Where the run can be followed: `csv` (a file beside the result, named after it), `wandb`, `trackio`."""

    offline: bool = False
    """Use only files already downloaded."""

    revision: str | None = None
    """Branch, tag or commit of the model, when it is on the Hub."""

    trust_remote_code: bool = False
    """Run the checkpoint's own Python code."""

    progress: bool | None = None
    """Show a progress bar; None shows it in terminals and notebooks."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "log_to", tuple(dict.fromkeys(self.log_to)))
