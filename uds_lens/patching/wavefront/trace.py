"""A model's pass over one batch: what was read, and what its blocks need to be resumed at the window."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from jaxtyping import Float, Shaped
from torch import Tensor

from uds_lens.data import TokenBatch
from uds_lens.models import Anatomy
from uds_lens.patching.wavefront.packing import Packing
from uds_lens.patching.wavefront.prefix import KeptKeys, prefix_cache

_AnyTrace = TypeVar("_AnyTrace", bound="Trace")


class BlockCall(NamedTuple):
    """What a model called one of its blocks with, beside the hidden states; families differ in what that is."""

    args: tuple[Any, ...]
    """By position."""

    kwargs: dict[str, Any]
    """By name."""


@dataclass(eq=False)
class Trace:
    """A model's pass over one batch."""

    anatomy: Anatomy
    """The modules that ran, and will be resumed."""

    batch: TokenBatch
    """The tokens, on the model's device."""

    entry: Float[Tensor, "batch win d_model"]
    """Window states that enter the first block."""

    states: Float[Tensor, "batch layer win d_model"]
    """Window states that leave each block (`resid_post`)."""

    calls: list[BlockCall]
    """Arguments of each block, without the hidden states."""

    kept: KeptKeys
    """Keys and values of every layer that were kept, padded."""

    first_column: int
    """Keys from this position on are replaced by the variants' own."""

    cache: object | None = None
    """The cache that blocks were called with, if they were: resumed ones get `past` in its place."""

    windows: Packing | None = None
    """How resumed windows are packed; None where rows stay padded."""

    configs: list[Any] = field(default_factory=list)
    """Where packed blocks read which attention they run."""

    plain: list[bool] = field(default_factory=list)
    """Of each packed block, whether its attention is the plain one (see `plain_attention.py`)."""

    variants_at_once: int = 1
    """How many variants are resumed together at most."""

    cuts: dict[tuple[int, object], Tensor] = field(default_factory=dict)
    """Masks, positions and rotary tables cut to the window for that many variants, by the tensor they come from and by
    what they were made with."""

    resumed: dict[tuple[int, int], BlockCall] = field(default_factory=dict)
    """Arguments that a block is resumed with, by layer and number of variants: views of the above."""

    @cached_property
    def past(self) -> object:
        """A key-value cache that puts those before the window before those of resumed tokens."""
        return prefix_cache(self.kept, self.first_column)

    def before(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values before the window, of a layer that was kept."""
        keys, values = self.kept.keys[layer], self.kept.values[layer]
        assert keys is not None and values is not None, f"keys and values of layer {layer} were not kept"
        return keys[:, :, : self.first_column], values[:, :, : self.first_column]

    @cached_property
    def width(self) -> int:
        """Tokens that one variant brings to a block: the window's width, or all windows of the batch when packed."""
        return self.batch.window.shape[1] if self.windows is None else len(self.windows)

    def enter(self, states: Shaped[Tensor, "batch win *rest"]) -> Shaped[Tensor, "rows tokens *rest"]:
        """What stands at the windows, as one variant that blocks are resumed on."""
        return states if self.windows is None else self.windows.pack(states)

    def of_rows(self: _AnyTrace, start: int, stop: int, **more: Any) -> _AnyTrace:
        """The same for some rows of the batch, one after the other, as views; `more` are fields it cannot know."""
        batch = self.batch.take(range(start, stop))
        width = batch.window.shape[1]
        cut = _Rows(len(self.batch), start, stop)
        kept = KeptKeys(list(map(cut, self.kept.keys)), list(map(cut, self.kept.values)))
        kept.writes = self.kept.writes
        return dataclasses.replace(
            self,
            batch=batch,
            entry=self.entry[start:stop, :width],
            states=self.states[start:stop, :, :width],
            calls=[BlockCall(cut(args), cut(kwargs)) for args, kwargs in self.calls],
            kept=kept,
            first_column=int(batch.window[:, 0].max()),
            windows=None if self.windows is None else Packing.of(batch.window_mask),
            cuts={},
            resumed={},
            **more,
        )

    def leave(
        self, variants: Float[Tensor, "rows tokens d_model"]
    ) -> Float[Tensor, "batch variant win d_model"]:
        """Window states of each variant; entries past a row's window mean nothing."""
        n = variants.shape[1] // self.width
        padded = variants if self.windows is None else self.windows.repeated(n).pad(variants)
        return padded.unflatten(1, (n, -1))


class _Rows:
    """Cuts arguments of a block to some rows of the batch; what several blocks share stays shared."""

    def __init__(self, size: int, start: int, stop: int) -> None:
        self._size, self._rows = size, slice(start, stop)
        self._made: dict[int, Tensor] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(map(self, value))
        if isinstance(value, dict):
            return {name: self(part) for name, part in value.items()}
        if id(value) in self._made:
            return self._made[id(value)]
        if isinstance(value, Tensor) and value.ndim >= 2 and value.shape[0] == self._size:
            self._made[id(value)] = value[self._rows]
            return self._made[id(value)]
        return value
