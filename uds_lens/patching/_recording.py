"""A recorded pass over a batch: its window states, its keys and values, and which of its rows are resumed together."""

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
from uds_lens.data import TokenBatch, cheapest_cuts
from uds_lens.models import Anatomy
from uds_lens.patching import _costs as costs
from uds_lens.patching._packing import Packing, PrefixKept


class KeptKeys:
    """Keys and values `[batch, head, pos, d_head]` of every layer, padded; None where they were not kept."""

    def __init__(self, keys: list[Tensor | None], values: list[Tensor | None]) -> None:
        self.keys, self.values = keys, values
        self.writes = [0] * len(keys)
        """How often each block gave its keys and values."""
        self.stop_at_last = False
        """Whether the last block is stopped, by `PrefixKept`, once its keys and values are kept."""

    def write(self, layer: int, keys: Tensor | None, values: Tensor | None, *, keep: bool) -> None:
        """Count what a block attends with, and keep it if asked to."""
        self.writes[layer] += 1
        if keep:
            self.keys[layer], self.values[layer] = keys, values

    def recording_cache(self, *, keep: bool) -> object:
        """Make a cache that returns new keys and values as they are, and writes them here (all layers, or the last)."""
        last = len(self.keys) - 1

        def remember(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            self.write(layer, keys, values, keep=keep or layer == last)
            if layer == last and self.stop_at_last:
                raise PrefixKept
            return keys, values

        return key_value_cache([partial(remember, layer) for layer in range(last + 1)])

    def before(self, layer: int, columns: int) -> tuple[Tensor, Tensor]:
        """Return the first `columns` keys and values of a layer that was kept."""
        keys, values = self.keys[layer], self.values[layer]
        assert keys is not None and values is not None, f"keys and values of layer {layer} were not kept"
        return keys[:, :, :columns], values[:, :, :columns]

    def prefix_cache(self, columns: int) -> object:
        """Make a cache that prepends the first `columns` kept keys and values to new ones, and stores nothing."""

        def prepend(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            before, after = self.before(layer, columns)
            return torch.cat([before, keys], dim=2), torch.cat([after, values], dim=2)

        return key_value_cache([partial(prepend, layer) for layer in range(len(self.keys))], length=columns)


class BlockCall(NamedTuple):
    """Arguments that a model called one of its blocks with, except the hidden states; families differ in them."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class VariantRows(NamedTuple):
    """Rows that one variant is of, where not all are patched at its layer."""

    chosen: Bool[Tensor, "batch"]
    n_tokens: int
    """Tokens of their windows."""


@dataclass(eq=False, repr=False)
class Recording:
    """A model's own pass over one batch: what patched variants of it share."""

    anatomy: Anatomy
    """The modules that ran, and will be resumed."""

    batch: TokenBatch
    """The tokens, on the model's device."""

    entry: Float[Tensor, "batch win d_model"]
    """Window states that enter the first block."""

    states: Float[Tensor, "batch layer win d_model"]
    """Window states that leave each block (`resid_post`)."""

    calls: list[BlockCall]
    """Arguments of each block."""

    kept: KeptKeys
    """Keys and values of every layer, or of the last alone where only states are read."""

    first_column: int
    """Keys from this position on are replaced by the variants' own."""

    cache: object | None = None
    """The cache that blocks were called with, if they were: resumed ones get `past` in its place."""

    windows: Packing | None = None
    """How resumed windows are packed; None where rows stay padded."""

    configs: list[Any] = field(default_factory=list)
    """Where packed blocks read which attention they run."""

    plain: list[bool] = field(default_factory=list)
    """Whether the attention of each packed block is the plain one (`_packing.is_plain`)."""

    logprobs: Float[Tensor, "batch win"] | None = None
    """The target's own log-probabilities of the scored tokens; None where only states were read."""

    scores_at_once: int | None = None
    """Attention scores of one block held at once; None: `costs.SCORES_AT_ONCE`."""

    variants_at_once: int = 1
    """How many variants are resumed together at most."""

    cuts: dict[tuple[int, object, int], Tensor] = field(default_factory=dict)
    """Masks, positions and rotary tables cut to the window, by where they come from, how, and for how many variants."""

    resumed: dict[tuple[int, int], BlockCall] = field(default_factory=dict)
    """Arguments that a block is resumed with, by layer and number of variants: views of the above."""

    variant_rows: list[VariantRows] | None = None
    """Rows of each variant, in the order in which they join; None: every variant has all rows."""

    packings: dict[int, Packing] = field(default_factory=dict)
    """How so many variants are packed, where their rows differ."""

    def __repr__(self) -> str:
        rows = "padded" if self.windows is None else "packed"
        return f"Recording({self.anatomy.n_layers} layers, {rows}, {self.batch!r})"

    @cached_property
    def past(self) -> object:
        """A key-value cache that prepends those before the window to those of resumed tokens, and stores nothing."""
        return self.kept.prefix_cache(self.first_column)  # no method of `self`: a recording must not hold itself

    def before(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values before the window, of a layer that was kept."""
        return self.kept.before(layer, self.first_column)

    @cached_property
    def width(self) -> int:
        """Tokens that one variant brings to a block: the window's width, or all windows of the batch when packed."""
        return self.batch.window.shape[1] if self.windows is None else len(self.windows)

    def enter(self, states: Shaped[Tensor, "batch win *rest"], number: int = 0) -> Shaped[Tensor, "rows tokens *rest"]:
        """Lay out window states as one variant that blocks are resumed on; `number` says which."""
        if self.variant_rows is not None:
            return states[self.batch.window_mask & self.variant_rows[number].chosen[:, None]][None]
        return states if self.windows is None else self.windows.pack(states)

    def leave(self, variants: Float[Tensor, "rows tokens d_model"]) -> Float[Tensor, "batch variant win d_model"]:
        """Return the window states of each variant; entries past a row's window, or of rows it is not of, are void."""
        n = self.count(variants)
        padded = variants if self.windows is None else self.packing(n).pad(variants)
        return padded.unflatten(1, (n, -1))

    def count(self, variants: Float[Tensor, "rows tokens d_model"]) -> int:
        """Return how many variants stand side by side."""
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
        """Return the same recording for variants of some rows only; itself where rows stay padded."""
        if self.windows is None:
            return self
        own = dataclasses.replace(self, variant_rows=[], packings={}, cuts={}, resumed={})
        for rows in chosen:
            own.add_rows(rows)
        return own

    def add_rows(self, chosen: Bool[Tensor, "batch"]) -> None:
        """Say which rows the next variant is of; without effect where rows stay padded."""
        if self.variant_rows is not None:
            chosen = chosen.to(self.batch.window_mask.device)
            self.variant_rows.append(VariantRows(chosen, int(self.batch.window_mask[chosen].sum())))

    def ready(self) -> Recording:
        """Set how many variants are resumed together, and forget what was cut for another number of them."""
        self.cuts, self.resumed = {}, {}
        self.variants_at_once = self._costs.variants_at_once(
            rows=len(self.batch),
            prefix=self.first_column,
            width=self.batch.window.shape[1],
            scores_at_once=self.scores_at_once or costs.SCORES_AT_ONCE,
        )
        return self

    def forget_numbers(self) -> None:
        """Forget what was made for a number of variants that a streamed wave has once, at one block."""
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
        """Rows that are resumed together: the first, the one after the last, and the recording of them.

        Resumed windows see each other's widths only in attention (in everything, where rows stay padded), and all
        variants of them are many tokens: too many at once leave the processor's caches, too few waste calls.
        """
        return self._row_groups or [(0, len(self.batch), self)]

    @cached_property
    def _row_groups(self) -> list[tuple[int, int, Recording]]:
        """Empty where all rows are resumed together: a recording must not hold itself, or it outlives its batch."""
        cuts = cut_row_groups(self.batch, self._costs, packed=self.windows is not None)
        return [(start, stop, self._of_rows(slice(start, stop))) for start, stop in cuts] if len(cuts) > 1 else []

    def groups_wanting(self, wanted: Bool[Tensor, "batch layer"] | None) -> Iterator[tuple[slice, Recording]]:
        """Yield the rows that are resumed together, and the recording of them.

        Args:
            wanted: At which layers each row is patched: where no row of a group is, it is left out. None: all.
        """
        for start, stop, group in self.row_groups:
            if wanted is None or wanted[start:stop].any():
                yield slice(start, stop), group

    def _of_rows(self, rows: slice) -> Recording:
        """The recording of some rows of the batch, as views; what several blocks share stays shared."""
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
        """Bytes held by the tensors that grow with the batch, including what resuming its windows will hold."""
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
            if self.windows is not None:  # for each number of variants there is, those of all their tokens
                moved += together * (together + 1) // 2 * tokens
        for argument in arguments:
            per_token = argument.shape[1] if argument.ndim == 4 else argument[0, 0].numel()
            held += argument.element_size() * per_token * (cut if argument.ndim == 4 else resumed)
        return held + moved * Packing.bytes_to_move(heads, groups)


def cut_row_groups(batch: TokenBatch, model: costs.ModelCosts, *, packed: bool) -> list[tuple[int, int]]:
    """Cut a batch into runs of rows whose windows are resumed together.

    Args:
        batch: The rows; those with windows of similar width should be neighbours.
        model: Costs of the model that is resumed; each row has one variant per layer.
        packed: Whether windows are packed, so that only attention sees them padded.

    Returns:
        First row of each group, and the one after its last.
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
    """Return all tensors of rows in the arguments of blocks, each once."""
    if isinstance(value, Tensor):
        return [value] if value.ndim >= 2 else []
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return list({id(tensor): tensor for part in parts for tensor in _tensors(part)}.values())
