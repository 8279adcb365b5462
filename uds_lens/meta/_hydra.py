"""Hydra's record of an Open-Unlearning run: `.hydra/config.yaml` in the run's folder or in its task's folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from uds_lens.errors import ResultFormatError

Config: TypeAlias = Mapping[str, Any]

_WITHIN = re.compile(r"evals?(_.+)?|checkpoint-\d+")
_LARGEST = 1 << 20
_REFERENCE = re.compile(r"\$\{([^${}]+)\}")


def is_within(folder: str) -> bool:
    """Return whether a folder has the name of a task's subfolder (`evals`, `evals_forget10`, `checkpoint-80`).

    >>> is_within("evals_forget05"), is_within("tofu_X_full")
    (True, False)
    """
    return _WITHIN.fullmatch(folder) is not None


def task_folder(folder: Path) -> Path:
    """Return the task folder that a folder belongs to.

    >>> task_folder(Path("saves/unlearn/task/checkpoint-80/evals")).as_posix()
    'saves/unlearn/task'
    """
    while is_within(folder.name):
        folder = folder.parent
    return folder


def configs(folder: Path) -> list[Config]:
    """Read the records in a folder and its parents up to the task's folder, the nearest first."""
    task = task_folder(folder)
    places = [folder, *(parent for parent in folder.parents if parent == task or task in parent.parents)]
    return [config for place in dict.fromkeys(places) if (config := read_config(place)) is not None]


def read_config(folder: Path) -> Config | None:
    """Read the record of one folder; None if the folder has no record, or if the record is not an object."""
    import yaml

    place = folder / ".hydra" / "config.yaml"
    if not place.is_file():
        return None
    try:
        if place.stat().st_size > _LARGEST:
            raise ValueError("more than 1 MiB")
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader, if PyYAML has it, is ten times faster
        config = yaml.load(place.read_text(encoding="utf-8"), Loader=loader)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        text = " ".join(str(error).split())[:120]
        raise ResultFormatError(f"{str(place)!r} is not YAML ({text}): expected Hydra's record of the run.") from error
    return config if isinstance(config, dict) else None


def value(config: Config, path: str, deepest: int = 8) -> Any:
    """Return the value at a path of keys, with references (`${forget_split}`) resolved; None if there is none.

    References may be nested up to `deepest` levels.

    >>> value({"split": "News", "model": {"path": "muse-bench/MUSE-${split}_target"}}, "model.path")
    'muse-bench/MUSE-News_target'
    >>> value({"a": "${b}", "b": "${a}"}, "a") is None
    True
    """
    there: Any = config
    for key in path.split("."):
        there = there.get(key) if isinstance(there, dict) else None
    if not isinstance(there, str) or "${" not in there:
        return there
    parts = {name: value(config, name, deepest - 1) if deepest else None for name in _REFERENCE.findall(there)}
    if whole := _REFERENCE.fullmatch(there):
        return parts[whole[1]]
    if not parts or any(not isinstance(part, str | int | float) for part in parts.values()):
        return None
    return _REFERENCE.sub(lambda match: str(parts[match[1]]), there)


def text(config: Config, *paths: str) -> str | None:
    """Return the first non-empty text among the values at the given paths."""
    values = (value(config, path) for path in paths)
    return next((value for value in values if isinstance(value, str) and value), None)
