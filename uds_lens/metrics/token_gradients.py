"""Gradients of several examples from one forward and one backward pass over all of them.

The pass makes gradients of states only, not of weights. Where a module maps states to states, token by token, the
gradient of its weights for one example follows from what entered it and from the gradient of what left it, at that
example's tokens; for a linear map it is `sum_t g_t x_t^T`. So padding and the other examples do not come into it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from uds_lens.data import TokenBatch
from uds_lens.models import HookedModel
from uds_lens.patching.decoder import split_call


class NotByToken(Exception):  # noqa: N818 - a signal, not an error
    """A block has weights whose gradients cannot be told apart by token; the message says where."""


@dataclass(frozen=True, eq=False)
class _Part:
    """A module with weights of its own."""

    module: nn.Module
    layer: int
    starts: dict[str, int]
    """Where its weights begin among the layer's flattened parameters."""


def gradients_by_token(
    model: HookedModel,
    batch: TokenBatch,
    loss: Callable[[], Tensor],
    starts: dict[int, dict[str, int]],
    take: Callable[[int, int, Tensor], None],
) -> None:
    """Hand `take` the gradient of each example of a batch for each weight.

    Args:
        model: The model.
        batch: The examples.
        loss: Runs the model on the batch, and returns the sum of the examples' losses.
        starts: Per layer, where each of its weights begins among its flattened parameters.
        take: As for `each_gradient`.

    Raises:
        NotByToken: A module with weights takes or gives something else than one state per token, or runs twice.
    """
    parts = [part for layer in starts for part in _parts(model, layer, starts[layer])]
    seen: dict[_Part, tuple[Tensor, Tensor]] = {}
    with torch.enable_grad(), ExitStack() as stack:
        stack.enter_context(_graph_from(model, min(starts)))
        for part in parts:
            handle = part.module.register_forward_hook(_keeper(part, seen, batch), with_kwargs=True)
            stack.callback(handle.remove)
        total = loss()
        if len(seen) < len(parts):
            raise NotByToken("the weights of a module are read without a call of it")
        gradients: tuple[Tensor | None, ...] = torch.autograd.grad(
            total, [left for _, left in seen.values()], allow_unused=True
        )
    lengths = batch.attention_mask.sum(1).tolist()
    for (part, (states, _)), gradient in zip(seen.items(), gradients, strict=True):
        if gradient is None:
            continue
        by_token = _scales_by_token(part.module, states, gradient)
        for place, length in enumerate(lengths):
            real = slice(states.shape[1] - length, None)
            found: Iterator[tuple[str, Tensor]]
            if by_token is not None:
                found = ((name, each[place, real].flatten(0, -2).sum(0)) for name, each in by_token)
            else:
                found = _own_gradients(part.module, states[place, real], gradient[place, real])
            for name, own in found:
                take(part.layer, part.starts[name], own.reshape(-1).float())


def kept_per_token(model: HookedModel, layers: Any) -> int:
    """Bytes that a pass keeps of each token, roughly: twice what enters and leaves the linear maps of some layers."""
    maps = [m for layer in layers for m in model.anatomy.layers[layer].modules() if isinstance(m, nn.Linear)]
    numbers = sum(m.in_features + m.out_features for m in maps) or model.d_model * 32 * len(layers)
    return 2 * numbers * model.dtype.itemsize


def _parts(model: HookedModel, layer: int, starts: dict[str, int]) -> list[_Part]:
    found = []
    for path, module in model.anatomy.layers[layer].named_modules():
        own = {name: f"{path}.{name}" if path else name for name, _ in module.named_parameters(recurse=False)}
        if own:
            found.append(_Part(module, layer, {name: starts[full] for name, full in own.items()}))
    return found


def _keeper(part: _Part, seen: dict[_Part, tuple[Tensor, Tensor]], batch: TokenBatch) -> Callable[..., None]:
    """A hook that remembers what entered and what left a module."""
    shape = batch.input_ids.shape

    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        by_token = (
            len(args) == 1
            and not kwargs
            and all(isinstance(states, Tensor) and states.shape[:2] == shape for states in (args[0], output))
        )
        if not by_token or part in seen or not output.requires_grad:
            raise NotByToken(
                f"a {type(module).__name__} does not map one state of each token to another, once"
            )
        seen[part] = args[0].detach(), output

    return keep


def _scales_by_token(module: nn.Module, entered: Tensor, back: Tensor) -> list[tuple[str, Tensor]] | None:
    """Gradients of a norm's scales for each token of each example, in one pass; None where a module is no such norm."""
    named = list(module.named_parameters(recurse=False))
    if type(module) in (nn.Linear, nn.LayerNorm) or any(p.shape != entered.shape[-1:] for _, p in named):
        return None
    ones = [1] * (entered.ndim - 3)
    own = {name: p.detach().repeat(*entered.shape[:2], *ones, 1).requires_grad_() for name, p in named}
    try:
        with torch.enable_grad():
            output = torch.func.functional_call(module, own, (entered,))
    except RuntimeError:
        return None  # it is not by broadcasting that it scales
    scales = torch.autograd.grad(output, list(own.values()), back, allow_unused=True, materialize_grads=True)
    return list(zip(own, scales, strict=True))


def _own_gradients(module: nn.Module, entered: Tensor, back: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Gradients of a module's own weights for one example, from what entered it and from the gradient of its output."""
    if type(module) is nn.Linear:
        yield "weight", back.flatten(0, -2).T @ entered.flatten(0, -2)
        if module.bias is not None:
            yield "bias", back.flatten(0, -2).sum(0)
        return
    own = {name: p.detach().requires_grad_() for name, p in module.named_parameters(recurse=False)}
    with torch.enable_grad():
        output = torch.func.functional_call(module, own, (entered[None],))
    found = torch.autograd.grad(output, list(own.values()), back[None], allow_unused=True)
    for name, gradient in zip(own, found, strict=True):
        if gradient is not None:
            yield name, gradient


@contextmanager
def _graph_from(model: HookedModel, layer: int) -> Iterator[None]:
    """Let gradients flow from what enters a block on; nothing before it is differentiated."""

    def begin(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hidden, rest, options = split_call(args, kwargs)
        return (hidden.detach().requires_grad_(), *rest), options

    handle = model.anatomy.layers[layer].register_forward_pre_hook(begin, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
