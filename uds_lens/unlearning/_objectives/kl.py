"""KL: gradient ascent on forget answers, KL divergence to `full` on retain answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from uds_lens.unlearning._objectives.ga import gradient_ascent
from uds_lens.unlearning._passes import Passes, Terms, at_least_float32, labelled, per_answer, per_token
from uds_lens.unlearning._registry import objective
from uds_lens.unlearning._settings import ReducedConfig, Reduction


def kl_to_reference(
    logits: Float[Tensor, "batch pos d_vocab"],
    reference: Float[Tensor, "batch pos d_vocab"],
    labels: Int[Tensor, "batch pos"],
    *,
    reduction: Reduction = "answers",
) -> Float[Tensor, ""]:
    """Return KL's retain term: the divergence from `full` at the positions that predict an answer.

    `KL = mean_t sum_v p_full(v) (log p_full(v) - log p(v))`, where t runs over the positions that predict an answer.

    Open-Unlearning averages over all positions: prompt, answer, the last position (which predicts nothing) and padding.
    The weight of an answer then depends on the lengths of its prompt and of the longest row in the batch.

    Args:
        logits: Unshifted logits of the model.
        reference: Logits of `full`.
        labels: Unshifted labels; -100 marks positions to ignore.
        reduction: "answers", or "open_unlearning" to average as Open-Unlearning does.

    Returns:
        Nats per token, >= 0; 0 for equal distributions.

    Raises:
        DataError: The batch has no labels.

    Example:
        >>> import torch
        >>> a, b = torch.tensor([[[0.0, 0.0], [0.0, 0.0]]]), torch.tensor([[[0.0, 1.0986], [0.0, 0.0]]])
        >>> kl_to_reference(a, b, torch.tensor([[-100, 1]]))  # 0.25 log 0.5 + 0.75 log 1.5
        tensor(0.1308)

    References:
        Maini et al. 2024, TOFU (KL minimisation).
    """
    kept = labelled(labels)
    if reduction == "answers":
        logits, reference = logits[:, :-1][kept], reference[:, :-1][kept]
    model, full = (at_least_float32(values).log_softmax(-1) for values in (logits, reference))
    return (full.exp() * (full - model)).sum(-1).mean()


@dataclass(frozen=True, kw_only=True)
class KLConfig(ReducedConfig):
    """Gradient ascent on forget answers, KL to `full` on retain answers: `-NLL_f + alpha KL_r(full || model)`."""

    method: ClassVar[str] = "kl"


@objective(KLConfig, needs=("retain", "frozen"))
def terms(config: KLConfig, passes: Passes) -> Terms:
    """Return `-NLL_f + alpha KL_r(full || model)`."""
    forget = gradient_ascent(passes.logits("forget"), passes.labels("forget"))
    held = kl_to_reference(
        passes.logits("retain"), passes.frozen_logits("retain"), passes.labels("retain"), reduction=config.reduction
    )
    per = per_answer if config.counts_padding else per_token
    return Terms(per_token("forget", forget), per("retain", config.alpha * held))
