"""Run the blocks of a model one at a time, on whole rows, or on the window with recorded keys and values before it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens._compat.torch import is_out_of_memory
from uds_lens.data import TokenBatch
from uds_lens.errors import PatchError, Setting
from uds_lens.models import HookedModel
from uds_lens.models._anatomy import Anatomy, anatomy_of, forward_replaced
from uds_lens.patching._hooks import first_tensor, run_decoder, split_call
from uds_lens.patching._packing import LOCK, PackedAttention, Packing, PrefixKept, attending, configs_of
from uds_lens.patching._recording import BlockCall, KeptKeys, Recording
from uds_lens.patching._side_by_side import runs_plainly
from uds_lens.patching._states import at_window

logger = logging.getLogger(__name__)


class OwnPass:
    """The model's own pass over whole rows (padded to one length, or packed end to end), block by block.

    If rows are packed, a beginning that several rows share is run only once.
    """

    def __init__(
        self, model: HookedModel, batch: TokenBatch, *, keep_prefix: bool, by_bridge: bool, packed: bool
    ) -> None:
        batch = batch.to(model.device)
        anatomy = anatomy_of(model.bridge.original_model) if by_bridge else model.anatomy
        self._packing = Packing.of_texts(batch.input_ids, batch.attention_mask.bool()) if packed else None
        self._keep_all, self._name, self._device = keep_prefix, model.name, model.device
        kept = KeptKeys([None] * anatomy.n_layers, [None] * anatomy.n_layers)
        kept.stop_at_last = not by_bridge and runs_plainly(model)
        cache = None if packed else kept.recording_cache(keep=keep_prefix)
        self._hidden, calls = learn_calls(anatomy, batch, cache)
        window = at_window(self._hidden, batch.window).to(model.device)
        self.recording = Recording(
            anatomy=anatomy,
            batch=batch,
            entry=window,
            states=window[:, None],  # placeholder until the first block has run, whose output determines the dtype
            calls=calls,
            kept=kept,
            first_column=int(batch.window[:, 0].max()),
            cache=cache,
            windows=Packing.of(batch.window_mask) if packed else None,
            configs=configs_of(anatomy.layers) if packed else [],
        )
        if self._packing is not None:
            self._hidden = self._packing.pack(self._hidden)
            self._packed_arguments: dict[int, Tensor] = {}

    @property
    def configs(self) -> list[Any]:
        """The configs that name the attention of the blocks; empty unless rows are packed."""
        return self.recording.configs

    def run(self, layer: int) -> None:
        """Run the next block, and store its keys, values and output window states in `recording`.

        The last block stops once its keys and values are recorded, and is then run on the window only.
        """
        own, window = self.recording, self.recording.batch.window
        try:
            self._hidden = self._run_padded(layer) if self._packing is None else self._run_packed(layer)
        except PrefixKept:
            before = own.states[:, layer - 1] if layer else own.entry
            try:
                self._keep_states(layer, own.leave(run_block(own, layer, own.enter(before)))[:, 0])
            except PatchError as error:
                if self._packing is not None:
                    raise
                logger.info("%r: running the last block on the whole sequence, because %s", self._name, error)
                own.kept.stop_at_last, own.kept.writes[layer] = False, 0
                self.run(layer)
            return
        if self._packing is None:
            self._keep_states(layer, at_window(self._hidden, window).to(self._device))
        else:
            places = self._packing.order[torch.arange(len(window), device=window.device)[:, None], window]
            states = self._hidden[0].index_select(0, places.flatten())
            self._keep_states(layer, states.unflatten(0, places.shape))

    def _keep_states(self, layer: int, window: Float[Tensor, "batch win d_model"]) -> None:
        own = self.recording
        if layer == 0:
            own.states = window.new_empty(len(window), own.anatomy.n_layers, *window.shape[1:])
        own.states[:, layer] = window

    def _run_padded(self, layer: int) -> Tensor:
        args, kwargs = self.recording.calls[layer]
        return first_tensor(self.recording.anatomy.layers[layer](self._hidden, *args, **kwargs))

    def _run_packed(self, layer: int) -> Tensor:
        own, last = self.recording, self.recording.anatomy.n_layers - 1
        assert self._packing is not None
        attention = PackedAttention(self._packing, stop=layer == last)
        args, kwargs = own.calls[layer]
        hidden = self._hidden
        with attending(attention), suppress(PrefixKept):
            options = {name: self._pack(value) for name, value in kwargs.items()}
            hidden = first_tensor(own.anatomy.layers[layer](hidden, *map(self._pack, args), **options))
        attention.require_once()
        own.kept.write(layer, attention.keys, attention.values, keep=self._keep_all or layer == last)
        own.plain.append(bool(attention.plain))
        if layer == last:
            raise PrefixKept
        return hidden

    def _pack(self, value: Any) -> Any:
        """Convert an argument of a block from padded rows to one packed row."""
        length = self.recording.batch.input_ids.shape[1]
        if isinstance(value, tuple | list):
            return type(value)(map(self._pack, value))
        if not isinstance(value, Tensor) or value.ndim == 0:
            return value
        if value.ndim == 4 and value.shape[-2:] == (length, length):
            return value  # attention runs on padded rows
        if value.ndim >= 2 and value.shape[1] == length and value.dtype != torch.bool:
            if id(value) not in self._packed_arguments:
                assert self._packing is not None
                self._packed_arguments[id(value)] = self._packing.pack(value)
            return self._packed_arguments[id(value)]
        raise PatchError(f"a block takes a tensor of shape {tuple(value.shape)} that cannot be packed.")


class WholeRows:
    """Whole padded rows passing through the blocks, for callers that need only the final states."""

    configs: ClassVar[list[Any]] = []

    def __init__(self, model: HookedModel, batch: TokenBatch) -> None:
        self.anatomy, self.batch = model.anatomy, batch.to(model.device)
        self.hidden, self.calls = learn_calls(model.anatomy, self.batch, None)

    def run(self, layer: int) -> None:
        """Run the next block."""
        args, kwargs = self.calls[layer]
        self.hidden = first_tensor(self.anatomy.layers[layer](self.hidden, *args, **kwargs))

    def normed(self) -> Float[Tensor, "batch win d_model"]:
        """Return the states at the window after the last block and the final norm."""
        return self.anatomy.final_norm(at_window(self.hidden, self.batch.window))


def learn_calls(anatomy: Anatomy, batch: TokenBatch, cache: object | None) -> tuple[Tensor, list[BlockCall]]:
    """Return the input of the first block, and the arguments of every block except the hidden states.

    The model's own forward pass creates the arguments (masks, positions, rotary tables), so it is run with its blocks
    replaced by stubs that record their arguments and return their input. Blocks return a tensor in some families and a
    tuple in others, so both are tried.

    Raises:
        PatchError: The forward pass does not run with such stubs.
    """
    reasons = []
    for in_tuple in (False, True):
        try:
            return _listen(anatomy, batch, cache, in_tuple=in_tuple)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            first = str(error).splitlines()[0] if str(error) else "no message"
            reasons.append(f"{type(error).__name__}: {first}"[:120])
            last = error
    raise PatchError(
        f"the blocks of {type(anatomy.base).__name__} cannot be run one at a time: its forward pass fails on blocks "
        f"that return their input. As a tensor: {reasons[0]}. As a tuple: {reasons[1]}."
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
    """Raised in the last block to end the forward pass."""


def run_block(
    recording: Recording, layer: int, variants: Float[Tensor, "rows tokens d_model"]
) -> Float[Tensor, "rows tokens d_model"]:
    """Run one block on n variants of the window, side by side, with the recorded keys and values before them.

    Args:
        recording: The pass that provides arguments, masks, positions, keys and values.
        layer: Number of the block.
        variants: Window states of n variants that enter the block (see `Recording.enter`).

    Returns:
        Window states that leave the block.

    Raises:
        PatchError: The block takes an argument that cannot be cut to the window.
    """
    n = recording.count(variants)
    if (layer, n) not in recording.resumed:
        args, kwargs = recording.calls[layer]
        plain = recording.windows is not None and recording.plain[layer]
        recording.resumed[layer, n] = BlockCall(
            tuple(_cut(recording, value, n, plain=plain) for value in args),
            {name: _cut(recording, value, n, plain=plain) for name, value in kwargs.items()},
        )
    args, kwargs = recording.resumed[layer, n]
    block = recording.anatomy.layers[layer]
    if recording.windows is None:
        return first_tensor(block(variants, *args, **kwargs))
    attention = PackedAttention(recording.packing(n), past=recording.before(layer), plain=recording.plain[layer])
    with attending(attention):
        output = first_tensor(block(variants, *args, **kwargs))
    attention.require_once()
    return output


def _cut(recording: Recording, value: Any, n: int, *, plain: bool) -> Any:
    """Convert an argument of a block from the whole sequence to n variants of the window.

    Slices are made once, for the largest number of variants, because the blocks of a model share most arguments.
    """
    if value is not None and value is recording.cache:
        return recording.past
    if isinstance(value, tuple | list):
        return type(value)(_cut(recording, part, n, plain=plain) for part in value)
    if not isinstance(value, Tensor) or value.ndim == 0:
        return value

    def made(build: Callable[[Recording, Tensor, int], Tensor], most: int) -> Tensor:
        key = (id(value), build, most)
        if key not in recording.cuts:
            recording.cuts[key] = build(recording, value, most)
        return recording.cuts[key]

    length, width, most = (
        recording.batch.input_ids.shape[1],
        recording.batch.window.shape[1],
        max(n, recording.variants_at_once),
    )
    if value.ndim == 4 and value.shape[-2:] == (length, length):
        if plain:
            return made(_mask_of_one, 1)
        return made(_mask_of_all, most)[:, :, : n * width, : recording.first_column + n * width]
    if value.ndim >= 2 and value.shape[1] == length and value.dtype != torch.bool:
        if recording.variant_rows is not None:
            return made(_at_variants, n)
        return made(_at_variants, most)[:, : n * recording.width]
    raise PatchError(
        f"a block takes a tensor of shape {tuple(value.shape)} that the wavefront cannot cut to the window. Use ",
        Setting("engine", "naive"),
        ".",
    )


def _at_variants(recording: Recording, value: Tensor, n: int) -> Tensor:
    """Return values at the window positions, once per variant."""
    window = recording.batch.window.to(value.device)
    rows = torch.arange(window.shape[0], device=value.device)[:, None]
    cut = value.expand(window.shape[0], *value.shape[1:])[rows, window]
    if recording.variant_rows is not None:
        return torch.cat([recording.enter(cut, number) for number in range(n)], dim=1)
    return recording.enter(cut).repeat(1, n, *([1] * (value.ndim - 2)))


def _mask_of_all(recording: Recording, mask: Tensor, n: int) -> Tensor:
    """Return a mask for n variants: each attends to the prefix and to itself, but to no other variant."""
    prefix, itself = _prefix_and_itself(recording, mask)
    size, heads, width = itself.shape[:3]
    apart = torch.full((size, heads, n, width, n, width), _blocked(mask), dtype=mask.dtype, device=mask.device)
    apart.diagonal(dim1=2, dim2=4).copy_(itself[..., None].expand(-1, -1, -1, -1, n))
    return torch.cat([prefix.repeat(1, 1, n, 1), apart.reshape(size, heads, n * width, n * width)], dim=-1)


def _mask_of_one(recording: Recording, mask: Tensor, n: int) -> Tensor:
    """Return a mask for one variant, for attention that keeps variants apart by itself."""
    return torch.cat(_prefix_and_itself(recording, mask), dim=-1)


def _prefix_and_itself(recording: Recording, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return two parts of the model's own mask at the window: the columns before the window, and the window itself."""
    columns, heads = recording.first_column, mask.shape[1]
    window, real = recording.batch.window.to(mask.device), recording.batch.window_mask.to(mask.device)
    size, width = window.shape
    rows = mask.expand(size, -1, -1, -1).gather(2, window[:, None, :, None].expand(-1, heads, -1, mask.shape[-1]))
    in_window = torch.arange(columns, device=window.device)[None, :] >= window[:, :1]  # variants have their own
    prefix = rows[..., :columns].masked_fill(in_window[:, None, None, :], _blocked(mask))
    itself = rows.gather(3, window[:, None, None, :].expand(-1, heads, width, -1))
    return prefix, itself.masked_fill(~real[:, None, None, :], _blocked(mask))


def _blocked(mask: Tensor) -> float:
    return False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
