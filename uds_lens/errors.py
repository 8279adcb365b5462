"""All errors and warnings of the library.

Each message says what was expected, what was found, and how to fix it. Catch `UdsLensError` to handle all errors.

A message is a string or several parts, which may include settings: `ConfigError(Setting("tau"), " must be >= 0.")`.
Python shows a setting as `RunOptions(token_budget=...)`, the command line as `--token-budget`.
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
    """A setting mentioned in a message; Python and the command line each show it in their own syntax.

    Example:
        >>> print(Setting("tau"), Setting("dtype", "float32"), Setting("token_budget", of="RunOptions"), sep="; ")
        tau; dtype='float32'; RunOptions(token_budget=...)
    """

    name: str
    """The name of the setting in Python."""

    value: object = _Unsaid.VALUE
    """The value to show, or `...` for any value; by default, only the name is shown."""

    of: str | None = None
    """The class that the setting belongs to, if the message should name the class."""

    @property
    def has_value(self) -> bool:
        """Whether a particular value is shown."""
        return self.value is not _Unsaid.VALUE and self.value is not ...

    def __str__(self) -> str:
        if self.value is _Unsaid.VALUE and self.of is None:
            return self.name
        written = f"{self.name}={self.value!r}" if self.has_value else f"{self.name}=..."
        return written if self.of is None else f"{self.of}({written})"


class _InParts:
    """Keeps a message as parts, and joins them when it is shown."""

    args: tuple[object, ...]

    def __str__(self) -> str:
        return self.worded(str)

    def worded(self, say: Callable[[Setting], str]) -> str:
        """Return the message, with each setting formatted by `say`."""
        return "".join(say(part) if isinstance(part, Setting) else str(part) for part in self.args)


class UdsLensError(_InParts, Exception):
    """Base class of every error raised by `uds_lens`."""


class ConfigError(UdsLensError, ValueError):
    """An option has an invalid value or does not exist."""


class DataError(UdsLensError, ValueError):
    """A file, table or example cannot be read as unlearning data."""


class MissingSplitError(DataError):
    """A data set can be read, but does not have the requested split."""


class ModelError(UdsLensError, ValueError):
    """A checkpoint cannot be opened, hooked or scored."""


class IncompatibleModelsError(ModelError):
    """The checkpoints of an audit do not match in architecture, depth, width or tokenizer."""


class ModelBusyError(ModelError):
    """Another thread is already running the model."""


class PatchError(UdsLensError, RuntimeError):
    """A patch was not applied, or changed nothing where it should have."""


class ResultFormatError(UdsLensError, ValueError):
    """A saved result is missing, incomplete or altered, or this release cannot read its version."""


class StorageError(UdsLensError, OSError):
    """A file cannot be written: the disk is full, permission is denied, or the directory does not exist."""


class MissingDependencyError(UdsLensError, ImportError):
    """An optional package is missing."""


class UdsLensWarning(_InParts, UserWarning):
    """Category of all warnings from `uds_lens`."""


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
    """Allow every `warn_once` warning to be shown again (for tests and long-lived notebooks)."""
    _seen.clear()
