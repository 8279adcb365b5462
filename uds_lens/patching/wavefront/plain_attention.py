"""Attention as nearly every family writes it, softmax(scaling Q K^T + mask) V, with few passes over its scores.

A family's eager attention copies keys and values for every query head, writes the scores anew for the scale and for the
mask, and knows nothing of variants: those of one row would be scored against each other, only to be masked. Here query
heads that share keys meet them in one product; variants meet the prefix together, and each its own tokens alone.

Whether a family's attention is this one is tried, once for every block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

_tried: WeakKeyDictionary[nn.Module, tuple[object, bool]] = WeakKeyDictionary()
"""Whether a module's eager attention is the plain one, with the settings that this was tried under."""


def plain_attention(
    query: Float[Tensor, "batch group copy head pos d_head"],
    key: Float[Tensor, "batch group copy*pos d_head"],
    value: Float[Tensor, "batch group copy*pos d_value"],
    mask: Float[Tensor, "#batch 1 pos keys"],
    *,
    past: tuple[Tensor, Tensor] | None = None,
    scaling: float,
) -> Float[Tensor, "batch group copy head pos d_value"]:
    """Attention of copies of every row, each to the keys before all of them and to its own.

    Args:
        query: Queries; `group` are the heads of keys, `head` the query heads that share one.
        key: Keys of the same tokens.
        value: Values of the same tokens.
        mask: Added to the scores of each copy: `keys` are the earlier ones, then its own `pos`.
        past: Earlier keys and values `[batch, group, before, d]`.
        scaling: What products are multiplied by.

    Returns:
        Weighted values.
    """
    batch, groups, copies, heads, width = query.shape[:5]
    own_keys, own_values = (t.flatten(0, 1).unflatten(1, (copies, width)).flatten(0, 1) for t in (key, value))
    scores = _products(query.flatten(0, 2).flatten(1, 2), own_keys, scaling)
    before = 0
    if past is not None:
        keys, values = (t.flatten(0, 1) for t in past)
        before = keys.shape[1]
        earlier = _products(query.flatten(0, 1).flatten(1, 3), keys, scaling)
        scores = torch.cat([earlier.view(*scores.shape[:2], before), scores], dim=2)
    scores.view(batch, -1, width, before + width).add_(mask)
    weights = scores.softmax(-1)
    output = torch.bmm(weights[..., before:], own_values)
    if past is not None:
        together = weights.view(batch * groups, -1, before + width)
        output.view(*together.shape[:2], -1).baddbmm_(together[..., :before], values)
    return output.view(batch, groups, copies, heads, width, -1)


def _products(
    queries: Float[Tensor, "n q d_head"], keys: Float[Tensor, "n k d_head"], scaling: float
) -> Float[Tensor, "n q k"]:
    return torch.baddbmm(queries.new_empty(()), queries, keys.transpose(1, 2), beta=0, alpha=scaling)


def is_plain(
    module: nn.Module,
    eager: Callable[..., Any],
    heads: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> bool:
    """Whether `eager(module, query, key, value, mask, ...)` is `plain_attention`, up to rounding.

    Only in float32: in half precision, an attention rounds its scores where it writes them, and others would differ.

    Args:
        module: The attention of a block.
        eager: The eager attention of its family.
        heads: Queries, keys and values `[batch, head, pos, d_head]` that it is called with.
        mask: The mask that it is called with.
        args: Further arguments.
        options: Further options.

    Returns:
        False where soft-capping, sinks, dropout, another mask or another dtype make it something else.
    """
    query = heads[0]
    alike = all(part.dtype == torch.float32 for part in (*heads, mask) if part is not None)
    if args or not alike or mask is None or mask.ndim != 4 or mask.shape[1] != 1:
        return False
    told = sorted((k, v) for k, v in options.items() if isinstance(v, int | float))
    shapes = [(part.shape[1], part.shape[3]) for part in heads]
    settings = (eager, query.device, module.training, repr(told), shapes)
    if _tried.get(module, (None, False))[0] != settings:
        _tried[module] = (settings, _agree(module, eager, shapes, query.device, options))
    return _tried[module][1]


def _agree(
    module: nn.Module,
    eager: Callable[..., Any],
    shapes: list[tuple[int, int]],
    device: torch.device,
    options: dict[str, Any],
) -> bool:
    """Try both on a few random tokens, with products from small to so large that a cap would show."""
    random = torch.Generator().manual_seed(0)
    exact = torch.float32  # whatever default another thread has set while it opens a model
    query, key, value = (torch.randn(1, n, 4, d, generator=random, dtype=exact).to(device) for n, d in shapes)
    query = query * torch.tensor([1.0, 4.0, 16.0, 64.0], device=device, dtype=exact)[:, None]
    mask = torch.full((1, 1, 4, 4), torch.finfo(torch.float32).min, device=device, dtype=exact).triu(1)
    groups = shapes[1][0]
    if shapes[0][0] % groups or shapes[2][0] != groups:
        return False
    theirs = eager(module, query, key, value, mask, **options)[0]
    by_group = query.unflatten(1, (groups, 1, -1))
    ours = plain_attention(by_group, key, value, mask, scaling=scaling_of(query, options))
    ours = ours.flatten(1, 3).transpose(1, 2)
    return ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def scaling_of(query: Tensor, options: dict[str, Any]) -> float:
    """What an attention multiplies its products by: what it is told, or one over the root of the head's width."""
    told = options.get("scaling")
    return float(query.shape[-1] ** -0.5 if told is None else told)
