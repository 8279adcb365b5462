"""Which differences between metrics are real: F of each against each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uds_lens.checked_arguments import arguments_checked_but
from uds_lens.plots.frame_columns import require
from uds_lens.plots.pair_cells import by_score, difference_matrix
from uds_lens.plots.palette import Theme

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@arguments_checked_but("pairs")
def pair_matrix(
    pairs: pd.DataFrame,
    *,
    p: str = "p_holm",
    level: float = 0.05,
    theme: Theme = "light",
    title: str | None = "Which differences are real?",
) -> go.Figure:
    """F of the row minus F of the column; a star where the adjusted p value lies below the level.

    Args:
        pairs: `uds_lens.meta.compare_all(...)`: `one`, `other`, `auc_one`, `auc_other`, `difference`, `low`, `high`,
            and the column `p`.
        p: Which p value decides: `p_holm`, or `cluster_p_holm` where runs are clusters.
        level: Of the star.
        theme: Light or dark.
        title: Heading; None leaves it out.

    Returns:
        The figure, metrics by F. An empty cell: no test, or the metric itself.

    Raises:
        DataError: A column is missing.

    Example:
        >>> import pandas as pd
        >>> row = {"one": ["x"], "other": ["y"], "auc_one": [0.9], "auc_other": [0.7], "difference": [0.2]}
        >>> figure = pair_matrix(pd.DataFrame({**row, "low": [0.1], "high": [0.3], "p_holm": [0.01]}))
        >>> figure.data[0].text[0][1]
        '+0.20*'
    """
    columns = ["one", "other", "auc_one", "auc_other", "difference", "low", "high", p]
    require(pairs, columns, source="uds_lens.meta.compare_all(...)")
    return difference_matrix(
        pairs,
        by_score(pairs, "auc"),
        p=p,
        level=level,
        theme=theme,
        title=title,
        subtitle=f"F of the row minus F of the column. Star: adjusted p below {level:g}; else the order is open.",
    )
