"""The streamed way to run the wave: blocks outermost, so that a model's weights are read once and never held together.

A block is read, run for every batch (the model's own pass, and behind it the variants of every source), and dropped.
The batches, the rows that are resumed together and the products are those of a model in memory, so the numbers are too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uds_lens._compat.transformers import upcasts_attention
from uds_lens._progress import progress
from uds_lens._types import LastLayer
from uds_lens.data import TokenBatch
from uds_lens.errors import PatchError
from uds_lens.models import HookedModel
from uds_lens.models._checkpoint import load_config
from uds_lens.models._streamed import StreamedModel, why_not_streamed as why_not_read_by_block
from uds_lens.patching._blocks import OwnPass, learn_calls
from uds_lens.patching._engines import variant_logprobs
from uds_lens.patching._hooks import first_tensor
from uds_lens.patching._packing import packed_blocks
from uds_lens.patching._plain import cache_of
from uds_lens.patching._readout import target_logprobs
from uds_lens.patching._recording import Recording, Rows
from uds_lens.patching._side_by_side import PACKED_FAMILIES
from uds_lens.patching._states import PatchEngine, SpanCache, at_window
from uds_lens.patching._wave import Wave

SourceLayers: TypeAlias = Callable[[slice], SpanCache]
"""Takes layers, returns the states of a source there: those of all layers, padded, are not held while rows wait."""


class StreamedBatch(PatchEngine):
    """A batch on its way through the blocks of a streamed model; measured once the last block is behind it."""

    def __init__(
        self,
        model: HookedModel,
        batch: TokenBatch,
        sources: Sequence[SourceLayers] = (),
        *,
        packed: bool,
        exact_noop: bool = True,
        scores_at_once: int | None = None,
        wanted: Bool[Tensor, "batch layer"] | None = None,
    ) -> None:
        self.model, self.sources, self._exact_noop, self._wanted = model, list(sources), exact_noop, wanted
        self._first_pass = OwnPass(model, batch, keep_prefix=bool(sources), by_bridge=False, packed=packed)
        self.own = self._first_pass.recording
        self.own.scores_at_once = scores_at_once
        self.batch, self.configs = self.own.batch, self.own.configs
        self._groups: list[tuple[Rows, Recording]] = []
        self._waves: dict[tuple[int, int], list[Wave]] = {}
        self._patched: list[Float[Tensor, "batch layer win"]] = []
        self._placed: tuple[SpanCache, int] | None = None

    def run(self, layer: int) -> None:
        """Run the block that was just read: the own pass, then the variants of every source."""
        self._first_pass.run(layer)
        if not self.sources:
            return
        own = self.own
        if own.kept.writes[layer] != 1:
            raise PatchError(
                f"{self.model.name!r} has a block that did not write its keys and values to the cache exactly once: it "
                "cannot be streamed."
            )
        if layer == 0:
            self._groups = list(own.ready().groups_wanting(self._wanted))
        for rows, group in self._groups:
            if group is not own:
                keys, values = own.kept.keys[layer], own.kept.values[layer]
                assert keys is not None and values is not None
                group.kept.write(layer, keys[rows], values[rows], keep=True)
                if not isinstance(rows, slice):  # of which the states are no views
                    group.states[:, layer] = own.states[rows, layer, : group.states.shape[2]]
        for place, source in enumerate(self.sources):
            cache = source(slice(layer, layer + 1))
            joins = self._changes_something(cache, layer)
            for number, (rows, group) in enumerate(self._groups):
                waves = self._waves.setdefault((place, number), [])
                if joins and (self._wanted is None or self._wanted[rows, layer].any()):
                    if not waves or len(waves[-1].layers) == group.variants_at_once:
                        riding = group if self._wanted is None else group.with_rows()
                        waves.append(Wave(self.model, riding, layers=[]))
                    here = cache.states[rows, :, : group.batch.window.shape[1]]
                    waves[-1].cache = replace(cache, states=here.expand(-1, own.anatomy.n_layers, -1, -1))
                    waves[-1].layers = [*waves[-1].layers, layer]
                    if self._wanted is not None:
                        waves[-1].recording.add_rows(self._wanted[rows, layer])
                for wave in waves:
                    wave.run(layer)
                    wave.cache = None
        resumed = [wave.recording for waves in self._waves.values() for wave in waves]
        for recording in {id(r): r for r in (own, *(group for _, group in self._groups), *resumed)}.values():
            recording.kept.keys[layer] = recording.kept.values[layer] = None
            recording.forget_numbers()

    def _changes_something(self, cache: SpanCache, layer: int) -> bool:
        """Whether patching a layer is more than a no-op in some row; as `SpanCache.same_as` for all layers."""
        if not self._exact_noop:
            return True
        own = self.own.states[:, layer : layer + 1]
        here = replace(cache, states=cache.states.to(own.device, own.dtype))
        return not bool(here.same_as(own, self.batch.patched_mask).all())

    @torch.no_grad()
    def read_out(self) -> None:
        """Take log-probabilities from the states that left the last block, with the head there."""
        own, batch = self.own, self.batch
        own.logprobs = target_logprobs(own.anatomy, own.states[:, -1], batch.targets, batch.scored_mask)
        for place in range(len(self.sources)):
            shape = (len(batch), own.anatomy.n_layers, batch.window.shape[1])
            result = torch.full(shape, torch.nan, dtype=torch.float32, device=batch.window.device)
            for number, (rows, group) in enumerate(self._groups):
                for wave in self._waves.pop((place, number), ()):
                    assert wave.variants is not None
                    width = group.batch.window.shape[1]
                    layers, final = list(wave.layers), wave.recording.leave(wave.variants)
                    wanted = None if self._wanted is None else self._wanted[rows][:, layers]
                    values = variant_logprobs(group, final, wanted)
                    for column, layer in enumerate(layers):
                        result[rows, layer, :width] = values[:, column]
            self._patched.append(result)

    @property
    def logprobs(self) -> Float[Tensor, "batch win"]:
        """Unpatched log-probabilities of the scored tokens."""
        assert self.own.logprobs is not None
        return self.own.logprobs

    @property
    def states(self) -> Float[Tensor, "batch layer win d_model"]:
        """The model's own `resid_post` at the window."""
        return self.own.states

    def source_states(self, last_layer: LastLayer) -> SpanCache:
        """The states of a model that is a source, with the head's norm applied to the last layer's if asked for."""
        return cache_of(self.model, self.own.states, "resid_post", last_layer)

    def placed(self, place: int) -> SpanCache:
        """Return the states of one of the sources on the device, to ask `patched` with; one at a time."""
        cache, states = self.sources[place](slice(None)), self.own.states
        self._placed = replace(cache, states=cache.states.to(states.device, states.dtype)), place
        return self._placed[0]

    def patched(
        self, cache: SpanCache, *, layers: list[int] | None = None, wanted: Bool[Tensor, "batch layer"] | None = None
    ) -> Float[Tensor, "batch layer win"]:
        """Log-probabilities with each layer patched that changes something; `cache` was returned by `placed`."""
        assert self._placed is not None
        assert self._placed[0] is cache
        return self._patched[self._placed[1]]


class StreamedRows:
    """Whole rows, padded, on their way through the blocks: for what is read from the last states alone."""

    configs: ClassVar[list[Any]] = []

    def __init__(self, model: HookedModel, batch: TokenBatch) -> None:
        self.model, self.batch = model, batch.to(model.device)
        self.hidden, self._calls = learn_calls(model.anatomy, self.batch, None)

    def run(self, layer: int) -> None:
        """Run the block that was just read."""
        args, kwargs = self._calls[layer]
        self.hidden = first_tensor(self.model.anatomy.layers[layer](self.hidden, *args, **kwargs))

    def normed(self) -> Float[Tensor, "batch win d_model"]:
        """Return what the head reads at the window, once the last block is behind it."""
        return self.model.anatomy.final_norm(at_window(self.hidden, self.batch.window))


@torch.no_grad()
def run_streamed(
    streamed: StreamedModel, batches: Sequence[StreamedBatch | StreamedRows], *, desc: str, show: bool | None = None
) -> None:
    """Send batches through all blocks of a model, each block read once for all of them.

    Args:
        streamed: The model, with the embeddings of the batches' tokens.
        batches: All that is to be run.
        desc: Label of the progress bar over blocks.
        show: Whether there is one; None shows it in terminals and notebooks.
    """
    with closing(streamed.blocks()) as blocks, streamed.model.running():
        for layer in progress(blocks, desc=desc, total=streamed.model.n_layers, unit="block", enabled=show):
            for batch in batches:
                with packed_blocks(batch.configs):
                    batch.run(layer)


def tokens_in(batches: Sequence[TokenBatch]) -> Int[Tensor, "token"]:
    """Return every token of some batches once, in increasing order."""
    none = torch.empty(0, dtype=torch.long)
    return torch.cat([none, *(batch.input_ids.flatten() for batch in batches)]).unique()


def why_not_streamed(source: object, *, revision: str | None = None, offline: bool = False) -> str | None:
    """Say why a model cannot be streamed; None where it can."""
    if not isinstance(source, str | os.PathLike):
        return "it is in memory already"
    if (why := why_not_read_by_block(source, revision=revision, offline=offline)) is not None:
        return why
    config = load_config(source, revision=revision, offline=offline, trust_remote_code=False)
    family = config.get_text_config().model_type
    if family not in PACKED_FAMILIES:
        return (
            f"{family!r} is none of the families whose blocks are known to run apart from the rest of the model "
            f"({', '.join(sorted(PACKED_FAMILIES))}): what a block is called with may depend on the blocks before it"
        )
    if upcasts_attention(config):
        return "its config sets reorder_and_upcast_attn, with which attention runs in code that only whole models take"
    return None
