"""Which rows of a recording are resumed together.

A recording is made over rows of similar length; their windows differ. Resumed windows see each other's widths only in
attention (in everything, where rows stay padded), and all variants of them together are many tokens: too many at once
leave the processor's caches, too few waste calls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens.data import TokenBatch, cheapest_cuts
from uds_lens.errors import PatchError, Setting
from uds_lens.models import HookedModel
from uds_lens.patching import _costs as costs
from uds_lens.patching._blocks import Trace, run_block
from uds_lens.patching._costs import ModelCosts
from uds_lens.patching._packing import Packing, packed_blocks
from uds_lens.patching._passes import forward_pass
from uds_lens.patching._readout import target_logprobs
from uds_lens.patching._states import SpanCache, chosen_layers, hook_name, patch_hooks


def cut_row_groups(batch: TokenBatch, costs: ModelCosts, *, packed: bool) -> list[tuple[int, int]]:
    """Cut a batch into runs of rows whose windows are resumed together.

    Args:
        batch: The rows; those with windows of similar width should be neighbours.
        costs: Of the model that is resumed; each row has one variant per layer.
        packed: Whether windows are packed, so that only attention sees them padded.

    Returns:
        First row of each group, and the one after its last.
    """
    widths = batch.window_mask.sum(1).cpu().numpy().astype(float)
    starts = batch.window[:, 0].cpu().numpy().astype(float)
    return cheapest_cuts(
        widths * costs.n_layers,
        starts,
        widths,
        budget=costs.variant_tokens_at_once,
        cost=costs.row_group(packed=packed),
    )


# One forward of a model, remembered: what every patched variant of it shares.
#
# Patching a layer changes nothing before it and nothing at earlier positions. So the keys and values before
# the window, each block's arguments (mask, positions, rotary tables) and the states at the window are the
# same for every layer patched and every source: they are recorded once.
#
# The last block is not run over the whole sequence either: once its keys and values are there, only the
# window matters, and the block is resumed on it.
#
# Where a family's blocks allow it, rows are packed: they run end to end without padding between them, and
# only attention sees them padded (see `rows_layout.py`).


@dataclass(eq=False)
class Recording(Trace):
    """The target's own pass over one batch, with the keys and values of every layer."""

    logprobs: Float[Tensor, "batch win"] = field(kw_only=True)
    """The target's own log-probabilities of the scored tokens, float32 nats; NaN where not scored."""

    scores_at_once: int = field(kw_only=True)
    """Attention scores of one block held at one time."""

    @property
    def row_groups(self) -> list[tuple[int, int, Recording]]:
        """Rows that are resumed together: the first, the one after the last, and the recording of them."""
        return self._row_groups or [(0, len(self.batch), self)]

    @cached_property
    def _row_groups(self) -> list[tuple[int, int, Recording]]:
        """Empty where all rows are resumed together: a recording must not hold itself, or it outlives its batch."""
        cuts = cut_row_groups(self.batch, _costs(self), packed=self.windows is not None)
        return [(start, stop, self._group(start, stop)) for start, stop in cuts] if len(cuts) > 1 else []

    def _group(self, start: int, stop: int) -> Recording:
        width = int(self.batch.window_mask[start:stop].sum(1).max())
        group = self.of_rows(start, stop, logprobs=self.logprobs[start:stop, :width])
        group.variants_at_once = _variants_at_once(group)
        return group

    @property
    def nbytes(self) -> int:
        """Memory held by the tensors that grow with the batch, in bytes; with what resuming its windows will hold."""
        kept = [t for t in (*self.kept.keys, *self.kept.values) if t is not None]
        arguments = _tensors(self.calls)
        held = _bytes([self.entry, self.states, self.logprobs, *kept, *arguments])
        plain = bool(self.plain) and all(self.plain)
        groups = max((t.shape[1] for t in kept), default=1)
        heads = int(getattr(self.anatomy.text_config, "num_attention_heads", None) or groups)
        cut = resumed = moved = 0
        for start, stop, group in self.row_groups:
            width, together = group.batch.window.shape[1], group.variants_at_once
            tokens = (stop - start) * width
            resumed += together * tokens
            copies = 1 if plain else together
            cut += copies * tokens * (group.first_column + copies * width)
            if self.windows is not None:  # for each number of variants there is, those of all their tokens
                moved += together * (together + 1) // 2 * tokens
        for argument in arguments:
            masks = argument.ndim == 4
            size = argument.element_size()
            held += size * (cut * argument.shape[1] if masks else resumed * argument[0, 0].numel())
        return held + moved * Packing.bytes_to_move(heads, groups)


def _bytes(tensors: list[Tensor]) -> int:
    """What they hold: keys and values may be views of a whole projection."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def _tensors(value: Any) -> list[Tensor]:
    """All tensors of rows in the arguments of blocks, each once."""
    if isinstance(value, Tensor):
        return [value] if value.ndim >= 2 else []
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return list({id(tensor): tensor for part in parts for tensor in _tensors(part)}.values())


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
        packed: Run rows end to end, without padding between them (see `patching.wavefront.rows_layout`). Source and
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
        return _record(model, batch, by_bridge, packed, scores_at_once)


def _record(
    model: HookedModel, batch: TokenBatch, by_bridge: bool, packed: bool, scores_at_once: int | None
) -> Recording:
    pass_ = forward_pass(model, batch, keep_prefix=True, by_bridge=by_bridge, packed=packed)
    if pass_.anatomy.keeps_masks:
        raise PatchError(
            f"the blocks of {type(pass_.anatomy.causal_lm).__name__} keep causal masks of their own, which resumed "
            "tokens would read at wrong places. Use ",
            Setting("engine", "naive"),
            ".",
        )
    if not pass_.kept.complete:
        raise PatchError(
            f"{model.name!r}: not every block wrote its keys and values to the cache exactly once, so that patched "
            "variants cannot be resumed. Use ",
            Setting("engine", "naive"),
            ".",
        )
    batch = pass_.batch
    logprobs = target_logprobs(pass_.anatomy, pass_.states[:, -1], batch.targets, batch.scored_mask)
    recording = Recording(
        anatomy=pass_.anatomy,
        batch=batch,
        entry=pass_.entry,
        states=pass_.states,
        calls=pass_.calls,
        kept=pass_.kept,
        first_column=pass_.first_column,
        cache=pass_.cache,
        windows=pass_.windows,
        configs=pass_.configs,
        plain=pass_.plain,
        logprobs=logprobs,
        scores_at_once=scores_at_once or costs.SCORES_AT_ONCE,
    )
    recording.variants_at_once = _variants_at_once(recording)
    return recording


def _costs(recording: Recording) -> costs.ModelCosts:
    return costs.ModelCosts.of(recording.anatomy.causal_lm.config, recording.batch.window.device)


def _variants_at_once(recording: Recording) -> int:
    return _costs(recording).variants_at_once(
        rows=len(recording.batch),
        prefix=recording.first_column,
        width=recording.batch.window.shape[1],
        scores_at_once=recording.scores_at_once,
    )


# The fast engine: all patched layers of a batch in one walk through the blocks.
#
# A variant is "the target with layer l patched". It differs from the target only at the window, and only
# after layer l. So the walk carries, from block to block, the window states of every variant patched so
# far; at block l the variants patched below l run, against the recorded keys and values of the prefix, and
# then the variant patched at l joins. The variants of one row run as extra tokens of one sequence behind
# one shared prefix, kept apart by the attention mask, so that no prefix is copied per variant.
#
# Token-layers per row: T (L - 1) L / 2 instead of S L^2 for one full forward per layer (T window, S
# sequence, L layers).


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
