"""UNDIAL: self-distillation with the true tokens turned down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from uds_lens._types import PositiveFloat
from uds_lens.errors import ConfigError, Setting
from uds_lens.unlearning._configs import ReducedConfig, Reduction
from uds_lens.unlearning._likelihood import IGNORED, at_least_float32, labelled
from uds_lens.unlearning._passes import Passes
from uds_lens.unlearning._registry import objective
from uds_lens.unlearning._terms import Terms, per_answer, per_token, retained


def undial(
    logits: Float[Tensor, "batch pos d_vocab"],
    reference: Float[Tensor, "batch pos d_vocab"],
    labels: Int[Tensor, "batch pos"],
    *,
    beta: float,
    reduction: Reduction = "answers",
) -> Float[Tensor, ""]:
    """UNDIAL: learn `full`'s own distribution with the logit of the true token turned down.

    `L = -mean_t sum_v q_t(v) log p_t(v)`, `q_t = softmax(z_full - beta e_{y_t})`, t over the positions that
    predict an answer.

    Open-Unlearning's mean runs over every position but the last, prompt and padding included. There the label is -100,
    which its code takes for an index from the end: at all those positions the token V - 100 of V is turned down.

    Args:
        logits: Unshifted logits of the model on the forget batch.
        reference: Logits of `full` on the same tokens.
        labels: Unshifted labels, -100 where not counted.
        beta: How much is taken off the true token's logit; 0 distils `full` into itself.
        reduction: "answers", or "open_unlearning" for its mean, with its error.

    Returns:
        Nats per token, >= 0; its minimum is the entropy of the targets, not 0.

    Raises:
        DataError: No label in the batch.
        ConfigError: "open_unlearning" with a vocabulary of fewer than 100 tokens, where its code fails too.

    Example:
        >>> import torch
        >>> flat = torch.zeros(1, 2, 2)
        >>> undial(flat, flat, torch.tensor([[-100, 1]]), beta=10.0)  # log 2 whatever the target
        tensor(0.6931)

    References:
        Dong et al. 2024, UNDIAL: Self-Distillation with Adjusted Logits.
    """
    kept = labelled(labels)
    if reduction == "open_unlearning":
        return _over_all_positions(logits, reference, labels, beta=beta)
    true = F.one_hot(labels[:, 1:][kept], logits.shape[-1])
    wanted = (at_least_float32(reference[:, :-1][kept]) - beta * true).softmax(-1)
    return -(wanted * at_least_float32(logits[:, :-1][kept]).log_softmax(-1)).sum(-1).mean()


def _over_all_positions(logits: Tensor, reference: Tensor, labels: Tensor, *, beta: float) -> Tensor:
    """Every position but the last; where nothing is learnt, the label -100 turns down the token V - 100."""
    n_tokens = logits.shape[-1]
    if n_tokens < -IGNORED:
        raise ConfigError(
            Setting("reduction", "open_unlearning"),
            f" indexes a vocabulary from its end by {IGNORED}: it needs {-IGNORED} tokens or more, got {n_tokens}.",
        )
    next_tokens = labels[:, 1:]
    true = F.one_hot(torch.where(next_tokens == IGNORED, n_tokens + IGNORED, next_tokens), n_tokens)
    wanted = (at_least_float32(reference[:, :-1]) - beta * true).softmax(-1)
    return -(wanted * at_least_float32(logits[:, :-1]).log_softmax(-1)).sum(-1).mean()


@dataclass(frozen=True, kw_only=True)
class UNDIALConfig(ReducedConfig):
    """Distil `full` into itself with the true tokens' logits turned down by beta."""

    method: ClassVar[str] = "undial"

    beta: PositiveFloat = 10.0
    """What is taken off the logit of the true token."""


@objective(UNDIALConfig, needs=("retain", "frozen"))
def terms(config: UNDIALConfig, passes: Passes) -> Terms:
    """`UNDIAL_f + alpha NLL_r`."""
    forget = undial(
        passes.logits("forget"),
        passes.frozen_logits("forget"),
        passes.labels("forget"),
        beta=config.beta,
        reduction=config.reduction,
    )
    per = per_answer if config.counts_padding else per_token
    return Terms(per("forget", forget), retained(config, passes))
