"""Tables of models returned by readers, with reasons for missing values and the origin of each model."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from uds_lens._quoting import read_quoted
from uds_lens._storage.files import read_file
from uds_lens.errors import ConfigError, DataError, ResultFormatError, Setting, warn_once
from uds_lens.meta import _hydra as hydra
from uds_lens.meta._columns import MODELS, REASONS
from uds_lens.results._conditions import mixed


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelTable:
    """Models with their metrics, as returned by a reader."""

    frame: pd.DataFrame
    """One row per model: `model`, metrics by their names in `uds_lens.metrics.METRICS`, and the other columns of
    `COLUMNS["models"]` as far as known, such as `method`, `config`, `lr`, `epochs` and `utility_rel`."""

    reasons: pd.DataFrame
    """Why values are NaN: `model`, `metric`, `reason`."""

    source: str
    """Where it was read."""

    examples: pd.DataFrame | None = None
    """Values per example, if requested: `model`, `metric`, `example_id`, `value`, and `subject` if the results have
    subjects. Ids of an attack's holdout set begin with "holdout/". The retain model is called "retain", or
    "retain BASE SPLIT" if there are several."""

    references: pd.DataFrame | None = None
    """The models full and retain that were read along with the others; None if the reader did not look for them."""

    notes: tuple[str, ...] = ()
    """Notes about what was left out or decided."""

    def __len__(self) -> int:
        return len(self.frame)


@dataclass(frozen=True, eq=False, kw_only=True)
class Published(ModelTable):
    """Tables that the UDS paper's repository publishes."""

    metrics: pd.DataFrame
    """The paper's evaluation of 22 metrics, with the columns of `COLUMNS["published"]`."""

    references: pd.DataFrame
    """The models `full` and `retain`; `frame` holds only unlearned models."""


Setup: TypeAlias = tuple[str | None, str | None]
"""Base model and forget split; None if not known."""

SETUP = ("base", "split")  # columns of a setup


def setups(frame: pd.DataFrame) -> list[Setup]:
    """Return the base models and splits of a table, in order of appearance; None if not known."""
    return list(dict.fromkeys(_setups(frame)))


def _setups(frame: pd.DataFrame) -> list[Setup]:
    """Return the setup of each model."""
    known = frame.reindex(columns=list(SETUP)).astype(object)
    base, split = ([None if pd.isna(value) else str(value) for value in known[name]] for name in SETUP)
    return list(zip(base, split, strict=True))


def setup_name(setup: Sequence[str | None]) -> str:
    """Return a base model and a split in words.

    >>> setup_name(("Llama-3.2-1B", "forget10")), setup_name((None, None))
    ('Llama-3.2-1B, forget10', 'base model and split not known')
    """
    return ", ".join(filter(None, setup)) or "base model and split not known"


def retain_name(setup: Sequence[str | None]) -> str:
    """Return the name of a retain model among the values per example, if there are several."""
    return " ".join(["retain", *filter(None, setup)])


def require_one_setup(frame: pd.DataFrame) -> None:
    """Raise `DataError` unless all models have the same base model and split; otherwise they are not comparable."""
    several = setups(frame)
    if len(several) > 1:
        more = "; ..." if len(several) > 4 else ""
        shown = "; ".join(map(setup_name, several[:4]))
        raise DataError(
            f"the models have {len(several)} different base models and splits ({shown}{more}), so they cannot be "
            "configurations of one method. Choose with ",
            Setting("base"),
            " and ",
            Setting("split"),
            " (uds_lens.meta.select).",
        )
    require_same_conditions(frame)


def require_same_conditions(*frames: pd.DataFrame) -> None:
    """Raise `DataError` unless all models were measured in the same way, as far as the tables show."""
    if (difference := mixed(_by_model(*frames))) is not None:
        raise DataError(
            f"the models were not measured in the same way, so their numbers are not comparable: {difference}. "
            "Measure all of them in the same way, or leave out the models that differ."
        )


def conditions_in(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the conditions of each model of a table, from its column `conditions`; empty if it has none."""
    found: list[dict[str, Any]] = []
    for text in frame.get("conditions", [None] * len(frame)):
        try:
            read = {} if pd.isna(text) else json.loads(text)
        except (ValueError, TypeError, RecursionError):  # a column of this name that this library did not write
            read = str(text)
        found.append(read if isinstance(read, dict) else {"conditions": str(read)})
    return found


def conditions_note(frame: pd.DataFrame) -> tuple[str, ...]:
    """Return the sentence that marks a table of models that were not measured in the same way."""
    difference = mixed(_by_model(frame))
    return () if difference is None else (f"the models were not measured in the same way: {difference}",)


def _by_model(*frames: pd.DataFrame) -> Iterator[tuple[str, dict[str, Any]]]:
    for frame in frames:
        names = frame["model"] if "model" in frame.columns else frame.index
        yield from zip(map(str, names), conditions_in(frame), strict=True)


def select(table: ModelTable, *, base: str | None = None, split: str | None = None) -> ModelTable:
    """Choose the models of one base model, of one split, or of both.

    Args:
        table: What a reader returned.
        base: Value of the column `base`, ignoring case; by default any.
        split: Value of the column `split`, ignoring case; by default any.

    Returns:
        The rows, reasons and values per example of these models and of their retain model.

    Raises:
        DataError: There is no model of this base model and split.

    Example:
        >>> import pandas as pd
        >>> none = pd.DataFrame(columns=["model", "metric", "reason"])
        >>> models = pd.DataFrame({"model": ["a", "b"], "base": ["Llama", "Phi"], "split": ["forget10", "forget10"]})
        >>> select(ModelTable(frame=models, reasons=none, source="here"), base="phi").frame["model"].tolist()
        ['b']
    """
    wanted = [None if name is None else name.lower() for name in (base, split)]
    kept = [
        all(want in (None, str(value).lower()) for want, value in zip(wanted, setup, strict=True))
        for setup in _setups(table.frame)
    ]
    if not any(kept):
        there = "; ".join(map(setup_name, setups(table.frame)[:6])) or "no models"
        raise DataError(f"no model has {setup_name((base, split))}; the table has {there}.")
    return _rows(table, kept)


def of_setup(table: ModelTable, setup: Setup) -> ModelTable:
    """Return the models of exactly one setup (None is a setup too); its retain model is then called "retain"."""
    rows = _rows(table, [of_model == setup for of_model in _setups(table.frame)])
    if rows.examples is None:
        return rows
    names = rows.examples["model"].replace({retain_name(setup): "retain"})
    return replace(rows, examples=rows.examples.assign(model=names))


def _rows(table: ModelTable, kept: Sequence[bool]) -> ModelTable:
    frame = table.frame[list(kept)].reset_index(drop=True)
    removed = set(table.frame["model"].astype(str)) - set(frame["model"].astype(str))

    def without(rows: pd.DataFrame) -> pd.DataFrame:
        return rows[~rows["model"].astype(str).isin(removed)].reset_index(drop=True)

    examples = None if table.examples is None else without(table.examples)
    references = table.references
    if references is not None:
        there = setups(frame)
        kept = [any(may_be_one(setup, other) for other in there) for setup in _setups(references)]
        references = references[kept].reset_index(drop=True)
    return replace(table, frame=frame, reasons=without(table.reasons), examples=examples, references=references)


def may_be_one(one: Sequence[str | None], other: Sequence[str | None]) -> bool:
    """Return whether two setups may be the same; unknown entries match anything."""
    return all(a is None or b is None or a == b for a, b in zip(one, other, strict=True))


# Reading JSON written by other programs.

LARGEST = 1 << 30  # maximum size of a JSON file, in bytes

_KINDS: dict[type, str] = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number"}


def kind(value: Any) -> str:
    """Return the name of a JSON value's type.

    >>> kind([]), kind(None)
    ('a list', 'null')
    """
    return "null" if value is None else _KINDS.get(type(value), "a number")


def read_object(path: Path, *, expected: str) -> dict[str, Any]:
    """Read the object in a JSON file; `expected` describes it in the error message."""
    if not path.is_file():
        raise ResultFormatError(f"no file at {str(path)!r}: expected {expected}.")
    content = parse(read_file(path, most=LARGEST), where=repr(str(path)), expected=expected)
    if not isinstance(content, dict):
        raise ResultFormatError(f"{str(path)!r} holds {kind(content)}: expected {expected}, an object.")
    return content


def parse(text: bytes, *, where: str, expected: str) -> Any:
    """Read JSON written by other programs, which may contain NaN."""
    try:
        return json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError, MemoryError) as error:
        raise ResultFormatError(f"{where} is not JSON ({str(error)[:120]}): expected {expected}.") from error


def number(value: Any, *, where: str) -> float:
    """Check a number at `where` in a file; null becomes NaN, and other types raise `ResultFormatError`.

    >>> number(None, where="x"), number(3, where="x")
    (nan, 3.0)
    """
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ResultFormatError(f"{where} must be a number or null; got {kind(value)} {str(value)[:40]!r}.")
    if abs(value) > sys.float_info.max:
        raise ResultFormatError(f"{where} must be finite; got {str(value)[:40]}.")
    return float(value)


def member(content: Mapping[str, Any], name: str, shape: type, *, where: str) -> Any:
    """Return a member of an object that must exist and have one type."""
    value = content.get(name)
    if not isinstance(value, shape):
        there = kind(value) if name in content else "nothing"
        raise ResultFormatError(f"{where}: {name!r} must be {_KINDS[shape]}; got {there}.")
    return value


_TEXT = ("model", "variant", "run", "method", "config", "conditions")


def read_csv(path: str | os.PathLike[str]) -> ModelTable:
    """Read a table of models: a header, one row per model, empty cells for missing values.

    Args:
        path: The file. It needs a column `model`; `knows`, `variant`, `run`, `method`, `config`, `lr`, `epochs` and
            `utility_rel` have the meanings in `COLUMNS["models"]`; other numeric columns are metrics.

    Returns:
        The table; empty cells of metrics have a reason.

    Raises:
        DataError: The file is missing, empty or not a table; `model` is missing or not unique.

    Example:
        >>> read_csv("nowhere.csv")
        Traceback (most recent call last):
            ...
        uds_lens.errors.DataError: no file at 'nowhere.csv': expected a CSV with one row per model.
    """
    file = Path(path)
    if not file.is_file():
        raise DataError(f"no file at {str(file)!r}: expected a CSV with one row per model.")
    try:
        frame = pd.read_csv(file, dtype=dict.fromkeys(_TEXT, str), encoding="utf-8-sig")
    except (ValueError, OSError) as error:  # pandas' parser errors are ValueErrors
        raise DataError(f"{str(file)!r} is not a CSV table: {str(error)[:200]}") from error
    frame = read_quoted(frame)
    if "model" not in frame.columns or not len(frame):
        raise DataError(f"{str(file)!r} needs a header with the column 'model' and at least one row below it.")
    wrong = frame["model"].isna() | frame["model"].duplicated()
    if wrong.any():
        at = int(wrong.to_numpy().argmax())
        raise DataError(f"{str(file)!r}, row {at + 1}: 'model' must be unique; got {frame['model'].iloc[at]!r}.")
    metrics = [name for name in frame.columns if name not in MODELS and pd.api.types.is_numeric_dtype(frame[name])]
    empty = [(model, name, "empty in the file") for name in metrics for model in frame["model"][frame[name].isna()]]
    return ModelTable(frame=frame, reasons=pd.DataFrame(empty, columns=list(REASONS)), source=str(file))


# The origin of a model (method, configuration, base model, split) comes from its record, its name or a table, and is
# never guessed.

COLUMNS = ("method", "config", "lr", "epochs")  # columns about the origin of a model

_METHOD = re.compile(r"(?:forget\d+|muse_[^/]+?_(?:News|Books))_(?!retrain|target)([A-Za-z]+)(?=[_/]|$)")
_LR = re.compile(r"_lr(\d+(?:\.\d+)?(?:e-?\d+)?)(?=[_/]|$)")
_EPOCHS = re.compile(r"_(?:epoch|ep)(\d{1,4})(?=[_/]|$)")
_BASE = re.compile(r"(?:tofu_([^/]+?)_(?:forget\d+|retain\d+|full)|muse_([^/]+?)_(?:News|Books))(?=[_/]|$)")
_SPLIT = re.compile(r"(?:^|[_/])(forget|retain)(\d+)(?=[_/]|$)")
_MUSE = re.compile(r"(?:muse_[^/]+?_|MUSE-)(News|Books)(?=[_/]|$)")
_ROLES = {
    "retain": re.compile(r"(?:^|[_/])(?:retain\d*|retrain)(?=/|$)"),
    "full": re.compile(r"(?:^|[_/])(?:full|target)(?=/|$)"),
}
_POOL = re.compile(
    r"(?:^|/)(pos|neg)_tofu_[^/]+?_((?:full|retain\d+)(?:_[a-z]+\d*)*?)(_lr[^/_]+[^/]*?)?(?:_epoch\d+)?(?=/|$)"
)


def origin_by_name(name: str) -> dict[str, Any]:
    """Parse the name of an Open-Unlearning run or checkpoint: `method`, `config`, `lr`, `epochs`.

    >>> origin_by_name("unlearn_tofu_forget10_NPO_lr1e-05_epoch5")
    {'method': 'npo', 'config': 'lr1e-05_epoch5', 'lr': 1e-05, 'epochs': 5.0}
    >>> origin_by_name("my model")["method"] is None
    True
    """
    method, lr, epochs = _METHOD.search(name), _LR.search(name), _EPOCHS.search(name)
    known = method is not None and pool_in(name) is None
    return {
        "method": method[1].lower() if method and known else None,
        "config": name[method.end() :].lstrip("_") or None if method and known else None,
        "lr": float(lr[1]) if lr else math.nan,
        "epochs": float(epochs[1]) if epochs else math.nan,
    }


def pool_in(name: str) -> dict[str, Any] | None:
    """Parse the name of a model that Open-Unlearning trained to judge metrics: `knows`, `variant`, `run`.

    >>> pool_in("pos_tofu_X_retain90_forget10_bio_lr1e-05_wd0.01_epoch5")
    {'knows': True, 'variant': 'retain90_forget10_bio', 'run': 'pos_retain90_forget10_bio_lr1e-05_wd0.01'}
    >>> pool_in("tofu_X_forget10_NPO") is None
    True
    """
    match = _POOL.search(name)
    if match is None:
        return None
    side, variant, run = match[1], match[2], match[3] or ""
    return {"knows": side == "pos", "variant": variant, "run": f"{side}_{variant}{run}"}


def setup_of(folder: Path, name: str) -> Setup:
    """Return the base model and the split of a run, from `.hydra/config.yaml` next to it or else from its name.

    The file records the run, but the name can be chosen freely, so if they differ, the file is used, with a warning.

    Example:
        >>> setup_of(Path("nowhere"), "tofu_Llama-3.2-1B-Instruct_retain90")
        ('Llama-3.2-1B-Instruct', 'forget10')
    """
    named = _setup_in(name)
    setups = [recorded_setup(config) for config in hydra.configs(folder)]
    recorded = tuple(next((value for value in side if value), None) for side in zip(*setups, strict=True)) or (
        None,
        None,
    )
    for what, one, other in zip(("base model", "split"), named, recorded, strict=True):
        if one and other and one.lower() != other.lower():
            warn_once(f"{name}: the {what} is {one} in the name but {other} in .hydra/config.yaml; {other} is used.")
    return recorded[0] or named[0], recorded[1] or named[1]


def role_in(name: str) -> str | None:
    """Return which reference a run is, judging by the end of its name: "retain", "full", or None.

    >>> role_in("tofu_X_retain90"), role_in("tofu_X_full/evals_forget05"), role_in("tofu_X_forget10_NPO")
    ('retain', 'full', None)
    >>> role_in("muse_X_News_retrain"), role_in("muse_X_News_target")
    ('retain', 'full')
    """
    return next((role for role, form in _ROLES.items() if form.search(name)), None)


def _setup_in(name: str) -> Setup:
    """Parse base model and split from a name; retain90 belongs to forget10."""
    base, muse = _BASE.search(name), _MUSE.search(name)
    splits = dict(_SPLIT.findall(name))
    split = muse[1] if muse else f"forget{splits['forget']}" if "forget" in splits else None
    if split is None and "retain" in splits and int(splits["retain"]) < 100:
        split = f"forget{100 - int(splits['retain']):02d}"
    return (base[1] or base[2]) if base else None, split


def recorded_setup(config: hydra.Config) -> Setup:
    """Return the base model and the split that Hydra's record of a run names."""
    tokenizer = hydra.text(config, "model.tokenizer_args.pretrained_model_name_or_path")
    model = hydra.text(config, "model.model_args.pretrained_model_name_or_path")
    bases = [_setup_in(path)[0] for path in (tokenizer, model) if path]
    split = hydra.text(config, "data_split", "eval.muse.data_split", "forget_split", "eval.tofu.forget_split")
    return next((base for base in bases if base), PurePath(tokenizer).name if tokenizer else None), split


def origin(checkpoint: str, fingerprint: str, *, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return how a measured model was made, as far as this is known for certain.

    The first source is `unlearning.json` in the model's directory, if it describes the weights that were measured. The
    next sources are the parts of the checkpoint's path, then `names`, if they were made by
    `uds_lens.unlearning.config_name` or have Open-Unlearning's form (`tofu_..._forget10_NPO_...`).

    Example:
        >>> origin("ckpt/npo_lr2e-05_beta0.1_alpha1_epoch10", "0" * 32)["method"]
        'npo'
    """
    from uds_lens.unlearning import parse_name, read_record
    from uds_lens.unlearning._record import UNLEARNING_RECORD

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
    for part in (part for name in (checkpoint, *names) for part in reversed(PurePath(name).parts)):
        if "_lr" in part:
            try:
                parsed = parse_name(part)
            except ConfigError:  # not a name from `config_name`
                pass
            else:
                config = part.removeprefix(f"{parsed.method}_")
                values = (parsed.method, config, parsed.learning_rate, float(parsed.epochs))
                return dict(zip(COLUMNS, values, strict=True))
        if "tofu_" in part and (by_name := origin_by_name(part))["method"] is not None:
            return by_name
    return dict(zip(COLUMNS, (None, None, math.nan, math.nan), strict=True))


def join_methods(table: ModelTable, methods: Mapping[str, str] | str | os.PathLike[str]) -> ModelTable:
    """Set the methods of models from a table, which overrides their records and names.

    Args:
        table: Models.
        methods: A mapping from names of models to methods, or a CSV with the columns `model` and `method` and, where
            known, `config`, `lr` and `epochs`. Models that are not named there stay as they are.

    Returns:
        `table` with the columns filled from `methods`.

    Raises:
        DataError: `methods` names a model that is not in the table, or its file lacks a column.

    Example:
        >>> import pandas as pd
        >>> none = pd.DataFrame(columns=["model", "metric", "reason"])
        >>> models = ModelTable(frame=pd.DataFrame({"model": ["a", "b"]}), reasons=none, source="here")
        >>> join_methods(models, {"a": "npo"}).frame["method"].fillna("not known").tolist()
        ['npo', 'not known']
    """
    if isinstance(methods, Mapping):
        stated = pd.DataFrame({"model": list(methods), "method": list(methods.values())})
    else:
        stated = read_csv(methods).frame
        if "method" not in stated.columns:
            shown = ", ".join(str(name)[:30] for name in list(stated.columns)[:12])
            raise DataError(f"{str(methods)!r} needs the columns 'model' and 'method'; it has {shown}.")
    names = [str(name) for name in table.frame["model"]]
    if unknown := [name for name in stated["model"] if name not in names]:
        raise DataError(
            f"methods names {unknown[0]!r}, which is not in the table; it has {', '.join(names[:6])}"
            f"{', ...' if len(names) > 6 else ''}."
        )
    frame = table.frame.copy()
    for column in [name for name in COLUMNS if name in stated.columns]:
        new = stated.set_index("model")[column].dropna().to_dict()
        old = list(frame[column]) if column in frame.columns else [None] * len(names)
        frame[column] = [new.get(name, value) for name, value in zip(names, old, strict=True)]
    return replace(table, frame=frame)


def reasons_frame(reasons: Mapping[str, Mapping[str, str]]) -> pd.DataFrame:
    """Return the reasons for NaN values as a table with the columns of `COLUMNS["reasons"]`."""
    rows = [(model, metric, why) for model, by_metric in reasons.items() for metric, why in by_metric.items()]
    return pd.DataFrame(rows, columns=list(REASONS))


def harmonic_means(parts: np.ndarray) -> np.ndarray:
    """Compute harmonic means of numbers >= 0 along the last axis: `n / sum(1 / v)`; 0 if any is 0, NaN if any is NaN.

    >>> harmonic_means(np.array([[1.0, 0.5], [1.0, 0.0]])).round(3).tolist()
    [0.667, 0.0]
    """
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(parts.shape[-1] / (1 / parts).sum(-1))
