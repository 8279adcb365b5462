"""All errors and warnings of the library.

Each message says what was expected, what was found, and how to fix it. Catch `UdsLensError` to catch them all.

A message is a text, or several parts, some of which may be a `Setting`: `ConfigError(Setting("tau"), " must be >=
0.")`. In Python a setting reads `RunOptions(token_budget=...)`; the command line says `--token-budget` instead.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

__all__ = [
    "ConfigError",
    "DataError",
    "IncompatibleModelsError",
    "MissingDependencyError",
    "MissingSplitError",
    "ModelBusyError",
    "ModelError",
    "PatchError",
    "ResultFormatError",
    "Setting",
    "StorageError",
    "UdsLensError",
    "UdsLensWarning",
    "forget_warnings",
    "warn_once",
]


class _Unsaid(Enum):
    """Placeholder for a value that the message does not mention."""

    VALUE = auto()


@dataclass(frozen=True)
class Setting:
    """A setting mentioned in a message; each front end writes it in its own way.

    Example:
        >>> print(Setting("tau"), Setting("dtype", "float32"), Setting("token_budget", of="RunOptions"), sep="; ")
        tau; dtype='float32'; RunOptions(token_budget=...)
    """

    name: str
    """Its name in Python."""

    value: object = _Unsaid.VALUE
    """The value mentioned; `...` means any value; by default, only the setting itself is mentioned."""

    of: str | None = None
    """The record it belongs to, if this is not obvious."""

    @property
    def has_value(self) -> bool:
        """Whether one particular value is meant."""
        return self.value is not _Unsaid.VALUE and self.value is not ...

    def __str__(self) -> str:
        if self.value is _Unsaid.VALUE and self.of is None:
            return self.name
        written = f"{self.name}={self.value!r}" if self.has_value else f"{self.name}=..."
        return written if self.of is None else f"{self.of}({written})"


class _InParts:
    """Base class that keeps the parts of a message and shows them as text."""

    args: tuple[object, ...]

    def __str__(self) -> str:
        return self.worded(str)

    def worded(self, say: Callable[[Setting], str]) -> str:
        """Return the message, with each setting as `say` writes it."""
        return "".join(say(part) if isinstance(part, Setting) else str(part) for part in self.args)


class UdsLensError(_InParts, Exception):
    """Base class of every error raised by `uds_lens`."""


class ConfigError(UdsLensError, ValueError):
    """An option has a value outside its range, or an option of that name does not exist."""


class DataError(UdsLensError, ValueError):
    """A file, table or example cannot be read as unlearning data."""


class MissingSplitError(DataError):
    """A data set can be read but has no split of that name."""


class ModelError(UdsLensError, ValueError):
    """A checkpoint cannot be opened, hooked or scored."""


class IncompatibleModelsError(ModelError):
    """The checkpoints of one audit differ where they must agree (architecture, depth, width, tokenizer)."""


class ModelBusyError(ModelError):
    """An open model is asked to run while another thread runs it."""


class PatchError(UdsLensError, RuntimeError):
    """A patch was not applied, or changed nothing where it should have."""


class ResultFormatError(UdsLensError, ValueError):
    """A saved result is missing, incomplete, altered, or of a version this release cannot read."""


class StorageError(UdsLensError, OSError):
    """The system refuses to write: the disk is full, permission is denied, or the directory does not exist."""


class MissingDependencyError(UdsLensError, ImportError):
    """An optional package is missing."""


class UdsLensWarning(_InParts, UserWarning):
    """Something worth knowing that does not stop the work."""


_seen: set[str] = set()


def warn_once(*message: str | Setting, key: str | None = None) -> None:
    """Warn with `UdsLensWarning`, at most once per process for the same `key` (default: the message)."""
    warning = UdsLensWarning(*message)
    key = str(warning) if key is None else key
    if key in _seen:
        return
    _seen.add(key)
    warnings.warn(warning, stacklevel=3)


def forget_warnings() -> None:
    """Let every `warn_once` warn again (for tests and long-lived notebooks)."""
    _seen.clear()
