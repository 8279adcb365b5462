"""SimNPO: NPO on the mean log-probability per token, without a reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from uds_lens._types import NonNegativeFloat, PositiveFloat
from uds_lens.unlearning._passes import Passes, Terms, answer_lengths, per_answer, retained
from uds_lens.unlearning._registry import objective
from uds_lens.unlearning._settings import RetainConfig


def simnpo(
    log_probs: Float[Tensor, "batch"], lengths: Int[Tensor, "batch"], *, beta: float, delta: float
) -> Float[Tensor, ""]:
    """Return the SimNPO loss: NPO without a reference, on the mean log-probability per token.

    `L = -(2 / beta) mean log sigmoid(beta (NLL / |y| - delta))`

    Args:
        log_probs: Log-probability of each forget answer under the model, in nats.
        lengths: Number of tokens in each answer, at least 1.
        beta: Inverse temperature, above 0.
        delta: Loss per token, in nats, above which an answer counts as forgotten.

    Returns:
        A loss >= 0; `(2 / beta) log 2` if every answer has a loss of `delta` nats per token.

    Example:
        >>> import torch
        >>> simnpo(torch.tensor([-4.0]), torch.tensor([4]), beta=2.0, delta=1.0)  # log 2
        tensor(0.6931)

    References:
        Fan et al. 2024, Simplicity Prevails.
    """
    return -(2 / beta) * F.logsigmoid(beta * (-log_probs / lengths - delta)).mean()


@dataclass(frozen=True, kw_only=True)
class SimNPOConfig(RetainConfig):
    """NPO on the mean log-probability per token, without a reference: `gamma L_f + alpha NLL_r`."""

    method: ClassVar[str] = "simnpo"

    beta: PositiveFloat = 4.5
    """Inverse temperature."""

    delta: NonNegativeFloat = 1.0
    """Loss per token, in nats, above which an answer counts as forgotten."""

    gamma: PositiveFloat = 0.125
    """Weight of the forget term."""


@objective(SimNPOConfig, needs=("retain",))
def terms(config: SimNPOConfig, passes: Passes) -> Terms:
    """Return `gamma SimNPO_f + alpha NLL_r`."""
    lengths = answer_lengths(passes.labels("forget"))
    forget = simnpo(passes.answer_log_probs("forget"), lengths, beta=config.beta, delta=config.delta)
    return Terms(per_answer("forget", config.gamma * forget), retained(config, passes))
