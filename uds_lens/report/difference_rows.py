"""Which differences between the audits of a page are real: every pair, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from uds_lens.plots.safe_text import number
from uds_lens.results import DepthAudit, compare_all

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.05
"""Adjusted p-value below which a difference is called real."""


def differences(audits: Mapping[str, DepthAudit], references: Sequence[str] = ()) -> pd.DataFrame | None:
    """Compare every pair of audits; None for a single audit.

    Resamples and seed are those of the first audit, and all audits are asked for the same confidence.
    """
    if len(audits) < 2:
        return None
    config = next(iter(audits.values())).config
    return compare_all(
        audits,
        references=references,
        confidence=config.confidence,
        n_resamples=config.n_bootstrap,
        seed=config.seed,
    )


def difference_words(pairs: pd.DataFrame | None, confidence: str) -> dict[str, Any] | None:
    """The table and the sentence above it; None where there is nothing to compare.

    Args:
        pairs: From `differences`.
        confidence: Of their intervals, in words.

    Returns:
        `sentence`, `confidence`, `compared` (whether any pair was), and `rows`: real differences first, then by size.
    """
    if pairs is None:
        return None
    rows = [_words(row) for row in pairs.itertuples()]
    tested = [row for row in rows if row["p"] is not None and row["verdict"] != "withheld"]
    real = sum(row["real"] for row in tested)
    if tested:
        count = f"{real} of {len(tested)} " + ("pair differs" if len(tested) == 1 else "pairs differ")
        sentence = f"{count} by more than chance (adjusted p below {LEVEL:g}). {_findable(pairs)}"
    else:
        sentence = "No pair could be tested; the table says why."
    return {
        "sentence": sentence,
        "confidence": confidence,
        "compared": bool(pairs["difference"].notna().any()),
        "rows": sorted(rows, key=lambda row: (not row["real"], row["verdict"] == "reference", -row["size"])),
    }


def _findable(pairs: pd.DataFrame) -> str:
    """Say which p-values could have come out at all, with so many pairs and subjects."""
    tested = pairs[pairs["p_holm"].notna()]
    subjects, size = int(tested["n_subjects"].max()), len(tested)
    least = float(tested["p_holm_least"].iloc[0])
    over = f"with {subjects} subjects" + ("" if size == 1 else f", adjusted over {size} pairs")
    if least < LEVEL:
        return f"The smallest p that could have come out is {least:.2g} ({over})."
    enough = 2
    while size * 2.0 ** (1 - enough) >= LEVEL:  # of all sign patterns, the observed one and its opposite
        enough += 1
    return (
        f"Nothing could have been found: the smallest p that could have come out is {least:.2g} ({over}). It takes "
        f"{enough} subjects or more{'' if size == 1 else ', or fewer models'}."
    )


def _words(row: Any) -> dict[str, Any]:
    """A pair as the table shows it, the deeper model first."""
    defined, tested = not math.isnan(row.difference), not math.isnan(row.p_holm)
    turn = defined and row.difference < 0
    one, other = (row.other, row.one) if turn else (row.one, row.other)
    low, high = (-row.high, -row.low) if turn else (row.low, row.high)
    real = tested and row.p_holm < LEVEL and not row.fatal
    interval = defined and not math.isnan(low)
    return {
        "one": one,
        "other": other,
        "size": abs(row.difference) if defined else -1.0,
        "difference": f"{abs(row.difference):.3f}" if defined else "undefined",
        "interval": f"{number(low + 0.0, 3)} to {number(high + 0.0, 3)}" if interval else "no interval",
        "p": f"{row.p_holm:.2g}" if tested else None,
        "real": real,
        "verdict": "withheld"
        if row.fatal
        else "reference"
        if row.reference
        else "real"
        if real
        else "open"
        if tested
        else "not tested",
        "n": row.n,
        "n_subjects": row.n_subjects,
        "why": "; ".join(
            part
            for part in (row.fatal, row.reason, f"left out: {row.left_out}" if row.left_out else "")
            if isinstance(part, str) and part  # a column of texts holds NaN where there is none
        ),
    }
