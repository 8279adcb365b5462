"""Tables of a study: one long table, the values per example, and the tables that `uds_lens.meta` takes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from uds_lens._quoting import csv_text
from uds_lens._storage.files import atomic_write_marked, check_writable, located
from uds_lens.errors import ConfigError, DataError
from uds_lens.meta import Tables
from uds_lens.meta._tables import harmonic_means
from uds_lens.metrics import METRICS
from uds_lens.study._folder import Part, StudyFolder
from uds_lens.study._models import StudyModel, StudyState
from uds_lens.study._plan import SETS

COLUMNS = {
    "model_id": "name of the model",
    "role": "full, retain, pool, unlearned or other",
    "variant": "kind of training (pool models only)",
    "run": "training run; checkpoints of one run are not independent",
    "method": "unlearning method",
    "config": "settings of the method, as text",
    "seed": "seed of the training or, in a relearned state, of the relearning",
    "state": "before, quantised or relearned",
    "metric": "name of the metric",
    "value": "value of the metric; NaN where undefined",
    "of_full": "mean value of full in the same state, which shows the effect of quantising or relearning alone",
    "of_retain": "mean value of the retain models in the same state",
    "reason": "why the value is undefined",
    "n": "examples with a value",
    "seconds": "wall time on the model",
    "fingerprint": "fingerprint of the measured weights",
    "parent": "fingerprint of the weights these were trained from",
    "options_hash": "hash of the settings",
    "data_hash": "hash of the questions",
    "knows": "for pool models: True if trained on the forget set, False if not",
    "lr": "learning rate",
    "epochs": "epochs",
}
"""Columns of the long table: one row per model, state and metric."""

_REFERENCES = {"full": "of_full", "retain": "of_retain"}  # roles whose mean values are given in every row


def table(out: str | os.PathLike[str] | StudyFolder) -> pd.DataFrame:
    """List everything measured so far for the models and metrics in the plan.

    Args:
        out: Directory of the study.

    Returns:
        One row per model, state, seed and metric, with the columns of `uds_lens.study.COLUMNS`, in the order of the
        plan.

    Raises:
        ResultFormatError: There is no study, or it is broken.
    """
    folder = _opened(out)
    rows = [
        row
        for model in sorted(folder.models, key=lambda model: model.model_id)
        for state in model.states
        for row in _rows(folder, model, state)
    ]
    own = [name for name in COLUMNS if name not in _REFERENCES.values()]
    found = pd.DataFrame(rows, columns=own).astype({"knows": "object", "seed": "Int64", "n": "int64"})
    keys = ["state", "metric"]
    for role, column in _REFERENCES.items():
        means = found[found["role"] == role].groupby(keys)["value"].mean().rename(column)
        found = found.join(means, on=keys)
    return found[list(COLUMNS)]


def _opened(out: str | os.PathLike[str] | StudyFolder) -> StudyFolder:
    return out if isinstance(out, StudyFolder) else StudyFolder(out)


def _rows(folder: StudyFolder, model: StudyModel, state: StudyState) -> Iterator[dict[str, Any]]:
    wanted, config = folder.keys.items(model, state), model.config
    seed = state.seed if state.seed is not None or config is None else config.seed
    seen: set[str] = set()
    for part in folder.parts(model, state):
        for row in part.rows:
            if row.metric in seen or not _is_wanted(part, row.item, wanted):
                continue
            seen.add(row.metric)
            yield {
                **{name: getattr(model, name) for name in ("model_id", "role", "variant", "run", "method", "knows")},
                **{name: getattr(row, name) for name in ("metric", "value", "reason", "n", "seconds")},
                "config": model.config_text,
                "seed": seed,
                "state": state.state,
                "fingerprint": part.fingerprint,
                "parent": part.parent,
                "options_hash": folder.keys.options_hash(model, state, row.item),
                "data_hash": folder.keys.data_hash,
                "lr": math.nan if config is None else config.learning_rate,
                "epochs": math.nan if config is None else config.epochs,
            }


def _is_wanted(part: Part, item: str, wanted: Mapping[str, str]) -> bool:
    return item in wanted and part.keys.get(item) == wanted[item]


def write_table(table: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write a long table, atomically.

    Args:
        table: From `table`.
        path: File that ends in .parquet or .csv.

    Raises:
        ConfigError: The file has another extension.
        ResultFormatError: The file exists but was not written by this function, or was changed since.
    """
    place = located(path)
    content: str | bytes
    if place.suffix == ".csv":
        content = csv_text(table)
    elif place.suffix == ".parquet":
        content = table.astype({"knows": "boolean"}).to_parquet(index=False)
    else:
        raise ConfigError(f"a table is written as .parquet or .csv; got {place.name[-60:]!r}.")
    atomic_write_marked(check_writable(place, directory=False), content)


def examples_table(out: str | os.PathLike[str] | StudyFolder) -> pd.DataFrame:
    """List values per example of unlearned models before perturbation, for `uds_lens.meta.stability`.

    Args:
        out: Directory of the study.

    Returns:
        `model`, `metric`, `example_id`, `value`, `subject` (None if the data have none), including retain's.

    Raises:
        ResultFormatError: There is no study, or it is broken.
    """
    folder, state, tables = _opened(out), StudyState("before"), []
    for model in folder.models:
        if model.role in ("unlearned", "retain"):
            wanted = folder.keys.items(model, state)
            for part in folder.parts(model, state):
                if (values := folder.examples(part)) is not None:
                    items = {row.metric for row in part.rows if _is_wanted(part, row.item, wanted)}
                    tables.append(values[values["metric"].isin(items)].assign(model=model.model_id))
    columns = ["model", "metric", "example_id", "value", "subject"]
    if not tables:
        return pd.DataFrame(columns=columns)
    values, subjects = pd.concat(tables, ignore_index=True), _subjects(folder)
    sets = {name: METRICS[name].sets[0].partition("/")[0] for name in values["metric"].unique()}
    keys = zip(values["metric"], values["example_id"].astype(str), strict=True)
    return values.assign(subject=[subjects.get((sets[metric], key)) for metric, key in keys])[columns]


def _subjects(folder: StudyFolder) -> dict[tuple[str, str], str]:
    """Subject of each example, keyed by the example's set and its id in the tables."""
    data = folder.keys.questions
    sets = {name: data.examples(name) for name in SETS} | {"entities": data.entities or data.forget}
    subjects = {(name, row.id): row.subject for name, rows in sets.items() for row in rows if row.subject}
    held_out = {("forget", f"holdout/{key}"): subject for (name, key), subject in subjects.items() if name == "holdout"}
    return subjects | held_out


@dataclass(frozen=True, kw_only=True)
class StudyFrames:
    """The tables for `uds_lens.meta`, with one row per model and metrics as columns."""

    pools: pd.DataFrame
    """Pool models, for `faithfulness`, `compare` and `thresholds`."""

    before: pd.DataFrame
    """Unlearned models, for `robustness` and `rank`; with `utility` and `utility_rel` if they were measured."""

    quantised: pd.DataFrame
    """The unlearned models, quantised to 4 bits."""

    relearned: pd.DataFrame
    """The unlearned models after relearning, one row per seed."""

    retain_before: pd.DataFrame
    """Retain models."""

    retain_relearned: pd.DataFrame
    """Retain models after relearning, one row per seed."""

    full: pd.DataFrame
    """The model trained on the forget set."""

    reasons: pd.DataFrame
    """Why values are NaN: `model`, `state`, `metric`, `reason`."""

    def tables(
        self, *, thresholds: pd.DataFrame | Mapping[str, float] | None = None, faithful: pd.DataFrame | None = None
    ) -> Tables:
        """Return the unlearned models and retain in all states, as input for `uds_lens.meta.robustness`.

        Args:
            thresholds: As in `uds_lens.meta.Tables`.
            faithful: As in `uds_lens.meta.Tables`.
        """
        states = ("before", "quantised", "relearned", "retain_before", "retain_relearned")
        measured = {name: getattr(self, name) for name in states}
        return Tables(**measured, thresholds=thresholds, faithful=faithful)


def frames(out: str | os.PathLike[str] | StudyFolder | pd.DataFrame, *, plan: Any = None) -> StudyFrames:
    """Arrange the values of a study in the tables that `uds_lens.meta` takes.

    `utility_rel` is the metric of that name if it was measured. Otherwise it is the harmonic mean of the plan's
    `utility` metrics divided by that of `full`, without a cap.

    Args:
        out: Directory of the study, or its long table.
        plan: The plan, if `out` is a table; a directory contains its plan.

    Returns:
        The tables; a state that was not measured has no rows.

    Raises:
        DataError: The table has two rows for the same model, state, seed and metric.
        ResultFormatError: There is no study, or it is broken.
    """
    if isinstance(out, pd.DataFrame):
        long, utility = out, tuple(plan.measure.utility) if plan is not None else ()
    else:
        folder = _opened(out)
        long, utility = table(folder), folder.plan.measure.utility
    twice = long.duplicated(["model_id", "state", "seed", "metric"])
    if twice.any():
        row = long[twice].iloc[0]
        raise DataError(f"the table has {row['metric']!r} of {row['model_id']!r} twice in the state {row['state']!r}.")

    def of(role: str, state: str) -> pd.DataFrame:
        return _wide(long[(long["role"] == role) & (long["state"] == state)])

    full = of("full", "before")
    undefined = long[long["value"].isna()].rename(columns={"model_id": "model"})
    return StudyFrames(
        pools=of("pool", "before"),
        before=with_utility(of("unlearned", "before"), full, utility),
        quantised=of("unlearned", "quantised"),
        relearned=of("unlearned", "relearned"),
        retain_before=with_utility(of("retain", "before"), full, utility),
        retain_relearned=of("retain", "relearned"),
        full=with_utility(full, full, utility),
        reasons=undefined[["model", "state", "metric", "reason"]],
    )


def with_utility(wide: pd.DataFrame, full: pd.DataFrame, parts: tuple[str, ...]) -> pd.DataFrame:
    """Add `utility`, the harmonic mean of `parts`, and `utility_rel`, its ratio to full's.

    Nothing is added if a metric of either name was measured. The new columns are NaN where a part is missing.
    """
    parts = tuple(name for name in parts if name not in ("utility", "utility_rel"))
    if not parts or {"utility", "utility_rel"} & set(wide.columns):
        return wide
    if not len(full) or not set(parts) <= set(wide.columns) & set(full.columns):
        return wide.assign(utility=math.nan, utility_rel=math.nan)

    utility, of_full = (harmonic_means(frame[list(parts)].to_numpy(dtype=float)) for frame in (wide, full))
    return wide.assign(utility=utility, utility_rel=utility / float(of_full[0]))


def _wide(long: pd.DataFrame) -> pd.DataFrame:
    facts = ["model", "knows", "variant", "run", "method", "config", "lr", "epochs"]
    renamed = long.rename(columns={"model_id": "model"})
    if not len(renamed):
        return renamed[facts].reset_index(drop=True)
    by = renamed.assign(_seed=renamed["seed"].astype("float").fillna(-1))
    values = by.pivot(index=["model", "_seed"], columns="metric", values="value")
    values = values[list(dict.fromkeys(renamed["metric"]))].reset_index()
    known = renamed.drop_duplicates("model")[facts]
    return known.merge(values.drop(columns="_seed"), on="model").rename_axis(columns=None)
