"""Pack rows of different lengths end to end into one long row, and compute attention on it.

Everything in a decoder except attention works token by token and can run on packed rows; attention runs on padded ones.
A token's state depends only on the token itself and those before it, so a beginning that several rows share is packed
only once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from uds_lens._compat.transformers import attention_replaced, eager_attention, register_attention
from uds_lens.errors import PatchError, Setting

_INT = torch.iinfo(torch.int32).max


@dataclass(frozen=True, eq=False)
class Packing:
    """Mapping between padded rows and one packed row."""

    # For each padded entry, its index in the packed row; padding points to the last token of its own row.
    order: Int[Tensor, "batch pos"]
    places: Int[Tensor, "token"]  # for each packed token, its index in the flattened padded rows (the first, if shared)
    copies: int = 1  # number of copies of each row, side by side in the padded form
    _repeated: dict[int, Packing] = field(default_factory=dict, repr=False)

    # Index tensors by conversion, shared by all blocks of a pass and all sources.
    _indices: dict[tuple[str, int, int], Int[Tensor, "entry"]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, real: Bool[Tensor, "batch pos"]) -> Packing:
        """Pack the entries marked True (at least one in each row), row after row.

        Example:
            >>> packing = Packing.of(torch.tensor([[False, True], [True, True]]))
            >>> packing.pack(torch.tensor([[0, 1], [2, 3]])).tolist()
            [[1, 2, 3]]
            >>> packing.pad(torch.tensor([[1, 2, 3]])).tolist()
            [[1, 1], [2, 3]]
        """
        places = real.flatten().nonzero()[:, 0]
        count = (real.flatten().cumsum(0) - 1).unflatten(0, real.shape)
        return cls(torch.where(real, count, count.amax(1, keepdim=True)), places)

    @classmethod
    def of_texts(cls, ids: Int[Tensor, "batch pos"], real: Bool[Tensor, "batch pos"]) -> Packing:
        """Pack the real tokens (at least one in each row), row after row, with shared beginnings only once.

        Example:
            >>> ids = torch.tensor([[0, 5, 6], [5, 6, 7], [5, 7, 7]])
            >>> packing = Packing.of_texts(ids, torch.tensor([[False, True, True], [True] * 3, [True] * 3]))
            >>> packing.pack(ids).tolist()
            [[5, 6, 7, 7, 7]]
            >>> packing.order.tolist()
            [[1, 0, 1], [0, 1, 2], [0, 3, 4]]
        """
        numbers: dict[tuple[int, int], int] = {}  # packed tokens, by the number of the previous token and the token id
        order: list[list[int]] = []
        places: list[int] = []
        for row, (tokens, there) in enumerate(zip(ids.tolist(), real.tolist(), strict=True)):
            last = -1
            own: list[int] = []
            for place, token in enumerate(tokens):
                if there[place]:
                    key = (last, token)
                    if key not in numbers:
                        numbers[key] = len(places)
                        places.append(row * len(tokens) + place)
                    last = numbers[key]
                own.append(last)
            order.append([last if number < 0 else number for number in own])
        return cls(torch.tensor(order, device=ids.device), torch.tensor(places, device=ids.device))

    @classmethod
    def of_copies(cls, real: Bool[Tensor, "batch pos"], chosen: Bool[Tensor, "batch copy"]) -> Packing:
        """Pack the chosen copies of rows: first the first copy of each row, then the second, and so on.

        Example:
            >>> chosen = torch.tensor([[True, False], [True, True]])
            >>> packing = Packing.of_copies(torch.tensor([[True, False], [True, True]]), chosen)
            >>> packing.pack(torch.tensor([[0, 9, 9, 9], [1, 2, 3, 4]])).tolist()
            [[0, 1, 2, 3, 4]]
        """
        there = real[:, None] & chosen[..., None]
        count = (there.transpose(0, 1).flatten().cumsum(0) - 1).view(*chosen.shape[::-1], -1).transpose(0, 1)
        order = torch.where(there, count, count.amax(-1, keepdim=True)).clamp(min=0)
        places = torch.arange(there.numel(), device=real.device).view(there.shape)
        return cls(order.flatten(1), places.transpose(0, 1)[there.transpose(0, 1)], chosen.shape[1])

    def __len__(self) -> int:
        """Number of packed tokens."""
        return len(self.places)

    def repeated(self, n: int) -> Packing:
        """Return the packing of n copies of every row: side by side when padded, one after the other when packed."""
        if n not in self._repeated:
            width, tokens = self.order.shape[1], len(self)
            copies = torch.arange(n, device=self.order.device)
            order = self.order[:, None] + (copies * tokens)[:, None]
            row = self.places.div(width, rounding_mode="floor")
            places = (self.places + row * (n - 1) * width) + (copies * width)[:, None]
            self._repeated[n] = Packing(order.flatten(1), places.flatten(), n)
        return self._repeated[n]

    def forget_copies(self) -> None:
        """Clear the cached packings of copies."""
        self._repeated.clear()

    def pack(self, padded: Tensor) -> Tensor:
        """Convert `[batch, pos, ...]` to `[1, token, ...]`; a batch of 1 is used for every row."""
        rows = padded.expand(self.order.shape[0], *padded.shape[1:])
        return rows.flatten(0, 1).index_select(0, self.places)[None]

    def pad(self, packed: Tensor) -> Tensor:
        """Convert `[1, token, ...]` to `[batch, pos, ...]`; padding repeats the last token of its row."""
        return packed[0].index_select(0, self.order.flatten()).unflatten(0, self.order.shape)

    def pad_heads(self, packed: Tensor) -> Tensor:
        """`[1, head, token, d_head]` to `[batch, head, pos, d_head]`, contiguous."""
        heads = packed.shape[1]
        tokens = packed[0].transpose(0, 1).flatten(0, 1)
        index = self._index("pad heads", heads, 1)
        return tokens.index_select(0, index).unflatten(0, (len(self.order), heads, -1))

    def pad_groups(self, packed: Tensor, groups: int) -> Tensor:
        """`[1, head, token, d_head]` to `[batch, group, copy, head of the group, pos, d_head]`, contiguous."""
        heads = packed.shape[1]
        shape = (len(self.order), groups, self.copies, heads // groups, -1)
        tokens = packed[0].transpose(0, 1).flatten(0, 1)
        return tokens.index_select(0, self._index("pad groups", heads, groups)).unflatten(0, shape)

    def pack_groups(self, padded: Tensor) -> Tensor:
        """Convert back to `[1, token, head, d_head]`."""
        groups, _, heads = padded.shape[1:4]
        index = self._index("pack groups", groups * heads, groups)
        return padded.flatten(0, 4).index_select(0, index).unflatten(0, (len(self), groups * heads))[None]

    @staticmethod
    def bytes_to_move(heads: int, groups: int) -> int:
        """Return the bytes of index tensors per token and copy, once every conversion has been used."""
        places, entries = 2 * 8, 2 * heads + groups
        return places + 4 * entries

    def _index(self, way: str, heads: int, groups: int) -> Int[Tensor, "entry"]:
        """Return the source index of each entry; computed once per conversion and number of heads."""
        key = (way, heads, groups)
        if key in self._indices:
            return self._indices[key]
        device = self.order.device
        if way == "pad heads":  # [batch, head, pos]
            index = self.order[:, None] * heads + torch.arange(heads, device=device)[:, None]
        elif way == "pad groups":  # [batch, group, copy, head, pos]
            head = torch.arange(heads, device=device).view(groups, 1, -1, 1)
            index = self.order.unflatten(1, (self.copies, -1))[:, None, :, None] * heads + head
        else:  # [token, head]
            width, in_group = self.order.shape[1] // self.copies, heads // groups
            copy_of_row, pos = self.places.div(width, rounding_mode="floor"), self.places.remainder(width)
            row = copy_of_row.div(self.copies, rounding_mode="floor")
            first = (row * (groups - 1) * self.copies + copy_of_row) * in_group * width + pos
            group = torch.arange(groups, device=device)[:, None] * (self.copies * in_group * width)
            index = first[:, None] + (group + torch.arange(in_group, device=device) * width).flatten()
        index = index.flatten()
        rows = max(self.order.numel(), len(self)) * heads
        self._indices[key] = index.int() if rows <= _INT else index  # read at every block, so keep it small
        return self._indices[key]


# A family's eager attention copies keys and values for every query head, rewrites the scores to scale and to mask them,
# and does not know about variants: it would score the variants of one row against each other, only to mask the results.
# If a family's attention is the plain formula (tested once per block), the code below computes it with fewer passes
# over the scores. Query heads that share keys are multiplied by them in one product. Variants attend to the prefix
# together, and each variant attends to its own tokens separately.

_tried: WeakKeyDictionary[nn.Module, tuple[object, bool]] = WeakKeyDictionary()
"""Whether a module's eager attention is the plain formula, and the settings for which this was tested."""


def plain_attention(
    query: Float[Tensor, "batch group copy head pos d_head"],
    key: Float[Tensor, "batch group copy*pos d_head"],
    value: Float[Tensor, "batch group copy*pos d_value"],
    mask: Float[Tensor, "#batch 1 pos keys"],
    *,
    past: tuple[Tensor, Tensor] | None = None,
    scaling: float,
) -> Float[Tensor, "batch group copy head pos d_value"]:
    """Compute `softmax(scaling Q K^T + mask) V` for copies of rows, each with the shared prefix and its own keys."""
    batch, groups, copies, heads, width = query.shape[:5]
    own_keys, own_values = (rearrange(t, "b g (c p) d -> (b g c) p d", c=copies) for t in (key, value))
    scores = _products(rearrange(query, "b g c h p d -> (b g c) (h p) d"), own_keys, scaling)
    before = 0
    if past is not None:
        keys, values = (rearrange(t, "b g k d -> (b g) k d") for t in past)
        before = keys.shape[1]
        earlier = _products(rearrange(query, "b g c h p d -> (b g) (c h p) d"), keys, scaling)
        scores = torch.cat([earlier.view(*scores.shape[:2], before), scores], dim=2)
    scores.view(batch, -1, width, before + width).add_(mask)
    weights = scores.softmax(-1)
    output = torch.bmm(weights[..., before:], own_values)
    if past is not None:
        together = weights.view(batch * groups, -1, before + width)
        output.view(*together.shape[:2], -1).baddbmm_(together[..., :before], values)
    return output.view(batch, groups, copies, heads, width, -1)


def _products(
    queries: Float[Tensor, "n q d_head"], keys: Float[Tensor, "n k d_head"], scaling: float
) -> Float[Tensor, "n q k"]:
    return torch.baddbmm(queries.new_empty(()), queries, keys.transpose(1, 2), beta=0, alpha=scaling)


def is_plain(
    module: nn.Module,
    eager: Callable[..., Any],
    heads: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> bool:
    """Return whether `eager(module, query, ...)` equals `plain_attention` up to rounding; tested once per module.

    Only float32 is tested, because implementations round half-precision scores at different points.
    """
    query = heads[0]
    alike = all(part.dtype == torch.float32 for part in (*heads, mask) if part is not None)
    if args or not alike or mask is None or mask.ndim != 4 or mask.shape[1] != 1:
        return False
    numbers = sorted((k, v) for k, v in options.items() if isinstance(v, int | float))
    shapes = [(part.shape[1], part.shape[3]) for part in heads]
    settings = (eager, query.device, module.training, repr(numbers), shapes)
    if _tried.get(module, (None, False))[0] != settings:
        _tried[module] = (settings, _agree(module, eager, shapes, query.device, options))
    return _tried[module][1]


def _agree(
    module: nn.Module,
    eager: Callable[..., Any],
    shapes: list[tuple[int, int]],
    device: torch.device,
    options: dict[str, Any],
) -> bool:
    """Compare both functions on a few random tokens, with dot products large enough to reveal soft-capping."""
    groups = shapes[1][0]
    if shapes[0][0] % groups or shapes[2][0] != groups:
        return False
    random = torch.Generator().manual_seed(0)
    exact = torch.float32  # not the default dtype, which another thread may change while it opens a model
    query, key, value = (torch.randn(1, n, 4, d, generator=random, dtype=exact).to(device) for n, d in shapes)
    query = query * torch.tensor([1.0, 4.0, 16.0, 64.0], device=device, dtype=exact)[:, None]
    mask = torch.full((1, 1, 4, 4), torch.finfo(torch.float32).min, device=device, dtype=exact).triu(1)
    theirs = eager(module, query, key, value, mask, **options)[0]
    by_group = rearrange(query, "b (g c h) p d -> b g c h p d", g=groups, c=1)
    ours = plain_attention(by_group, key, value, mask, scaling=scaling_of(query, options))
    ours = rearrange(ours, "b g c h p d -> b p (g c h) d")
    return ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def scaling_of(query: Tensor, options: dict[str, Any]) -> float:
    """Return the scale of the dot products: the module's own, or one over the square root of the head width."""
    given = options.get("scaling")
    return float(query.shape[-1] ** -0.5 if given is None else given)


# In transformers, a model looks up its attention function in a registry, by the name in its config. During a packed
# pass, this is the name of the function below: it pads the queries, keys and values of the packed row, runs the eager
# attention from the model's own file on them (so that a family's soft-capping, sinks and scaling apply), and packs the
# output.

_NAME = "uds_lens_packed"


class PrefixKept(Exception):  # noqa: N818 - a signal, not an error
    """Raised inside the last block once its keys and values are recorded, to skip the rest of the block."""


@dataclass(eq=False)
class PackedAttention:
    """The attention of one block while it runs on packed rows."""

    packing: Packing  # packing of the tokens that enter the block
    past: tuple[Tensor, Tensor] | None = None  # keys and values before these tokens, `[batch, head, pos, d_head]`
    stop: bool = False  # raise `PrefixKept` as soon as the keys and values are recorded
    # Whether the block's attention is the plain formula (masks are then for one copy); None until it has been tested.
    plain: bool | None = None
    keys: Tensor | None = None  # padded keys of these tokens, set when attention has run
    values: Tensor | None = None  # padded values of these tokens, set when attention has run
    runs: int = 0  # number of times attention ran

    def require_once(self) -> None:
        """Raise `PatchError` unless the block ran its attention exactly once."""
        if self.runs != 1:
            raise PatchError(
                f"a block ran its attention {self.runs} times on packed rows instead of once. Use ",
                Setting("engine", "naive"),
                ".",
            )


# no other thread may run blocks that share a config while the attention in it is replaced
LOCK = threading.RLock()

_now: ContextVar[PackedAttention | None] = ContextVar("packed attention", default=None)


@contextmanager
def packed_blocks(configs: Iterable[Any]) -> Iterator[None]:
    """Make the blocks that use `configs` take their attention from this file inside the `with` block."""
    register_attention(_NAME, _attend)
    with LOCK, attention_replaced(configs, _NAME):
        yield


@contextmanager
def attending(attention: PackedAttention) -> Iterator[None]:
    """Make a block use `attention` inside the `with` block (within `packed_blocks`)."""
    token = _now.set(attention)
    try:
        yield
    finally:
        _now.reset(token)


def configs_of(layers: nn.ModuleList) -> list[Any]:
    """Return the config objects of the blocks' modules, without duplicates."""
    configs = (vars(module).get("config") for module in layers.modules())
    return list({id(config): config for config in configs if config is not None}.values())


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
            f"{type(module).__name__} has no eager attention for packed rows. Use ", Setting("engine", "naive"), "."
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
