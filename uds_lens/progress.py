"""Progress bars that know when nobody is watching."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def progress(
    iterable: Iterable[T],
    *,
    desc: str,
    total: int | None = None,
    unit: str = "it",
    enabled: bool | None = None,
) -> Iterator[T]:
    """Iterate with a tqdm bar on standard error; silent when standard error is no terminal.

    Args:
        iterable: What to walk.
        desc: Label left of the bar.
        total: Number of items, when `iterable` has no length.
        unit: What one item is called.
        enabled: True or False decides; None shows the bar in terminals and notebooks only.

    Returns:
        An iterator over the same items.

    Example:
        >>> list(progress([1, 2], desc="demo", enabled=False))
        [1, 2]
    """
    from tqdm.auto import tqdm

    if enabled is None:
        enabled = sys.stderr.isatty() or _in_notebook()
    return iter(tqdm(iterable, desc=desc, total=total, unit=unit, disable=not enabled, leave=False))


def _in_notebook() -> bool:
    """Whether this process is a notebook's kernel (a module that was merely imported proves nothing)."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")
