"""Where a model stands between retain and full, on the same questions, with an interval over subjects."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from uds_lens.checked_arguments import arguments_checked
from uds_lens.results import Interval, contrast
from uds_lens.results.all_or_nothing import of_equal_scores, widened
from uds_lens.results.intervals import ROUNDING, studentised

_NAN = Interval(math.nan, math.nan)
_CONFIDENCE = 0.95

NOT_ASKED = "not asked: no row has a score"
"""Reason of a share that is NaN because nothing was said."""


class Share(NamedTuple):
    """Where a model stands between retain (0) and full (1)."""

    value: float
    """NaN where the audit has no power, or was not asked."""

    interval: Interval
    """95 %, by subjects."""

    reason: str | None
    """Why it is NaN."""


@arguments_checked
def share(
    beyond: Float[np.ndarray, "question"],
    power: Float[np.ndarray, "question"],
    groups: Int[np.ndarray, "question"],
    *,
    n_resamples: int = 9999,
    seed: int = 0,
) -> Share:
    """Return `E = mean beyond / mean power`: 0 as retain, 1 as full, with an interval over subjects.

    With T_g and P_g the sums of `beyond` and `power` over subject g, the interval is the symmetric studentised
    bootstrap of the ratio sum T_g / sum P_g, that of `uds_lens.results.bootstrap_interval` with P_g in the place of the
    number of questions. Recall is often all-or-nothing by subject, and where few subjects recall anything a bootstrap
    knows too little: the interval reaches at least as far as a beta-binomial model of the subjects says, with
    sum power^2 / sum power as the score of a question that is recalled (`uds_lens.results.all_or_nothing.widened`). It
    may pass 0 and 1.

    Args:
        beyond: Score of the model minus that of retain, per question; scores are in [0, 1].
        power: Score of full minus that of retain.
        groups: Subject of each question.
        n_resamples: Of the bootstrap of the share, and of that of the power.
        seed: Of what is drawn.

    Returns:
        NaN with the reason "no power" where the lower bound of the mean power is not above 0, and "not asked" where no
        question has both values. The interval alone is NaN where too many resamples of the subjects have no power.

    References:
        Hall (1988), On Symmetric Bootstrap Confidence Intervals; the standard error is that of the delta method.
    """
    both = ~(np.isnan(beyond) | np.isnan(power))
    beyond, power, groups = beyond[both], power[both], groups[both]
    if not len(power):
        return Share(math.nan, _NAN, NOT_ASKED)
    reach = contrast(power, groups, n_resamples=n_resamples, seed=seed)
    same = reach.n_subjects > 1 and np.ptp(power) < ROUNDING and reach.value > 0
    if not (reach.interval.low > 0 or same):
        return Share(math.nan, _NAN, "no power: full does not surely score above retain under this audit")
    value = float(beyond.sum() / power.sum())
    return Share(value, _interval(value, beyond, power, groups, n_resamples, seed), None)


def _interval(
    value: float,
    beyond: Float[np.ndarray, "question"],
    power: Float[np.ndarray, "question"],
    groups: Int[np.ndarray, "question"],
    n_resamples: int,
    seed: int,
) -> Interval:
    _, codes = np.unique(groups, return_inverse=True)
    top, bottom = (np.bincount(codes, each).astype(float) for each in (beyond, power))
    ends = studentised(top, bottom, _CONFIDENCE, n_resamples, seed)
    if ends is None:  # the same share in all subjects: all that is known of others is that it lies in [0, 1]
        bounds = min(0.0, value), max(1.0, value)
        return Interval(*of_equal_scores(value, codes, bounds, _CONFIDENCE))
    if math.isnan(ends.low):
        return ends
    recalled = float((power**2).sum() / power.sum())
    scale = recalled / float(power.mean())
    low, high = widened(
        ends.low / scale, ends.high / scale, beyond / recalled, codes, (0.0, 1.0), _CONFIDENCE
    )
    return Interval(low * scale, high * scale)
