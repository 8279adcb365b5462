"""How rows stand while a model runs: packed end to end where its blocks allow that, else padded to one length."""

from __future__ import annotations

import logging
from weakref import WeakKeyDictionary

import torch
from torch import nn

from uds_lens.data import TokenBatch
from uds_lens.errors import PatchError
from uds_lens.models import HookedModel
from uds_lens.patching.exhaustion import is_out_of_memory
from uds_lens.patching.packed_pass import packed_pass
from uds_lens.patching.padded_pass import padded_pass, runs_plainly
from uds_lens.patching.trace import Trace

logger = logging.getLogger(__name__)

_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}
"""Largest difference that rounding explains, relative to a state's norm. A wrong mask or position gives more."""

_packs: WeakKeyDictionary[HookedModel, bool] = WeakKeyDictionary()


def forward_pass(
    model: HookedModel, batch: TokenBatch, *, keep_prefix: bool, by_bridge: bool = False
) -> Trace:
    """Run a model once over the batch, without logits, and keep its window states.

    Args:
        model: The model.
        batch: The tokens.
        keep_prefix: Keep the keys and values of every layer, to resume from; costs memory.
        by_bridge: Walk TransformerLens's blocks instead of the plain ones.

    Returns:
        The trace.

    Raises:
        PatchError: The model did not run each block exactly once.
    """
    batch = batch.to(model.device)
    if not by_bridge and packs(model, batch):
        try:
            return packed_pass(model, batch, keep_prefix=keep_prefix)
        except PatchError as error:
            logger.info("%s runs on padded rows from here: %s", model.name, error)
            forbid_packing(model)
    return padded_pass(model, batch, keep_prefix=keep_prefix, by_bridge=by_bridge)


def packs(model: HookedModel, batch: TokenBatch) -> bool:
    """Whether the model may run on packed rows: tried once per model, against padded rows of the batch.

    A single row has no padding and is not packed. Models with hooks or placed by accelerate are not: hooks may count
    on `[batch, pos, d_model]`.
    """
    if len(batch) == 1 or not runs_plainly(model) or _has_hooks(model.anatomy.base):
        return False
    if model not in _packs:
        _packs[model] = _agrees(model, batch)
    return _packs[model]


def forbid_packing(model: HookedModel) -> bool:
    """Run the model on padded rows from now on; whether that is a change."""
    was = _packs.get(model, False)
    _packs[model] = False
    return was


@torch.no_grad()
def _agrees(model: HookedModel, batch: TokenBatch) -> bool:
    lengths = batch.attention_mask.sum(1)
    few = batch.take(sorted({int(lengths.argmin()), int(lengths.argmax()), len(batch) - 1}))
    few = few if len(few) > 1 else batch.take([0, 1])
    try:
        packed = packed_pass(model, few, keep_prefix=False).states
    except (PatchError, ValueError, RuntimeError, TypeError, IndexError, AttributeError, KeyError) as error:
        if is_out_of_memory(error):
            raise
        logger.info("%s runs on padded rows: %s", model.name, str(error).splitlines()[0])
        return False
    padded = padded_pass(model, few, keep_prefix=False).states
    real = few.window_mask[:, None].expand(packed.shape[:-1])
    packed, padded = packed[real].float(), padded[real].float()
    gap = float(((packed - padded).norm(dim=-1) / padded.norm(dim=-1)).max())
    if gap <= _TOLERANCE.get(model.dtype, 1e-4):
        return True
    logger.info("%s runs on padded rows: packed ones differ by %.2g of a state's norm", model.name, gap)
    return False


def _has_hooks(base: nn.Module) -> bool:
    """Whether any module has a hook that is not transformers' own (those record outputs when asked to)."""
    for module in base.modules():
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()):
            if not str(getattr(hook, "__module__", "")).startswith("transformers."):
                return True
    return False
