"""A made-up study of metrics and methods: pools, unlearned models, and what perturbations do to them."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from uds_lens import meta

HOSTILE = "</script><img src=x onerror=\"document.title='run'\"><b>x"
"""A method whose name would run, close or fill something in if any step forgot to escape."""

METHODS = ("npo", "rmu", "mine", HOSTILE)
KNOWN = ("es", "em", "paraprob", "truth_ratio")
ERASED = ("s_mia_loss", "s_mia_zlib", "s_mia_min_k", "s_mia_min_kpp", "logit_lens", "uds")


class Study(NamedTuple):
    """What a dashboard takes."""

    models: pd.DataFrame
    pools: pd.DataFrame
    robust: pd.DataFrame
    points: pd.DataFrame

    def given(self) -> dict[str, Any]:
        return {"pools": self.pools, "robust": self.robust, "points": self.points}


def _table(left: np.ndarray, draw: np.random.Generator) -> pd.DataFrame:
    """Metrics of models with so much knowledge left."""
    values = {}
    for name in (*KNOWN, *ERASED):
        m = np.clip(0.1 + 0.7 * left + draw.normal(0, 0.3, len(left)), 0, 1)
        values[name] = m if name in KNOWN else 1 - m
    return pd.DataFrame(values)


def models(n: int = 64, *, seed: int = 0) -> pd.DataFrame:
    """Unlearned models of four methods: one method's scores are all 0, one model has no value of a part."""
    draw = np.random.default_rng(seed)
    frame = _table(draw.uniform(0, 0.7, n), draw)
    at = np.arange(n)
    frame.insert(0, "model", [f"{METHODS[i % 4]}_lr1e5_a{i // 4 % 3}_ep{5 + 5 * (i % 8 > 3)}_{i}" for i in at])
    frame.insert(1, "method", [METHODS[i % 4] for i in at])
    frame.insert(2, "config", [f"lr1e5_a{i // 4 % 3}_ep{5 + 5 * (i % 8 > 3)}" for i in at])
    frame["epochs"], frame["lr"] = np.where(at % 8 > 3, 10, 5), 1e-5
    frame["utility_rel"] = draw.uniform(0.5, 1.02, n)
    frame.loc[frame["method"] == "mine", "s_mia_zlib"] = 0.0
    frame.loc[0, "uds"] = np.nan
    return frame


def study(n: int = 64) -> Study:
    draw = np.random.default_rng(1)
    knows = np.repeat([True, False], 30)
    at = np.arange(60)
    pools = _table(knows.astype(float), draw).assign(
        model=[f"pool {i}" for i in at],
        knows=knows,
        variant=[f"v{i // 10 % 3}" for i in at],
        run=[f"r{i // 2}" for i in at],
    )
    before = models(n, seed=6)
    retain = _table(np.zeros(1), draw)
    after = []
    for moved in (0.0, 0.15):
        frame = before.copy()
        for name in (*KNOWN, *ERASED):
            step = moved * (1 if name in KNOWN else -1) + draw.normal(0, 0.03, n)
            frame[name] = np.clip(before[name] + step, 0, 1)
        after.append(frame)
    again = pd.concat([retain] * 5, ignore_index=True)
    for name in (*KNOWN, *ERASED):
        again[name] = again[name] + (0.12 if name in KNOWN else -0.12) + draw.normal(0, 0.02, 5)
    cuts = meta.thresholds(pools)
    tables = meta.Tables(
        before=before,
        quantised=after[0],
        relearned=after[1],
        retain_before=retain,
        retain_relearned=again,
        thresholds=cuts,
    )
    return Study(
        models=before, pools=pools, robust=meta.robustness_by_filter(tables), points=meta.perturbation_points(tables)
    )
