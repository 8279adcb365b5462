"""The loop over blocks, and the wave: all patched variants of a batch, which move from block to block together.

A variant is "the target with layer l patched". It differs from the target only at the window, and only after layer l.
(A variant can also be patched at several layers. It then joins at the first of them and is patched again at the
others.) The wave therefore consists of the window states of all variants patched so far. Block l runs the variants
patched at earlier layers, with the target's own keys and values before the window; then the variant patched at l joins.
The variants of a row are extra tokens of one sequence with a shared prefix, kept apart by the attention mask.

The target's own pass is the same for every layer and source. If the weights stay in memory, `record` keeps the keys,
values and window states of this pass, and the wave of each source contains only variants. If the model is streamed,
each loaded block runs the target's own pass and the variants of every source (`PatchedPass`), for all batches.

The cost per row is T (L - 1) L / 2 token-layers, instead of S L^2 for one full forward pass per layer (T: tokens in the
window, S: in the sequence, L: layers).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from uds_lens._progress import progress
from uds_lens.data import TokenBatch
from uds_lens.errors import PatchError
from uds_lens.models import HookedModel
from uds_lens.patching._blocks import OwnPass, run_block
from uds_lens.patching._packing import packed_blocks
from uds_lens.patching._readout import Score, target_logprobs
from uds_lens.patching._recording import Recording
from uds_lens.patching._states import SpanCache
from uds_lens.patching._window_hooks import patched_inside

SourceLayers: TypeAlias = Callable[[int], SpanCache]
"""Takes a layer and returns the states of a source at that layer; avoids holding the padded states of all layers."""


@runtime_checkable
class Rider(Protocol):
    """Anything that can be run through the blocks of a model."""

    @property
    def configs(self) -> list[Any]:
        """The configs that name the attention of the blocks; empty unless rows are packed."""

    def run(self, layer: int) -> None:
        """Run the block that is currently loaded."""


@torch.no_grad()
def run_blocks(
    model: HookedModel, riders: Sequence[Rider], *, first: int = 0, desc: str = "blocks", show: bool | None = None
) -> None:
    """Run all riders through the blocks of a model, loading each block once.

    Args:
        model: The model; if streamed, with the embeddings of all tokens loaded.
        riders: Everything to run.
        first: Number of the first block.
        desc: Label of the progress bar, if blocks are streamed.
        show: Whether to show the bar; None shows it in terminals and notebooks only.
    """
    alike = {tuple(map(id, rider.configs)) for rider in riders}
    # replaced once, not at each block, unless other threads would wait while blocks are read
    shared = riders[0].configs if model.is_resident and len(alike) == 1 else []
    once = packed_blocks(shared) if shared else nullcontext()
    with closing(model.blocks(first)) as blocks, model.running(), once:
        shown = progress(blocks, desc=desc, total=model.n_layers, unit="block", enabled=show)
        for layer in blocks if model.is_resident else shown:
            for rider in riders:
                with packed_blocks([] if shared else rider.configs):
                    rider.run(layer)


@torch.no_grad()
def own_passes(
    model: HookedModel,
    batches: Sequence[TokenBatch],
    *,
    keep_prefix: bool,
    by_bridge: bool = False,
    packed: bool = False,
    desc: str = "blocks",
    show: bool | None = None,
) -> list[Recording]:
    """Run a model on batches once, without logits, and record window states (with `keep_prefix`, also all keys).

    Raises `PatchError` if the blocks cannot be run one at a time.
    """
    packed = packed and not by_bridge
    passes = [OwnPass(model, batch, keep_prefix=keep_prefix, by_bridge=by_bridge, packed=packed) for batch in batches]
    run_blocks(model, passes, desc=desc, show=show)
    return [own.recording for own in passes]


@dataclass(eq=False)
class Wave:
    """Variants of some rows of a batch, run together through the blocks."""

    model: HookedModel  # the target
    recording: Recording  # its keys, values and window states up to the current block
    names: list[int] = field(default_factory=list)  # the variants, in the order in which they join
    # window states of the variants that have joined, side by side
    variants: Float[Tensor, "rows tokens d_model"] | None = None

    def run(self, layer: int, source: SpanCache, again: Collection[int] = ()) -> None:
        """Run one block on the current variants, patch some of them `again`, and let new ones join.

        `source` contains the states of this layer only.
        """
        recording, there = self.recording, self._count()
        joining, numbers = len(self.names) - there, [i for i in range(there) if self.names[i] in again]
        if (joining or numbers) and source.site != "resid_post":  # patched inside the block
            self._join(recording.states[:, layer - 1] if layer else recording.entry, joining)
            back = [self._count() - i for i in [*numbers, *range(there, there + joining)]]
            with patched_inside(self.model, recording.batch, source, layer, back):
                self._pass(layer)
            return
        self._pass(layer)
        if joining or numbers:
            states = recording.states[:, layer]
            patched = recording.batch.patched_mask[..., None]
            written = source[0].to(states.device, states.dtype)
            if numbers:
                self._write(recording.enter(written), recording.enter(patched), numbers)
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


class Variants:
    """Variants of a group of rows, in waves that each contain as many variants as can run together.

    Args:
        model: The target.
        rows: The rows of the batch.
        recording: The target's own pass over these rows.
        wanted: Which variants each row of the batch needs; None for all. Variants that no row needs are not run.
    """

    def __init__(
        self, model: HookedModel, rows: slice, recording: Recording, wanted: Bool[Tensor, "batch n"] | None = None
    ) -> None:
        self._model, self._rows, self.recording = model, rows, recording
        self._wanted = None if wanted is None else wanted[rows]
        self.waves: list[Wave] = []

    def run(self, layer: int, source: SpanCache, joining: Sequence[int] = (), again: Collection[int] = ()) -> None:
        """Run one block on the current variants, patch some of them `again`, and add the variants in `joining`.

        `source` contains the states of this layer only.
        """
        for name in joining:
            if self._wanted is not None and not self._wanted[:, name].any():
                continue
            if not self.waves or len(self.waves[-1].names) == self.recording.variants_at_once:
                riding = self.recording if self._wanted is None else self.recording.with_rows()
                self.waves.append(Wave(self._model, riding))
            self.waves[-1].names.append(name)
            if self._wanted is not None:
                self.waves[-1].recording.add_rows(self._wanted[:, name])
        if self.waves:
            width = self.recording.batch.window.shape[1]
            here = replace(source, states=source.states[self._rows, :, :width])
            for wave in self.waves:
                wave.run(layer, here, again)

    def read_out(self, result: Float[Tensor, "batch n win"], *, score: Score | None = None) -> None:
        """Write the log-probabilities of the scored tokens under each variant into `result`, for rows that need it."""
        batch = self.recording.batch
        for wave in self.waves:
            assert wave.variants is not None
            final = wave.recording.leave(wave.variants)
            targets, scored = (
                part[:, None].expand(-1, final.shape[1], -1) for part in (batch.targets, batch.scored_mask)
            )
            if self._wanted is not None:
                scored = scored & self._wanted[:, wave.names].to(scored.device)[..., None]
            values = target_logprobs(self.recording.anatomy, final, targets, scored, score=score)
            for number, name in enumerate(wave.names):
                result[self._rows, name, : batch.window.shape[1]] = values[:, number]


@dataclass(eq=False)
class Resumed:
    """Variants of one source that are run through the blocks after a recorded pass."""

    variants: Variants
    cache: SpanCache  # the source's states
    joining: Mapping[int, Sequence[int]]  # for each layer, the variants first patched there
    again: Mapping[int, Collection[int]]  # for each layer, the variants patched there again

    @property
    def configs(self) -> list[Any]:
        """The configs that name the attention of the blocks."""
        return self.variants.recording.configs

    def run(self, layer: int) -> None:
        """Run one block."""
        source = replace(self.cache, states=self.cache.states[:, layer : layer + 1])
        self.variants.run(layer, source, self.joining.get(layer, ()), self.again.get(layer, ()))


class PatchedPass:
    """A batch that is run through streamed blocks: the target's own pass, followed by the variants of every source.

    Args:
        model: The target.
        batch: The tokens.
        sources: The sources to patch in, as functions that return the states at a layer.
        packed: See `record`.
        exact_noop: Whether to skip layers at which a source has exactly the states of the target in every row.
        wanted: The layers at which each row is patched; None for all.
    """

    def __init__(
        self,
        model: HookedModel,
        batch: TokenBatch,
        sources: Sequence[SourceLayers],
        *,
        packed: bool,
        exact_noop: bool = True,
        wanted: Bool[Tensor, "batch layer"] | None = None,
    ) -> None:
        self._model, self._sources, self._exact_noop, self._wanted = model, sources, exact_noop, wanted
        self._own = OwnPass(model, batch, keep_prefix=True, by_bridge=False, packed=packed)
        self.recording = self._own.recording
        self.configs = self.recording.configs
        self.groups: list[tuple[slice, Recording]] = []
        self._variants: list[list[Variants]] = []

    def run(self, layer: int) -> None:
        """Run the current block: the target's own pass, then the variants of every source."""
        self._own.run(layer)
        own = self.recording
        if own.kept.writes[layer] != 1:
            raise PatchError(
                f"{self._model.name!r} has a block that did not write its keys and values to the cache exactly once: "
                "it cannot be streamed."
            )
        if layer == 0:
            self.groups = list(own.ready().groups_wanting(self._wanted))
            self._variants = [
                [Variants(self._model, rows, group, self._wanted) for rows, group in self.groups] for _ in self._sources
            ]
        for rows, group in self.groups:
            if group is not own:
                keys, values = own.kept.keys[layer], own.kept.values[layer]
                assert keys is not None and values is not None
                group.kept.write(layer, keys[rows], values[rows], keep=True)
        for source, groups in zip(self._sources, self._variants, strict=True):
            cache = source(layer)
            joining = [layer] if self._changes_something(cache, layer) else []
            for variants in groups:
                variants.run(layer, cache, joining)
        resumed = [wave.recording for groups in self._variants for variants in groups for wave in variants.waves]
        for recording in {id(r): r for r in (own, *(group for _, group in self.groups), *resumed)}.values():
            recording.kept.keys[layer] = recording.kept.values[layer] = None
            recording.forget_numbers()

    def _changes_something(self, cache: SpanCache, layer: int) -> bool:
        """Return whether patching a layer changes anything in any row (see `SpanCache.same_as`)."""
        if not self._exact_noop:
            return True
        own = self.recording.states[:, layer : layer + 1]
        here = replace(cache, states=cache.states.to(own.device, own.dtype))
        return not bool(here.same_as(own, self.recording.batch.patched_mask).all())

    @torch.no_grad()
    def read_out(self) -> list[Float[Tensor, "batch layer win"]]:
        """Compute log-probabilities from the last block's output, for each source and patched layer."""
        own, batch = self.recording, self.recording.batch
        own.logprobs = target_logprobs(own.anatomy, own.states[:, -1], batch.targets, batch.scored_mask)
        results = []
        while self._variants:
            shape = (len(batch), own.anatomy.n_layers, batch.window.shape[1])
            results.append(torch.full(shape, torch.nan, dtype=torch.float32, device=batch.window.device))
            for variants in self._variants.pop(0):
                variants.read_out(results[-1])
        return results
