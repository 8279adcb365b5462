"""One forward of a model, block by block, on rows packed end to end: no padding but in attention.

The model's own forward says what its blocks are called with (masks, positions, rotary tables); it runs with blocks that
pass their input on. Then the blocks run on the packed row.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import Tensor

from uds_lens.compat.torch import is_out_of_memory
from uds_lens.data import TokenBatch
from uds_lens.errors import PatchError
from uds_lens.models import Anatomy, HookedModel
from uds_lens.models.anatomy import forward_replaced
from uds_lens.patching.decoder import first_tensor, run_decoder, split_call
from uds_lens.patching.wavefront.block import run_block
from uds_lens.patching.wavefront.packed_attention import (
    LOCK,
    PackedAttention,
    attending,
    configs_of,
    packed_blocks,
)
from uds_lens.patching.wavefront.packing import Packing
from uds_lens.patching.wavefront.prefix import KeptKeys, PrefixKept
from uds_lens.patching.wavefront.trace import BlockCall, Trace


@torch.no_grad()
def packed_pass(model: HookedModel, batch: TokenBatch, *, keep_prefix: bool) -> Trace:
    """`forward_pass` of `rows_layout.py` on packed rows: blocks are resumed on packed windows.

    Raises:
        PatchError: The model does something between its blocks, or its blocks cannot run on packed rows.
    """
    anatomy = model.anatomy
    entry, calls = _calls(anatomy, batch)
    packing = Packing.of(batch.attention_mask.bool())
    at = packing.order[torch.arange(len(batch), device=batch.window.device)[:, None], batch.window]
    kept = KeptKeys.nothing(anatomy.n_layers)
    configs = configs_of(anatomy.layers)
    last = anatomy.n_layers - 1
    packed = _Packed(packing, batch.input_ids.shape[1])
    states: list[Tensor] = []
    hidden = packing.pack(entry)
    entering = _picked(hidden, at)
    plain: list[bool] = []
    with packed_blocks(configs):
        for layer, (block, (args, kwargs)) in enumerate(zip(anatomy.layers, calls, strict=True)):
            attention = PackedAttention(packing, stop=layer == last)
            with attending(attention), suppress(PrefixKept):
                options = {name: packed(value) for name, value in kwargs.items()}
                hidden = first_tensor(block(hidden, *map(packed, args), **options))
            attention.require_once()
            kept.write(layer, attention.keys, attention.values, keep=keep_prefix or layer == last)
            plain.append(bool(attention.plain))
            if layer < last:
                states.append(_picked(hidden, at))
    pass_ = Trace(
        anatomy,
        batch,
        entering,
        entering[:, None],
        calls,
        kept,
        int(batch.window[:, 0].max()),
        windows=Packing.of(batch.window_mask),
        configs=configs,
        plain=plain,
    )
    before = states[-1] if states else entering
    with packed_blocks(configs):
        states.append(pass_.leave(run_block(pass_, last, pass_.enter(before)))[:, 0])
    pass_.states = torch.stack(states, dim=1)
    return pass_


def _picked(hidden: Tensor, at: Tensor) -> Tensor:
    """`[1, token, d_model]` at `[batch, win]` packed places."""
    return hidden[0].index_select(0, at.flatten()).unflatten(0, at.shape)


def _calls(anatomy: Anatomy, batch: TokenBatch) -> tuple[Tensor, list[BlockCall]]:
    """What enters the first block, and what every block is called with beside its hidden states.

    Whether blocks return a tensor or a tuple differs by family: one is tried, then the other.
    """
    told = []
    for in_tuple in (False, True):
        try:
            return _listen(anatomy, batch, in_tuple=in_tuple)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            told.append(
                f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
            )
            last = error
    raise PatchError(
        f"rows of {type(anatomy.base).__name__} cannot be packed: its forward does not run on blocks that pass their "
        f"input on. Where they return a tensor: {told[0][:120]}. Where they return a tuple: {told[1][:120]}."
    ) from last


def _listen(anatomy: Anatomy, batch: TokenBatch, *, in_tuple: bool) -> tuple[Tensor, list[BlockCall]]:
    """What enters the blocks, and their other arguments, by running the model on blocks that do nothing."""
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
            run_decoder(anatomy, batch, use_cache=False)
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
