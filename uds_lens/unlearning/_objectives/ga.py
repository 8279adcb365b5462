"""GA: gradient ascent on the forget answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from uds_lens.unlearning._passes import Passes, Terms, negative_log_likelihood, per_token
from uds_lens.unlearning._registry import objective
from uds_lens.unlearning._settings import MethodConfig


def gradient_ascent(logits: Float[Tensor, "batch pos d_vocab"], labels: Int[Tensor, "batch pos"]) -> Float[Tensor, ""]:
    """Return `-NLL`, which is the loss of GA and the forget term of GradDiff and KL.

    Args:
        logits: Unshifted logits on the forget batch.
        labels: Unshifted labels; -100 marks positions to ignore.

    Returns:
        Nats per token, <= 0 and without a lower bound, so training on this loss alone diverges.

    Raises:
        DataError: The batch has no labels.

    Example:
        >>> import torch
        >>> gradient_ascent(torch.zeros(1, 3, 4), torch.tensor([[-100, 1, 2]]))
        tensor(-1.3863)

    References:
        Jang et al. 2023, Knowledge Unlearning; Maini et al. 2024, TOFU (GradDiff, KL).
    """
    return -negative_log_likelihood(logits, labels)


@dataclass(frozen=True, kw_only=True)
class GAConfig(MethodConfig):
    """Gradient ascent on the forget answers, without a retain term. A few steps are enough to ruin the model."""

    method: ClassVar[str] = "ga"


@objective(GAConfig)
def terms(config: GAConfig, passes: Passes) -> Terms:
    """Return `-NLL_f`."""
    return Terms(per_token("forget", gradient_ascent(passes.logits("forget"), passes.labels("forget"))))
