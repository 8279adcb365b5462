"""The fast engine: all patched layers of a batch in one walk through the blocks.

A variant is "the target with layer l patched". It differs from the target only at the window, and only after
layer l. So the walk carries, from block to block, the window states of every variant patched so far; at block l the
variants patched below l run, against the recorded keys and values of the prefix, and then the variant patched at l
joins. The variants of one row run as extra tokens of one sequence behind one shared prefix, kept apart by the
attention mask, so that no prefix is copied per variant.

Token-layers per row: T (L - 1) L / 2 instead of S L^2 for one full forward per layer (T window, S sequence, L layers).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import PatchError, Setting
from uds_lens.models import HookedModel
from uds_lens.patching.readout import target_logprobs
from uds_lens.patching.sites import chosen_layers, hook_name, patch_hooks
from uds_lens.patching.span_cache import SpanCache
from uds_lens.patching.wavefront.block import run_block
from uds_lens.patching.wavefront.packed_attention import packed_blocks
from uds_lens.patching.wavefront.recording import Recording


@arguments_checked
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
        PatchError: The cache does not fit, a layer does not exist, or a block takes something that cannot be cut
            to the window.
    """
    batch = recording.batch
    n_layers = recording.anatomy.n_layers
    cache.check_fits(batch, n_layers=n_layers, d_model=recording.entry.shape[-1])
    chosen = chosen_layers(layers, n_layers)
    result = torch.full(
        (len(batch), n_layers, batch.window.shape[1]),
        torch.nan,
        dtype=torch.float32,
        device=batch.window.device,
    )
    for start, stop, group in recording.row_groups if chosen else ():
        width = group.batch.window.shape[1]
        states = dataclasses.replace(cache, states=cache.states[start:stop, :, :width])
        with model.running():
            result[start:stop, chosen, :width] = _resume(model, group, states, chosen)
    return result


def _resume(
    model: HookedModel, recording: Recording, cache: SpanCache, layers: Sequence[int]
) -> Float[Tensor, "batch chosen win"]:
    """Log-probabilities with each of `layers` patched, as many at once as may be resumed together."""
    batch, size = recording.batch, recording.variants_at_once
    found = []
    for start in range(0, len(layers), size):
        together = layers[start : start + size]
        with packed_blocks(recording.configs):
            final = _walk(model, recording, cache, together)
        scored = batch.scored_mask[:, None].expand(-1, len(together), -1)
        targets = batch.targets[:, None].expand(-1, len(together), -1)
        found.append(target_logprobs(recording.anatomy, final, targets, scored))
    return torch.cat(found, dim=1)


def _walk(
    model: HookedModel, recording: Recording, cache: SpanCache, layers: Sequence[int]
) -> Float[Tensor, "batch variant win d_model"]:
    """Last-layer window states of the variants patched at `layers`, in that order."""
    at_block_end = cache.site == "resid_post"
    wanted = set(layers)
    variants: Tensor | None = None
    for layer in range(layers[0], recording.anatomy.n_layers):
        if not at_block_end and layer in wanted:
            entering = recording.states[:, layer - 1] if layer else recording.entry
            variants = _join(variants, recording.enter(entering))
            with _patched_inside(model, recording, cache, layer):
                variants = run_block(recording, layer, variants)
            continue
        if variants is not None:
            variants = run_block(recording, layer, variants)
        if layer in wanted:
            variants = _join(variants, recording.enter(_patched_state(recording, cache, layer)))
    if variants is None:
        raise PatchError("no layer to patch: give at least one.")
    return recording.leave(variants)


def _join(
    variants: Float[Tensor, "rows tokens d_model"] | None, variant: Float[Tensor, "rows width d_model"]
) -> Float[Tensor, "rows more d_model"]:
    return variant if variants is None else torch.cat([variants, variant.to(variants.device)], dim=1)


def _patched_state(recording: Recording, cache: SpanCache, layer: int) -> Float[Tensor, "batch win d_model"]:
    own = recording.states[:, layer]
    patched = recording.batch.patched_mask[..., None]
    return torch.where(patched, cache[layer].to(own.device, own.dtype), own)


@contextmanager
def _patched_inside(model: HookedModel, recording: Recording, cache: SpanCache, layer: int) -> Iterator[None]:
    """Replace the newest variant's activation at a site inside the block, by a TransformerLens hook."""
    width = recording.batch.window.shape[1]
    patched = recording.batch.patched_mask[..., None]
    fired = 0

    def write(activation: Tensor) -> Tensor:
        nonlocal fired
        fired += 1
        newest = activation[:, -width:]
        source = cache[layer].to(activation.device, activation.dtype)
        return torch.cat(
            [activation[:, :-width], torch.where(patched.to(activation.device), source, newest)], dim=1
        )

    with model.bridge.hooks(fwd_hooks=patch_hooks(cache.site, layer, write)):
        yield
    if fired != 1:
        raise PatchError(
            f"the hook at {hook_name(cache.site, layer)} ran {fired} times, expected once. Use ",
            Setting("engine", "naive"),
            ".",
        )
