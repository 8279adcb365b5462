"""The fast engine: all patched layers of a batch in one walk through the blocks.

A variant is "the target with layer l patched". It differs from the target only at the window, and only after
layer l. So the walk carries, from block to block, the window states of every variant patched so far; at block l the
variants patched below l run, against the recorded keys and values of the prefix, and then the variant patched at l
joins. The variants of one row ride as extra tokens of one sequence behind one shared prefix, kept apart by the
attention mask, so that no prefix is copied per variant.

Token-layers per row: T (L - 1) L / 2 instead of S L^2 for one full forward per layer (T window, S sequence, L layers).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from uds_lens.errors import PatchError
from uds_lens.models import HookedModel
from uds_lens.patching.capture import first_tensor
from uds_lens.patching.logprobs import target_logprobs
from uds_lens.patching.recording import Recording, prefix_cache
from uds_lens.patching.sites import hook_name
from uds_lens.patching.span_cache import SpanCache

_SCORES_AT_ONCE = 1 << 26
"""Attention scores of one block held at one time (256 MiB in float32)."""


@torch.no_grad()
def resume_patched(
    model: HookedModel, recording: Recording, cache: SpanCache, *, layers: Sequence[int] | None = None
) -> Float[Tensor, "batch layer win"]:
    """Log-probabilities of the scored tokens with each layer patched in turn.

    Equal to one patched forward per layer, up to rounding (tested to 1e-5 in float32).

    Args:
        model: The target that was recorded.
        recording: Its pass over the batch; made with `by_bridge=True` for sites other than `resid_post`.
        cache: The source's states on the same batch.
        layers: Which layers to patch; None takes all.

    Returns:
        Float32 nats; NaN where not scored and for layers left out.

    Raises:
        PatchError: The cache does not fit, or a block was called with something that cannot be cut to the window.
    """
    batch = recording.batch
    n_layers = recording.anatomy.n_layers
    cache.check_fits(batch, n_layers=n_layers, d_model=recording.entry.shape[-1])
    chosen = list(range(n_layers)) if layers is None else sorted(layers)
    result = torch.full(
        (len(batch), n_layers, batch.window.shape[1]), torch.nan, dtype=torch.float32, device=batch.window.device
    )
    size = _variants_at_once(recording)
    for start in range(0, len(chosen), size):
        part = chosen[start : start + size]
        final = _walk(model, recording, cache, part)
        scored = batch.scored_mask[:, None].expand(-1, len(part), -1)
        targets = batch.targets[:, None].expand(-1, len(part), -1)
        result[:, part] = target_logprobs(recording.anatomy, final, targets, scored)
    return result


def _walk(
    model: HookedModel, recording: Recording, cache: SpanCache, layers: Sequence[int]
) -> Float[Tensor, "batch variant win d_model"]:
    """Last-layer window states of the variants patched at `layers`, in that order."""
    past = prefix_cache(recording)
    at_block_end = cache.site == "resid_post"
    wanted = set(layers)
    flying: Tensor | None = None
    for layer in range(layers[0], recording.anatomy.n_layers):
        if not at_block_end and layer in wanted:
            entering = recording.states[:, layer - 1] if layer else recording.entry
            flying = _join(flying, entering)
            with _patched_inside(model, recording, cache, layer):
                flying = _run_block(recording, past, layer, flying)
            continue
        if flying is not None:
            flying = _run_block(recording, past, layer, flying)
        if layer in wanted:
            flying = _join(flying, _patched_state(recording, cache, layer))
    if flying is None:
        raise PatchError("no layer to patch: give at least one.")
    return flying.unflatten(1, (len(layers), -1))


def _join(
    flying: Float[Tensor, "batch tokens d_model"] | None, variant: Float[Tensor, "batch win d_model"]
) -> Float[Tensor, "batch more d_model"]:
    return variant if flying is None else torch.cat([flying, variant.to(flying.device)], dim=1)


def _patched_state(
    recording: Recording, cache: SpanCache, layer: int
) -> Float[Tensor, "batch win d_model"]:
    own = recording.states[:, layer]
    patched = recording.batch.patched_mask[..., None]
    return torch.where(patched, cache[layer].to(own.device, own.dtype), own)


@contextmanager
def _patched_inside(
    model: HookedModel, recording: Recording, cache: SpanCache, layer: int
) -> Iterator[None]:
    """Replace the newest variant's activation at a site inside the block, by a TransformerLens hook."""
    width = recording.batch.window.shape[1]
    patched = recording.batch.patched_mask[..., None]
    fired = 0

    def write(activation: Tensor, *, hook: Any) -> Tensor:
        nonlocal fired
        fired += 1
        newest = activation[:, -width:]
        source = cache[layer].to(activation.device, activation.dtype)
        return torch.cat(
            [activation[:, :-width], torch.where(patched.to(activation.device), source, newest)], dim=1
        )

    name = hook_name(cache.site, layer)
    with model.bridge.hooks(fwd_hooks=[(name, write)]):
        yield
    if fired != 1:
        raise PatchError(f"the hook at {name} ran {fired} times, expected once. Use engine='naive'.")


def _run_block(
    recording: Recording, past: Any, layer: int, flying: Float[Tensor, "batch tokens d_model"]
) -> Float[Tensor, "batch tokens d_model"]:
    args, kwargs = recording.calls[layer]
    cut = _Cut(recording, past, flying.shape[1] // recording.batch.window.shape[1])
    block = recording.anatomy.layers[layer]
    return first_tensor(block(flying, *map(cut, args), **{name: cut(value) for name, value in kwargs.items()}))


class _Cut:
    """Turns an argument of a block, recorded for the whole sequence, into that for n variants of the window."""

    def __init__(self, recording: Recording, past: Any, n: int) -> None:
        self.recording, self.past, self.n = recording, past, n
        self.length = recording.batch.input_ids.shape[1]

    def __call__(self, value: Any) -> Any:
        if value is self.recording.cache:
            return self.past
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, tuple | list):
            return type(value)(self(part) for part in value)
        return value

    def _tensor(self, value: Tensor) -> Tensor:
        if value.ndim == 4 and value.shape[-2:] == (self.length, self.length):
            return _variant_mask(self.recording, value, self.n)
        if value.ndim >= 2 and value.shape[1] == self.length and value.dtype != torch.bool:
            return self._at_window(value)
        if value.ndim == 0:
            return value
        raise PatchError(
            f"a block takes a tensor of shape {tuple(value.shape)} that the wavefront cannot cut to the window. "
            "Use engine='naive'."
        )

    def _at_window(self, value: Tensor) -> Tensor:
        window = self.recording.batch.window.to(value.device)
        rows = torch.arange(window.shape[0], device=value.device)[:, None]
        cut = value.expand(window.shape[0], *value.shape[1:])[rows, window]
        return cut.repeat(1, self.n, *([1] * (value.ndim - 2)))


def _variant_mask(recording: Recording, mask: Tensor, n: int) -> Tensor:
    """Mask of n variants: each sees the prefix and itself as the target's own window did, and no other variant."""
    width = recording.batch.window.shape[1]
    key, columns = (id(mask), n), recording.first_column
    if key not in recording.masks:
        wider = next((m for (i, k), m in recording.masks.items() if i == key[0] and k >= n), None)
        if wider is not None:
            return wider[:, :, : n * width, : columns + n * width]
        recording.masks[key] = _build_mask(recording, mask, n)
    return recording.masks[key]


def _build_mask(recording: Recording, mask: Tensor, n: int) -> Tensor:
    batch, columns = recording.batch, recording.first_column
    window, real = batch.window.to(mask.device), batch.window_mask.to(mask.device)
    size, width = window.shape
    blocked: Any = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
    heads = mask.shape[1]
    rows = mask.expand(size, -1, -1, -1).gather(
        2, window[:, None, :, None].expand(-1, heads, -1, mask.shape[-1])
    )
    behind = _columns_in_window(window, columns)[:, None, None, :]
    prefix = rows[..., :columns].masked_fill(behind, blocked)
    own = rows.gather(3, window[:, None, None, :].expand(-1, heads, width, -1))
    own = own.masked_fill(~real[:, None, None, :], blocked)
    apart = torch.full((size, heads, n, width, n, width), blocked, dtype=mask.dtype, device=mask.device)
    apart.diagonal(dim1=2, dim2=4).copy_(own[..., None].expand(-1, -1, -1, -1, n))
    return torch.cat([prefix.repeat(1, 1, n, 1), apart.reshape(size, heads, n * width, n * width)], dim=-1)


def _columns_in_window(window: Tensor, columns: int) -> Bool[Tensor, "batch columns"]:
    """Recorded keys that belong to a row's window, where variants bring their own."""
    return torch.arange(columns, device=window.device)[None, :] >= window[:, :1]


def _variants_at_once(recording: Recording) -> int:
    """How many variants may ride together before their attention scores pass the memory bound."""
    batch = recording.batch
    width, prefix = batch.window.shape[1], recording.first_column
    heads = int(recording.anatomy.text_config.num_attention_heads)
    per_head = _SCORES_AT_ONCE / (len(batch) * heads)
    n = 1
    while n < recording.anatomy.n_layers and (n + 1) * width * (prefix + (n + 1) * width) <= per_head:
        n += 1
    return n
