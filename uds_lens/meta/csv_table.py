"""A table of models from a CSV file."""

from __future__ import annotations

import os
from pathlib import Path

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import DataError
from uds_lens.meta.json_files import LARGEST
from uds_lens.meta.model_table import ModelTable
from uds_lens.meta.required_columns import MODELS, REASONS

_TEXT = ("model", "variant", "run", "method", "config")


@arguments_checked
def read_csv(path: str | os.PathLike[str]) -> ModelTable:
    """Read a table of models: one row per model, a header, an empty cell where there is no value.

    Args:
        path: The file. It needs a column `model`; `knows`, `variant`, `run`, `method`, `config`, `lr`, `epochs` and
            `utility_rel` mean what `uds_lens.meta.MODELS` says; other columns of numbers are metrics.

    Returns:
        The table; empty cells of metrics have a reason.

    Raises:
        DataError: The file is missing, empty or no table; `model` is missing or not unique.

    Example:
        >>> read_csv("nowhere.csv")
        Traceback (most recent call last):
            ...
        uds_lens.errors.DataError: no file at 'nowhere.csv': expected a CSV with one row per model.
    """
    import pandas as pd

    file = Path(path)
    if not file.is_file():
        raise DataError(f"no file at {str(file)!r}: expected a CSV with one row per model.")
    if file.stat().st_size > LARGEST:
        raise DataError(
            f"{str(file)!r} is larger than {LARGEST >> 20} MiB: expected a table with one row per model."
        )
    try:
        frame = pd.read_csv(file, dtype=dict.fromkeys(_TEXT, str), encoding="utf-8-sig")
    except (ValueError, OSError) as error:  # pandas' parser errors are ValueErrors
        raise DataError(f"{str(file)!r} is no CSV table: {str(error)[:200]}") from error
    if "model" not in frame.columns or not len(frame):
        raise DataError(
            f"{str(file)!r} needs a header with the column 'model' and at least one row below it."
        )
    wrong = frame["model"].isna() | frame["model"].duplicated()
    if wrong.any():
        at = int(wrong.to_numpy().argmax())
        raise DataError(
            f"{str(file)!r}, row {at + 1}: 'model' must be unique; got {frame['model'].iloc[at]!r}."
        )
    metrics = [
        name for name in frame.columns if name not in MODELS and pd.api.types.is_numeric_dtype(frame[name])
    ]
    rows = [
        {"model": model, "metric": name, "reason": "empty in the file"}
        for name in metrics
        for model in frame["model"][frame[name].isna()]
    ]
    return ModelTable(frame=frame, reasons=pd.DataFrame(rows, columns=list(REASONS)), source=str(file))
