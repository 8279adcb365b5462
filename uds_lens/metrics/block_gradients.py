"""Gradients of single examples for the weights of single blocks, on the plain transformers model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens.data import TokenRow, make_batch
from uds_lens.errors import ModelError
from uds_lens.generation import normed_at_window, raise_not_finite
from uds_lens.models import HookedModel
from uds_lens.progress import progress


def each_gradient(
    model: HookedModel,
    rows: Sequence[TokenRow],
    layers: Sequence[int],
    take: Callable[[int, Float[Tensor, "weight"]], None],
    *,
    desc: str = "Fisher",
    show: bool | None = None,
) -> None:
    """Hand `take` the gradient of every example for every one of some layers, flattened, in float32."""
    pad = model.tokenizer.pad_token_id if model.tokenizer is not None else None
    parameters = {layer: block_parameters(model, layer) for layer in layers}
    flat = [parameter for layer in layers for parameter in parameters[layer]]
    with _differentiable(flat), torch.enable_grad():
        for row in progress(rows, desc=desc, unit="row", enabled=show):
            batch = make_batch([row], pad_token_id=pad).to(model.device)
            states = normed_at_window(model, batch)
            logits = model.anatomy.unembed(states[batch.scored_mask.to(states.device)]).float()
            targets = batch.targets[batch.scored_mask].to(logits.device)
            loss = torch.nn.functional.cross_entropy(logits, targets)
            if not bool(loss.detach().isfinite()):
                raise_not_finite(model.name, row.example.question)
            gradients = iter(torch.autograd.grad(loss, flat, allow_unused=True, materialize_grads=True))
            for layer in layers:
                own = [next(gradients).reshape(-1).float() for _ in parameters[layer]]
                take(layer, torch.cat(own))


def block_parameters(model: HookedModel, layer: int) -> list[Tensor]:
    """The weights of one block, in the order of their names.

    Raises:
        ModelError: They are quantised; `dequantised` undoes that.
    """
    named = sorted(model.anatomy.layers[layer].named_parameters())
    integer = [name for name, parameter in named if not parameter.is_floating_point()]
    if integer:
        raise ModelError(
            f"{model.name!r}: {integer[0]} is quantised, and has no gradient. Dequantise the model."
        )
    return [parameter for _, parameter in named]


def layer_turns(model: HookedModel, memory_gb: float) -> list[list[int]]:
    """Layers in groups whose squares and gradients (float32 each) fit the memory; at least one layer per group."""
    turns: list[list[int]] = []
    used = float("inf")
    for layer in range(model.n_layers):
        need = 8 * sum(parameter.numel() for parameter in block_parameters(model, layer))
        if used + need > memory_gb * 2**30:
            turns.append([])
            used = 0
        turns[-1].append(layer)
        used += need
    return turns


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
