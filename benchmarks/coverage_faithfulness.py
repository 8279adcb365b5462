"""How often the intervals of F, Q and R hold what they promise, on simulated models where the truth is known.

    python benchmarks/coverage_faithfulness.py

F: each pool has three variants of five runs with two snapshots, 30 models. Values are normal; an effect may be shared
by the snapshots of a run, or by all models of a variant. Where variants are alike, the truth is F over all variants
there could be.

Q and R: the mean of values between 0 and 1 over models of `clusters` methods, each with one run or six, two epochs a
run. Values are beta, a share of them 0 (models that do not move); a normal copula makes models of a method, and of a
run, alike. "models one by one" is a percentile bootstrap, for comparison.

Prints two tables (Markdown).
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import beta, norm

import uds_lens as ul
from uds_lens.meta._direction import Points
from uds_lens.meta._pools import clustered_mean, dominated_by

VARIANTS, RUNS, SNAPSHOTS = 3, 5, 2
PER_POOL = VARIANTS * RUNS * SNAPSHOTS
INTERVALS = {"DeLong": "", "bootstrap": "boot_", "runs together": "cluster_", "variants together": "new_variants_"}


class World(NamedTuple):
    """How models are alike."""

    name: str
    faithfulness: float
    within_run: float = 0.0
    within_variant: float = 0.0


WORLDS = (
    World("independent", 0.75),
    World("independent", 0.92),
    World("independent", 0.97),
    World("snapshots alike, 0.5", 0.92, within_run=0.5),
    World("snapshots alike, 0.9", 0.92, within_run=0.9),
    World("variants alike, 0.3", 0.92, within_variant=0.3),
    World("variants alike, 0.5", 0.92, within_variant=0.5),
    World("variants alike, 0.3", 0.98, within_variant=0.3),
    World("variants alike, 0.5", 0.98, within_variant=0.5),
    World("variants alike, 0.8", 0.98, within_variant=0.8),
)


class Values(NamedTuple):
    """How a mean of Q or R comes about."""

    name: str
    mean: float
    """Of the beta part."""
    concentration: float
    """Of the beta part: the sum of its parameters."""
    unmoved: float = 0.0
    """Share of models at 0."""


MEANS = (
    Values("R, middling", 0.6, 3.0),
    Values("R, low, near 0 or 1", 0.3, 1.5),
    Values("Q, high", 0.97, 40.0),
    Values("R, most at 0", 0.1, 1.0, unmoved=0.3),
)
DESIGNS = tuple((clusters, models) for clusters in (3, 4, 5, 8) for models in (2, 12))
ALIKE = ((0.0, 0.7), (0.5, 0.2))
"""Correlations within a method, and further within a run."""


def draw(world: World, rng: np.random.Generator, columns: int) -> pd.DataFrame:
    """Two pools, with `columns` metrics that are repetitions of the same experiment."""
    rows = pd.DataFrame(
        [
            {"knows": knows, "variant": f"{knows}{v}", "run": f"{knows}{v}{r}"}
            for knows in (True, False)
            for v in range(VARIANTS)
            for r in range(RUNS)
            for _ in range(SNAPSHOTS)
        ]
    )
    runs = rng.normal(size=(2 * VARIANTS * RUNS, columns)).repeat(SNAPSHOTS, axis=0)
    variants = rng.normal(size=(2 * VARIANTS, columns)).repeat(RUNS * SNAPSHOTS, axis=0)
    own = rng.normal(size=(2 * PER_POOL, columns))
    shared = world.within_run + world.within_variant
    values = np.sqrt(world.within_run) * runs + np.sqrt(world.within_variant) * variants + np.sqrt(1 - shared) * own
    values += np.sqrt(2) * norm.ppf(world.faithfulness) * rows["knows"].to_numpy()[:, None]
    return pd.concat([rows, pd.DataFrame(values, columns=[f"m{i}" for i in range(columns)])], axis=1)


def measure(world: World, *, repeats: int, n_resamples: int, seed: int) -> dict[str, object]:
    """Share of intervals that hold the true F, and their median width."""
    rng = np.random.default_rng(seed)
    tables = []
    for start in range(0, repeats, 100):
        columns = min(100, repeats - start)
        frame = draw(world, rng, columns)
        ways: dict[str, Points] = {f"m{i}": "knowledge" for i in range(columns)}
        tables.append(ul.meta.faithfulness(frame, direction=ways, n_resamples=n_resamples, seed=start))
    found = pd.concat(tables)
    row: dict[str, object] = {"models": world.name, "F": f"{world.faithfulness:.2f}"}
    for label, prefix in INTERVALS.items():
        low, high = found[f"{prefix}low"], found[f"{prefix}high"]
        # Where F is 1 a bootstrap has no interval; Wilson's stands in, as a reader of the table would take it.
        low, high = low.fillna(found["low"]), high.fillna(found["high"])
        held = ((low <= world.faithfulness) & (world.faithfulness <= high)).mean()
        row[label] = f"{100 * held:.1f}%"
        row[f"width, {label}"] = f"{(high - low).median():.3f}"
    return row


def draw_values(
    values: Values, clusters: int, models: int, alike: tuple[float, float], repeats: int, rng: np.random.Generator
) -> np.ndarray:
    """One row of models per repetition, methods side by side, two epochs a run."""
    method = rng.normal(size=(repeats, clusters)).repeat(models, axis=1)
    run = rng.normal(size=(repeats, clusters * models // 2)).repeat(2, axis=1)
    own = rng.normal(size=(repeats, clusters * models))
    shares = norm.cdf(np.sqrt(alike[0]) * method + np.sqrt(alike[1]) * run + np.sqrt(1 - sum(alike)) * own)
    levels = beta.ppf(
        (np.arange(10000) + 0.5) / 10000, values.mean * values.concentration, (1 - values.mean) * values.concentration
    )
    place = np.clip((shares - values.unmoved) / (1 - values.unmoved) * 10000, 0, 9999).astype(int)
    return np.where(shares < values.unmoved, 0.0, levels[place])


def measure_means(
    values: Values, clusters: int, models: int, alike: tuple[float, float], *, repeats: int, seed: int
) -> dict[str, object]:
    """Share of intervals that hold the true mean: models drawn one by one, and clusters as a whole."""
    rng = np.random.default_rng(seed)
    drawn = draw_values(values, clusters, models, alike, repeats, rng)
    truth = draw_values(values, 1, 2, (0.0, 0.0), 400_000, rng).mean()
    n = clusters * models
    methods = np.arange(clusters).repeat(models)
    one_by_one, held, widths, cautioned, honest, wide = [], [], [], [], [], []
    for row in drawn:
        low, high = np.quantile(row[rng.integers(n, size=(300, n))].mean(1), [0.025, 0.975])
        one_by_one.append(low <= truth <= high)
        ends, _ = clustered_mean(row, methods, 0.95)
        held.append(ends.low <= truth <= ends.high)
        widths.append(ends.high - ends.low)
        most = dominated_by(row, methods, 0.95)
        cautioned.append(most is not None)
        if most is not None:
            honest.append(most.interval.low <= truth <= most.interval.high)
            wide.append(most.interval.high - most.interval.low)
    none = bool(np.isnan(widths).all())
    few = none or len(wide) < repeats / 50
    return {
        "values": values.name,
        "alike in method, run": f"{alike[0]:.1f}, {alike[1]:.1f}",
        "methods": clusters,
        "models": n,
        "mean": f"{truth:.2f}",
        "models one by one": f"{100 * np.mean(one_by_one):.1f}%",
        "methods together": "-" if none else f"{100 * np.mean(held):.1f}%",
        "width": "-" if none else f"{np.median(widths):.2f}",
        "with a caution": "-" if none else f"{100 * np.mean(cautioned):.0f}%",
        "held or cautioned": "-" if none else f"{100 * np.mean(np.logical_or(held, cautioned)):.1f}%",
        "interval in the caution": "-" if few else f"{100 * np.mean(honest):.1f}%",
        "its width": "-" if few else f"{np.median(wide):.2f}",
    }


def show(rows: list[dict[str, object]]) -> None:
    """Print a table."""
    print(f"| {' | '.join(rows[0])} |")
    print(f"|{'---|' * len(rows[0])}")
    for row in rows:
        print(f"| {' | '.join(map(str, row.values()))} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=4000, help="simulated pools per row")
    parser.add_argument("--resamples", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rows = [
        measure(world, repeats=options.repeats, n_resamples=options.resamples, seed=options.seed) for world in WORLDS
    ]
    show(rows)
    print()
    show(
        [
            measure_means(values, *design, alike, repeats=options.repeats // 4, seed=options.seed)
            for values in MEANS
            for alike in ALIKE
            for design in DESIGNS
        ]
    )


if __name__ == "__main__":
    main()
