"""Depth beside elicitation, example by example: is what lies shallow what comes out?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import DataError
from uds_lens.results import DepthAudit, Interval
from uds_lens.results.contrasts import subject_groups
from uds_lens.results.intervals import NO_INTERVAL, ROUNDING, student

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.elicitation.results import ElicitationResults

_CONFIDENCE = 0.95


class RankCorrelation(NamedTuple):
    """Spearman's rho of UDS with what was elicited."""

    rho: float
    """In [-1, 1]; negative: what is shallow is what comes out. NaN where one of the two is constant."""

    interval: Interval
    """95 %, by subjects. NaN where `rho` is, with fewer than three subjects, where `rho` is 1 or -1 or would be without
    one of the subjects, and where without one of them it would be undefined: few subjects say nothing then of others.
    """

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
    """Return the Spearman correlation of UDS with what was elicited, over examples, with an interval over subjects.

    With z_j the inverse hyperbolic tangent of the correlation without subject j of G, and z that of all, the interval
    is tanh(z +- t se), se^2 = (G - 1) / G sum (z_j - mean z_j)^2 (the jackknife), t the quantile of Student's t with
    G - 1 degrees of freedom.

    Args:
        frame: From `with_depth`.
        audit: Which audit.
        decoding: Which decoding.
        value: Column to correlate with.
        seed: Without effect: nothing is drawn. Kept for older calls.

    Returns:
        The correlation; examples where one of the two is NaN are left out.

    Raises:
        DataError: The frame holds no such audit.

    References:
        Efron (1982), The Jackknife, the Bootstrap and Other Resampling Plans; Fisher (1921) for the scale.

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
    missing = rows["subject"].isna()
    groups = subject_groups(
        [None if gone else str(name) for name, gone in zip(rows["subject"], missing, strict=True)]
    )
    rho = _spearman(one, other)
    return RankCorrelation(rho, _jackknifed(rho, one, other, groups), len(rows))


def _jackknifed(rho: float, one: np.ndarray, other: np.ndarray, groups: np.ndarray) -> Interval:
    n = int(groups.max(initial=-1)) + 1
    without = np.array([_spearman(one[groups != group], other[groups != group]) for group in range(n)])
    if n < 3 or not (np.abs([rho, *without]) < 1 - ROUNDING).all():  # NaN is not below either
        return NO_INTERVAL
    spread = np.arctanh(without)
    error = math.sqrt((n - 1) / n * float(((spread - spread.mean()) ** 2).sum()))
    reach = student(_CONFIDENCE, n - 1) * error
    return Interval(math.tanh(math.atanh(rho) - reach), math.tanh(math.atanh(rho) + reach))


def _spearman(one: np.ndarray, other: np.ndarray) -> float:
    from scipy.stats import rankdata

    if len(one) < 3 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return math.nan
    return float(np.corrcoef(rankdata(one), rankdata(other))[0, 1])
