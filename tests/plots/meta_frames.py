"""Made-up tables as `uds_lens.meta` and `ElicitationResults` return them."""

import numpy as np
import pandas as pd

BAD = "<b>bold</b><a href='x'>$1 and $2</a>"
"""A name that would be markup, if any step forgot to escape."""


def models(n: int = 12, *, name: str = "npo") -> pd.DataFrame:
    """Models with a pool, a method, a metric x that separates the pools, and a metric that is nowhere defined."""
    draw = np.random.default_rng(0)
    knows = np.arange(n) % 2 == 0
    return pd.DataFrame(
        {
            "model": [f"{name}_{i}" for i in range(n)],
            "method": [name if i % 3 else "rmu" for i in range(n)],
            "knows": knows,
            "x": np.where(knows, 0.7, 0.3) + draw.normal(0, 0.1, n),
            "uds": draw.uniform(0, 1, n),
            "utility_rel": draw.uniform(0.5, 1.01, n),
            "nowhere": np.full(n, np.nan),
        }
    )


def thresholds() -> pd.DataFrame:
    return pd.DataFrame({"metric": ["x", "x"], "value": [0.5, 0.52], "chosen": [True, False]})


def faithful(*names: str) -> pd.DataFrame:
    """F of each metric; the last one has none."""
    aucs = [0.9 - 0.1 * i for i in range(len(names))]
    frame = pd.DataFrame({"metric": list(names), "auc": aucs, "n_p": 6, "n_n": 6})
    for before, width in (("", 0.05), ("cluster_", 0.08), ("variants_", 0.02)):
        frame[f"{before}low"], frame[f"{before}high"] = frame["auc"] - width, frame["auc"] + width
    numbers = [name for name in frame.columns if name != "metric"]
    frame.loc[len(frame) - 1 :, numbers] = np.nan
    return frame


def pairs(*names: str) -> pd.DataFrame:
    found = faithful(*names).set_index("metric")["auc"]
    rows = [(a, b, found[a], found[b], found[a] - found[b]) for i, a in enumerate(names) for b in names[i + 1 :]]
    frame = pd.DataFrame(rows, columns=["one", "other", "auc_one", "auc_other", "difference"])
    frame["low"], frame["high"] = frame["difference"] - 0.05, frame["difference"] + 0.05
    frame["p_holm"] = np.where(frame["difference"].abs() > 0.15, 0.001, 0.4)
    return frame


def summary(*names: str) -> pd.DataFrame:
    frame = pd.DataFrame({"metric": list(names), "auc": 0.9, "q": 0.8, "r": 0.4})
    frame["rob"], frame["n"] = 2 * 0.8 * 0.4 / 1.2, 7
    frame["overall"] = [0.6 + 0.1 * i for i in range(len(names))]
    frame.loc[len(frame) - 1 :, ["q", "rob", "overall", "n"]] = np.nan
    return frame


def points(n: int = 12, *, name: str = "npo") -> pd.DataFrame:
    draw = np.random.default_rng(1)
    before = draw.uniform(0.1, 0.9, n)
    return pd.DataFrame(
        {
            "model": [f"{name}_{i}" for i in range(n)],
            "metric": "x",
            "before": before,
            "quantised": before + 0.02,
            "relearned": before + np.where(np.arange(n) % 4 == 0, -0.1, 0.2),
            "kept": np.arange(n) % 2 == 0,
        }
    )


def robustness(*names: str) -> pd.DataFrame:
    rows = [
        (name, kept, whose, 10 - 2 * place, 0.9, 0.5, rob)
        for i, name in enumerate(names)
        for place, kept in enumerate(("none", "utility", "utility+threshold"))
        for whose, rob in (("own", 0.5 + 0.1 * i * place), ("common", 0.1))
    ]
    return pd.DataFrame(rows, columns=["metric", "filter", "models", "n", "q", "r", "rob"])


def ranking(*names: str) -> pd.DataFrame:
    """Methods, best first without depth; with it the first two change places, and the last has no score."""
    n = len(names)
    frame = pd.DataFrame({"method": list(names), "model": [f"{name}_1" for name in names]})
    frame["score_without"] = [0.9 - 0.1 * i for i in range(n)]
    frame["score_with"] = [0.7, 0.75, *(0.5 - 0.1 * i for i in range(n))][:n]
    frame["rank_without"], frame["rank_with"] = [*range(1, n + 1)], [2, 1, *range(3, n + 3)][:n]
    frame["n_tied"] = [1, 18, *[1] * n][:n]
    numbers = ["score_without", "score_with", "rank_without", "rank_with"]
    frame[numbers] = frame[numbers].astype(float)
    frame.loc[len(frame) - 1 :, numbers] = np.nan
    return frame


def ranks(*names: str) -> pd.DataFrame:
    rows = [(name, i + k, share) for i, name in enumerate(names) for k, share in ((1, 0.996), (2, 0.004))]
    return pd.DataFrame(rows, columns=["method", "rank", "probability"])


def elicited(*names: str) -> pd.DataFrame:
    """Scores by probe: the first extracts something, the last has no power."""
    n = len(names)
    frame = pd.DataFrame({"probe": list(names), "decoding": "greedy", "statistic": "mean"})
    frame["unlearned"], frame["retain"], frame["full"] = [0.4, *[0.1] * n][:n], 0.2, 0.9
    frame["beyond_low"], frame["beyond_high"] = [0.1, *[-0.05] * n][:n], [0.3, *[0.05] * n][:n]
    return frame.assign(share_reason=[*[None] * (n - 1), "no power: nothing"][-n:] if n else [])


def depth(*names: str) -> pd.DataFrame:
    """Examples of which the shallow ones come out; one has no UDS."""
    frame = pd.DataFrame({"uds": [0.1, 0.5, np.nan, 0.9], "beyond_retain": [0.8, 0.5, 0.3, 0.0]})
    frame = frame.assign(probe="cloze", decoding="greedy", question=(*names, "x")[0])
    return frame if names else frame.head(0)


def budget(*names: str) -> pd.DataFrame:
    rows = [(model, name, k, 0.1 * k, 0.0) for name in names for model in ("full", "unlearned") for k in (1, 2)]
    return pd.DataFrame(rows, columns=["model", "probe", "k", "best_of_k", "leak_at_k"])


def steps(*names):
    """Two steps of a training each, in tables that were put together."""
    rows = [(name, step, step / 20, 0.1, 1.0, 0.5) for name in names for step in (0, 10)]
    columns = ["model", "step", "uds", "damage", "utility", "answers"]
    return pd.DataFrame(rows, columns=columns, index=[at % 2 for at in range(len(rows))])


def compared(*names):
    """Measured beside published values: one that agrees, one that does not, one without a value."""
    kinds = [(0.5, 0.4, 0.1, 0.2, "agrees"), (0.5, 0.4, 0.1, 0.2, "differs"), (np.nan, 0.4, np.nan, 0.2, "no value")]
    rows = [(name, names[at % 2], *kinds[at % 3]) for at, name in enumerate(names)]
    columns = ["model", "metric", "measured", "published", "difference", "margin", "verdict"]
    return pd.DataFrame(rows, columns=columns)


def transplanted(*models):
    """Scores of transplants, one model a row."""
    n = len(models)
    ends = {"host_depth_low": [0.1] * n, "host_depth_high": [0.3] * n}
    return pd.DataFrame({"model": [*models], "output_depth": [0.7] * n, "host_depth": [0.2] * n, **ends})


def bands(*labels):
    """Candidates of full, one band for each label, and attention."""
    columns = ["donor", "blocks", "first", "last", "width", "attention", "recovered"]
    rows = [("full", label, i, i, 1, False, 0.2 + i / 10) for i, label in enumerate(labels)]
    return pd.DataFrame([*rows, *([("full", "attention", 0, 3, 4, True, 0.5)] if labels else [])], columns=columns)
