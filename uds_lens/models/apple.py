"""Apple's GPU backend has returned wrong logits without an error: each model is compared with itself on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens.errors import ModelError, Setting, warn_once
from uds_lens.progress import tell

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ROUNDING = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.01}
"""Largest difference between two devices that rounding explains, as a share of the largest logit."""

_ONCE = "Apple's GPU"
"""What is warned of is the device, not the model: once, however many models are opened on it."""


@torch.no_grad()
def move_checked(model: PreTrainedModel, device: str) -> PreTrainedModel:
    """Move a model from the CPU to another device, and compare its logits there with those from before.

    Args:
        model: The model, on the CPU, in evaluation mode.
        device: Where it goes.

    Returns:
        The model, moved.

    Raises:
        ModelError: Its logits differ by more than rounding.
    """
    before = _logits(model)
    model = model.to(device)
    after = _logits(model)
    gap = float((after - before).abs().max() / before.abs().max())
    allowed = _ROUNDING.get(model.dtype, 1e-3)
    if not gap <= allowed:
        raise ModelError(
            f"on device {device!r} the logits of {type(model).__name__} differ from those on the CPU by {gap:.1%} of "
            f"the largest (rounding explains {allowed:.1%}): this device computes them wrongly. Use ",
            Setting("device", "cpu"),
            ".",
        )
    tell(f"{device}: logits agree with the CPU's (largest difference {gap:.2g} of the largest logit)")
    warn_once(
        f"device {device!r}: Apple's backend has returned wrong logits without an error before. Each model is compared "
        f"with itself on the CPU on a short text; the first agreed with the CPU (largest difference {gap:.2g} of the "
        "largest logit). Compare the audit of a few examples with ",
        Setting("device", "cpu"),
        " before you trust the numbers.",
        key=_ONCE,
    )
    return model


def _logits(model: PreTrainedModel) -> Float[Tensor, "pos d_vocab"]:
    """Logits of two short rows, one of them padded, on the CPU in float32."""
    ids = torch.arange(1, 33).reshape(2, 16) * 7 % model.config.get_text_config().vocab_size
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    logits = model(input_ids=ids.to(model.device), attention_mask=mask.to(model.device)).logits
    return logits.float().cpu()[mask.bool()]
