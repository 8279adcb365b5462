"""What made a model, method, base model and split: by its record, by its name, or by a table. Nothing is guessed."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import ConfigError, DataError, ResultFormatError, warn_once
from uds_lens.meta.model_table import ModelTable

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("method", "config", "lr", "epochs")
"""What is known of the making of a model."""

_METHOD = re.compile(r"forget\d+_([A-Za-z]+)(?=[_/]|$)")
_LR = re.compile(r"_lr(\d+(?:\.\d+)?(?:e-?\d+)?)(?=[_/]|$)")
_EPOCHS = re.compile(r"_(?:epoch|ep)(\d{1,4})(?=[_/]|$)")
_BASE = re.compile(r"tofu_(.+?)_(?:forget\d+|retain\d+|full)(?=[_/]|$)")
_SPLIT = re.compile(r"(?:^|[_/])(forget|retain)(\d+)(?=[_/]|$)")
_ROLES = {
    role: re.compile(rf"(?:^|[_/]){role}{number}(?=/|$)")
    for role, number in (("retain", r"\d*"), ("full", ""))
}
_WITHIN = re.compile(r"evals?(_.+)?|checkpoint-\d+")
"""Folders inside the folder of a task."""

_LARGEST_CONFIG = 1 << 20


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


def setup_of(folder: Path, name: str) -> tuple[str | None, str | None]:
    """Return the base model and the split of a run: by `.hydra/config.yaml` beside it, else by its name.

    The file says what was run, and the name what somebody called it: where they differ, the file is taken, with a
    warning.

    Args:
        folder: Of the results.
        name: The run's, as in `tofu_Llama-3.2-1B-Instruct_forget10_NPO`.

    Returns:
        As in `("Llama-3.2-1B-Instruct", "forget10")`; None where neither tells.

    Raises:
        ResultFormatError: The file is no YAML.

    Example:
        >>> setup_of(Path("nowhere"), "tofu_Llama-3.2-1B-Instruct_retain90")
        ('Llama-3.2-1B-Instruct', 'forget10')
    """
    named = _setup_in(name)
    found: list[str | None] = []
    for what, own, told in zip(("base model", "split"), named, _configured(folder), strict=True):
        if own and told and own.lower() != told.lower():
            warn_once(
                f"{name}: the name says {what} {own}, .hydra/config.yaml {told}, which is what was run and is taken."
            )
        found.append(told or own)
    return found[0], found[1]


def role_in(name: str) -> str | None:
    """Return which reference a run is by the end of its name: "retain", "full", or None.

    >>> role_in("tofu_X_retain90"), role_in("tofu_X_full/evals_forget05"), role_in("tofu_X_forget10_NPO")
    ('retain', 'full', None)
    """
    return next((role for role, form in _ROLES.items() if form.search(name)), None)


def is_within(folder: str) -> bool:
    """Return whether a folder's name is that of a part of a task (`evals`, `evals_forget10`, `checkpoint-80`).

    >>> is_within("evals_forget05"), is_within("tofu_X_full")
    (True, False)
    """
    return _WITHIN.fullmatch(folder) is not None


def _setup_in(name: str) -> tuple[str | None, str | None]:
    """What a name says; the split that retain90 goes with is forget10."""
    base = _BASE.search(name)
    splits = dict(_SPLIT.findall(name))
    split = f"forget{splits['forget']}" if "forget" in splits else None
    if split is None and "retain" in splits and int(splits["retain"]) < 100:
        split = f"forget{100 - int(splits['retain']):02d}"
    return base[1] if base else None, split


def _configured(folder: Path) -> tuple[str | None, str | None]:
    """What Hydra wrote beside a run: in its folder, or in that of the task where the results are in `evals`."""
    import yaml

    at = folder
    while not (at / ".hydra" / "config.yaml").is_file():
        if not is_within(at.name):
            return None, None
        at = at.parent
    place = at / ".hydra" / "config.yaml"
    try:
        if place.stat().st_size > _LARGEST_CONFIG:
            raise ValueError("more than 1 MiB")
        config = yaml.safe_load(place.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        text = " ".join(str(error).split())[:120]
        raise ResultFormatError(
            f"{str(place)!r} is no YAML ({text}): expected Hydra's record of the run."
        ) from error
    paths = [
        _text(config, "model", part, "pretrained_model_name_or_path")
        for part in ("tokenizer_args", "model_args")
    ]
    bases = [_setup_in(path)[0] for path in paths if path]
    tokenizer = PurePath(paths[0]).name if paths[0] else None
    split = _text(config, "forget_split") or _text(config, "eval", "tofu", "forget_split")
    return next((base for base in bases if base), tokenizer), split


def _text(config: Any, *keys: str) -> str | None:
    """A text in nested mappings; None where there is none, or one that stands for another (`${...}`)."""
    for key in keys:
        config = config.get(key) if isinstance(config, dict) else None
    return config if isinstance(config, str) and config and "${" not in config else None


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
