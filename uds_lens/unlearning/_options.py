"""How a training run is carried out: where, in which precision, with how much memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from uds_lens._settings import names_checked, require_switch, require_whole, shown
from uds_lens._types import DType, LogTo, check_choice
from uds_lens.errors import ConfigError, Setting


@names_checked
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

    device_batch_size: int | None = None
    """Forget examples per device and pass; the rest of a batch is accumulated. None takes the whole batch at once, on a
    CPU in groups of similar length."""

    gradient_checkpointing: bool = False
    """Recompute activations instead of keeping them: less memory, more time."""

    checkpoint_every: int | None = None
    """Steps between checkpoints that a killed run resumes from; None is once per epoch, 0 never."""

    log_every: int = 5
    """Steps between points of the loss curve, each the mean over these steps; the first and last step stand alone."""

    log_to: tuple[LogTo, ...] = ()
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
        check_choice("device", self.device, Literal["auto", "cpu", "cuda"])
        check_choice("dtype", self.dtype, DType)
        check_choice("save_dtype", self.save_dtype, DType)
        check_choice("mixed_precision", self.mixed_precision, Literal["no", "bfloat16", "float16"])
        asked: object = self.log_to
        given = (asked,) if isinstance(asked, str) else asked
        if not isinstance(given, list | tuple):
            raise ConfigError(Setting("log_to"), f" must be names such as 'csv'; got {shown(given)}.")
        for place in given:
            check_choice("log_to", place, LogTo)
        object.__setattr__(self, "log_to", tuple(dict.fromkeys(given)))
        for name, least in (("device_batch_size", 1), ("checkpoint_every", 0), ("log_every", 1)):
            if getattr(self, name) is not None:
                require_whole(name, getattr(self, name), at_least=least)
        for name in ("gradient_checkpointing", "offline", "trust_remote_code"):
            require_switch(name, getattr(self, name))
