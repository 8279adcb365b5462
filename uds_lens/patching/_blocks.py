"""Blocks of a model, run one at a time: on whole rows, and again at the window behind the keys and values before it."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from uds_lens._compat.accelerate import is_placed
from uds_lens._compat.torch import is_out_of_memory
from uds_lens._compat.transformers import attention_of, is_plain_decoder
from uds_lens.data import TokenBatch
from uds_lens.errors import PatchError, Setting
from uds_lens.models import Anatomy, HookedModel, ModelSource, anatomy_of
from uds_lens.models._anatomy import forward_replaced
from uds_lens.models._hooked import behaviour_changes
from uds_lens.patching._packing import (
    LOCK,
    KeptKeys,
    PackedAttention,
    Packing,
    PrefixKept,
    attending,
    configs_of,
    prefix_cache,
    recording_cache,
)
from uds_lens.patching._states import at_window, first_tensor, run_decoder, split_call

logger = logging.getLogger(__name__)

_AnyTrace = TypeVar("_AnyTrace", bound="Trace")

# Which models run block by block, and on packed rows. A family is added to `PACKED_FAMILIES`, and with its tiny model
# in `tests/tiny_models.py` to the tests that compare packed rows with padded ones.

PACKED_FAMILIES = frozenset(
    {
        "gemma2",
        "gemma3_text",
        "gpt2",
        "gpt_neox",
        "llama",
        "mistral",
        "mixtral",
        "olmo2",
        "phi3",
        "qwen2",
        "qwen3",
        "qwen3_moe",
    }
)
"""Values of `model_type` whose blocks run on packed rows (tested against padded ones)."""


def runs_plainly(model: HookedModel) -> bool:
    """Whether blocks may be run apart from the model's forward.

    Not through accelerate's hooks, which have work to do after a block; not through TransformerLens's or anybody's; and
    not where blocks keep a causal mask of their own, indexed by the layout of keys, which resumed tokens do not have.
    """
    apart = not is_placed(model.hf) and not model.is_wrapped and not model.anatomy.keeps_masks
    return apart and not model.runs_hooks


def packable(model: HookedModel) -> bool:
    """Whether an open model may run on packed rows.

    Its family is one that was tested, by transformers' own code and with eager attention; and nobody's hooks are on it,
    which may count on `[batch, pos, d_model]`.
    """
    eager = all(attention_of(config) == "eager" for config in configs_of(model.anatomy.layers))
    return eager and runs_plainly(model) and _is_plain(model.hf)


def is_tested_family(model: Any) -> bool:
    """Whether a transformers model is of a family whose rows, padded and packed, the tests compare with rows alone."""
    return is_plain_decoder(model) and model.config.get_text_config().model_type in PACKED_FAMILIES


def may_be_packable(source: ModelSource, model_type: object) -> bool:
    """The same of a model that need not be open yet: of a checkpoint, by its family alone."""
    if model_type not in PACKED_FAMILIES:
        return False
    if isinstance(source, str | os.PathLike):
        return True
    return packable(source) if isinstance(source, HookedModel) else _is_plain(source)


def _is_plain(model: Any) -> bool:
    # Not a Bridge, an adapter around a model, a checkpoint's own code.
    return is_tested_family(model) and not is_placed(model) and not behaviour_changes(model)


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


class OwnPass:
    """The model's own pass over whole rows, one block after the other: padded to one length, or packed end to end."""

    def __init__(
        self,
        model: HookedModel,
        batch: TokenBatch,
        *,
        keep_prefix: bool,
        by_bridge: bool = False,
        packed: bool = False,
    ) -> None:
        batch = batch.to(model.device)
        anatomy = anatomy_of(model.bridge.original_model) if by_bridge else model.anatomy
        self._packing = Packing.of(batch.attention_mask.bool()) if packed else None
        self._keep, self._name, self._device = keep_prefix, model.name, model.device
        kept = KeptKeys.nothing(anatomy.n_layers)
        kept.stop_at_last = not by_bridge and runs_plainly(model)
        cache = None if packed else recording_cache(kept, keep=keep_prefix)
        entry, calls = learn_calls(anatomy, batch, cache)
        window = at_window(entry, batch.window).to(model.device)
        self.trace = Trace(
            anatomy=anatomy,
            batch=batch,
            entry=window,
            states=window[:, None],
            calls=calls,
            kept=kept,
            first_column=int(batch.window[:, 0].max()),
            cache=cache,
            windows=Packing.of(batch.window_mask) if packed else None,
            configs=configs_of(anatomy.layers) if packed else [],
        )
        if self._packing is None:
            self._hidden = entry
        else:
            self._hidden = self._packing.pack(entry)
            self._pack_argument = _Packed(self._packing, batch.input_ids.shape[1])

    def run(self, layer: int) -> None:
        """Run the next block, and keep its keys and values and the window states that leave it in `trace`.

        Of the last block only the window matters: once its keys and values are there, it is resumed on the window.
        """
        window = self._window_states(layer)
        if layer == 0:
            self.trace.states = window.new_empty(len(window), self.trace.anatomy.n_layers, *window.shape[1:])
        self.trace.states[:, layer] = window

    def _window_states(self, layer: int) -> Float[Tensor, "batch win d_model"]:
        trace = self.trace
        try:
            self._hidden = self._run_padded(layer) if self._packing is None else self._run_packed(layer)
        except PrefixKept:
            before = trace.states[:, layer - 1] if layer else trace.entry
            try:
                return trace.leave(run_block(trace, layer, trace.enter(before)))[:, 0]
            except PatchError as error:
                if self._packing is not None:
                    raise
                logger.info("%r: the last block runs over the whole sequence, because %s", self._name, error)
                trace.kept.stop_at_last, trace.kept.writes[layer] = False, 0
                return self._window_states(layer)
        if self._packing is None:
            return at_window(self._hidden, trace.batch.window).to(self._device)
        window = trace.batch.window
        places = self._packing.order[torch.arange(len(window), device=window.device)[:, None], window]
        return self._hidden[0].index_select(0, places.flatten()).unflatten(0, places.shape)

    def _run_padded(self, layer: int) -> Tensor:
        args, kwargs = self.trace.calls[layer]
        return first_tensor(self.trace.anatomy.layers[layer](self._hidden, *args, **kwargs))

    def _run_packed(self, layer: int) -> Tensor:
        trace, last = self.trace, self.trace.anatomy.n_layers - 1
        assert self._packing is not None
        attention = PackedAttention(self._packing, stop=layer == last)
        args, kwargs = trace.calls[layer]
        hidden = self._hidden
        with attending(attention), suppress(PrefixKept):
            options = {name: self._pack_argument(value) for name, value in kwargs.items()}
            block = trace.anatomy.layers[layer]
            hidden = first_tensor(block(hidden, *map(self._pack_argument, args), **options))
        attention.require_once()
        trace.kept.write(layer, attention.keys, attention.values, keep=self._keep or layer == last)
        trace.plain.append(bool(attention.plain))
        if layer == last:
            raise PrefixKept
        return hidden


def learn_calls(anatomy: Anatomy, batch: TokenBatch, cache: object | None) -> tuple[Tensor, list[BlockCall]]:
    """Return what enters the first block, and what every block is called with beside its hidden states.

    The model's own forward says so (masks, positions, rotary tables): it runs on blocks that record their arguments and
    pass their input on.

    Whether blocks return a tensor or a tuple differs by family: one is tried, then the other.
    """
    reasons = []
    for in_tuple in (False, True):
        try:
            return _listen(anatomy, batch, cache, in_tuple=in_tuple)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            reasons.append(
                f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
            )
            last = error
    raise PatchError(
        f"the blocks of {type(anatomy.base).__name__} cannot be run one by one: its forward does not run on blocks "
        f"that pass their input on. Where they return a tensor: {reasons[0][:120]}. Where they return a tuple: "
        f"{reasons[1][:120]}."
    ) from last


def _listen(
    anatomy: Anatomy, batch: TokenBatch, cache: object | None, *, in_tuple: bool
) -> tuple[Tensor, list[BlockCall]]:
    entered: list[Tensor] = []
    calls: list[BlockCall] = []

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        hidden, rest, options = split_call(args, kwargs)
        entered.append(hidden)
        calls.append(BlockCall(rest, options))
        if len(calls) == anatomy.n_layers:
            raise _AllSeen
        return (hidden,) if in_tuple else hidden

    with LOCK, ExitStack() as stack:
        for block in anatomy.layers:
            stack.enter_context(forward_replaced(block, stand_in))
        with suppress(_AllSeen):
            run_decoder(anatomy, batch, past_key_values=cache, use_cache=cache is not None)
    if len(calls) != anatomy.n_layers:
        raise PatchError(f"it called {len(calls)} of its {anatomy.n_layers} blocks")
    if any(hidden is not entered[0] for hidden in entered):
        raise PatchError("it changes states between its blocks")
    return entered[0], calls


class _AllSeen(Exception):  # noqa: N818 - a signal, not an error
    """Raised in the last block: every block was called."""


class _Packed:
    """Turns an argument of a block, made for padded rows, into that for the packed row."""

    def __init__(self, packing: Packing, length: int) -> None:
        self._packing, self._length = packing, length
        self._made: dict[int, Tensor] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(map(self, value))
        if not isinstance(value, Tensor) or value.ndim == 0:
            return value
        if value.ndim == 4 and value.shape[-2:] == (self._length, self._length):
            return value  # attention sees padded rows
        if value.ndim >= 2 and value.shape[1] == self._length and value.dtype != torch.bool:
            if id(value) not in self._made:
                self._made[id(value)] = self._packing.pack(value)
            return self._made[id(value)]
        raise PatchError(f"a block takes a tensor of shape {tuple(value.shape)} that cannot be packed.")


# A block resumed on variants of the window.


def run_block(
    trace: Trace, layer: int, variants: Float[Tensor, "rows tokens d_model"]
) -> Float[Tensor, "rows tokens d_model"]:
    """Run one block on n variants of the window, side by side, behind the keys and values before it.

    Args:
        trace: The pass whose arguments, masks, positions, keys and values apply.
        layer: Which block.
        variants: Window states that enter it; n times `trace.width` tokens (see `Trace.enter`).

    Returns:
        Window states that leave it.

    Raises:
        PatchError: The block takes an argument that cannot be cut to the window.
    """
    key = (layer, variants.shape[1] // trace.width)
    if key not in trace.resumed:
        cut = _Cut(trace, key[1], plain=trace.windows is not None and trace.plain[layer])
        args, kwargs = trace.calls[layer]
        trace.resumed[key] = BlockCall(
            tuple(map(cut, args)), {name: cut(value) for name, value in kwargs.items()}
        )
    args, kwargs = trace.resumed[key]
    block = trace.anatomy.layers[layer]
    if trace.windows is None:
        return first_tensor(block(variants, *args, **kwargs))
    packing = trace.windows.repeated(key[1])
    attention = PackedAttention(packing, past=trace.before(layer), plain=trace.plain[layer])
    with attending(attention):
        output = first_tensor(block(variants, *args, **kwargs))
    attention.require_once()
    return output


class _Cut:
    """Turns an argument of a block, recorded for the whole sequence, into that for n variants of the window."""

    def __init__(self, trace: Trace, n: int, *, plain: bool) -> None:
        self.trace, self.n, self.plain = trace, n, plain
        self.length = trace.batch.input_ids.shape[1]

    def __call__(self, value: Any) -> Any:
        if value is not None and value is self.trace.cache:
            return self.trace.past
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, tuple | list):
            return type(value)(self(part) for part in value)
        return value

    def _tensor(self, value: Tensor) -> Tensor:
        if value.ndim == 4 and value.shape[-2:] == (self.length, self.length):
            return self._mask(value)
        if value.ndim >= 2 and value.shape[1] == self.length and value.dtype != torch.bool:
            return self._at_window(value)
        if value.ndim == 0:
            return value
        raise PatchError(
            f"a block takes a tensor of shape {tuple(value.shape)} that the wavefront cannot cut to the window. "
            "Use ",
            Setting("engine", "naive"),
            ".",
        )

    def _at_window(self, value: Tensor) -> Tensor:
        return self._remembered(value, _tile)[:, : self.n * self.trace.width]

    def _mask(self, value: Tensor) -> Tensor:
        if self.plain:
            return self._remembered(value, _one_variants_mask)
        width = self.trace.batch.window.shape[1]
        wide = self._remembered(value, _build_mask)
        return wide[:, :, : self.n * width, : self.trace.first_column + self.n * width]

    def _remembered(self, value: Tensor, build: Callable[[Trace, Tensor, int], Tensor]) -> Tensor:
        """Built once for as many variants as are ever resumed together; the blocks of a model share most arguments."""
        cuts, key = self.trace.cuts, (id(value), build)
        if key not in cuts:
            cuts[key] = build(self.trace, value, max(self.n, self.trace.variants_at_once))
        return cuts[key]


def _tile(trace: Trace, value: Tensor, n: int) -> Tensor:
    """Values at the window positions, once per variant."""
    window = trace.batch.window.to(value.device)
    rows = torch.arange(window.shape[0], device=value.device)[:, None]
    cut = trace.enter(value.expand(window.shape[0], *value.shape[1:])[rows, window])
    return cut.repeat(1, n, *([1] * (value.ndim - 2)))


def _build_mask(trace: Trace, mask: Tensor, n: int) -> Tensor:
    """Mask of n variants: each sees the prefix and itself as the model's own window did, and no other variant."""
    prefix, own = _prefix_and_own(trace, mask)
    size, heads, width = own.shape[:3]
    shape = (size, heads, n, width, n, width)
    apart = torch.full(shape, _blocked(mask), dtype=mask.dtype, device=mask.device)
    apart.diagonal(dim1=2, dim2=4).copy_(own[..., None].expand(-1, -1, -1, -1, n))
    return torch.cat([prefix.repeat(1, 1, n, 1), apart.reshape(size, heads, n * width, n * width)], dim=-1)


def _one_variants_mask(trace: Trace, mask: Tensor, n: int) -> Tensor:
    """The same for attention that keeps variants apart: as one of them sees the prefix and itself."""
    return torch.cat(_prefix_and_own(trace, mask), dim=-1)


def _prefix_and_own(trace: Trace, mask: Tensor) -> tuple[Tensor, Tensor]:
    """How the model's own window saw the columns before it, and itself."""
    batch, columns = trace.batch, trace.first_column
    window, real = batch.window.to(mask.device), batch.window_mask.to(mask.device)
    size, width = window.shape
    heads = mask.shape[1]
    rows = mask.expand(size, -1, -1, -1).gather(
        2, window[:, None, :, None].expand(-1, heads, -1, mask.shape[-1])
    )
    behind = _columns_in_window(window, columns)[:, None, None, :]
    prefix = rows[..., :columns].masked_fill(behind, _blocked(mask))
    own = rows.gather(3, window[:, None, None, :].expand(-1, heads, width, -1))
    return prefix, own.masked_fill(~real[:, None, None, :], _blocked(mask))


def _blocked(mask: Tensor) -> float:
    return False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min


def _columns_in_window(window: Tensor, columns: int) -> Bool[Tensor, "batch columns"]:
    """Recorded keys that belong to a row's window, where variants bring their own."""
    return torch.arange(columns, device=window.device)[None, :] >= window[:, :1]
