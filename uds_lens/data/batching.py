"""Which rows run together, so that little of the work is padding; what a batch costs is said by the caller."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from uds_lens.checked_arguments import arguments_checked
from uds_lens.checked_settings import require_number
from uds_lens.data.partition import BatchCost, cheapest_cuts
from uds_lens.data.token_sequence import TokenSequence
from uds_lens.errors import ConfigError, Setting


@arguments_checked
def plan_batches(
    rows: Sequence[TokenSequence],
    *,
    token_budget: int = 4096,
    max_rows: int | None = None,
    window_weight: float = 0.0,
    batch_cost: float = 128,
) -> list[list[int]]:
    """Group rows of similar length and similar window width, where rows are padded to one length.

    A batch of n rows costs n (S + w W) + `batch_cost` tokens, with S its longest row, W its widest window and w
    `window_weight`. Starting from all rows, the batch is split, by length or by width, where that saves most, until
    nothing is saved and every batch is within the budget.

    Args:
        rows: The rows to group.
        token_budget: Tokens per batch, padding included: n S and n w W at most. A row larger than this gets a batch of
            its own.
        max_rows: Rows per batch at most; None leaves it to the budget.
        window_weight: How many tokens of a row one token of its window weighs beside them; 0 groups by length alone.
        batch_cost: What one more batch costs, in tokens.

    Returns:
        Lists of indices into `rows`, each index once; batches of short rows first, rows in order of window width.

    Raises:
        ConfigError: A limit is smaller than 1.

    Example:
        >>> rows = [TokenSequence(ids=(1,) * n, targets=(1,), scored=(0,), patched=(0,)) for n in (4, 900, 5)]
        >>> plan_batches(rows)
        [[0, 2], [1]]
    """
    _require_positive(token_budget=token_budget, max_rows=max_rows)
    for name, value in (("window_weight", window_weight), ("batch_cost", batch_cost)):
        require_number(name, value, least=0, words="be a number >= 0 (tokens)")
    lengths, widths = _sizes(rows)

    def cost(count: np.ndarray, longest: np.ndarray, widest: np.ndarray) -> np.ndarray:
        return count * (longest + window_weight * widest)

    def too_large(group: np.ndarray) -> bool:
        if max_rows is not None and len(group) > max_rows:
            return True
        return bool(
            len(group) * max(lengths[group].max(), window_weight * widths[group].max()) > token_budget
        )

    pending, batches = [np.arange(len(rows))] if rows else [], []
    while pending:
        group = pending.pop()
        saving, left, right = _best_split(group, lengths, widths, cost)
        if len(group) > 1 and (too_large(group) or saving > batch_cost):
            pending += [left, right]
        else:
            batches.append(group)
    return _in_order(batches, lengths, widths)


@arguments_checked
def cut_batches(
    rows: Sequence[TokenSequence], *, token_budget: int = 4096, cost: BatchCost
) -> list[list[int]]:
    """Group rows of similar length and window width, where `cost`, summed over the batches, is least.

    Rows are put in order of length, of width and of mixtures of both, each order is cut where that costs least, and the
    cheapest is taken.

    Args:
        rows: The rows to group.
        token_budget: Tokens per batch at most, without padding. A row larger than this gets a batch of its own.
        cost: Of batches; infinite where one may not be.

    Returns:
        Lists of indices into `rows`, each index once; batches of short rows first, rows in order of window width.

    Raises:
        ConfigError: The budget is smaller than 1.

    Example:
        >>> rows = [TokenSequence(ids=(1,) * n, targets=(1,), scored=(0,), patched=(0,)) for n in (4, 900, 5)]
        >>> cut_batches(rows, cost=lambda count, longest, widest: 10 + count * longest)
        [[0, 2], [1]]
    """
    _require_positive(token_budget=token_budget)
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


def _require_positive(**limits: int | None) -> None:
    for name, value in limits.items():
        if value is not None and value < 1:
            raise ConfigError(Setting(name), f" must be at least 1; got {value}.")


def _sizes(rows: Sequence[TokenSequence]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of each row, and the width of its window."""
    lengths = np.array([len(row.ids) for row in rows], dtype=float)
    return lengths, np.array([len(row.window) for row in rows], dtype=float)


def _in_order(batches: Sequence[np.ndarray], lengths: np.ndarray, widths: np.ndarray) -> list[list[int]]:
    """Batches of short rows first, rows in order of window width."""
    by_width = [sorted(batch.tolist(), key=lambda index: (widths[index], index)) for batch in batches]
    return sorted(by_width, key=lambda batch: (max(lengths[index] for index in batch), batch))


def _orders(lengths: np.ndarray, widths: np.ndarray) -> list[np.ndarray]:
    """Row indices by length, by width, and by bands of one with the other inside them."""
    bands = [(lengths // step, widths) for step in (6, 1, 12)]
    if len(lengths) <= 2000:  # for many rows, bands are full whichever comes first
        bands += [(widths // step, lengths) for step in (1, 3, 6)]
    else:
        bands = bands[:1]
    return [np.lexsort((inner, outer)) for outer, inner in bands]


def _best_split(
    group: np.ndarray, lengths: np.ndarray, widths: np.ndarray, cost: BatchCost
) -> tuple[float, np.ndarray, np.ndarray]:
    """The cut of a group, along its lengths or its widths, that saves most; and how much it saves."""
    best = (-np.inf, group, group[:0])
    if len(group) < 2:
        return best
    count = np.arange(1, len(group))
    whole = float(
        cost(np.array([len(group)]), lengths[group].max(keepdims=True), widths[group].max(keepdims=True))[0]
    )
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
