"""Everything the library raises or warns with, in one small tree.

Each message names what was expected, what came, and the fix. Catch `UdsLensError` to catch them all.
"""

from __future__ import annotations

import warnings

__all__ = [
    "ConfigError",
    "DataError",
    "MissingDependencyError",
    "ModelError",
    "PatchError",
    "ResultFormatError",
    "TrioMismatchError",
    "UdsLensError",
    "UdsLensWarning",
    "warn_once",
]


class UdsLensError(Exception):
    """Base class of every error raised by `uds_lens`."""


class ConfigError(UdsLensError, ValueError):
    """An option has a value outside its range, or an option of that name does not exist."""


class DataError(UdsLensError, ValueError):
    """A file, table or example cannot be read as unlearning data."""


class ModelError(UdsLensError, ValueError):
    """A checkpoint cannot be opened, hooked or scored."""


class TrioMismatchError(ModelError):
    """The checkpoints of one audit differ where they must agree (architecture, depth, width, tokenizer)."""


class PatchError(UdsLensError, RuntimeError):
    """A patch was not applied, or changed nothing where it had to."""


class ResultFormatError(UdsLensError, ValueError):
    """A saved result is missing, incomplete, altered, or of a version this release cannot read."""


class MissingDependencyError(UdsLensError, ImportError):
    """An optional package is needed for what was asked."""


class UdsLensWarning(UserWarning):
    """Something worth knowing that does not stop the work."""


_seen: set[str] = set()


def warn_once(message: str, *, key: str | None = None) -> None:
    """Warn with `UdsLensWarning`, at most once per process for the same `key` (default: the message)."""
    key = message if key is None else key
    if key in _seen:
        return
    _seen.add(key)
    warnings.warn(message, UdsLensWarning, stacklevel=3)


def forget_warnings() -> None:
    """Let every `warn_once` speak again (for tests and long-lived notebooks)."""
    _seen.clear()
