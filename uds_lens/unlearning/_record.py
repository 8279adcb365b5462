"""`unlearning.json`: what a checkpoint is and how it came about."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from uds_lens._storage import (
    atomic_write_bytes,
    conform,
    located,
    plain,
    read_sealed,
    sealed,
)
from uds_lens._types import FloatOrNaN
from uds_lens.errors import ConfigError, ResultFormatError
from uds_lens.results._records import versions
from uds_lens.unlearning._configs import MethodConfig
from uds_lens.unlearning._job import LoraSettings
from uds_lens.unlearning._registry import METHODS, make_config, method_class
from uds_lens.unlearning._relearning import RelearnConfig

# Names that say what a run was, and read back as its configuration.

_ALWAYS = ("learning_rate", "beta", "alpha", "delta", "gamma", "layer", "scale", "epochs")
"""Fields that every name shows, where the method has them, in this order; others only where they differ."""

_WORDS, _FREE = ("schedule", "protocol", "reduction"), ("system_prompt", "chat_date")
"""Fields with words of ours, and with any text, which is written as in an address: `%20` for a space."""

_SHORT = {"learning_rate": "lr", "epochs": "epoch"}


def config_name(config: MethodConfig) -> str:
    """A readable name: the method, then its settings.

    Learning rate, the method's own weights and the epochs are always there; other settings only where they differ
    from the default. Equal configurations have equal names, and `parse_name` brings the configuration back.

    Args:
        config: Configuration of a method.

    Returns:
        A name that is also fit for a directory.

    Example:
        >>> from uds_lens.unlearning import NPOConfig
        >>> config_name(NPOConfig(learning_rate=2e-5))
        'npo_lr2e-05_beta0.1_alpha1_epoch10'
        >>> config_name(NPOConfig(seed=3))
        'npo_lr1e-05_beta0.1_alpha1_epoch10_seed3'
    """
    names = [field.name for field in fields(config)]
    shown = [name for name in _ALWAYS if name in names]
    changed = [
        name for name in names if name not in shown and getattr(config, name) != _default(config, name)
    ]
    parts = [f"{_word(name)}{_text(name, getattr(config, name))}" for name in [*shown, *changed]]
    return "_".join([config.method, *parts])


def parse_name(name: str) -> MethodConfig:
    """The configuration behind a name made by `config_name`.

    Args:
        name: For example `npo_lr2e-05_beta0.1_alpha1_epoch10`; settings that are not named have their defaults.

    Returns:
        The configuration of the method.

    Raises:
        ConfigError: The name starts with no method, or names a setting the method does not have.

    Example:
        >>> parse_name("rmu_lr2e-05_layer10_scale10_epoch5").layer
        10
    """
    method, *parts = name.split("_")
    if method not in METHODS:
        raise ConfigError(f"{name!r} starts with no unlearning method; there are {', '.join(METHODS)}.")
    words = {_word(field.name): field.name for field in fields(METHODS[method])}
    settings: dict[str, Any] = {}
    for part in parts:
        word = next((w for w in sorted(words, key=len, reverse=True) if part.startswith(w)), None)
        value = part.removeprefix(word or "")
        if word is None or not value or words[word] in settings:
            raise ConfigError(
                f"{name!r}: {method} cannot read {part!r}. It has {', '.join(words)}, each followed by a value."
            )
        field = words[word]
        settings[field] = (
            unquote(value) if field in _FREE else value.replace("-", "_") if field in _WORDS else value
        )
    return make_config(method, settings)


def _word(field: str) -> str:
    return _SHORT.get(field, field.replace("_", ""))


def _default(config: MethodConfig, name: str) -> Any:
    field = next(field for field in fields(config) if field.name == name)
    return None if field.default is MISSING else field.default


def _text(field: str, value: Any) -> str:
    if field == "learning_rate":
        return _scientific(value)
    if isinstance(value, float):
        return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
    if field in _FREE:
        return quote(str(value), safe="").replace("_", "%5F")
    return str(value).replace("_", "-")


def _scientific(value: float) -> str:
    """The shortest scientific form that reads back as the same number: 2e-05."""
    number = Decimal(repr(value)).normalize()
    digits = "".join(map(str, number.as_tuple().digits))
    mantissa = digits[0] + (f".{digits[1:]}" if len(digits) > 1 else "")
    return f"{mantissa}e{number.adjusted():+03d}"


FORMAT, VERSION = "uds_lens.training", 2

UNLEARNING_RECORD, RELEARNING_RECORD = "unlearning.json", "relearning.json"
"""Names of the record in the directory of an unlearned and of a relearned model."""


@dataclass(frozen=True, kw_only=True)
class _Members:
    """Kinds of what a record holds; members with a default are missing from records of version 1."""

    format: str
    version: int
    name: str
    method: str
    config: dict[str, str | int | float | bool | None]
    protocol: str = ""
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
    seconds: float
    key: str
    depends_on: dict[str, Any] | None = None
    files: dict[str, tuple[str | int, ...]] | None = None
    created: str
    versions: dict[str, str]


def make_record(
    config: MethodConfig,
    *,
    protocol: str,
    key: str,
    depends_on: Mapping[str, Any],
    parent: Mapping[str, str],
    data: Mapping[str, Mapping[str, Any]],
    lora: LoraSettings | None,
    options: Mapping[str, Any],
    training: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything about a finished run as plain values."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": config_name(config),
        "method": config.method,
        "config": config.to_dict(),
        "protocol": protocol,
        "seed": config.seed,
        "lora": None if lora is None else asdict(lora),
        "parent": dict(parent),
        "data": {side: dict(values) for side, values in data.items()},
        "options": dict(options),
        **training,
        "key": key,
        "depends_on": dict(depends_on),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": versions("accelerate", "peft"),
    }


def write_record(record: Mapping[str, Any], file: Path) -> None:
    """Write a record with its seal; numbers that are none become null."""
    atomic_write_bytes(file, sealed(plain(record)))


def read_record(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """The record of a model made by `unlearn` or `relearn`.

    Args:
        directory: Where the model was saved.

    Returns:
        Its record.

    Raises:
        ResultFormatError: There is none, it was altered, or it is of another version.
    """
    place = located(directory)
    found = [place / name for name in (UNLEARNING_RECORD, RELEARNING_RECORD) if (place / name).is_file()]
    if not found:
        raise ResultFormatError(
            f"no {UNLEARNING_RECORD} in {os.fspath(directory)!r}: expected a directory written by unlearn or relearn."
        )
    record = read_sealed(found[0], format=FORMAT, versions=(1, VERSION), unsealed_versions=(1,))
    conform(_Members, record, where=found[0].name)
    return record


def counted_twice(record: Mapping[str, Any]) -> bool:
    """Return whether a run of several processes took visits of its first batch again to fill its last one.

    So did version 0.1.0 (accelerate does it by itself), whose records don't hold the number of visits.
    """
    n_devices, config = record.get("n_devices", 1), record["config"]
    if n_devices == 1 or record.get("visits") is not None:
        return False
    share = record["options"].get("device_batch_size") or config["batch_size"] // n_devices
    return bool(record["data"]["forget"]["n"] * config["epochs"] % (share * n_devices))


def recorded_config(record: Mapping[str, Any]) -> MethodConfig:
    """The configuration in a record.

    Args:
        record: From `read_record`.

    Returns:
        The configuration a run was started with.

    Raises:
        ConfigError: No such method: one of your own is known once the file that declares it is imported.
    """
    cls = RelearnConfig if record["method"] == RelearnConfig.method else method_class(record["method"])
    return cls(**record["config"])
