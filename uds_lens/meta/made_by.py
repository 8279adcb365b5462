"""Which unlearning method made a model: by its record, by its name, or by a table. Nothing is guessed."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import ConfigError, DataError
from uds_lens.meta.model_table import ModelTable

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("method", "config", "lr", "epochs")
"""What is known of the making of a model."""

_METHOD = re.compile(r"forget\d+_([A-Za-z]+)(?=[_/]|$)")
_LR = re.compile(r"_lr(\d+(?:\.\d+)?(?:e-?\d+)?)(?=[_/]|$)")
_EPOCHS = re.compile(r"_(?:epoch|ep)(\d{1,4})(?=[_/]|$)")


def told_by_name(name: str) -> dict[str, Any]:
    """What the name of an Open-Unlearning run or checkpoint says about it: `method`, `config`, `lr`, `epochs`.

    >>> told_by_name("unlearn_tofu_forget10_NPO_lr1e-05_epoch5")
    {'method': 'npo', 'config': 'lr1e-05_epoch5', 'lr': 1e-05, 'epochs': 5.0}
    >>> told_by_name("my model")["method"] is None
    True
    """
    method = _METHOD.search(name)
    found: dict[str, Any] = {"method": method[1].lower() if method else None}
    found["config"] = name[method.end() :].lstrip("_") or None if method else None
    lr, epochs = _LR.search(name), _EPOCHS.search(name)
    found["lr"] = float(lr[1]) if lr else math.nan
    found["epochs"] = float(epochs[1]) if epochs else math.nan
    return found


def made_by(checkpoint: str, fingerprint: str, *, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """How a measured model was made, as far as it is certain.

    The first that knows: `unlearning.json` in the model's directory, if it speaks of the weights that were measured;
    a part of the path that `uds_lens.unlearning.config_name` made, or that has Open-Unlearning's form
    (`tofu_..._forget10_NPO_...`), of the checkpoint or of one of `names`.

    Args:
        checkpoint: Path or Hub id of the model.
        fingerprint: Of the weights that were measured.
        names: Other names of the model, for example that of the file with its results.

    Returns:
        `method`, `config`, `lr`, `epochs`; None and NaN where nothing tells.

    Raises:
        ResultFormatError: The record beside the model was altered or is of another version.

    Example:
        >>> made_by("ckpt/npo_lr2e-05_beta0.1_alpha1_epoch10", "0" * 32)["method"]
        'npo'
    """
    from uds_lens.unlearning import read_record
    from uds_lens.unlearning.training_record import UNLEARNING_RECORD

    if (Path(checkpoint) / UNLEARNING_RECORD).is_file():
        record = read_record(checkpoint)
        if record["fingerprint"] == fingerprint:
            config = record["config"]
            return {
                "method": record["method"],
                "config": record["name"].removeprefix(f"{record['method']}_"),
                "lr": float(config.get("learning_rate") or math.nan),
                "epochs": float(config.get("epochs") or math.nan),
            }
    for name in (checkpoint, *names):
        for part in reversed(PurePath(name).parts):
            told = _by_our_name(part) or (told_by_name(part) if "tofu_" in part else None)
            if told is not None and told["method"] is not None:
                return told
    return dict(zip(COLUMNS, (None, None, math.nan, math.nan), strict=True))


def _by_our_name(part: str) -> dict[str, Any] | None:
    """What a part of a path says that is the name of a configuration of ours."""
    from uds_lens.unlearning import parse_name

    if "_lr" not in part:
        return None
    try:
        config = parse_name(part)
    except ConfigError:
        return None
    return {
        "method": config.method,
        "config": part.removeprefix(f"{config.method}_"),
        "lr": config.learning_rate,
        "epochs": float(config.epochs),
    }


@arguments_checked
def join_methods(table: ModelTable, methods: Mapping[str, str] | str | os.PathLike[str]) -> ModelTable:
    """Say which method made each model; what is said replaces what a record or a name told.

    Args:
        table: Models.
        methods: Name of a model to its method; or a CSV with the columns `model` and `method`, and `config`, `lr`,
            `epochs` where they are known. Models it does not name stay as they are.

    Returns:
        `table` with the columns that `methods` fills.

    Raises:
        DataError: It names a model that is not in the table, or the file lacks a column.

    Example:
        >>> import pandas as pd
        >>> none = pd.DataFrame(columns=["model", "metric", "reason"])
        >>> models = ModelTable(frame=pd.DataFrame({"model": ["a", "b"]}), reasons=none, source="here")
        >>> join_methods(models, {"a": "npo"}).frame["method"].fillna("not known").tolist()
        ['npo', 'not known']
    """
    said = _said(methods)
    names = [str(name) for name in table.frame["model"]]
    unknown = [name for name in said["model"] if name not in names]
    if unknown:
        raise DataError(
            f"methods names {unknown[0]!r}, which is not there; there are {', '.join(names[:6])}"
            f"{', ...' if len(names) > 6 else ''}."
        )
    frame = table.frame.copy()
    for column in COLUMNS:
        if column not in said.columns:
            continue
        new = {
            name: value
            for name, value in zip(said["model"], said[column], strict=True)
            if value is not None and value == value
        }
        old = list(frame[column]) if column in frame.columns else [None] * len(names)
        frame[column] = [new.get(name, value) for name, value in zip(names, old, strict=True)]
    return ModelTable(frame=frame, reasons=table.reasons, source=table.source, examples=table.examples)


def _said(methods: Mapping[str, str] | str | os.PathLike[str]) -> pd.DataFrame:
    import pandas as pd

    if isinstance(methods, Mapping):
        return pd.DataFrame({"model": list(methods), "method": list(methods.values())})
    from uds_lens.meta.csv_table import read_csv

    said = read_csv(methods).frame
    if "method" not in said.columns:
        shown = ", ".join(map(str, list(said.columns)[:12]))
        raise DataError(f"{str(methods)!r} needs the columns 'model' and 'method'; it has {shown}.")
    return said
