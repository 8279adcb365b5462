"""Pools of made-up models."""

import numpy as np
import pandas as pd
import pytest


def pools_frame(*, seed=0, variants=3, runs=5, snapshots=2, metrics=3, gap=1.5, shared=0.0) -> pd.DataFrame:
    """P and N with metrics `x0`, `x1`, ... that share half of their noise."""
    rng = np.random.default_rng(seed)
    rows = []
    for knows in (True, False):
        for v in range(variants):
            for r in range(runs):
                of_run, own = rng.normal(size=metrics), rng.normal(size=(snapshots, metrics))
                for s in range(snapshots):
                    common = rng.normal()
                    values = (
                        gap * knows + np.sqrt(shared) * of_run + np.sqrt(1 - shared) * (0.7 * own[s] + 0.7 * common)
                    )
                    rows.append(
                        {
                            "model": f"{knows}-{v}-{r}-{s}",
                            "knows": knows,
                            "variant": f"{'P' if knows else 'N'}{v}",
                            "run": f"{v}-{r}",
                            **{f"x{i}": values[i] for i in range(metrics)},
                        }
                    )
    return pd.DataFrame(rows)


@pytest.fixture
def pools() -> pd.DataFrame:
    return pools_frame()


@pytest.fixture
def ways() -> dict[str, str]:
    return {"x0": "knowledge", "x1": "knowledge", "x2": "knowledge"}


@pytest.fixture(scope="session")
def published(shared_dir):
    from uds_lens.meta import read_published

    folder = shared_dir / "data" / "published"
    if not (folder / "meta_eval.json").is_file():
        pytest.skip("no published data")
    return read_published(folder)
