"""How sure it is that a metric is first by Overall: in which share of resamples it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from uds_lens.meta.clustered_means import outer_and_inner
from uds_lens.meta.declarations import Points
from uds_lens.meta.direction import directions, oriented
from uds_lens.meta.harmonic_columns import harmonic_means
from uds_lens.meta.perturbation import relearning_over_shifts
from uds_lens.meta.perturbed import Perturbed
from uds_lens.meta.placements import pair_kernel
from uds_lens.meta.pool_bootstrap import PoolBootstrap
from uds_lens.meta.pools import split_pools

if TYPE_CHECKING:
    import pandas as pd


class FirstByOverall:
    """Resamples of pools, of clusters of unlearned models, and of relearnings of retain; the same for all metrics."""

    def __init__(
        self,
        pools: pd.DataFrame,
        before: pd.DataFrame,
        metrics: Sequence[str] | None,
        direction: Mapping[str, Points] | None,
        n_resamples: int,
        seed: int,
    ) -> None:
        """Draw the pools.

        Args:
            pools: Models with `knows`; `variant` and `run` where they are known.
            before: Unlearned models: they say which metrics there are.
            metrics: Which columns.
            direction: As in `uds_lens.meta.robustness`.
            n_resamples: How many.
            seed: Of all of them.
        """
        self.n_resamples, self.seed = n_resamples, seed
        self._faithful: dict[str, np.ndarray] = {}
        split = split_pools(pools, "knows", ("variant", "run"))
        bootstrap = PoolBootstrap(split, n_resamples, seed)
        for name, points in directions(before, metrics, direction).items():
            if name in split.frame.columns:
                self._faithful[name] = _aucs(oriented(split.frame[name], points).to_numpy(), bootstrap)

    def shares(self, found: Sequence[Perturbed], rows: Sequence[Mapping[str, Any]]) -> list[float]:
        """Return the share of resamples in which each metric has the highest Overall; ties are split.

        Args:
            found: The metrics at one filter setting.
            rows: Their rows as in `uds_lens.meta.ROBUSTNESS`: a metric without Q or R takes no part.

        Returns:
            One share per metric; NaN for one that takes no part, and for all where one alone does.
        """
        part = [
            not math.isnan(row["rob"]) and each.metric in self._faithful
            for each, row in zip(found, rows, strict=True)
        ]
        if sum(part) < 2:
            return [math.nan] * len(rows)
        overall = np.stack([self._overall(each) for each, there in zip(found, part, strict=True) if there])
        best = overall.max(0)
        first = (overall == best) & (best >= 0)
        shares = iter((first / np.maximum(first.sum(0), 1)).mean(1))
        return [float(next(shares)) if there else math.nan for there in part]

    def _overall(self, each: Perturbed) -> np.ndarray:
        """Overall in every resample; -1 where no model that passes was drawn."""
        kept = each.kept
        rng = np.random.default_rng(self.seed)
        _, outer, _ = outer_and_inner(each.clusters, each.models)
        names, place = np.unique(outer.astype(str), return_inverse=True)
        drawn = rng.multinomial(len(names), [1 / len(names)] * len(names), size=self.n_resamples)
        weights = drawn[:, place] * kept
        q, change, shift = each.q(), each.change, each.shift
        if q is None or change is None or shift is None:
            raise AssertionError("a metric with Q and R has both perturbations")
        moved = np.array(shift.shifts)
        means = moved[rng.integers(len(moved), size=(self.n_resamples, len(moved)))].mean(1)
        r = relearning_over_shifts(change, means, symmetric=each.symmetric)
        parts = np.stack([_weighted(np.broadcast_to(q, r.shape), weights), _weighted(r, weights)], axis=1)
        rob = harmonic_means(parts)
        overall = harmonic_means(np.stack([np.clip(self._faithful[each.metric], 0, 1), rob], axis=1))
        return np.where(np.isnan(overall), -1.0, overall)


def _weighted(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Mean of each row over the models that have a value; NaN where none was drawn."""
    weights = weights * ~np.isnan(values)
    total = weights.sum(1)
    sums = (np.nan_to_num(values) * weights).sum(1)
    return np.divide(sums, total, out=np.full(len(total), np.nan), where=total > 0)


def _aucs(m: np.ndarray, bootstrap: PoolBootstrap) -> np.ndarray:
    """F in every resample: whole runs within pool and variant, models by themselves where these are not known."""
    there = ~np.isnan(m)
    kernel = pair_kernel(m[bootstrap.pools.knows & there], m[~bootstrap.pools.knows & there])
    if not kernel.size:
        return np.full(bootstrap.n_resamples, np.nan)
    draws = bootstrap.clustered(there)
    if draws is None or draws.problem is not None:
        draws = bootstrap.independent(there)
    return draws.aucs(kernel)
