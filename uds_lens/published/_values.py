"""The published values as one table: as exact as they were published, with their prompts and what is known of them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from uds_lens.meta import read_published
from uds_lens.published._registry import find, models

if TYPE_CHECKING:
    import pandas as pd

VALUES = {
    "group": "models measured against the same full and retain",
    "model": "name on the authors' page",
    "metric": "name",
    "published": "the value, as printed",
    "low": "smallest value that it may stand for: rounding, a cap at 1, a definition",
    "high": "largest",
    "kind": "exact (from the released files), rounded, capped, or by definition",
    "prompts": "chat style it was measured with (`uds_lens.data.CHAT_STYLES`), or raw",
}
"""Columns of `values`."""

POOL_VALUES = {
    "metric": "name",
    "quantity": "auc (F), mean_p, mean_n, q, r",
    "published": "the value, as printed",
    "low": "smallest value that rounds to it",
    "high": "largest",
    "prompts": "chat style it was measured with (`uds_lens.data.CHAT_STYLES`), or raw",
}
"""Columns of `pool_values`."""

RAW = "raw"  # prompts of the metrics that read hidden states

_FROM_TOTALS = {"published_memorization": "memorization", "published_mia": "mia_agg"}
"""Columns of the released file that hold means of metrics."""

# Table 2 of the UDS paper: UDS of four sources, patched into the full model of each size, three decimals.
_SCALE = {
    "tofu-1b": {"retain99": 0.153, "retain95": 0.496},  # full and retain are in the released file
    "tofu-3b": {"full": 0.008, "retain99": 0.151, "retain95": 0.482, "retain": 1.0},
    "tofu-8b": {"full": 0.0, "retain99": 0.101, "retain95": 0.455, "retain": 1.0},
}
_FULL_1B = 0.002  # UDS of the 1B full model in that table; the released file has 0, by definition

_DECIMALS = {"auc": 3, "mean_p": 3, "mean_n": 3, "q": 4, "r": 4}

KNOWN_PROBLEMS = {
    "uds": "the released script patches a normed state into the last layer (as last_layer = post_norm does), and takes "
    "log-probabilities in bfloat16, in steps of 0.06 to 0.12 nats",
    "logit_lens": "measured in bfloat16, log-probabilities in steps of 0.06 to 0.12 nats",
    "utility_rel": "capped at 1 in the released file, and relative to a full model of its own for 5 and for 10 epochs",
    "memorization": "the harmonic mean adds 1e-12 to each part: where one is 0 it is a small number",
    "mia_agg": "the harmonic mean adds 1e-12 to each part: where one is 0 it is a small number",
    "fluency": "depends on the classifier; this library's offline heuristic is another one",
}
"""What is known of the source of a metric's published values, by metric."""

MARGINS = {
    **dict.fromkeys(("uds", "logit_lens", "em", "prob", "paraprob", "truth_ratio"), 0.005),
    **dict.fromkeys(("es", "utility", "utility_rel", "model_utility", "memorization"), 0.01),
    **dict.fromkeys(("mia_loss", "mia_zlib", "mia_min_k", "mia_min_kpp", "fluency"), 0.02),
    **dict.fromkeys(("s_mia_loss", "s_mia_zlib", "s_mia_min_k", "s_mia_min_kpp", "mia_agg"), 0.04),
    **dict.fromkeys(("rouge", "para_rouge", "jailbreak_rouge"), 0.02),
    **{f"{part}_q_prob": 0.005 for part in ("retain", "ra", "wf")},
    **{f"{part}_truth_ratio": 0.005 for part in ("retain", "ra", "wf")},
    **{f"{part}_q_rouge": 0.02 for part in ("retain", "ra", "wf")},
}
"""Difference that counts as agreement, by metric. Chosen here, since nobody measured these models twice: that of UDS is
some four times what half precision moves it on small models (0.0014; docs, Results), greedy texts in half precision
part after a tie, and a normalised attack divides by retain's."""

MARGIN = 0.01  # the same for a metric that is not listed


def values() -> pd.DataFrame:
    """List every published value of a single model.

    Of the pool models the paper published means only (`pool_values`); of MUSE and WMDP it published no UDS.

    Returns:
        One row per model and metric, columns as in `uds_lens.published.VALUES`.

    Example:
        >>> table = values()
        >>> table[(table["model"] == "retain99") & (table["group"] == "tofu-8b")]["published"].tolist()
        [0.101]
    """
    return _values().copy()


@cache
def _values() -> pd.DataFrame:
    import pandas as pd

    from uds_lens.metrics import METRICS

    source = read_published()
    frame = pd.concat([source.references, source.frame], ignore_index=True)
    frame["utility_rel"] = frame.pop("published_utility_rel")
    frame = frame.rename(columns=_FROM_TOTALS)
    rows = [
        _row("tofu-1b", str(entry["model"]), name, float(entry[name]))
        for entry in frame.to_dict("records")
        for name in METRICS
        if name in entry
    ]
    rows += [
        _row(group, model, "uds", value, decimals=3)
        for group, measured in _SCALE.items()
        for model, value in measured.items()
    ]
    table = pd.DataFrame(rows, columns=list(VALUES))
    return table[table["published"].notna()].reset_index(drop=True)


def _row(group: str, model: str, metric: str, value: float, *, decimals: int | None = None) -> dict[str, Any]:
    low = high = value
    kind = "exact"
    if decimals is not None:
        low, high, kind = *rounded(value, decimals), "rounded"
    elif metric == "utility_rel" and value >= 1:
        high, kind = float("inf"), "capped"
    elif model in ("full", "retain") and metric == "uds":
        high, kind = (rounded(_FULL_1B, 3)[1] if model == "full" else value), "by definition"
    prompts = RAW if metric in ("uds", "logit_lens") else "paper_scores"
    values = {"published": value, "low": low, "high": high, "kind": kind, "prompts": prompts}
    return {"group": group, "model": model, "metric": metric, **values}


def rounded(value: float, decimals: int) -> tuple[float, float]:
    """Return the smallest and largest number that is printed as `value`.

    >>> rounded(0.153, 3)
    (0.1525, 0.1535)
    """
    half = 0.5 * 10.0**-decimals
    return round(value - half, decimals + 1), round(value + half, decimals + 1)


def pool_values() -> pd.DataFrame:
    """List what the paper published of its pools and of perturbed models: numbers of metrics, not of models.

    Returns:
        One row per metric and quantity, columns as in `uds_lens.published.POOL_VALUES`.

    Example:
        >>> table = pool_values()
        >>> table[(table["metric"] == "uds") & (table["quantity"] == "auc")]["published"].tolist()
        [0.971]
    """
    import pandas as pd

    from uds_lens.metrics import METRICS

    rows = []
    for entry in read_published().metrics.to_dict("records"):
        internal = METRICS[entry["metric"]].group == "representation"
        for quantity, decimals in _DECIMALS.items():
            if entry[quantity] == entry[quantity]:
                value = float(entry[quantity])
                low, high = rounded(value, decimals)
                style = RAW if internal else "paper_perturbed" if quantity in ("q", "r") else "paper_pools"
                rows.append([entry["metric"], quantity, value, low, high, style])
    return pd.DataFrame(rows, columns=list(POOL_VALUES))


def metrics_published(model: str, *, group: str = "tofu-1b") -> tuple[str, ...]:
    """Return the metrics whose value was published for a model of a group; of a pool model those of the means.

    >>> metrics_published("retain95")
    ('uds',)
    """
    entry = find(model, group=group)
    if entry is not None and entry.role == "pool":
        return tuple(pool_values()["metric"].unique())
    table = _values()
    return tuple(table["metric"][(table["group"] == group) & (table["model"] == model)])


def registry_frame(**chosen: Any) -> pd.DataFrame:
    """List published models as a table; arguments as for `models`.

    Returns:
        `group`, `model`, `role`, `method`, `knows`, `hub_id`, `base`, `licence`, `data`, `split`, and `published`, the
        number of its published metrics.

    Example:
        >>> registry_frame(group="wmdp")["hub_id"].tolist()[0]
        'EleutherAI/deep-ignorance-unfiltered'
    """
    import pandas as pd

    numbers = _values().groupby(["group", "model"]).size().to_dict()
    of_pools = pool_values()["metric"].nunique()
    rows = [
        {
            "group": model.group.name,
            "model": model.name,
            "role": model.role,
            "method": model.method,
            "knows": model.knows,
            "hub_id": model.hub_id,
            "base": model.group.base,
            "licence": model.group.licence,
            "data": model.group.data,
            "split": model.group.split,
            "published": of_pools if model.role == "pool" else numbers.get((model.group.name, model.name), 0),
        }
        for model in models(**chosen)
    ]
    return pd.DataFrame(rows)
