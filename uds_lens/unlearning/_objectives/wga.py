"""WGA: gradient ascent with each token weighted by its own probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from uds_lens._types import NonNegativeFloat
from uds_lens.unlearning._passes import Passes, Terms, label_log_probs, labelled, per_token, retained
from uds_lens.unlearning._registry import objective
from uds_lens.unlearning._settings import RetainConfig


def weighted_ascent(
    logits: Float[Tensor, "batch pos d_vocab"],
    labels: Int[Tensor, "batch pos"],
    *,
    likely: float,
    unlikely: float = 0.0,
) -> Float[Tensor, ""]:
    """Return the loss of WGA and SatImp: gradient ascent on tokens weighted by their own probability.

    `L = mean_t w_t log p_t`, `w_t = p_t^likely (1 - p_t)^unlikely`. No gradient flows through the weights.

    Args:
        logits: Unshifted logits on the forget batch.
        labels: Unshifted labels; -100 marks positions to ignore.
        likely: Exponent of p. If above 0, forgotten tokens have little weight, so the ascent levels off.
        unlikely: Exponent of 1 - p. If above 0, tokens predicted with near certainty have little weight.

    Returns:
        Nats per token, <= 0; equal to `gradient_ascent` if both exponents are 0.

    Raises:
        DataError: The batch has no labels.

    Example:
        >>> import torch
        >>> weighted_ascent(torch.zeros(1, 3, 4), torch.tensor([[-100, 1, 2]]), likely=1.0)  # log(1/4) / 4
        tensor(-0.3466)

    References:
        Wang et al. 2025, Rethinking LLM Unlearning Objectives (WGA); Yang et al. 2025, Exploring Criteria of Loss
        Reweighting (SatImp).
    """
    log_probs = label_log_probs(logits, labels)[labelled(labels)]
    probs = log_probs.detach().exp()
    return (probs**likely * (1 - probs) ** unlikely * log_probs).mean()


@dataclass(frozen=True, kw_only=True)
class WGAConfig(RetainConfig):
    """Weighted gradient ascent: each forget token is weighted by its own probability to the power of beta."""

    method: ClassVar[str] = "wga"

    beta: NonNegativeFloat = 1.0
    """Exponent of the probability (the paper's alpha); 0 gives GradDiff."""


@objective(WGAConfig, needs=("retain",))
def terms(config: WGAConfig, passes: Passes) -> Terms:
    """Return `mean p^beta log p + alpha NLL_r`."""
    forget = weighted_ascent(passes.logits("forget"), passes.labels("forget"), likely=config.beta)
    return Terms(per_token("forget", forget), retained(config, passes))
