"""A recorded pass over a batch: window states, keys and values, and groups of rows that are resumed together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from uds_lens._compat.transformers import key_value_cache
from uds_lens.data import TokenBatch
from uds_lens.data._batches import cheapest_cuts
from uds_lens.models._anatomy import Anatomy
from uds_lens.patching import _costs as costs
from uds_lens.patching._packing import Packing, PrefixKept


class KeptKeys:
    """Keys and values `[batch, head, pos, d_head]` of every layer, padded; None where they were not kept."""

    def __init__(self, keys: list[Tensor | None], values: list[Tensor | None]) -> None:
        self.keys, self.values = keys, values
        self.writes = [0] * len(keys)
        """How often each block wrote keys and values."""
        self.stop_at_last = False
        """Whether the last block raises `PrefixKept` once its keys and values are recorded."""

    def write(self, layer: int, keys: Tensor | None, values: Tensor | None, *, keep: bool) -> None:
        """Count that a block wrote keys and values, and keep these if requested."""
        self.writes[layer] += 1
        if keep:
            self.keys[layer], self.values[layer] = keys, values

    def recording_cache(self, *, keep: bool) -> object:
        """Make a cache that returns new keys and values unchanged, and records those of all layers or only the last."""
        last = len(self.keys) - 1

        def remember(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            self.write(layer, keys, values, keep=keep or layer == last)
            if layer == last and self.stop_at_last:
                raise PrefixKept
            return keys, values

        return key_value_cache([partial(remember, layer) for layer in range(last + 1)])

    def before(self, layer: int, columns: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values of a recorded layer in the first `columns` positions."""
        keys, values = self.keys[layer], self.values[layer]
        assert keys is not None and values is not None, f"keys and values of layer {layer} were not kept"
        return keys[:, :, :columns], values[:, :, :columns]

    def prefix_cache(self, columns: int) -> object:
        """Make a cache that prepends recorded keys and values (the first `columns`) to new ones, and stores nothing."""

        def prepend(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            before, after = self.before(layer, columns)
            return torch.cat([before, keys], dim=2), torch.cat([after, values], dim=2)

        return key_value_cache([partial(prepend, layer) for layer in range(len(self.keys))], length=columns)


class BlockCall(NamedTuple):
    """Arguments of a block except the hidden states; they differ between families."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class VariantRows(NamedTuple):
    """The rows of one variant, if not all rows are patched at its layer."""

    chosen: Bool[Tensor, "batch"]
    n_tokens: int
    """Number of tokens in the windows of these rows."""


@dataclass(eq=False, repr=False)
class Recording:
    """A model's own pass over one batch, shared by its patched variants."""

    anatomy: Anatomy
    """The modules that were run, and that will be run on variants."""

    batch: TokenBatch
    """The tokens, on the model's device."""

    entry: Float[Tensor, "batch win d_model"]
    """Window states that enter the first block."""

    states: Float[Tensor, "batch layer win d_model"]
    """Window states that leave each block (`resid_post`)."""

    calls: list[BlockCall]
    """Arguments of each block."""

    kept: KeptKeys
    """Keys and values of every layer, or only of the last layer if only states are read."""

    first_column: int
    """First position at which variants have their own keys."""

    cache: object | None = None
    """The cache that blocks were called with, if any; resumed blocks are called with `past` instead."""

    windows: Packing | None = None
    """How resumed windows are packed; None if rows are padded."""

    configs: list[Any] = field(default_factory=list)
    """The configs that name the attention of packed blocks."""

    plain: list[bool] = field(default_factory=list)
    """Whether the attention of each packed block is the plain formula (`_packing.is_plain`)."""

    logprobs: Float[Tensor, "batch win"] | None = None
    """The target's own log-probabilities of the scored tokens; None if only states were read."""

    scores_at_once: int | None = None
    """Maximum number of attention scores of one block held at a time; None means `costs.SCORES_AT_ONCE`."""

    variants_at_once: int = 1
    """Maximum number of variants resumed together."""

    cuts: dict[tuple[int, object, int], Tensor] = field(default_factory=dict)
    """Masks, positions and rotary tables cut to the window, by original tensor, kind and number of variants."""

    resumed: dict[tuple[int, int], BlockCall] = field(default_factory=dict)
    """Arguments for resuming a block, by layer and number of variants; these are views of `cuts`."""

    variant_rows: list[VariantRows] | None = None
    """Rows of each variant, in the order in which variants join; None if every variant has all rows."""

    packings: dict[int, Packing] = field(default_factory=dict)
    """Packing by number of variants, if rows differ between variants."""

    def __repr__(self) -> str:
        rows = "padded" if self.windows is None else "packed"
        return f"Recording({self.anatomy.n_layers} layers, {rows}, {self.batch!r})"

    @cached_property
    def past(self) -> object:
        """A key-value cache that prepends keys and values from before the window, and stores nothing."""
        return self.kept.prefix_cache(self.first_column)  # not bound to `self`: a recording must not refer to itself

    def before(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values of a recorded layer before the window."""
        return self.kept.before(layer, self.first_column)

    @cached_property
    def width(self) -> int:
        """Number of tokens that one variant adds: the width of the window, or if packed, the tokens of all windows."""
        return self.batch.window.shape[1] if self.windows is None else len(self.windows)

    def enter(self, states: Shaped[Tensor, "batch win *rest"], number: int = 0) -> Shaped[Tensor, "rows tokens *rest"]:
        """Convert window states to the form that resumed blocks take, for variant `number`."""
        if self.variant_rows is not None:
            return states[self.batch.window_mask & self.variant_rows[number].chosen[:, None]][None]
        return states if self.windows is None else self.windows.pack(states)

    def leave(self, variants: Float[Tensor, "rows tokens d_model"]) -> Float[Tensor, "batch variant win d_model"]:
        """Return the window states of each variant; entries beyond a row's window, or of other rows, are invalid."""
        n = self.count(variants)
        padded = variants if self.windows is None else self.packing(n).pad(variants)
        return padded.unflatten(1, (n, -1))

    def count(self, variants: Float[Tensor, "rows tokens d_model"]) -> int:
        """Return the number of variants that are side by side."""
        if self.variant_rows is None:
            return variants.shape[1] // self.width
        return list(accumulate(rows.n_tokens for rows in self.variant_rows)).index(variants.shape[1]) + 1

    def packing(self, n: int) -> Packing:
        """Return how the first n variants are packed."""
        assert self.windows is not None
        if self.variant_rows is None:
            return self.windows.repeated(n)
        if n not in self.packings:
            chosen = torch.stack([rows.chosen for rows in self.variant_rows[:n]], dim=1)
            self.packings[n] = Packing.of_copies(self.batch.window_mask, chosen)
        return self.packings[n]

    def with_rows(self, chosen: Iterable[Bool[Tensor, "batch"]] = ()) -> Recording:
        """Return a copy for variants with only some rows; the recording itself if rows are padded."""
        if self.windows is None:
            return self
        own = dataclasses.replace(self, variant_rows=[], packings={}, cuts={}, resumed={})
        for rows in chosen:
            own.add_rows(rows)
        return own

    def add_rows(self, chosen: Bool[Tensor, "batch"]) -> None:
        """Add the rows of the next variant; has no effect if rows are padded."""
        if self.variant_rows is not None:
            chosen = chosen.to(self.batch.window_mask.device)
            self.variant_rows.append(VariantRows(chosen, int(self.batch.window_mask[chosen].sum())))

    def ready(self) -> Recording:
        """Determine how many variants are resumed together, and drop slices made for other numbers."""
        self.cuts, self.resumed = {}, {}
        self.variants_at_once = self._costs.variants_at_once(
            rows=len(self.batch),
            prefix=self.first_column,
            width=self.batch.window.shape[1],
            scores_at_once=self.scores_at_once or costs.SCORES_AT_ONCE,
        )
        return self

    def forget_numbers(self) -> None:
        """Drop slices made for the current number of variants; a streamed wave has this number at only one block."""
        self.resumed.clear()
        self.packings.clear()
        if self.windows is not None:
            self.windows.forget_copies()
        if self.variant_rows is not None:
            self.cuts.clear()

    @property
    def _costs(self) -> costs.ModelCosts:
        return costs.ModelCosts.of(self.anatomy.causal_lm.config, self.batch.window.device)

    @property
    def row_groups(self) -> list[tuple[int, int, Recording]]:
        """Groups of rows that are resumed together: start, end (exclusive), and recording.

        Resumed windows are padded to the widest one: only in attention if rows are packed, otherwise everywhere. All
        variants of all windows add up to many tokens. If too many are run at once, they do not fit into the processor's
        caches; if too few, the fixed cost of calls dominates.
        """
        return self._row_groups or [(0, len(self.batch), self)]

    @cached_property
    def _row_groups(self) -> list[tuple[int, int, Recording]]:
        """The groups; empty if there is just one, because a recording that refers to itself outlives its batch."""
        cuts = cut_row_groups(self.batch, self._costs, packed=self.windows is not None)
        return [(start, stop, self._of_rows(slice(start, stop))) for start, stop in cuts] if len(cuts) > 1 else []

    def groups_wanting(self, wanted: Bool[Tensor, "batch layer"] | None) -> Iterator[tuple[slice, Recording]]:
        """Yield the groups of rows that are resumed together, with their recordings.

        Args:
            wanted: The layers at which each row is patched; None for all. Groups without patched rows are left out.
        """
        for start, stop, group in self.row_groups:
            if wanted is None or wanted[start:stop].any():
                yield slice(start, stop), group

    def _of_rows(self, rows: slice) -> Recording:
        """Return the recording of some rows of the batch, as views; tensors shared by several blocks remain shared."""
        batch, made = self.batch.take(range(len(self.batch))[rows]), {}
        width = batch.window.shape[1]

        def cut(value: Any) -> Any:
            if isinstance(value, tuple | list):
                return type(value)(map(cut, value))
            if isinstance(value, dict):
                return {name: cut(part) for name, part in value.items()}
            if not (isinstance(value, Tensor) and value.ndim >= 2 and value.shape[0] == len(self.batch)):
                return value
            if id(value) not in made:
                made[id(value)] = value[rows]
            return made[id(value)]

        group = dataclasses.replace(
            self,
            batch=batch,
            entry=self.entry[rows, :width],
            states=self.states[rows, :, :width],
            calls=[BlockCall(cut(args), cut(kwargs)) for args, kwargs in self.calls],
            kept=KeptKeys(cut(self.kept.keys), cut(self.kept.values)),
            first_column=int(batch.window[:, 0].max()),
            windows=None if self.windows is None else Packing.of(batch.window_mask),
            logprobs=None if self.logprobs is None else self.logprobs[rows, :width],
        )
        return group.ready()

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors that grow with the batch, including those needed to resume its windows."""
        kept = [t for t in (*self.kept.keys, *self.kept.values) if t is not None]
        arguments = _tensors(self.calls)
        own = [] if self.logprobs is None else [self.logprobs]
        storages = [t.untyped_storage() for t in (self.entry, self.states, *own, *kept, *arguments)]
        held = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
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
            if self.windows is not None:  # indices of all tokens, for each number of variants
                moved += together * (together + 1) // 2 * tokens
        for argument in arguments:
            per_token = argument.shape[1] if argument.ndim == 4 else argument[0, 0].numel()
            held += argument.element_size() * per_token * (cut if argument.ndim == 4 else resumed)
        return held + moved * Packing.bytes_to_move(heads, groups)


def cut_row_groups(batch: TokenBatch, model: costs.ModelCosts, *, packed: bool) -> list[tuple[int, int]]:
    """Split a batch into groups of consecutive rows whose windows are resumed together.

    Args:
        batch: The rows; rows with windows of similar width should be next to each other.
        model: Costs of the target; each row has one variant per layer.
        packed: Whether windows are packed, so that only attention runs on padding.

    Returns:
        Start (inclusive) and end (exclusive) of each group.
    """
    widths = batch.window_mask.sum(1).cpu().numpy().astype(float)
    starts = batch.window[:, 0].cpu().numpy().astype(float)
    return cheapest_cuts(
        widths * model.n_layers,
        starts,
        widths,
        budget=model.variant_tokens_at_once,
        cost=model.row_group(packed=packed),
    )


def _tensors(value: Any) -> list[Tensor]:
    """Return all per-row tensors in block arguments, without duplicates."""
    if isinstance(value, Tensor):
        return [value] if value.ndim >= 2 else []
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return list({id(tensor): tensor for part in parts for tensor in _tensors(part)}.values())
