"""The wave: one loop through the blocks that carries the target's own pass and every patched variant of it.

A variant is "the target with layer l patched". It differs from the target only at the window, and only after layer l.
So the wave carries, from block to block, the window states of every variant patched so far; at block l the variants
patched below l run behind the target's own keys and values before the window, and then the variant patched at l joins.
The variants of a row run as extra tokens of one sequence behind one shared prefix, kept apart by the attention mask.

The own pass is the same for every layer and source. `record` keeps its keys, values and window states, so that the wave
of each source carries variants only. A source is read by the same loop without variants.

Token-layers per row: T (L - 1) L / 2 instead of S L^2 for one full forward per layer (T window, S sequence, L layers).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens.data import TokenBatch
from uds_lens.errors import PatchError, Setting
from uds_lens.models import HookedModel
from uds_lens.patching._blocks import OwnPass, Trace, run_block
from uds_lens.patching._hooks import hook_name, patch_hooks
from uds_lens.patching._packing import packed_blocks
from uds_lens.patching._readout import target_logprobs
from uds_lens.patching._recording import Recording, recording_of
from uds_lens.patching._states import SpanCache, chosen_layers


@torch.no_grad()
def wave(
    model: HookedModel,
    trace: Trace,
    *,
    own: OwnPass | None = None,
    cache: SpanCache | None = None,
    layers: Sequence[int] = (),
) -> Float[Tensor, "batch variant win d_model"] | None:
    """Run the blocks once: the target's own pass, unless it is recorded, and the variants that join at `layers`.

    Args:
        model: The target.
        trace: Its keys, values and window states; filled block by block where `own` runs.
        own: The own pass over whole rows; None where `trace` holds all of it.
        cache: The source's states.
        layers: Where they are patched in, in increasing order.

    Returns:
        Window states that leave the last block, one variant per layer; None without layers.
    """
    variants: Tensor | None = None
    inside = cache is not None and cache.site != "resid_post"
    with packed_blocks(trace.configs):
        for layer in range(0 if own is not None or not layers else layers[0], trace.anatomy.n_layers):
            if own is not None:
                own.run(layer)
            if cache is not None and layer in layers and inside:
                entering = trace.states[:, layer - 1] if layer else trace.entry
                variants = _join(variants, trace.enter(entering))
                with _patched_inside(model, trace, cache, layer):
                    variants = run_block(trace, layer, variants)
                continue
            if variants is not None:
                variants = run_block(trace, layer, variants)
            if cache is not None and layer in layers:
                variants = _join(variants, trace.enter(_patched_state(trace, cache, layer)))
    return None if variants is None else trace.leave(variants)


def _join(
    variants: Float[Tensor, "rows tokens d_model"] | None, variant: Float[Tensor, "rows width d_model"]
) -> Float[Tensor, "rows more d_model"]:
    return variant if variants is None else torch.cat([variants, variant.to(variants.device)], dim=1)


def _patched_state(trace: Trace, cache: SpanCache, layer: int) -> Float[Tensor, "batch win d_model"]:
    own = trace.states[:, layer]
    patched = trace.batch.patched_mask[..., None]
    return torch.where(patched, cache[layer].to(own.device, own.dtype), own)


@contextmanager
def _patched_inside(model: HookedModel, trace: Trace, cache: SpanCache, layer: int) -> Iterator[None]:
    """Replace the newest variant's activation at a site inside the block, by a TransformerLens hook."""
    width = trace.batch.window.shape[1]
    patched = trace.batch.patched_mask[..., None]
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


@torch.no_grad()
def own_pass(
    model: HookedModel,
    batch: TokenBatch,
    *,
    keep_prefix: bool,
    by_bridge: bool = False,
    packed: bool = False,
) -> Trace:
    """Run a model once over the batch, without logits, and keep its window states.

    Args:
        model: The model.
        batch: The tokens.
        keep_prefix: Keep the keys and values of every layer, to resume from; costs memory.
        by_bridge: Walk TransformerLens's blocks instead of the plain ones.
        packed: Run on packed rows; only a model that is `packable`, and never `by_bridge`.

    Raises:
        PatchError: Its blocks cannot be run one by one.
    """
    own = OwnPass(model, batch, keep_prefix=keep_prefix, by_bridge=by_bridge, packed=packed and not by_bridge)
    wave(model, own.trace, own=own)
    return own.trace


@torch.no_grad()
def record(
    model: HookedModel,
    batch: TokenBatch,
    *,
    by_bridge: bool = False,
    packed: bool = False,
    scores_at_once: int | None = None,
) -> Recording:
    """Run the target once over the batch and remember what patched variants share.

    Args:
        model: The target.
        batch: The tokens.
        by_bridge: Walk TransformerLens's blocks instead of the plain ones, so that hooks inside a block apply
            when variants are resumed (needed for sites other than `resid_post`).
        packed: Run rows end to end, without padding between them (see `patching.row_layout`). Source and
            target must agree in it.
        scores_at_once: Attention scores of one block held at one time, which bounds how many variants are resumed
            together; None: 256 MiB of them in float32.

    Returns:
        The recording; it holds keys and values of every position.

    Raises:
        PatchError: The model did not run each block exactly once, or keeps no key-value cache.
    """
    if model.runs_hooks:
        raise PatchError(
            f"{model.name!r} has hooks or forwards of somebody's, which count on whole sequences: its blocks cannot "
            "run alone. Use ",
            Setting("engine", "naive"),
            ".",
        )
    with model.running():
        pass_ = own_pass(model, batch, keep_prefix=True, by_bridge=by_bridge, packed=packed)
        return recording_of(model, pass_, scores_at_once)


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
            result[start:stop, chosen, :width] = _variant_logprobs(model, group, states, chosen)
    return result


def _variant_logprobs(
    model: HookedModel, recording: Recording, cache: SpanCache, layers: Sequence[int]
) -> Float[Tensor, "batch chosen win"]:
    """Log-probabilities with each of `layers` patched, as many at once as may be resumed together."""
    batch, size = recording.batch, recording.variants_at_once
    parts = []
    for start in range(0, len(layers), size):
        together = layers[start : start + size]
        final = wave(model, recording, cache=cache, layers=together)
        assert final is not None
        scored = batch.scored_mask[:, None].expand(-1, len(together), -1)
        targets = batch.targets[:, None].expand(-1, len(together), -1)
        parts.append(target_logprobs(recording.anatomy, final, targets, scored))
    return torch.cat(parts, dim=1)
