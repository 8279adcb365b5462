"""One forward of a model by its own code, rows padded to one length, read by hooks on its blocks."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from uds_lens.compat.accelerate import is_placed
from uds_lens.data import TokenBatch
from uds_lens.errors import PatchError
from uds_lens.models import HookedModel, anatomy_of
from uds_lens.patching.decoder import (
    at_window,
    first_tensor,
    forward_hooks,
    require_each_once,
    run_decoder,
    split_call,
)
from uds_lens.patching.wavefront.block import run_block
from uds_lens.patching.wavefront.prefix import KeptKeys, PrefixKept, recording_cache
from uds_lens.patching.wavefront.trace import BlockCall, Trace

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
