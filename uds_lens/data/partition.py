"""Cut a sequence of rows into groups where the sum of their costs is least."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from uds_lens.checked_arguments import arguments_checked

BatchCost: TypeAlias = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Cost of groups of rows, from their number, longest row and widest window (arrays, one entry per group)."""


@arguments_checked
def cheapest_cuts(
    sizes: np.ndarray, lengths: np.ndarray, widths: np.ndarray, *, budget: float, cost: BatchCost
) -> list[tuple[int, int]]:
    """Group neighbours so that `cost` summed over the groups is least.

    Args:
        sizes: What each row takes of the budget.
        lengths: Tokens of each row.
        widths: Window of each row.
        budget: Sum of sizes that a group may have; a row larger than this is a group of its own.
        cost: Of groups, from their number of rows, longest row and widest window (arrays, one entry per group).

    Returns:
        First row of each group, and the one after its last; in order, every row once.

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
