"""Log-probabilities of labelled tokens and of whole answers, and the padded batches they are taken on.

All functions are pure. Logits and labels are unshifted, as a model returns and a batch holds them: the logits at
position p predict the label at p + 1, and a label of -100 is not counted. Everything is in nats, in float32 or better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uds_lens.data import AnswerSequence
from uds_lens.errors import DataError

IGNORED = -100  # label of a position without a target


def predicting(labels: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch pos"]:
    """Mark the positions whose next token has a label.

    >>> predicting(torch.tensor([[-100, -100, 5, 2]])).tolist()
    [[False, True, True, False]]
    """
    return F.pad(labels[:, 1:] != IGNORED, (0, 1), value=False)


def labelled(labels: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch prev"]:
    """Mark the logits that predict a labelled token; entry p belongs to the label at p + 1."""
    kept = labels[:, 1:] != IGNORED
    if not bool(kept.any()):
        raise DataError("no token of the batch has a label: every answer needs at least one token to learn.")
    return kept


def at_least_float32(logits: Tensor) -> Tensor:
    """Return logits in float32; float64 stays."""
    return logits if logits.dtype == torch.float64 else logits.float()


def label_log_probs(
    logits: Float[Tensor, "batch pos d_vocab"], labels: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch prev"]:
    """Return the log-probability of each labelled token, nats; entry p is that of the label at p + 1, 0 without one."""
    kept = labels[:, 1:] != IGNORED
    log_probs = at_least_float32(logits[:, :-1][kept]).log_softmax(-1)
    chosen = log_probs.gather(-1, labels[:, 1:][kept].unsqueeze(-1)).squeeze(-1)
    return torch.zeros(kept.shape, dtype=chosen.dtype, device=chosen.device).masked_scatter(kept, chosen)


def sequence_log_probs(
    logits: Float[Tensor, "batch pos d_vocab"], labels: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch"]:
    """Return the log-probability of each whole answer, `sum_t log p(y_t | x, y_<t)`.

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
    """Count the labelled tokens per row, except at position 0 (nothing predicts it)."""
    return (labels[:, 1:] != IGNORED).sum(-1)


def negative_log_likelihood(
    logits: Float[Tensor, "batch pos d_vocab"], labels: Int[Tensor, "batch pos"]
) -> Float[Tensor, ""]:
    """Return the mean negative log-likelihood over all labelled tokens of a batch, the retain term of most methods.

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
    return -label_log_probs(logits, labels).sum() / labelled(labels).sum()


def pad_sequences(sequences: Sequence[AnswerSequence], *, pad_token_id: int) -> dict[str, Tensor]:
    """Pad sequences on the right into one batch.

    Example:
        >>> from uds_lens.data import AnswerSequence
        >>> batch = pad_sequences([AnswerSequence((1, 5, 6, 2), 2), AnswerSequence((1, 7, 2), 1)], pad_token_id=0)
        >>> batch["labels"].tolist()
        [[-100, -100, 6, 2], [-100, 7, 2, -100]]
    """
    shape = (len(sequences), max(len(sequence.ids) for sequence in sequences))
    ids, labels = torch.full(shape, pad_token_id), torch.full(shape, IGNORED)
    mask = torch.zeros(shape, dtype=torch.long)
    for row, sequence in enumerate(sequences):
        n = len(sequence.ids)
        ids[row, :n] = torch.tensor(sequence.ids)
        mask[row, :n] = 1
        labels[row, sequence.n_prompt : n] = ids[row, sequence.n_prompt : n]
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def widened(batch: Mapping[str, Tensor], width: int, *, pad_token_id: int) -> dict[str, Tensor]:
    """Pad one side of a batch further on the right, up to `width` positions.

    Example:
        >>> batch = pad_sequences([AnswerSequence((1, 7, 2), 1)], pad_token_id=0)
        >>> {name: values.tolist() for name, values in widened(batch, 4, pad_token_id=0).items()}
        {'input_ids': [[1, 7, 2, 0]], 'attention_mask': [[1, 1, 1, 0]], 'labels': [[-100, 7, 2, -100]]}
    """
    filler = {"input_ids": pad_token_id, "attention_mask": 0, "labels": IGNORED}
    return {
        name: F.pad(values, (0, width - values.shape[1]), value=filler[name]) if name in filler else values
        for name, values in batch.items()
    }
