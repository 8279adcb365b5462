"""Which differences between audits are real: UDS of each minus UDS of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uds_lens.checked_arguments import arguments_checked_but
from uds_lens.plots.frame_columns import require
from uds_lens.plots.pair_cells import by_score, difference_matrix
from uds_lens.plots.palette import Theme

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@arguments_checked_but("differences")
def audit_differences(
    differences: pd.DataFrame,
    *,
    p: str = "p_holm",
    level: float = 0.05,
    theme: Theme = "light",
    title: str | None = "Which differences are real?",
) -> go.Figure:
    """UDS of the row minus UDS of the column; a star where the adjusted p-value lies below the level.

    Args:
        differences: `uds_lens.results.compare_all(...)`: `one`, `other`, `uds_one`, `uds_other`, `difference`, `low`,
            `high`, and the column `p`.
        p: Which p-value decides: `p_holm`, or `p` for the one that is not adjusted.
        level: Of the star.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure, highest UDS first. An empty cell: not comparable, or the audit itself. No star where the column
        `fatal`, if it is there, says that an audit has a fatal warning.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> row = {"one": ["npo"], "other": ["rmu"], "uds_one": [0.7], "uds_other": [0.4], "difference": [0.3]}
        >>> figure = audit_differences(pd.DataFrame({**row, "low": [0.1], "high": [0.5], "p_holm": [0.01]}))
        >>> figure.data[0].text[0][1]
        '+0.30*'
    """
    columns = ["one", "other", "uds_one", "uds_other", "difference", "low", "high", p]
    require(differences, columns, source="uds_lens.results.compare_all(...)")
    decides = "adjusted p" if p == "p_holm" else "p"
    return difference_matrix(
        differences,
        by_score(differences, "uds"),
        p=p,
        level=level,
        theme=theme,
        title=title,
        subtitle=f"UDS of the row minus UDS of the column. Star: {decides} below {level:g}; else the order is open.",
    )
