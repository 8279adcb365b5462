"""Grouping of rows into batches, so that little work is spent on padding. The caller defines the cost of a batch."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from uds_lens._settings import check_value
from uds_lens._types import PaddingSide, PositiveInt, check_choice
from uds_lens.data._tokens import TokenSequence
from uds_lens.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


# Splitting a sequence of rows into groups at the lowest total cost.

BatchCost: TypeAlias = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Returns the costs of groups, given their numbers of rows, longest rows and widest windows (one entry per group)."""


def cheapest_cuts(
    sizes: np.ndarray, lengths: np.ndarray, widths: np.ndarray, *, budget: float, cost: BatchCost
) -> list[tuple[int, int]]:
    """Split a sequence of rows into groups of consecutive rows at the lowest total `cost`.

    Args:
        sizes: How much of the budget each row uses.
        lengths: Number of tokens in each row.
        widths: Window width of each row.
        budget: Maximum sum of sizes in a group. A row that exceeds it gets a group of its own.
        cost: Function that computes the costs of groups; see `BatchCost`.

    Returns:
        Start and end (exclusive) of each group, in order; each row occurs once.

    Example:
        >>> rows = np.array([1.0, 1.0, 9.0])
        >>> cheapest_cuts(rows, rows, rows, budget=100, cost=lambda count, longest, widest: 1 + count * longest)
        [(0, 2), (2, 3)]
    """
    n = len(sizes)
    before = np.concatenate([[0.0], np.cumsum(sizes)])
    least, came_from = np.zeros(n + 1), np.zeros(n + 1, dtype=int)
    for stop in range(1, n + 1):
        first = int(np.searchsorted(before[:stop], before[stop] - budget))
        first = min(first, stop - 1)
        longest = np.maximum.accumulate(lengths[first:stop][::-1])[::-1]
        widest = np.maximum.accumulate(widths[first:stop][::-1])[::-1]
        total = least[first:stop] + cost(np.arange(stop - first, 0, -1), longest, widest)
        at = int(total.argmin())
        least[stop], came_from[stop] = total[at], first + at
    cuts = []
    while n:
        cuts.append((int(came_from[n]), n))
        n = int(came_from[n])
    return cuts[::-1]


def plan_batches(
    rows: Sequence[TokenSequence], *, token_budget: int = 4096, window_weight: float = 0.0, batch_cost: float = 128
) -> list[list[int]]:
    """Group rows of similar length and window width, so that each group can be padded to one length.

    A batch of n rows costs n (S + w W) + `batch_cost` tokens, where S is the length of its longest row, W the width of
    its widest window, and w is `window_weight`. Starting with all rows in one batch, batches are split by length or
    width where that saves the most, until no split saves anything and every batch is within the budget.

    Args:
        rows: The rows to group.
        token_budget: Maximum tokens per batch, including padding; it limits both n S and n w W. A row that exceeds it
            gets a batch of its own.
        window_weight: Cost of a window token relative to a row token; 0 groups by length alone.
        batch_cost: Cost of each additional batch, in tokens.

    Returns:
        Lists of indices into `rows`, each index once. Shorter batches come first; rows are sorted by window width.

    Raises:
        ConfigError: A limit is smaller than 1.

    Example:
        >>> rows = [TokenSequence(ids=(1,) * n, targets=(1,), scored=(0,), patched=(0,)) for n in (4, 900, 5)]
        >>> plan_batches(rows)
        [[0, 2], [1]]
    """
    check_value("token_budget", token_budget, PositiveInt)
    lengths, widths = _sizes(rows)

    def cost(count: np.ndarray, longest: np.ndarray, widest: np.ndarray) -> np.ndarray:
        return count * (longest + window_weight * widest)

    def too_large(group: np.ndarray) -> bool:
        return bool(len(group) * max(lengths[group].max(), window_weight * widths[group].max()) > token_budget)

    pending, batches = [np.arange(len(rows))] if rows else [], []
    while pending:
        group = pending.pop()
        saving, left, right = _best_split(group, lengths, widths, cost)
        if len(group) > 1 and (too_large(group) or saving > batch_cost):
            pending += [left, right]
        else:
            batches.append(group)
    return _in_order(batches, lengths, widths)


def cut_batches(rows: Sequence[TokenSequence], *, token_budget: int = 4096, cost: BatchCost) -> list[list[int]]:
    """Group rows of similar length and window width into batches at the lowest total `cost`.

    Rows are sorted in several ways that combine length and width. Each order is split at the lowest cost, and the
    cheapest result is used.

    Args:
        rows: The rows to group.
        token_budget: Maximum tokens per batch, without padding. A row that exceeds it gets a batch of its own.
        cost: Function that computes the costs of batches; infinity rules a batch out.

    Returns:
        Lists of indices into `rows`, each index once. Shorter batches come first; rows are sorted by window width.

    Raises:
        ConfigError: The budget is smaller than 1.

    Example:
        >>> rows = [TokenSequence(ids=(1,) * n, targets=(1,), scored=(0,), patched=(0,)) for n in (4, 900, 5)]
        >>> cut_batches(rows, cost=lambda count, longest, widest: 10 + count * longest)
        [[0, 2], [1]]
    """
    check_value("token_budget", token_budget, PositiveInt)
    lengths, widths = _sizes(rows)
    best: list[np.ndarray] = []
    cheapest = np.inf
    for order in _orders(lengths, widths):
        cuts = cheapest_cuts(lengths[order], lengths[order], widths[order], budget=token_budget, cost=cost)
        batches = [order[start:stop] for start, stop in cuts]
        count = np.array([len(batch) for batch in batches])
        longest = np.array([lengths[batch].max() for batch in batches])
        total = float(cost(count, longest, np.array([widths[batch].max() for batch in batches])).sum())
        if total < cheapest:
            best, cheapest = batches, total
    return _in_order(best, lengths, widths)


def _sizes(rows: Sequence[TokenSequence]) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of tokens and the window width of each row."""
    lengths = np.array([len(row.ids) for row in rows], dtype=float)
    return lengths, np.array([len(row.window) for row in rows], dtype=float)


def _in_order(batches: Sequence[np.ndarray], lengths: np.ndarray, widths: np.ndarray) -> list[list[int]]:
    """Sort batches by length, and the rows in each by window width."""
    by_width = [sorted(batch.tolist(), key=lambda index: (widths[index], index)) for batch in batches]
    return sorted(by_width, key=lambda batch: (max(lengths[index] for index in batch), batch))


def _orders(lengths: np.ndarray, widths: np.ndarray) -> list[np.ndarray]:
    """Return several orders of the rows: by bands of length and then width, or by bands of width and then length."""
    bands = [(lengths // step, widths) for step in (6, 1, 12)]
    if len(lengths) <= 2000:  # with many rows, every band is full in any order
        bands += [(widths // step, lengths) for step in (1, 3, 6)]
    else:
        bands = bands[:1]
    return [np.lexsort((inner, outer)) for outer, inner in bands]


def _best_split(
    group: np.ndarray, lengths: np.ndarray, widths: np.ndarray, cost: BatchCost
) -> tuple[float, np.ndarray, np.ndarray]:
    """Find the split by length or width that saves the most; return the saving and the two groups."""
    best = (-np.inf, group, group[:0])
    if len(group) < 2:
        return best
    count = np.arange(1, len(group))
    whole = float(cost(np.array([len(group)]), lengths[group].max(keepdims=True), widths[group].max(keepdims=True))[0])
    for key in (lengths, widths):
        order = group[np.argsort(key[group], kind="stable")]
        length, width = lengths[order], widths[order]
        head = cost(count, np.maximum.accumulate(length)[:-1], np.maximum.accumulate(width)[:-1])
        tail_length = np.maximum.accumulate(length[::-1])[::-1][1:]
        tail_width = np.maximum.accumulate(width[::-1])[::-1][1:]
        saved = whole - head - cost(len(group) - count, tail_length, tail_width)
        at = int(saved.argmax())
        if saved[at] > best[0]:
            best = (float(saved[at]), order[: at + 1], order[at + 1 :])
    return best


# Token rows padded and stacked in tensors, with a window over the relevant positions.

IGNORED = -100  # target of a window position that is not scored


@dataclass(frozen=True, repr=False)
class TokenBatch:
    """Rows padded to one length, each with a window from its first patched or scored position to the end of the row."""

    input_ids: Int[Tensor, "batch pos"]
    """Token ids; padding tokens are masked in attention."""
    attention_mask: Int[Tensor, "batch pos"]
    """1 for tokens, 0 for padding."""
    position_ids: Int[Tensor, "batch pos"]
    """Position ids: 0, 1, 2 ... for the tokens of a row, and 0 for padding."""
    window: Int[Tensor, "batch win"]
    """Positions in the padded row, left-aligned; a shorter window repeats its last position."""
    window_mask: Bool[Tensor, "batch win"]
    """True for real entries of `window`, False for repeated ones."""
    patched_mask: Bool[Tensor, "batch win"]
    """True where a window position is patched."""
    scored_mask: Bool[Tensor, "batch win"]
    """True where a window position is scored."""
    targets: Int[Tensor, "batch win"]
    """The token to predict at scored positions, and -100 elsewhere."""
    rows: tuple[int, ...]
    """Index of each row in the list from which the batch was made."""
    padding_side: PaddingSide = "left"
    """The side on which rows are padded."""

    def __repr__(self) -> str:
        n, length = self.input_ids.shape
        patched, scored = int(self.patched_mask.sum()), int(self.scored_mask.sum())
        return (
            f"TokenBatch({n} rows of {length} tokens, padded on the {self.padding_side}, window of "
            f"{self.window.shape[1]}, {patched} patched, {scored} scored)"
        )

    def to(self, device: torch.device | str) -> TokenBatch:
        """Return the same batch with its tensors on `device`."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        moved = {name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}
        return TokenBatch(**{**values, **moved})

    def take(self, rows: Sequence[int]) -> TokenBatch:
        """Return the given rows of the batch with the same padding, and the window cut to what these rows need."""
        which = list(rows)
        width = int(self.window_mask[which].sum(1).max())
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        taken = {name: value[which] for name, value in values.items() if isinstance(value, Tensor)}
        at_window = ("window", "window_mask", "patched_mask", "scored_mask", "targets")
        cut = {name: taken[name][:, :width] for name in at_window}
        return TokenBatch(**{**values, **taken, **cut, "rows": tuple(self.rows[row] for row in which)})

    def __len__(self) -> int:
        return len(self.rows)


def make_batch(
    rows: Sequence[TokenSequence],
    *,
    pad_token_id: int | None,
    indices: Sequence[int] | None = None,
    padding_side: PaddingSide = "left",
) -> TokenBatch:
    """Pad rows to one length.

    Args:
        rows: All rows, usually `Encoded.rows`.
        pad_token_id: Usually `tokenizer.pad_token_id`; padding is masked everywhere. If it is None, or larger than all
            tokens in the rows (so that a model may have no embedding for it), 0 is used.
        indices: Rows to include, in this order; None includes all.
        padding_side: "left" or "right".

    Returns:
        The batch, on the CPU.

    Raises:
        ConfigError: No row is chosen, or `padding_side` is unknown.

    Example:
        >>> row = TokenSequence(ids=(5, 6, 7), targets=(7, 8), scored=(1, 2), patched=(1, 2))
        >>> batch = make_batch([row], pad_token_id=0)
        >>> batch.window.tolist(), batch.targets.tolist()
        ([[1, 2]], [[7, 8]])
    """
    check_choice("padding_side", padding_side, PaddingSide)
    indices = range(len(rows)) if indices is None else indices
    chosen = [rows[index] for index in indices]
    if not chosen:
        raise ConfigError("a batch needs at least one row; got none. Choose rows that were not skipped.")
    pad = 0 if pad_token_id is None or pad_token_id > max(max(row.ids) for row in chosen) else pad_token_id
    input_ids = pad_rows([row.ids for row in chosen], pad, side=padding_side)
    attention_mask = pad_rows([[1] * len(row.ids) for row in chosen], side=padding_side)
    windows = [row.window for row in chosen]
    window_mask = pad_rows([[1] * len(window) for window in windows]).bool()
    window = torch.where(window_mask, pad_rows(windows), torch.tensor([[at[-1]] for at in windows]))
    if padding_side == "left":
        window += input_ids.shape[1] - attention_mask.sum(1, keepdim=True)
    patched, scored, targets = [], [], []
    for row, at in zip(chosen, windows, strict=True):
        patched_at, target = set(row.patched), dict(zip(row.scored, row.targets, strict=True))
        patched.append([p in patched_at for p in at])
        scored.append([p in target for p in at])
        targets.append([target.get(p, IGNORED) for p in at])
    return TokenBatch(
        input_ids=input_ids,
        attention_mask=attention_mask,
        position_ids=(attention_mask.cumsum(1) - 1) * attention_mask,
        window=window,
        window_mask=window_mask,
        patched_mask=pad_rows(patched).bool(),
        scored_mask=pad_rows(scored).bool(),
        targets=pad_rows(targets, IGNORED),
        rows=tuple(indices),
        padding_side=padding_side,
    )


def pad_rows(rows: Sequence[Sequence[int]], filler: int = 0, *, side: PaddingSide = "right") -> Int[Tensor, "row pos"]:
    """Pad rows of numbers, such as tokens, to one length.

    >>> pad_rows([[5, 6], [7]], side="left").tolist()
    [[5, 6], [0, 7]]
    """
    length = max(map(len, rows))
    fillers = [[filler] * (length - len(row)) for row in rows]
    whole = [[*fill, *row] if side == "left" else [*row, *fill] for row, fill in zip(rows, fillers, strict=True)]
    return torch.tensor(whole, dtype=torch.long)


def batch_from_texts(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    *,
    positions: int | Sequence[Sequence[int]],
    add_special_tokens: bool = True,
    padding_side: PaddingSide = "left",
) -> TokenBatch:
    """Make a batch of arbitrary texts, for patching outside an audit.

    The window runs from the first chosen position to the end of each text. Every window position but the last
    is scored: its target is the next token of the text.

    Args:
        tokenizer: Any tokenizer.
        texts: The complete texts to run.
        positions: Token positions to patch: a number n for the last n tokens of every text, or one increasing sequence
            per text (from `positions_of`, for example). Negative positions count from the end.
        add_special_tokens: False if the texts already contain them.
        padding_side: "left" or "right".

    Returns:
        The batch; its `rows` are indices into `texts`.

    Raises:
        ConfigError: There are no texts, or positions are outside their text, not increasing, or not one sequence per
            text.

    Example:
        >>> import uds_lens as ul
        >>> world = ul.toy.load()
        >>> with ul.open_model(world.full, device="cpu") as full:
        ...     texts = [f"{example.question} {example.answer}" for example in world.examples[:2]]
        ...     names = [ul.data.positions_of(full.tokenizer, text, "Varnet Coppeling") for text in texts]
        ...     batch = ul.data.batch_from_texts(full.tokenizer, texts, positions=names)
        >>> len(batch), batch.patched_mask.any(1).tolist()
        (2, [True, True])
    """
    if isinstance(texts, str) or not texts:
        raise ConfigError(f"texts must be a non-empty list of strings; got {texts!r}.")
    coded = tokenizer(
        list(texts), add_special_tokens=add_special_tokens, padding=False, truncation=False, verbose=False
    )
    chosen: list[int | Sequence[int]]
    chosen = [positions] * len(texts) if isinstance(positions, int) else list(positions)
    if len(chosen) != len(texts):
        raise ConfigError(f"positions must contain one sequence per text: {len(texts)} texts, {len(chosen)} sequences.")
    rows = [_free_row(ids, run, index) for index, (ids, run) in enumerate(zip(coded["input_ids"], chosen, strict=True))]
    return make_batch(rows, pad_token_id=tokenizer.pad_token_id, padding_side=padding_side)


def positions_of(tokenizer: PreTrainedTokenizerBase, text: str | Sequence[int], words: str) -> tuple[int, ...]:
    """Find the tokens of every mention of a phrase. Only whole words with the same spelling match.

    Args:
        tokenizer: Any tokenizer.
        text: A text, to which the tokenizer adds its special tokens, or token ids (`row.ids`).
        words: The phrase, for example a subject's name.

    Returns:
        Positions of all tokens that contain part of a mention, in increasing order; never empty.

    Raises:
        DataError: There is no mention.
    """
    found = mentions(tokenizer, text, words)
    if not found:
        ids = tokenizer(text)["input_ids"] if isinstance(text, str) else list(text)
        raise DataError(
            f"{words[:80]!r} is not mentioned in {tokenizer.decode(ids)[:200]!r}: expected whole words with the same "
            "spelling. Leave the row out, or search for another name."
        )
    return found


def mentions(tokenizer: PreTrainedTokenizerBase, text: str | Sequence[int], words: str) -> tuple[int, ...]:
    """Like `positions_of`, but empty if there is no mention."""
    ids = tokenizer(text)["input_ids"] if isinstance(text, str) else list(text)
    ends = [len(tokenizer.decode(ids[: i + 1])) for i in range(len(ids))]
    found = list(re.finditer(rf"(?<!\w){re.escape(words)}(?!\w)", tokenizer.decode(ids)))
    return tuple(
        position
        for position, (start, end) in enumerate(zip([0, *ends], ends, strict=False))
        if any(start < mention.end() and end > mention.start() for mention in found)
    )


def _free_row(ids: list[int], run: int | Sequence[int], index: int) -> TokenSequence:
    n = len(ids)
    asked = range(n - run, n) if isinstance(run, int) else [p + n if p < 0 else p for p in run]
    if not asked or list(asked) != sorted(set(asked)) or asked[0] < 0 or asked[-1] >= n:
        raise ConfigError(f"text {index} has {n} tokens: positions must be increasing within 0..{n - 1}; got {run!r}.")
    scored = range(asked[0], n - 1)
    return TokenSequence(ids=tuple(ids), targets=tuple(ids[asked[0] + 1 :]), scored=tuple(scored), patched=tuple(asked))
