"""What a study measured: one long table, and its values per example."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import ConfigError
from uds_lens.storage import atomic_write_bytes, located, require_fresh
from uds_lens.study.study_folder import Part, StudyFolder
from uds_lens.study.study_models import StudyModel, StudyState

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {
    "model_id": "name of the model",
    "role": "full, retain, pool, unlearned or other",
    "variant": "kind of training, of a pool model",
    "run": "training run; checkpoints of one run are not independent",
    "method": "unlearning method",
    "config": "its settings, as text",
    "seed": "of the training; of the relearning in a relearned state",
    "state": "before, quantised or relearned",
    "metric": "name of the metric",
    "value": "its value; NaN where it is undefined",
    "reason": "why",
    "n": "examples with a value",
    "seconds": "wall time on the model",
    "fingerprint": "of the weights that were measured",
    "parent": "of the weights they were made of",
    "options_hash": "what was measured, and how",
    "data_hash": "what was asked",
    "knows": "pool: True was trained on the forget set, False never saw it",
    "lr": "learning rate",
    "epochs": "epochs",
}
"""Columns of the long table: one row per model, state and metric."""


@arguments_checked
def table(out: str | os.PathLike[str] | StudyFolder) -> pd.DataFrame:
    """Everything that was measured so far, of the models and metrics of the plan.

    Args:
        out: Directory of the study.

    Returns:
        One row per model, state, seed and metric, columns as in `uds_lens.study.COLUMNS`, in the order of the plan.

    Raises:
        ResultFormatError: There is no study, or it is broken.
    """
    import pandas as pd

    folder = out if isinstance(out, StudyFolder) else StudyFolder(out)
    rows = [
        row
        for model in sorted(folder.models, key=lambda each: each.model_id)
        for state in model.states
        for row in _rows(folder, model, state)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(
        {"knows": "object", "seed": "Int64", "n": "int64"}
    )


@arguments_checked
def write_table(found: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write a long table, whole or not at all.

    Args:
        found: From `table`.
        path: File that ends in .parquet or .csv.

    Raises:
        ConfigError: It ends otherwise.
        ResultFormatError: Something that is no such table stands there.
    """
    place = located(path)
    begins: bytes | None
    if place.suffix == ".csv":
        content, begins = found.to_csv(index=False).encode(), b"model_id,role,variant,run,"
    elif place.suffix == ".parquet":
        content = found.astype({"knows": "boolean"}).to_parquet(index=False)
        begins = b"PAR1" if _is_long_table(place) else None
    else:
        raise ConfigError(f"a table is written as .parquet or .csv; got {place.name[-60:]!r}.")
    atomic_write_bytes(require_fresh(place, directory=False, begins=begins), content)


def _is_long_table(place: Path) -> bool:
    """Whether a Parquet file has the columns of the long table."""
    from pyarrow import ArrowException, parquet

    try:
        return place.is_file() and parquet.read_schema(place).names[: len(COLUMNS)] == list(COLUMNS)
    except (OSError, ArrowException):
        return False


@arguments_checked
def examples_table(out: str | os.PathLike[str] | StudyFolder) -> pd.DataFrame:
    """Values per example of unlearned models before anything was done to them, for `uds_lens.meta.stability`.

    Args:
        out: Directory of the study.

    Returns:
        `model`, `metric`, `example_id`, `value`, `subject` (None where the data name none); retain's are among them.

    Raises:
        ResultFormatError: There is no study, or it is broken.
    """
    import pandas as pd

    from uds_lens.metrics import METRICS

    folder = out if isinstance(out, StudyFolder) else StudyFolder(out)
    frames = []
    for model in folder.models:
        if model.role in ("unlearned", "retain"):
            state = StudyState("before")
            wanted = folder.keys.accepted(model, state)
            for part in folder.parts(model, state):
                frame = folder.examples(part)
                if frame is not None:
                    items = {row.metric for row in part.rows if _is_wanted(part, row.item, wanted)}
                    frames.append(frame[frame["metric"].isin(items)].assign(model=model.model_id))
    columns = ["model", "metric", "example_id", "value", "subject"]
    if not frames:
        return pd.DataFrame(columns=columns)
    found, subjects = pd.concat(frames, ignore_index=True), _subjects(folder)
    sets = {name: METRICS[name].sets[0].partition("/")[0] for name in found["metric"].unique()}
    keys = zip(found["metric"], found["example_id"].astype(str), strict=True)
    return found.assign(subject=[subjects.get((sets[metric], key)) for metric, key in keys])[columns]


def _subjects(folder: StudyFolder) -> dict[tuple[str, str], str]:
    """Subject of each example, by its set and its name in the tables."""
    asked = folder.keys.asked.sets
    named = {**asked, "entities": asked["forget"] if asked["entities"] is None else asked["entities"]}
    found = {
        (name, example.id): example.subject
        for name, rows in named.items()
        for example in rows or ()
        if example.subject
    }
    holdout = {
        ("forget", f"holdout/{key}"): subject for (name, key), subject in found.items() if name == "holdout"
    }
    return found | holdout


def _rows(folder: StudyFolder, model: StudyModel, state: StudyState) -> Iterator[dict[str, Any]]:
    wanted = folder.keys.accepted(model, state)
    seen: set[str] = set()
    config = model.config
    for part in folder.parts(model, state):
        for row in part.rows:
            if row.metric in seen or not _is_wanted(part, row.item, wanted):
                continue
            seen.add(row.metric)
            yield {
                "model_id": model.model_id,
                "role": model.role,
                "variant": model.variant,
                "run": model.run,
                "method": model.method,
                "config": model.config_text,
                "seed": state.seed if state.seed is not None else config.seed if config is not None else None,
                "state": state.state,
                "metric": row.metric,
                "value": row.value,
                "reason": row.reason,
                "n": row.n,
                "seconds": row.seconds,
                "fingerprint": part.fingerprint,
                "parent": part.parent,
                "options_hash": folder.keys.options_hash(row.item),
                "data_hash": folder.keys.data_hash,
                "knows": model.knows,
                "lr": math.nan if config is None else config.learning_rate,
                "epochs": math.nan if config is None else config.epochs,
            }


def _is_wanted(part: Part, item: str, wanted: Mapping[str, frozenset[str]]) -> bool:
    return item in wanted and part.keys.get(item) in wanted[item]
