"""Refusals that models are taught to give instead of an answer."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import DataError


@arguments_checked
def load_refusals(path: str | os.PathLike[str] | None = None) -> tuple[str, ...]:
    """Read refusals, one per line; empty lines do not count.

    Args:
        path: A text file; None reads the hundred that come with this package.

    Returns:
        The refusals, in order.

    Raises:
        DataError: The file is not there, or holds none.

    Example:
        >>> len(load_refusals())
        100
    """
    if path is None:
        text = files("uds_lens.unlearning").joinpath("refusals.txt").read_text(encoding="utf-8")
    else:
        try:
            text = Path(path).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"cannot read refusals from {os.fspath(path)!r}: {error}. Expected one per line."
            ) from error
    refusals = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not refusals:
        raise DataError(f"{os.fspath(path or 'refusals.txt')!r} holds no refusal: expected one per line.")
    return refusals
