"""The wave: one loop through the blocks that carries the target's own pass and every patched variant of it.

A variant is "the target with layer l patched". It differs from the target only at the window, and only after layer l.
(A variant may also be patched at several layers: it joins at the first of them and is patched again at the others.)
So the wave carries, from block to block, the window states of every variant patched so far; at block l the variants
patched below l run behind the target's own keys and values before the window, and then the variant patched at l joins.
The variants of a row run as extra tokens of one sequence behind one shared prefix, kept apart by the attention mask.

The own pass is the same for every layer and source. `record` keeps its keys, values and window states, so that the wave
of each source carries variants only. A source is read by the same loop without variants.

Token-layers per row: T (L - 1) L / 2 instead of S L^2 for one full forward per layer (T window, S sequence, L layers).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens.data import TokenBatch
from uds_lens.models import HookedModel
from uds_lens.patching._blocks import OwnPass, run_block
from uds_lens.patching._packing import packed_blocks
from uds_lens.patching._recording import Recording
from uds_lens.patching._states import SpanCache
from uds_lens.patching._window_hooks import patched_inside


@dataclass(eq=False)
class Wave:
    """Carry through the blocks together: the target's own pass, unless it is recorded, and variants of it."""

    model: HookedModel  # the target
    recording: Recording  # its keys, values and window states; filled block by block where `first_pass` runs
    first_pass: OwnPass | None = None  # the own pass over whole rows; None where `recording` holds all of it
    cache: SpanCache | None = None  # the source's states
    layers: Sequence[int] = ()  # where each variant is patched first, in increasing order
    again: Mapping[int, Collection[int]] = field(default_factory=dict)  # layer: variants that are patched there too
    variants: Float[Tensor, "rows tokens d_model"] | None = None  # those patched so far, side by side, at the window

    def run(self, layer: int) -> None:
        """Run one block: the own pass, the variants patched below it, and the one that joins here."""
        recording = self.recording
        if self.first_pass is not None:
            self.first_pass.run(layer)
        joining, again = self.layers.count(layer), self.again.get(layer, ())
        source = self.cache if joining or again else None
        if source is not None and source.site != "resid_post":  # patched inside the block
            self._join(recording.states[:, layer - 1] if layer else recording.entry, joining)
            n = self._count()
            back = [*(n - i for i in again), *range(1, joining + 1)]
            with patched_inside(self.model, recording.batch, source, layer, back):
                self._pass(layer)
            return
        self._pass(layer)
        if source is not None:
            states = recording.states[:, layer]
            patched = recording.batch.patched_mask[..., None]
            written = source[layer].to(states.device, states.dtype)
            if again:
                self._write(recording.enter(written), recording.enter(patched), again)
            self._join(torch.where(patched, written, states), joining)

    def _pass(self, layer: int) -> None:
        if self.variants is not None:
            self.variants = run_block(self.recording, layer, self.variants)

    def _join(self, variant: Float[Tensor, "batch win d_model"], times: int) -> None:
        if times:
            first, there = self._count(), [] if self.variants is None else [self.variants]
            joined = [self.recording.enter(variant, number) for number in range(first, first + times)]
            device = (there or joined)[0].device
            self.variants = torch.cat([*there, *(one.to(device) for one in joined)], dim=1)

    def _count(self) -> int:
        return 0 if self.variants is None else self.recording.count(self.variants)

    def _write(self, states: Tensor, patched: Tensor, numbers: Collection[int]) -> None:
        assert self.variants is not None
        spans = self.variants.split(self.recording.width, dim=1)
        states, patched = states.to(spans[0].device), patched.to(spans[0].device)
        written = [torch.where(patched, states, span) if i in numbers else span for i, span in enumerate(spans)]
        self.variants = torch.cat(written, dim=1)


@torch.no_grad()
def wave(
    model: HookedModel,
    recording: Recording,
    *,
    first_pass: OwnPass | None = None,
    cache: SpanCache | None = None,
    layers: Sequence[int] = (),
    again: Mapping[int, Collection[int]] | None = None,
) -> Float[Tensor, "batch variant win d_model"] | None:
    """Send one wave through all blocks, and return the window states that leave the last, a variant per layer."""
    carried = Wave(model, recording, first_pass, cache, layers, again or {})
    with packed_blocks(recording.configs):
        for layer in range(layers[0] if first_pass is None and layers else 0, recording.anatomy.n_layers):
            carried.run(layer)
    return None if carried.variants is None else recording.leave(carried.variants)


@torch.no_grad()
def own_pass(
    model: HookedModel, batch: TokenBatch, *, keep_prefix: bool, by_bridge: bool = False, packed: bool = False
) -> Recording:
    """Run a model once over the batch, without logits, and keep its window states (with its keys: `keep_prefix`).

    Raises `PatchError` where its blocks cannot be run one by one.
    """
    run = OwnPass(model, batch, keep_prefix=keep_prefix, by_bridge=by_bridge, packed=packed and not by_bridge)
    wave(model, run.recording, first_pass=run)
    return run.recording
