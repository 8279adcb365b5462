"""Attention for packed rows: a family's own eager attention, run on the rows padded again.

transformers lets a model take its attention from a registry by name. While a block runs here, that name is ours: the
queries, keys and values of the packed row are padded, the eager attention of the model's own file runs on them, and its
output is packed. So soft-capping, sinks and scaling of a family apply as they are written there. Where it is the plain
attention, `plain_attention.py` does the same in less time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from uds_lens.compat.transformers import attention_replaced, eager_attention, register_attention
from uds_lens.errors import PatchError, Setting
from uds_lens.patching.wavefront.packing import Packing
from uds_lens.patching.wavefront.plain_attention import is_plain, plain_attention, scaling_of
from uds_lens.patching.wavefront.prefix import PrefixKept

_NAME = "uds_lens_packed"


@dataclass(eq=False)
class PackedAttention:
    """What the attention of one block does while it runs on packed rows."""

    packing: Packing
    """Of the tokens that enter the block."""

    past: tuple[Tensor, Tensor] | None = None
    """Keys and values `[batch, head, pos, d_head]` before those tokens."""

    stop: bool = False
    """Stop the block, by `PrefixKept`, as soon as its keys and values are there."""

    plain: bool | None = None
    """Whether the block's attention is the plain one, and masks are for one copy; None: tried, and set when it ran."""

    keys: Tensor | None = None
    """Set when it ran: keys of those tokens, padded."""

    values: Tensor | None = None
    """Set when it ran: values of those tokens, padded."""

    runs: int = 0
    """How often attention ran."""

    def require_once(self) -> None:
        """Raise `PatchError` unless the block ran its attention exactly once."""
        if self.runs != 1:
            raise PatchError(
                f"a block ran its attention {self.runs} times on packed rows, expected once. Use ",
                Setting("engine", "naive"),
                ".",
            )


LOCK = threading.RLock()
"""Blocks that read one configuration must not run in two threads while its attention is ours."""

_now: ContextVar[PackedAttention | None] = ContextVar("packed attention", default=None)


@contextmanager
def packed_blocks(configs: Iterable[Any]) -> Iterator[None]:
    """Let blocks that read their settings from `configs` take their attention from here, for the length of a pass."""
    register_attention(_NAME, _attend)
    with LOCK, attention_replaced(configs, _NAME):
        yield


@contextmanager
def attending(attention: PackedAttention) -> Iterator[None]:
    """Let a block attend as `attention` says; inside `packed_blocks`."""
    token = _now.set(attention)
    try:
        yield
    finally:
        _now.reset(token)


def configs_of(layers: nn.ModuleList) -> list[Any]:
    """The configuration objects that the modules of the blocks hold, each once."""
    found = {id(config): config for m in layers.modules() if (config := vars(m).get("config")) is not None}
    return list(found.values())


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *args: Any,
    **options: Any,
) -> tuple[Tensor, None]:
    now = _now.get()
    eager = eager_attention(module)
    if now is None or eager is None:
        raise PatchError(
            f"{type(module).__name__} has no eager attention for packed rows. Use ",
            Setting("engine", "naive"),
            ".",
        )
    now.runs += 1
    if now.plain is None:
        now.plain = is_plain(module, eager, (query, key, value), attention_mask, args, options)
    now.keys, now.values = now.packing.pad_heads(key), now.packing.pad_heads(value)
    if now.stop:
        raise PrefixKept
    keys, values = now.keys, now.values
    if now.plain:
        assert attention_mask is not None
        groups = now.packing.pad_groups(query, key.shape[1])
        scaling = scaling_of(query, options)
        output = plain_attention(groups, keys, values, attention_mask, past=now.past, scaling=scaling)
        return now.packing.pack_groups(output), None
    if now.past is not None:
        keys, values = torch.cat([now.past[0], keys], dim=2), torch.cat([now.past[1], values], dim=2)
    output, _ = eager(module, now.packing.pad_heads(query), keys, values, attention_mask, *args, **options)
    return output.flatten(0, 1).index_select(0, now.packing.places)[None], None
