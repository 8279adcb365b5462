"""CE-U: train the model towards its own distribution with the true token removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le
from jaxtyping import Float, Int
from torch import Tensor

from uds_lens.errors import DataError
from uds_lens.unlearning._passes import IGNORED, Passes, Terms, at_least_float32, per_answer
from uds_lens.unlearning._registry import objective
from uds_lens.unlearning._settings import MethodConfig


def without_true_token(
    logits: Float[Tensor, "batch pos d_vocab"], labels: Int[Tensor, "batch pos"], *, skipped: int = 1
) -> Float[Tensor, "batch"]:
    """Return each answer's cross-entropy to the model's own distribution with the true token removed.

    `L = -sum_t sum_v q_t(v) log p_t(v)`, where `q_t` is `softmax(z_t)` with the logit of the true token set to minus
    infinity. No gradient flows through `q_t`.

    Args:
        logits: Unshifted logits on the forget batch.
        labels: Unshifted labels; -100 marks positions to ignore.
        skipped: Number of tokens to ignore at the start of each answer.

    Returns:
        Nats per answer, summed over its tokens, >= 0; 0 for a row without labels beyond the skipped tokens.

    Example:
        >>> import torch
        >>> without_true_token(torch.zeros(1, 3, 4), torch.tensor([[-100, 1, 2]]), skipped=0)  # 2 log 4
        tensor([2.7726])

    References:
        Yang 2025, CE-U: Cross Entropy Unlearning.
    """
    wanted = labels[:, 1:] != IGNORED
    kept = wanted & (wanted.cumsum(-1) > skipped)
    found = at_least_float32(logits[:, :-1][kept])
    target = found.detach().scatter(-1, labels[:, 1:][kept].unsqueeze(-1), float("-inf")).softmax(-1)
    each = -(target * found.log_softmax(-1)).sum(-1)
    return each.new_zeros(kept.shape).masked_scatter(kept, each).sum(-1)


@dataclass(frozen=True, kw_only=True)
class CEUConfig(MethodConfig):
    """Cross-entropy to the model's own distribution with the true token removed, without a retain term."""

    method: ClassVar[str] = "ceu"

    skipped_tokens: Annotated[int, Ge(0), Le(1)] = 1
    """Number of tokens to ignore at the start of each answer (0 or 1)."""


@objective(CEUConfig)
def terms(config: CEUConfig, passes: Passes) -> Terms:
    """Return the mean over all forget-answer tokens that are not skipped."""
    sums = without_true_token(passes.logits("forget"), passes.labels("forget"), skipped=config.skipped_tokens)
    total = passes.totals("forget")  # every answer has a token, so each skips the same number
    n_tokens = total.tokens - config.skipped_tokens * total.answers
    if not n_tokens:
        raise DataError("every answer in a batch is a single token, which CE-U skips: set skipped_tokens to 0.")
    return Terms(per_answer("forget", sums.mean() * (total.answers / n_tokens)))
