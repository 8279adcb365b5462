"""How often the intervals of F hold what they promise, on simulated pools where F is known.

    python benchmarks/coverage_faithfulness.py

Each pool has three variants of five runs with two snapshots, 30 models. Values are normal; an effect may be shared
by the snapshots of a run, or by all models of a variant. Prints one table (Markdown).
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import norm

import uds_lens as ul
from uds_lens.meta.declarations import Points

VARIANTS, RUNS, SNAPSHOTS = 3, 5, 2
PER_POOL = VARIANTS * RUNS * SNAPSHOTS
INTERVALS = {"DeLong": "", "bootstrap": "boot_", "runs together": "cluster_"}


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
)


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
    values = (
        np.sqrt(world.within_run) * runs
        + np.sqrt(world.within_variant) * variants
        + np.sqrt(1 - shared) * own
    )
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
        row[label] = f"{100 * held:.1f} %"
        row[f"width, {label}"] = f"{(high - low).median():.3f}"
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=4000, help="simulated pools per row")
    parser.add_argument("--resamples", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rows = [
        measure(world, repeats=options.repeats, n_resamples=options.resamples, seed=options.seed)
        for world in WORLDS
    ]
    print(f"| {' | '.join(rows[0])} |")
    print(f"|{'---|' * len(rows[0])}")
    for row in rows:
        print(f"| {' | '.join(map(str, row.values()))} |")


if __name__ == "__main__":
    main()
