"""Depth beside elicitation, example by example: is what lies shallow what comes out?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import DataError
from uds_lens.results import DepthAudit, Interval
from uds_lens.results.contrasts import subject_groups

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.elicitation.results import ElicitationResults

_DRAWS = 2000


class RankCorrelation(NamedTuple):
    """Spearman's rho of UDS with what was elicited."""

    rho: float
    """In [-1, 1]; negative: what is shallow is what comes out. NaN where one of the two is constant."""

    interval: Interval
    """95 % percentile bootstrap over subjects."""

    n: int
    """Examples that have both."""


def depth_frame(results: ElicitationResults, audit: DepthAudit) -> pd.DataFrame:
    """See `ElicitationResults.with_depth`."""
    import pandas as pd

    ours, theirs = results.models["unlearned"], audit.models["unlearned"]
    if ours.fingerprint != theirs.fingerprint:
        raise DataError(
            f"the audit is of {theirs.name!r}, these texts of {ours.name!r}: other weights. Audit the model that was "
            "elicited."
        )
    uds = {
        (example.id, example.question): (float(score), example)
        for example, score in zip(audit.examples, audit.uds_per_example.tolist(), strict=True)
    }
    rows = []
    for part in results.parts:
        if part.role != "unlearned":
            continue
        mean = results.mean("unlearned", part.audit, part.decoding)
        control = (
            results.mean("retain", part.audit, part.decoding)
            if "retain" in results.models
            else np.full(len(mean), math.nan)
        )
        for place, example in enumerate(results.examples):
            found = uds.get((example.id, example.question))
            if found is not None and not math.isnan(mean[place]):
                rows.append(
                    {
                        "example_id": example.id,
                        "subject": example.subject,
                        "question": example.question,
                        "audit": part.audit,
                        "decoding": part.decoding,
                        "uds": found[0],
                        "score": mean[place],
                        "retain": control[place],
                        "beyond_retain": mean[place] - control[place],
                    }
                )
    if not rows:
        raise DataError("the audit and the elicitation share no example (ids and questions are compared).")
    return pd.DataFrame(rows)


@arguments_checked
def depth_correlation(
    frame: pd.DataFrame, *, audit: str, decoding: str = "greedy", value: str = "beyond_retain", seed: int = 0
) -> RankCorrelation:
    """Spearman correlation of UDS with what was elicited, over examples, with an interval over subjects.

    Args:
        frame: From `with_depth`.
        audit: Which audit.
        decoding: Which decoding.
        value: Column to correlate with.
        seed: Of the bootstrap.

    Returns:
        The correlation; examples where one of the two is NaN are left out.

    Raises:
        DataError: The frame holds no such audit.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({
        ...     "audit": "cloze", "decoding": "greedy", "subject": list("aabbcc"),
        ...     "uds": [0.1, 0.2, 0.4, 0.5, 0.8, 0.9], "beyond_retain": [0.9, 0.7, 0.6, 0.3, 0.2, 0.0],
        ... })
        >>> depth_correlation(frame, audit="cloze").rho
        -1.0
    """
    rows = frame[(frame["audit"] == audit) & (frame["decoding"] == decoding)].dropna(subset=["uds", value])
    if not len(frame[frame["audit"] == audit]):
        raise DataError(
            f"the frame holds no audit {audit!r}; it holds {', '.join(sorted(set(frame['audit'])))}."
        )
    one, other = rows["uds"].to_numpy(float), rows[value].to_numpy(float)
    rho = _spearman(one, other)
    groups = subject_groups([name if isinstance(name, str) else None for name in rows["subject"]])
    members = [np.flatnonzero(groups == group) for group in range(int(groups.max(initial=-1)) + 1)]
    if math.isnan(rho) or len(members) < 2:
        return RankCorrelation(rho, Interval(math.nan, math.nan), len(rows))
    random = np.random.default_rng(seed)
    drawn = []
    for _ in range(_DRAWS):
        rows_drawn = np.concatenate([members[i] for i in random.integers(0, len(members), len(members))])
        drawn.append(_spearman(one[rows_drawn], other[rows_drawn]))
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return RankCorrelation(rho, Interval(float(low), float(high)), len(rows))


def _spearman(one: np.ndarray, other: np.ndarray) -> float:
    from scipy.stats import rankdata

    if len(one) < 3 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return math.nan
    return float(np.corrcoef(rankdata(one), rankdata(other))[0, 1])
