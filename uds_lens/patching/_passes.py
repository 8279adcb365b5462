"""One forward of a model by its own code, rows padded to one length, read by hooks on its blocks."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import Tensor

from uds_lens._compat.accelerate import is_placed
from uds_lens._compat.torch import is_out_of_memory
from uds_lens._compat.transformers import attention_of, is_plain_decoder
from uds_lens.data import TokenBatch
from uds_lens.errors import PatchError
from uds_lens.models import Anatomy, HookedModel, ModelSource, anatomy_of
from uds_lens.models._anatomy import forward_replaced
from uds_lens.models._hooked import behaviour_changes
from uds_lens.patching._blocks import BlockCall, Trace, run_block
from uds_lens.patching._packing import (
    LOCK,
    KeptKeys,
    PackedAttention,
    Packing,
    PrefixKept,
    attending,
    configs_of,
    packed_blocks,
    recording_cache,
)
from uds_lens.patching._states import (
    at_window,
    first_tensor,
    forward_hooks,
    require_each_once,
    run_decoder,
    split_call,
)

logger = logging.getLogger(__name__)


@torch.no_grad()
def padded_pass(
    model: HookedModel,
    batch: TokenBatch,
    *,
    keep_prefix: bool,
    by_bridge: bool = False,
    whole: bool = False,
) -> Trace:
    """`forward_pass` of `rows_layout.py` on padded rows; with `whole`, the last block runs over the whole sequence too.

    Raises:
        PatchError: The model did not run each block exactly once.
    """
    device = model.device
    batch = batch.to(device)
    anatomy = anatomy_of(model.bridge.original_model) if by_bridge else model.anatomy
    short = not by_bridge and not whole and runs_plainly(model)
    kept = KeptKeys.nothing(anatomy.n_layers)
    cache = recording_cache(kept, keep=keep_prefix, stop_at_last=short)
    calls: list[BlockCall] = []
    entry: list[Tensor] = []
    states: list[Tensor] = []

    def keep_call(layer: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden, rest, options = split_call(args, kwargs)
        if layer == 0:
            entry.append(at_window(hidden, batch.window).to(device))
        calls.append(BlockCall(rest, options))

    def keep_state(layer: int, output: Any) -> None:
        states.append(at_window(first_tensor(output), batch.window).to(device))

    stopped = False
    with forward_hooks(anatomy.layers, keep_call, pre=True), forward_hooks(anatomy.layers, keep_state):
        try:
            run_decoder(anatomy, batch, past_key_values=cache, use_cache=True)
        except PrefixKept:
            stopped = True
    first_column = int(batch.window[:, 0].max())
    pass_ = Trace(anatomy, batch, entry[0], entry[0][:, None], calls, kept, first_column, cache)
    if stopped:
        before = states[-1] if states else entry[0]
        try:
            states.append(run_block(pass_, anatomy.n_layers - 1, before))
        except PatchError as error:
            logger.info("%r: the last block runs over the whole sequence, because %s", model.name, error)
            return padded_pass(model, batch, keep_prefix=keep_prefix, by_bridge=by_bridge, whole=True)
    require_each_once(model, states)
    pass_.states = torch.stack(states, dim=1)
    return pass_


def runs_plainly(model: HookedModel) -> bool:
    """Whether blocks may be run apart from the model's forward.

    Not through accelerate's hooks, which have work to do after a block; not through TransformerLens's or anybody's; and
    not where blocks keep a causal mask of their own, indexed by the layout of keys, which resumed tokens do not have.
    """
    apart = not is_placed(model.hf) and not model.is_wrapped and not model.anatomy.keeps_masks
    return apart and not model.runs_hooks


# One forward of a model, block by block, on rows packed end to end: no padding but in attention.
#
# The model's own forward says what its blocks are called with (masks, positions, rotary tables); it runs
# with blocks that pass their input on. Then the blocks run on the packed row.


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


# Which models run on packed rows: families that were tested, by transformers' own code, with nothing in
# between.
#
# A family is added here, and with its tiny model in `tests/tiny_models.py` to the tests that compare packed
# rows with padded ones.

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


# How rows stand while a model runs: padded to one length, or packed end to end where its blocks allow that.
#
# Source and target must run the same way: where their weights are the same, their states then are too, bit
# for bit.


def forward_pass(
    model: HookedModel,
    batch: TokenBatch,
    *,
    keep_prefix: bool,
    by_bridge: bool = False,
    packed: bool = False,
) -> Trace:
    """Run a model once over the batch, without logits, and keep its window states.

    Args:
        model: The model.
        batch: The tokens.
        keep_prefix: Keep the keys and values of every layer, to resume from; costs memory.
        by_bridge: Walk TransformerLens's blocks instead of the plain ones.
        packed: Run on packed rows; only a model that is `packable`, and never `by_bridge`.

    Returns:
        The trace.

    Raises:
        PatchError: The model did not run each block exactly once.
    """
    batch = batch.to(model.device)
    if packed and not by_bridge:
        return packed_pass(model, batch, keep_prefix=keep_prefix)
    return padded_pass(model, batch, keep_prefix=keep_prefix, by_bridge=by_bridge)
