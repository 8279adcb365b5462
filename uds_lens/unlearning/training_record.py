"""`unlearning.json`: what a checkpoint is and how it came about."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import ResultFormatError
from uds_lens.results.records import versions
from uds_lens.storage import atomic_write_bytes, conform, located, plain, read_sealed, sealed
from uds_lens.unlearning.lora import LoraSettings
from uds_lens.unlearning.method_config import MethodConfig
from uds_lens.unlearning.method_names import config_name
from uds_lens.unlearning.methods import method_class
from uds_lens.unlearning.relearning import RelearnConfig

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
    loss_curve: tuple[dict[str, float], ...]
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


@arguments_checked
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


@arguments_checked
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
