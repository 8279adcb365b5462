"""A recorded own pass: what it holds, and which of its rows are resumed together.

A recording is made over rows of similar length; their windows differ. Resumed windows see each other's widths only in
attention (in everything, where rows stay padded), and all variants of them together are many tokens: too many at once
leave the processor's caches, too few waste calls.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from jaxtyping import Float
from torch import Tensor

from uds_lens.data import TokenBatch, cheapest_cuts
from uds_lens.errors import PatchError, Setting
from uds_lens.models import HookedModel
from uds_lens.patching import _costs as costs
from uds_lens.patching._blocks import Trace
from uds_lens.patching._costs import ModelCosts
from uds_lens.patching._packing import Packing
from uds_lens.patching._readout import target_logprobs


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


def recording_of(model: HookedModel, pass_: Trace, scores_at_once: int | None) -> Recording:
    """Turn a pass that kept its keys and values into a recording.

    Raises:
        PatchError: Its blocks cannot be resumed at the window.
    """
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
