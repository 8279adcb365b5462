"""Parts of a score that no model has, and the options that bring them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from uds_lens.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.meta import ScoreParts


_LONGEST = 490
"""Characters of a message, with room for what stands before it."""


def require_parts(frame: pd.DataFrame, parts: ScoreParts, reasons: pd.DataFrame) -> None:
    """Say which option brings a part of the score that no model has.

    Args:
        frame: Unlearned models.
        parts: Columns of the score.
        reasons: Why values are NaN, as in `uds_lens.meta.ModelTable`.

    Raises:
        DataError: A part of the score is no column, or has no value at all: no method could be scored.
    """
    from uds_lens.meta.score_gaps import empty_parts

    gaps = empty_parts(frame, parts, reasons)
    if not gaps:
        return
    without = ", or --utility model_utility" if "utility=" in (gaps.get(parts.utility) or "") else ""
    hints = {
        (parts.depth,): "--audits DIR puts the UDS of saved audits there",
        parts.memorization: "--memorization NAME takes others",
        parts.membership: "--retain RUN gives the normalised attacks, or --membership NAME",
        (parts.utility,): f"--full RUN gives it{without}",
    }
    lacks, empty = [], []
    for names, hint in hints.items():
        gone = [name for name in names if name in gaps and name not in frame.columns]
        if gone:
            part = "a part" if len(gone) == 1 else "parts"
            lacks.append(f"the table lacks {_quoted(gone, names)}, {part} of the score: {hint}")
        own = [name for name in names if name in gaps and name in frame.columns]
        if own:
            by_reason: dict[str, list[str]] = {}
            for name in own:
                by_reason.setdefault(_briefly(gaps[name]), []).append(name)
            told = ", ".join(f"{_quoted(each, names)}{why}" for why, each in by_reason.items())
            empty.append(f"{told}: {hint}")
    none = [f"no model has a value of {'; '.join(empty)}"] if empty else []
    text = "; ".join([*lacks, *none])
    columns = f" Its columns: {', '.join(map(str, list(frame.columns)[:16]))}." if lacks else ""
    whole = f"no method has a score: {text}."
    longer = (f"{whole}{columns}", whole)
    raise DataError(next((each for each in longer if len(each) <= _LONGEST), f"{text}."))


def _quoted(names: Sequence[str], every: Sequence[str]) -> str:
    """Names as they are written in tables; one pattern where these are all the attacks of a score.

    >>> _quoted(["em", "es"], ["es", "em", "paraprob"])
    "'em', 'es'"
    >>> _quoted(["s_mia_a", "s_mia_b", "s_mia_c"], ["s_mia_a", "s_mia_b", "s_mia_c"])
    'all 3 s_mia_*'
    """
    if len(names) == len(every) > 2 and all(name.startswith("s_mia_") for name in names):
        return f"all {len(names)} s_mia_*"
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(map(repr, names[:4])) + more


def _briefly(reason: str | None) -> str:
    """A reader's reason in brackets, short, without Python's names for the options.

    >>> _briefly("the files have no x (not measured by default)"), _briefly("needs the run of full: pass full=")
    (' (not measured by default)', ' (needs the run of full)')
    """
    words, _, option = str(reason or "").partition("; utility=")
    words = words.split(": pass ")[0].strip()
    before, _, inner = words.partition(" (")
    if inner.endswith(")"):  # what a part of utility_rel is said to be missing for is not said of utility_rel
        words = before if option else inner[:-1]
    return f" ({words})" if words and len(words) <= 110 else ""
