"""UNDIAL: self-distillation with the true tokens' logits reduced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from uds_lens._types import PositiveFloat
from uds_lens.errors import ConfigError, Setting
from uds_lens.unlearning._passes import (
    IGNORED,
    Passes,
    Terms,
    at_least_float32,
    labelled,
    per_answer,
    per_token,
    retained,
)
from uds_lens.unlearning._registry import objective
from uds_lens.unlearning._settings import ReducedConfig, Reduction


def undial(
    logits: Float[Tensor, "batch pos d_vocab"],
    reference: Float[Tensor, "batch pos d_vocab"],
    labels: Int[Tensor, "batch pos"],
    *,
    beta: float,
    reduction: Reduction = "answers",
) -> Float[Tensor, ""]:
    """Return the UNDIAL loss: match the distribution of `full` after reducing the true token's logit.

    `L = -mean_t sum_v q_t(v) log p_t(v)`, where `q_t = softmax(z_full - beta e_{y_t})` and t runs over the positions
    that predict an answer.

    Open-Unlearning averages over all positions except the last, including prompt and padding. At prompt and padding
    positions, its code uses the label -100 as an index from the end, so the logit of token V - 100 is reduced at these
    positions (V is the vocabulary size).

    Args:
        logits: Unshifted logits of the model on the forget batch.
        reference: Logits of `full`.
        labels: Unshifted labels; -100 marks positions to ignore.
        beta: Amount to subtract from the true token's logit; 0 distils `full` into itself.
        reduction: "answers", or "open_unlearning" to average as Open-Unlearning does, including its bug.

    Returns:
        Nats per token, >= 0; the minimum is the entropy of the targets, not 0.

    Raises:
        DataError: The batch has no labels.
        ConfigError: The reduction is "open_unlearning", but the vocabulary has fewer than 100 tokens, for which
            Open-Unlearning's code also fails.

    Example:
        >>> import torch
        >>> flat = torch.zeros(1, 2, 2)
        >>> undial(flat, flat, torch.tensor([[-100, 1]]), beta=10.0)  # log 2 whatever the target
        tensor(0.6931)

    References:
        Dong et al. 2024, UNDIAL: Self-Distillation with Adjusted Logits.
    """
    kept, n_tokens = labelled(labels), logits.shape[-1]
    if reduction == "answers":
        logits, reference, true = logits[:, :-1][kept], reference[:, :-1][kept], labels[:, 1:][kept]
    elif n_tokens < -IGNORED:
        raise ConfigError(
            Setting("reduction", "open_unlearning"),
            f" uses the label {IGNORED} as an index from the end of the vocabulary, which must therefore have at least "
            f"{-IGNORED} tokens; got {n_tokens}.",
        )
    else:
        logits, reference, true = logits[:, :-1], reference[:, :-1], labels[:, 1:]
        true = torch.where(true == IGNORED, n_tokens + IGNORED, true)
    wanted = (at_least_float32(reference) - beta * F.one_hot(true, n_tokens)).softmax(-1)
    return -(wanted * at_least_float32(logits).log_softmax(-1)).sum(-1).mean()


@dataclass(frozen=True, kw_only=True)
class UNDIALConfig(ReducedConfig):
    """Distil `full` into itself, with the true tokens' logits reduced by beta."""

    method: ClassVar[str] = "undial"

    beta: PositiveFloat = 10.0
    """Amount to subtract from the true token's logit."""


@objective(UNDIALConfig, needs=("retain", "frozen"))
def terms(config: UNDIALConfig, passes: Passes) -> Terms:
    """Return `UNDIAL_f + alpha NLL_r`."""
    forget = undial(
        passes.logits("forget"),
        passes.frozen_logits("forget"),
        passes.labels("forget"),
        beta=config.beta,
        reduction=config.reduction,
    )
    per = per_answer if config.counts_padding else per_token
    return Terms(per("forget", forget), retained(config, passes))
