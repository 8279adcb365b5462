"""The published models, described by the data file next to this one, and their published values as one table.

Values are as precise as published, and come with their prompts and known problems.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from uds_lens.errors import ConfigError
from uds_lens.meta._hydra import is_within
from uds_lens.metrics import METRICS
from uds_lens.study._plan import Role

if TYPE_CHECKING:
    import pandas as pd


if sys.version_info >= (3, 11):
    from tomllib import loads
else:
    from tomli import loads


@dataclass(frozen=True, kw_only=True)
class ModelGroup:
    """Published models that are measured against the same full and retain."""

    name: str
    """Name in this library: tofu-1b, tofu-3b, tofu-8b, muse-news, muse-books, wmdp."""
    base: str
    """The base model."""
    family: str
    """`model_type` of its configuration."""
    licence: str
    """Terms under which the weights are published."""
    parameters: int
    """Number of weights of each model, rounded."""
    data: str
    """Data set of the metrics: a Hub id, or a name of `uds_lens.data.BENCHMARKS`."""
    split: str
    """Its forget set."""
    full: str
    """Hub id of the model trained on everything."""
    retain: str
    """Hub id of the model that never saw the forget set."""

    @property
    def download_bytes(self) -> int:
        """Size of a model in bfloat16, the dtype in which all of them are published."""
        return 2 * self.parameters


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """One published model."""

    name: str
    """Name on the authors' page, if it is listed there; unique in its group."""
    hub_id: str
    """Id on the Hugging Face Hub. The first run that downloads the model records the commit."""
    group: ModelGroup = field(repr=False)
    """The group the model belongs to."""
    role: Role
    """full, retain, unlearned, pool, or other (retain models of other splits)."""
    method: str | None = None
    """Unlearning method, by its name in this library."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Training settings, as given in the model's name."""
    knows: bool | None = None
    """For a pool model, whether it was trained on the forget set."""

    @property
    def variant(self) -> str | None:
        """Kind of training (pool models only)."""
        return self.settings.get("variant")

    @property
    def run(self) -> str | None:
        """Training run of a pool model: its epochs are not independent."""
        return None if self.knows is None else self.name.rpartition("_ep")[0]

    @property
    def config(self) -> str:
        """The training settings as written on the authors' page."""
        return self.name.removeprefix(f"{self.method}_")


@cache
def _all() -> tuple[PublishedModel, ...]:
    text = (Path(__file__).parent / "models.toml").read_text("utf-8")
    return tuple(model for name, entry in loads(text).items() for model in _of_group(name, entry))


def _of_group(name: str, entry: dict[str, Any]) -> Iterator[PublishedModel]:
    patterns = entry.pop("models", [])
    group = ModelGroup(name=name, **entry)
    yield PublishedModel(name="full", hub_id=group.full, group=group, role="full")
    yield PublishedModel(name="retain", hub_id=group.retain, group=group, role="retain")
    for pattern in patterns:
        axes = pattern.get("axes", {})
        for values in product(*axes.values()):
            settings = dict(zip(axes, values, strict=True))
            yield PublishedModel(
                name=pattern["name"].format(**{axis: _short(value) for axis, value in settings.items()}),
                hub_id=pattern["id"].format(**settings),
                group=group,
                role=pattern["role"],
                method=pattern.get("method"),
                settings=settings,
                knows=pattern.get("knows"),
            )


def _short(value: str) -> str:
    """Format a setting as on the authors' page.

    >>> [_short(value) for value in ("1e-05", "0.0003", "0.125", "3.5", "10")]
    ['1e5', '3e4', '0125', '35', '10']
    """
    if re.fullmatch(r"\de-0\d|0\.000\d", value):
        return f"{float(value):.0e}".replace("e-0", "e")
    return value.replace(".", "")


def models(*, group: str | None = None, role: Role | None = None, method: str | None = None) -> list[PublishedModel]:
    """List the published models with the given properties.

    Args:
        group: Name of a `ModelGroup`, or a prefix shared by several: "tofu", "muse".
        role: full, retain, unlearned, pool or other.
        method: Unlearning method, for example "npo".

    Returns:
        The models; in each group, full and retain come first.

    Raises:
        ConfigError: No model has these properties.

    Example:
        >>> len(models(role="unlearned", group="tofu-1b")), len(models(role="pool"))
        (150, 60)
        >>> models(method="npo")[0].hub_id
        'open-unlearning/unlearn_tofu_Llama-3.2-1B-Instruct_forget10_NPO_lr1e-05_beta0.1_alpha1_epoch5'
    """
    matches = [
        model
        for model in _all()
        if (group is None or f"{model.group.name}-".startswith(f"{group}-"))
        and role in (None, model.role)
        and method in (None, model.method)
    ]
    if not matches:
        groups = dict.fromkeys(model.group.name for model in _all())
        methods = dict.fromkeys(model.method for model in _all() if model.method)
        asked = {"group": group, "role": role, "method": method}
        raise ConfigError(
            f"no published model has {' and '.join(f'{name} {value!r}' for name, value in asked.items() if value)}. "
            f"Groups: {', '.join(groups)}; roles: full, retain, unlearned, pool, other; methods: {', '.join(methods)}."
        )
    return matches


def find(name: str, *, group: str | None = None) -> PublishedModel | None:
    """Return the published model that a name refers to; None if there is no such model.

    Args:
        name: The model's Hub id or the last part of it, its name on the authors' page, or a path inside the Hub's
            cache. The last part of the id may also be a folder, or a task that holds `evals`, and may lack "unlearn_",
            as in Open-Unlearning's run names. The same name under another owner (`owner/name`, if there is no such
            folder) refers to another model.
        group: Group in which to look up names that occur in several groups: full, retain, retain95. Default: tofu-1b.

    Example:
        >>> find("saves/eval/tofu_Llama-3.2-1B-Instruct_forget10_NPO_lr2e-05_beta0.1_alpha1_epoch10").name
        'npo_lr2e5_b01_a1_ep10'
        >>> find("full", group="tofu-8b").hub_id
        'open-unlearning/tofu_Llama-3.1-8B-Instruct_full'
    """
    by_id, by_name = _names()
    cached = re.search(r"models--([\w.-]+?)--([\w.-]+)", name)
    if cached or (name.count("/") == 1 and not _is_there(name)):
        hub_id = f"{cached[1]}/{cached[2]}" if cached else name
        model = by_id.get(hub_id.partition("/")[2])
        return model if model is not None and model.hub_id == hub_id else None
    for part in reversed(PurePath(name).parts):
        if part in by_id:
            return by_id[part]
        if not is_within(part):
            break
    return by_name.get((group or "tofu-1b", name))


def _is_there(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # too long for the file system, or not a valid path
        return False


@cache
def _names() -> tuple[dict[str, PublishedModel], dict[tuple[str, str], PublishedModel]]:
    ends = {model.hub_id.partition("/")[2]: model for model in _all()}
    short = {end.removeprefix("unlearn_"): model for end, model in ends.items()}
    return short | ends, {(model.group.name, model.name): model for model in _all()}


VALUES = {
    "group": "models measured against the same full and retain",
    "model": "name on the authors' page",
    "metric": "name",
    "published": "the value, as printed",
    "low": "smallest value that it may stand for, because of rounding, a cap at 1, or a definition",
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
"""Columns in the released file that hold means of metrics."""

# Table 2 of the UDS paper: UDS of four sources, patched into the full model of each size, three decimals.
_SCALE = {
    "tofu-1b": {"retain99": 0.153, "retain95": 0.496},  # full and retain are in the released file
    "tofu-3b": {"full": 0.008, "retain99": 0.151, "retain95": 0.482, "retain": 1.0},
    "tofu-8b": {"full": 0.0, "retain99": 0.101, "retain95": 0.455, "retain": 1.0},
}
_FULL_1B = 0.002  # UDS of the 1B full model in this table; the released file has 0 by definition

_DECIMALS = {"auc": 3, "mean_p": 3, "mean_n": 3, "q": 4, "r": 4}

KNOWN_PROBLEMS = {
    "uds": "the released script patches the state after the final norm into the last layer (like last_layer = "
    "post_norm), and takes log-probabilities in bfloat16, in steps of 0.06 to 0.12 nats",
    "cka": "the paper's guide reads the entities in 367 raw rows, but its script reads whole answers in 400 chats "
    "(cka_scope)",
    "logit_lens": "measured in bfloat16, with log-probabilities in steps of 0.06 to 0.12 nats",
    "utility_rel": "capped at 1 in the released file, and relative to a separate full model for each number of epochs "
    "(5, 10)",
    "memorization": "the harmonic mean adds 1e-12 to each part, so it is a small number, not 0, where one part is 0",
    "mia_agg": "the harmonic mean adds 1e-12 to each part, so it is a small number, not 0, where one part is 0",
    "fluency": "depends on the classifier; this library's offline heuristic is a different classifier",
}
"""Known problems with the published values, by metric."""

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
"""Difference that counts as agreement, by metric. These margins are choices, since no model was measured twice. For
UDS, the margin is about four times the shift caused by half precision in small models (0.0014; see Results in the
docs). Margins are wider for generated texts, which diverge after a tie in half precision, and for normalised attacks,
which are divided by retain's value."""

MARGIN = 0.01  # the margin for metrics that are not listed


def values() -> pd.DataFrame:
    """List every published value of a single model.

    For pool models, the paper published only means (`pool_values`); for MUSE and WMDP, it published no UDS.

    Returns:
        One row per model and metric, with the columns of `COLUMNS["values"]`.

    Example:
        >>> table = values()
        >>> table[(table["model"] == "retain99") & (table["group"] == "tofu-8b")]["published"].tolist()
        [0.101]
    """
    return _values().copy()


@cache
def _values() -> pd.DataFrame:
    import pandas as pd

    from uds_lens.meta import read_published

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
    """Return the smallest and largest number that would be printed as `value`.

    >>> rounded(0.153, 3)
    (0.1525, 0.1535)
    """
    half = 0.5 * 10.0**-decimals
    return round(value - half, decimals + 1), round(value + half, decimals + 1)


def pool_values() -> pd.DataFrame:
    """List what the paper published about its pools and perturbed models: one number per metric, not per model.

    Returns:
        One row per metric and quantity, with the columns of `COLUMNS["pool_values"]`.

    Example:
        >>> table = pool_values()
        >>> table[(table["metric"] == "uds") & (table["quantity"] == "auc")]["published"].tolist()
        [0.971]
    """
    import pandas as pd

    from uds_lens.meta import read_published

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
    """Return the metrics that have a published value for a model of a group; for a pool model, a published mean.

    >>> metrics_published("retain95")
    ('uds',)
    """
    entry = find(model, group=group)
    if entry is not None and entry.role == "pool":
        return tuple(pool_values()["metric"].unique())
    table = _values()
    return tuple(table["metric"][(table["group"] == group) & (table["model"] == model)])


def registry_frame(**chosen: Any) -> pd.DataFrame:
    """List published models as a table, with arguments as in `models`.

    Returns:
        `group`, `model`, `role`, `method`, `knows`, `hub_id`, `base`, `licence`, `data`, `split`, and `published`, the
        number of published metrics.

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
            **{name: getattr(model, name) for name in ("role", "method", "knows", "hub_id")},
            **{name: getattr(model.group, name) for name in ("base", "licence", "data", "split")},
            "published": of_pools if model.role == "pool" else numbers.get((model.group.name, model.name), 0),
        }
        for model in models(**chosen)
    ]
    return pd.DataFrame(rows)
