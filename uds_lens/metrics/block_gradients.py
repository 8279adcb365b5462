"""Gradients of single examples for the weights of single blocks, on the plain transformers model.

Several examples run side by side where the model's blocks allow it (`token_gradients.py`), else one at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from uds_lens.data import TokenBatch, TokenRow, make_batch
from uds_lens.errors import ModelError
from uds_lens.generation import normed_at_window, raise_not_finite
from uds_lens.metrics.token_gradients import NotByToken, gradients_by_token, kept_per_token
from uds_lens.models import HookedModel
from uds_lens.patching import ModelCosts
from uds_lens.progress import progress

logger = logging.getLogger(__name__)

GRAPH_BYTES = 1 << 28
"""Memory for what is kept of a forward until its backward pass; at least one example runs, however large."""

Take: TypeAlias = Callable[[int, int, Float[Tensor, "weight"]], None]
"""Gets a layer, where a weight begins among the layer's flattened parameters, and its gradient for one example,
flattened, in float32. It may not keep the tensor."""


def each_gradient(
    model: HookedModel,
    rows: Sequence[TokenRow],
    layers: Sequence[int],
    take: Take,
    *,
    desc: str = "Fisher",
    show: bool | None = None,
) -> None:
    """Hand `take` the gradient of every example for every weight of some layers.

    Raises:
        ModelError: NaN or infinite logits; names the first example.
    """
    try:
        _each(model, rows, {layer: _starts(model, layer) for layer in layers}, take, desc, show)
    except ModelError:
        with torch.no_grad():
            for index in range(len(rows)):  # batches are in another order: which is the first?
                _loss(model, rows, _batch(model, rows, [index]))
        raise


def _each(
    model: HookedModel,
    rows: Sequence[TokenRow],
    starts: dict[int, dict[str, int]],
    take: Take,
    desc: str,
    show: bool | None,
) -> None:
    together = _may_run_together(model, rows, min(starts))
    tokens = max(1, GRAPH_BYTES // kept_per_token(model, list(starts))) if together else 1
    costs = ModelCosts.of(model.hf.config, model.device)
    batches = costs.forward_batches(rows, token_budget=tokens)
    for indices in progress(batches, desc=desc, unit="batch", enabled=show):
        if together:
            try:
                _side_by_side(model, rows, indices, starts, take)
                continue
            except NotByToken as why:
                logger.info("%r: gradients of one example at a time, because %s", model.name, why)
                together = False
        for index in indices:
            _alone(model, rows, index, starts, take)


def block_parameters(model: HookedModel, layer: int) -> list[tuple[str, nn.Parameter]]:
    """The weights of one block with their names, in the order of these.

    Raises:
        ModelError: They are quantised; `dequantised` undoes that.
    """
    named = sorted(model.anatomy.layers[layer].named_parameters())
    integer = [name for name, parameter in named if not parameter.is_floating_point()]
    if integer:
        raise ModelError(
            f"{model.name!r}: {integer[0]} is quantised, and has no gradient. Dequantise the model."
        )
    return named


def n_weights(model: HookedModel, layer: int) -> int:
    """Weights of one block."""
    return sum(parameter.numel() for _, parameter in block_parameters(model, layer))


def layer_turns(model: HookedModel, memory_gb: float) -> list[list[int]]:
    """Layers in groups whose squares and gradients (float32 each) fit the memory; at least one layer per group."""
    turns: list[list[int]] = []
    used = float("inf")
    for layer in range(model.n_layers):
        need = 8 * n_weights(model, layer)
        if used + need > memory_gb * 2**30:
            turns.append([])
            used = 0
        turns[-1].append(layer)
        used += need
    return turns


def _starts(model: HookedModel, layer: int) -> dict[str, int]:
    """Where each weight begins among the flattened parameters of its layer."""
    found, at = {}, 0
    for name, parameter in block_parameters(model, layer):
        found[name] = at
        at += parameter.numel()
    return found


def _side_by_side(
    model: HookedModel,
    rows: Sequence[TokenRow],
    indices: Sequence[int],
    starts: dict[int, dict[str, int]],
    take: Take,
) -> None:
    batch = _batch(model, rows, indices)
    gradients_by_token(model, batch, partial(_loss, model, rows, batch), starts, take)


def _alone(
    model: HookedModel, rows: Sequence[TokenRow], index: int, starts: dict[int, dict[str, int]], take: Take
) -> None:
    batch = _batch(model, rows, [index])
    weights = [
        (layer, starts[layer][name], p) for layer in starts for name, p in block_parameters(model, layer)
    ]
    flat = [parameter for _, _, parameter in weights]
    with _differentiable(flat), torch.enable_grad():
        loss = _loss(model, rows, batch)
        gradients = torch.autograd.grad(loss, flat, allow_unused=True, materialize_grads=True)
    for (layer, start, _), gradient in zip(weights, gradients, strict=True):
        take(layer, start, gradient.reshape(-1).float())


def _batch(model: HookedModel, rows: Sequence[TokenRow], indices: Sequence[int]) -> TokenBatch:
    pad = model.tokenizer.pad_token_id if model.tokenizer is not None else None
    return make_batch(rows, indices=indices, pad_token_id=pad).to(model.device)


def _loss(model: HookedModel, rows: Sequence[TokenRow], batch: TokenBatch) -> Tensor:
    """Sum over examples of the mean NLL of their entities: each example's gradient is that of its own mean."""
    states = normed_at_window(model, batch)
    scored = batch.scored_mask.to(states.device)
    logits = model.anatomy.unembed(states[scored]).float()
    targets = batch.targets.to(logits.device)[scored.to(logits.device)]
    each = nn.functional.cross_entropy(logits, targets, reduction="none")
    means = torch.stack([part.mean() for part in each.split(scored.sum(-1).tolist())])
    broken = (~means.detach().isfinite()).nonzero()[:, 0].tolist()
    if broken:
        raise_not_finite(model.name, rows[min(batch.rows[place] for place in broken)].example.question)
    return means.sum()


def _may_run_together(model: HookedModel, rows: Sequence[TokenRow], layer: int) -> bool:
    """Whether the shortest and the longest example give one layer's squares side by side that they give alone."""
    if model.runs_hooks or model.is_wrapped or len(rows) < 2:
        return False
    order = sorted(range(len(rows)), key=lambda index: len(rows[index].ids))
    pair, starts = [order[0], order[-1]], {layer: _starts(model, layer)}
    together, alone = (torch.zeros(n_weights(model, layer), dtype=torch.float32) for _ in range(2))
    try:
        _side_by_side(model, rows, pair, starts, _squares_into(together))
    except NotByToken as why:
        logger.info("%r: gradients of one example at a time, because %s", model.name, why)
        return False
    for index in pair:
        _alone(model, rows, index, starts, _squares_into(alone))
    if not _agree(together, alone, sorted(starts[layer].values()), exact=model.dtype == torch.float32):
        logger.info("%r: gradients of one example at a time: side by side they are others", model.name)
        return False
    return True


def _agree(together: Tensor, alone: Tensor, begins: Sequence[int], *, exact: bool) -> bool:
    """Whether squares are the same, weight by weight: each against its own largest, not that of the whole block.

    Weights whose gradient is nothing but rounding (a bias of keys) are left alone.
    """
    tolerance, rounding = (1e-3, 1e-6) if exact else (0.1, 1e-3)
    least = rounding * float(alone.max())
    ends = [*begins[1:], len(alone)]
    for begin, end in zip(begins, ends, strict=True):
        error = float((together[begin:end] - alone[begin:end]).abs().max())
        if not error <= tolerance * max(float(alone[begin:end].max()), least):
            return False
    return True


def _squares_into(total: Tensor) -> Take:
    def add(layer: int, start: int, gradient: Tensor) -> None:
        total[start : start + len(gradient)] += gradient.square().to(total.device)

    return add


@contextmanager
def _differentiable(parameters: Sequence[Tensor]) -> Iterator[None]:
    before = [parameter.requires_grad for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter, had in zip(parameters, before, strict=True):
            parameter.requires_grad_(had)
