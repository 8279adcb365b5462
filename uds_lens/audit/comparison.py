"""Audits of several models as one table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.audit.depth_audit import DepthAudit

_COLUMNS = (
    "uds",
    "uds_low",
    "uds_high",
    "n_measured",
    "n_not_measurable",
    "n_skipped",
    "over_erased_share",
    "negative_share",
)


def models_frame(audits: Mapping[str, DepthAudit]) -> pd.DataFrame:
    """One row per audit, in their order.

    Args:
        audits: Name to audit.

    Returns:
        `model`, `uds`, `uds_low`, `uds_high`, `n_measured`, `n_not_measurable`, `n_skipped`, `over_erased_share`,
        `negative_share`; NaN where undefined.

    Example:
        >>> models_frame({}).columns[0]
        'model'
    """
    import pandas as pd

    rows = []
    for name, audit in audits.items():
        summary = audit.summary()
        rows.append({"model": name, **{column: summary[column] for column in _COLUMNS}})
    return pd.DataFrame(rows, columns=["model", *_COLUMNS])
