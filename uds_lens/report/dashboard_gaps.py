"""What the tables of a dashboard are too empty or too small for, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uds_lens.meta import ScoreParts
from uds_lens.meta.score_gaps import FEW, empty_parts

if TYPE_CHECKING:
    import pandas as pd


def unscored(own: pd.DataFrame, parts: ScoreParts, reasons: pd.DataFrame | None) -> list[str]:
    """Why no model has a score, if none has."""
    if own["score_with"].notna().any():
        return []
    empty = empty_parts(own, parts, reasons)
    told = ", ".join(f"{name} ({why})" if why else name for name, why in empty.items())
    if not told:
        return ["Methods are not ranked: no model has all parts of the score."]
    return [f"Methods are not ranked: no model has a value of {told}, which the score is made of."]


def pool_cautions(faithful: pd.DataFrame) -> list[str]:
    """Metrics without F, and pools that are too small to say much."""
    told = [
        sentence(f"{row['metric']}: {row['reason']}")
        for row in faithful.to_dict("records")
        if isinstance(row["reason"], str)
    ]
    least = faithful[["n_p", "n_n"]].max()
    if len(faithful) and least.min() < FEW:
        told.append(
            f"F is from {least['n_p']:.0f} models that know and {least['n_n']:.0f} that do not: so few say nothing "
            "about the order of metrics."
        )
    return told


def sentence(text: str) -> str:
    """With a full stop; its first letter stays, which may begin a name.

    >>> sentence("es: constant")
    'es: constant.'
    """
    return text if text.endswith(".") else f"{text}."
