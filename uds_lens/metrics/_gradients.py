"""Gradient norms of answers' losses, which show how far a training step on an answer would move a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from uds_lens._progress import progress
from uds_lens.data._tokens import TokenSequence
from uds_lens.generation._reading import normed_at_window, raise_not_finite
from uds_lens.metrics._answers import batch_of, fitting_rows
from uds_lens.metrics._fisher import dequantised, differentiable
from uds_lens.models import HookedModel

if TYPE_CHECKING:
    from collections.abc import Iterator


def gradient_norms(
    model: HookedModel,
    rows: Sequence[TokenSequence],
    *,
    names: Sequence[str] | None = None,
    desc: str = "gradients",
    show: bool | None = None,
) -> list[float]:
    """Return the gradient 2-norm of each answer's mean NLL, averaged over weight tensors.

    The loss leaves out the last labelled position, as in Open-Unlearning. Answers run one at a time, and only one
    weight tensor's gradient is held in memory.

    Args:
        model: The model; a 4-bit model is differentiated with respect to its dequantised weights.
        rows: The tokenised answers: `scored` from `uds_lens.data.answer_sequences`.
        names: Names of the rows in error messages, such as their questions; default: row numbers.
        desc: Label of the progress bar.
        show: Whether to show a progress bar; None shows it in terminals only.

    Returns:
        Numbers >= 0, in nats per unit of weight; NaN for answers that have only one token or are too long for the
        model.

    Raises:
        ModelError: The model outputs NaN or infinite logits; the message names the first example.
    """
    model, found = dequantised(model), [math.nan] * len(rows)
    names = [f"number {row}" for row in range(len(rows))] if names is None else names
    with _norms_of_gradients(model.hf) as norms:
        for index in progress(fitting_rows(model, rows), desc=desc, unit="answer", enabled=show):
            if len(rows[index].scored) < 2:
                continue
            loss = _loss(model, rows, index)
            if not bool(loss.detach().isfinite()):
                raise_not_finite(model.name, names[index])
            norms.clear()
            loss.backward()
            found[index] = math.fsum(norms) / len(norms)
    return found


def _loss(model: HookedModel, rows: Sequence[TokenSequence], index: int) -> Tensor:
    batch = batch_of(model, rows, [index]).to(model.device)
    with torch.enable_grad():
        states = normed_at_window(model, batch)
        logits = model.anatomy.unembed(states[batch.scored_mask.to(states.device)][:-1]).float()
        targets = torch.tensor(rows[index].targets[:-1], device=logits.device)
        return nn.functional.cross_entropy(logits, targets)


@contextmanager
def _norms_of_gradients(module: nn.Module) -> Iterator[list[float]]:
    """Collect and free each gradient during backward passes; restore the caller's gradients at the end."""
    weights = [weight for weight in module.parameters() if weight.is_floating_point()]
    norms: list[float] = []
    own = [weight.grad for weight in weights]

    def take(weight: Tensor) -> None:
        assert weight.grad is not None
        norms.append(float(weight.grad.float().norm()))
        weight.grad = None

    with differentiable(weights), ExitStack() as stack:
        for weight in weights:
            weight.grad = None
            stack.enter_context(weight.register_post_accumulate_grad_hook(take))
        try:
            yield norms
        finally:
            for weight, gradient in zip(weights, own, strict=True):
                weight.grad = gradient
