"""CE-U: learn one's own distribution without the true token."""

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
    """Return the cross-entropy of each answer to the model's own distribution with the true token left out, summed.

    `L = -sum_t sum_v q_t(v) log p_t(v)`, `q_t = softmax(z_t)` with the logit of the true token at minus infinity; the
    target carries no gradient.

    Args:
        logits: Unshifted logits on the forget batch.
        labels: Unshifted labels, -100 where not counted.
        skipped: First tokens of each answer that are left alone.

    Returns:
        Nats per answer, >= 0; 0 for a row without further labels.

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
    """Cross-entropy to the model's own distribution without the true token; no retain term."""

    method: ClassVar[str] = "ceu"

    skipped_tokens: Annotated[int, Ge(0), Le(1)] = 1
    """Whether the first token of each answer is left alone, 1 or 0."""


@objective(CEUConfig)
def terms(config: CEUConfig, passes: Passes) -> Terms:
    """Return the mean over all tokens of the forget answers that are not skipped."""
    sums = without_true_token(passes.logits("forget"), passes.labels("forget"), skipped=config.skipped_tokens)
    total = passes.totals("forget")  # every answer has a token, so that each skips as many
    n_tokens = total.tokens - config.skipped_tokens * total.answers
    if not n_tokens:
        raise DataError("every answer of a batch has one token, which CE-U leaves alone: set skipped_tokens to 0.")
    return Terms(per_answer("forget", sums.mean() * (total.answers / n_tokens)))
