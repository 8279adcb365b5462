"""Objectives over next-token distributions: likelihood, ascent, divergence, self-distillation.

All functions are pure. Logits and labels are unshifted, as a model returns and a batch holds them: the logits at
position p predict the label at p + 1, and a label of -100 is not counted. Everything is in nats, in float32 or better.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uds_lens.errors import DataError

IGNORED = -100
"""Label of a position that is not learnt."""


def predicting(labels: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch pos"]:
    """Positions whose next token has a label: where an answer is predicted.

    >>> predicting(torch.tensor([[-100, -100, 5, 2]])).tolist()
    [[False, True, True, False]]
    """
    return F.pad(labels[:, 1:] != IGNORED, (0, 1), value=False)


def label_log_probs(
    logits: Float[Tensor, "batch pos d_vocab"], labels: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch prev"]:
    """Log-probability of each labelled token, 0 where there is no label.

    Args:
        logits: Unshifted logits.
        labels: Unshifted labels, -100 where not counted.

    Returns:
        Nats, <= 0; entry p belongs to the label at p + 1.
    """
    kept = labels[:, 1:] != IGNORED
    log_probs = _precise(logits[:, :-1][kept]).log_softmax(-1)
    chosen = log_probs.gather(-1, labels[:, 1:][kept].unsqueeze(-1)).squeeze(-1)
    return torch.zeros(kept.shape, dtype=chosen.dtype, device=chosen.device).masked_scatter(kept, chosen)


def sequence_log_probs(
    logits: Float[Tensor, "batch pos d_vocab"], labels: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch"]:
    """Log-probability of each whole answer, `sum_t log p(y_t | x, y_<t)`.

    Args:
        logits: Unshifted logits.
        labels: Unshifted labels, -100 where not counted.

    Returns:
        Nats per answer, <= 0; 0 for a row without labels.

    Example:
        >>> logits = torch.zeros(1, 3, 4)
        >>> sequence_log_probs(logits, torch.tensor([[-100, 1, 2]])).exp()
        tensor([0.0625])
    """
    return label_log_probs(logits, labels).sum(-1)


def answer_lengths(labels: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch"]:
    """Number of labelled tokens per row, those at position 0 apart (nothing predicts them)."""
    return (labels[:, 1:] != IGNORED).sum(-1)


def negative_log_likelihood(
    logits: Float[Tensor, "batch pos d_vocab"], labels: Int[Tensor, "batch pos"]
) -> Float[Tensor, ""]:
    """Mean negative log-likelihood over all labelled tokens of a batch, the retain term of most methods.

    `NLL = -mean_t log p(y_t | x, y_<t)`

    Args:
        logits: Unshifted logits.
        labels: Unshifted labels, -100 where not counted.

    Returns:
        Nats per token, >= 0.

    Raises:
        DataError: No label in the batch.

    Example:
        >>> negative_log_likelihood(torch.zeros(1, 3, 4), torch.tensor([[-100, 1, 2]]))  # log 4
        tensor(1.3863)
    """
    return -label_log_probs(logits, labels).sum() / _kept(labels).sum()


def gradient_ascent(
    logits: Float[Tensor, "batch pos d_vocab"], labels: Int[Tensor, "batch pos"]
) -> Float[Tensor, ""]:
    """GA, and the forget term of GradDiff and KL: the negated likelihood loss, `-NLL`.

    Args:
        logits: Unshifted logits on the forget batch.
        labels: Unshifted labels, -100 where not counted.

    Returns:
        Nats per token, <= 0 and without lower bound: training on it diverges when nothing else stops it.

    Raises:
        DataError: No label in the batch.

    Example:
        >>> gradient_ascent(torch.zeros(1, 3, 4), torch.tensor([[-100, 1, 2]]))
        tensor(-1.3863)

    References:
        Jang et al. 2023, Knowledge Unlearning; Maini et al. 2024, TOFU (GradDiff, KL).
    """
    return -negative_log_likelihood(logits, labels)


def kl_to_reference(
    logits: Float[Tensor, "batch pos d_vocab"],
    reference: Float[Tensor, "batch pos d_vocab"],
    labels: Int[Tensor, "batch pos"],
) -> Float[Tensor, ""]:
    """The retain term of KL: how far the model left `full`, where an answer is predicted.

    `KL = mean_t sum_v p_full(v) (log p_full(v) - log p(v))`

    Args:
        logits: Unshifted logits of the model.
        reference: Logits of `full` on the same tokens.
        labels: Unshifted labels, -100 where not counted.

    Returns:
        Nats per token, >= 0; 0 for equal distributions.

    Raises:
        DataError: No label in the batch.

    Example:
        >>> a, b = torch.tensor([[[0.0, 0.0], [0.0, 0.0]]]), torch.tensor([[[0.0, 1.0986], [0.0, 0.0]]])
        >>> kl_to_reference(a, b, torch.tensor([[-100, 1]]))  # 0.25 log 0.5 + 0.75 log 1.5
        tensor(0.1308)

    References:
        Maini et al. 2024, TOFU (KL minimisation).
    """
    kept = _kept(labels)
    model, full = (_precise(values[:, :-1][kept]).log_softmax(-1) for values in (logits, reference))
    return (full.exp() * (full - model)).sum(-1).mean()


def undial(
    logits: Float[Tensor, "batch pos d_vocab"],
    reference: Float[Tensor, "batch pos d_vocab"],
    labels: Int[Tensor, "batch pos"],
    *,
    beta: float,
) -> Float[Tensor, ""]:
    """UNDIAL: learn `full`'s own distribution with the logit of the true token turned down.

    `L = -mean_t sum_v q_t(v) log p_t(v)`, `q_t = softmax(z_full - beta e_{y_t})`

    Args:
        logits: Unshifted logits of the model on the forget batch.
        reference: Logits of `full` on the same tokens.
        labels: Unshifted labels, -100 where not counted.
        beta: How much is taken off the true token's logit; 0 distils `full` into itself.

    Returns:
        Nats per token, >= 0; its minimum is the entropy of the targets, not 0.

    Raises:
        DataError: No label in the batch.

    Example:
        >>> flat = torch.zeros(1, 2, 2)
        >>> undial(flat, flat, torch.tensor([[-100, 1]]), beta=10.0)  # log 2 whatever the target
        tensor(0.6931)

    References:
        Dong et al. 2024, UNDIAL: Self-Distillation with Adjusted Logits.
    """
    kept = _kept(labels)
    true = F.one_hot(labels[:, 1:][kept], logits.shape[-1])
    wanted = (_precise(reference[:, :-1][kept]) - beta * true).softmax(-1)
    return -(wanted * _precise(logits[:, :-1][kept]).log_softmax(-1)).sum(-1).mean()


def _precise(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _kept(labels: Tensor) -> Tensor:
    kept = labels[:, 1:] != IGNORED
    if not bool(kept.any()):
        raise DataError("no token of the batch has a label: every answer needs at least one token to learn.")
    return kept
