"""One forward of a model, remembered: what every patched variant of it shares.

Patching a layer changes nothing before it and nothing at earlier positions. So the keys and values before the
window, each block's arguments (mask, positions, rotary tables) and the states at the window are the same for every
layer patched and every source: they are recorded once.

The last block is not run over the whole sequence either: once its keys and values are there, only the window
matters, and the block is resumed on it.

Where a family's blocks allow it, rows are packed: they run end to end without padding between them, and only
attention sees them padded (see `rows_layout.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens.checked_arguments import arguments_checked
from uds_lens.data import TokenBatch
from uds_lens.errors import PatchError, Setting
from uds_lens.models import HookedModel
from uds_lens.patching import costs
from uds_lens.patching.readout import target_logprobs
from uds_lens.patching.wavefront.packing import Packing
from uds_lens.patching.wavefront.row_groups import cut_row_groups
from uds_lens.patching.wavefront.rows_layout import forward_pass
from uds_lens.patching.wavefront.trace import Trace


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


@arguments_checked
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
