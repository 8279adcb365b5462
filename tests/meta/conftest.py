"""Pools of made-up models."""

import numpy as np
import pandas as pd
import pytest

from uds_lens.meta import read_published


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


def covariance_by_hand(frame, names):
    """DeLong's covariance from the definition, with loops."""
    p, n = frame[frame["knows"]], frame[~frame["knows"]]

    def psi(a, b):
        return 1.0 if a > b else 0.5 if a == b else 0.0

    v10 = {k: [sum(psi(a, b) for b in n[k]) / len(n) for a in p[k]] for k in names}
    v01 = {k: [sum(psi(a, b) for a in p[k]) / len(p) for b in n[k]] for k in names}
    auc = {k: sum(v10[k]) / len(p) for k in names}

    def s(v, k, m):
        return sum((a - auc[k]) * (b - auc[m]) for a, b in zip(v[k], v[m], strict=True)) / (len(v[k]) - 1)

    return auc, {(k, m): s(v10, k, m) / len(p) + s(v01, k, m) / len(n) for k in names for m in names}


@pytest.fixture
def pools() -> pd.DataFrame:
    return pools_frame()


@pytest.fixture
def ways() -> dict[str, str]:
    return {"x0": "knowledge", "x1": "knowledge", "x2": "knowledge"}


@pytest.fixture(scope="session")
def published():
    """The values that come along; a test holds them against the published files."""
    return read_published()
