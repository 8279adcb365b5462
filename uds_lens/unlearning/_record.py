"""Configuration names, and `unlearning.json`, which records how a checkpoint was made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from uds_lens._storage.files import atomic_write_bytes, located
from uds_lens._storage.records import conform, plain, read_with_checksum, with_checksum
from uds_lens._types import FloatOrNaN
from uds_lens.errors import ConfigError, ResultFormatError
from uds_lens.results._records import versions
from uds_lens.unlearning._registry import METHODS, make_config, objective_named
from uds_lens.unlearning._settings import FinetuneConfig, MethodConfig, RelearnConfig

_ALWAYS = ("learning_rate", "beta", "alpha", "delta", "gamma", "layer", "scale", "epochs")
"""Fields that appear in every name, in this order, if the method has them; other fields appear only if changed."""

_WORDS, _FREE = ("schedule", "protocol", "reduction"), ("system_prompt", "chat_date", "template_kwargs")
"""Fields with a fixed set of words, and fields with free text, which is percent-encoded."""

_SHORT = {"learning_rate": "lr", "epochs": "epoch"}


def config_name(config: MethodConfig) -> str:
    """Return a readable name made of the method and its settings.

    The name always includes the learning rate, the method's weights and the epochs, plus any other settings that
    differ from the default. Equal configurations have equal names, and `parse_name` inverts this function.

    Args:
        config: Configuration of a method.

    Returns:
        A name that can also be used for a directory.

    Example:
        >>> from uds_lens.unlearning import NPOConfig
        >>> config_name(NPOConfig(learning_rate=2e-5))
        'npo_lr2e-05_beta0.1_alpha1_epoch10'
        >>> config_name(NPOConfig(seed=3))
        'npo_lr1e-05_beta0.1_alpha1_epoch10_seed3'
    """
    defaults = {field.name: field.default for field in fields(config)}
    shown = [name for name in _ALWAYS if name in defaults]
    shown += [name for name, default in defaults.items() if name not in shown and getattr(config, name) != default]
    return "_".join([config.method, *(_word(name) + _text(name, getattr(config, name)) for name in shown)])


def parse_name(name: str) -> MethodConfig:
    """Return the configuration for a name made by `config_name`.

    Args:
        name: A name such as `npo_lr2e-05_beta0.1_alpha1_epoch10`; settings that it omits have their defaults.

    Raises:
        ConfigError: The name does not start with a method, or contains a setting that the method does not have.

    Example:
        >>> parse_name("rmu_lr2e-05_layer10_scale10_epoch5").layer
        10
    """
    method, *parts = name.split("_")
    if method not in METHODS:
        raise ConfigError(f"{name!r} does not start with an unlearning method; the methods are {', '.join(METHODS)}.")
    names = {_word(field.name): field.name for field in fields(METHODS[method])}
    settings: dict[str, Any] = {}
    for part in parts:
        word = max((w for w in names if part.startswith(w)), key=len, default="")
        field, value = names.get(word), part.removeprefix(word)
        if field is None or not value or field in settings:
            raise ConfigError(
                f"{name!r}: {method} cannot read {part!r}. Its settings are {', '.join(names)}, each followed "
                "by a value."
            )
        settings[field] = unquote(value) if field in _FREE else value.replace("-", "_") if field in _WORDS else value
    return make_config(method, settings)


def _word(field: str) -> str:
    return _SHORT.get(field, field.replace("_", ""))


def _text(field: str, value: Any) -> str:
    if field == "learning_rate":  # shortest scientific notation that gives the same number, such as 2e-05
        return np.format_float_scientific(value, trim="-", exp_digits=2)
    if isinstance(value, float):
        return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
    if field in _FREE:
        return quote(str(value), safe="").replace("_", "%5F")
    return str(value).replace("_", "-")


FORMAT, VERSION = "uds_lens.training", 2  # published adapters have records of this version, which must stay readable

UNLEARNING_RECORD, RELEARNING_RECORD, FINETUNING_RECORD = "unlearning.json", "relearning.json", "finetuning.json"
"""File names of the records of unlearned, relearned and fine-tuned models."""


@dataclass(frozen=True, kw_only=True)
class _Members:
    """Fields of a record, with their types."""

    format: str
    version: int
    name: str
    method: str
    config: dict[str, str | int | float | bool | None]
    protocol: str
    seed: int
    lora: dict[str, Any] | None
    parent: dict[str, str]
    fingerprint: str
    data: dict[str, dict[str, str | int]]
    options: dict[str, str | int | bool | None]
    steps: int
    resumed_from_step: int | None
    device: str
    n_devices: int = 1
    visits: int | None = None
    loss_curve: tuple[dict[str, FloatOrNaN], ...]
    prob: tuple[dict[str, str | int | float | bool], ...] = ()
    seconds: float
    key: str
    depends_on: dict[str, Any]
    files: dict[str, tuple[str | int, ...]] | None = None
    created: str
    versions: dict[str, str]


def dated(config: MethodConfig) -> dict[str, Any]:
    """Return the fields of a record that identify the run, its time and the package versions."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": config_name(config),
        "method": config.method,
        "config": config.to_dict(),
        "seed": config.seed,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": versions("accelerate", "peft"),
    }


def write_record(record: Mapping[str, Any], file: Path) -> None:
    """Write a record with a checksum, and NaN as null."""
    atomic_write_bytes(file, with_checksum(plain(record)))


def read_record(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the record of a model made by `unlearn`, `relearn` or `finetune`.

    Args:
        directory: Directory of the saved model.

    Raises:
        ResultFormatError: There is no record, or it was altered or has an unsupported version.
    """
    files = [located(directory) / name for name in (UNLEARNING_RECORD, RELEARNING_RECORD, FINETUNING_RECORD)]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise ResultFormatError(
            f"no {UNLEARNING_RECORD} in {os.fspath(directory)!r}: expected a directory written by unlearn, relearn or "
            "finetune."
        )
    record = read_with_checksum(file, format=FORMAT, version=VERSION)
    conform(_Members, record, where=file.name)
    return record


def recorded_config(record: Mapping[str, Any]) -> MethodConfig:
    """Return the configuration in a record (see `read_record`).

    Raises:
        ConfigError: The method is unknown. For your own method, first import the file that declares it.
    """
    method = record["method"]
    plain = {cls.method: cls for cls in (RelearnConfig, FinetuneConfig)}
    cls = plain[method] if method in plain else objective_named(method).config
    return cls(**record["config"])
