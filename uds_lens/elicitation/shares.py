"""Where a model stands between retain and full, on the same questions, with an interval over subjects."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from uds_lens.checked_arguments import arguments_checked
from uds_lens.results import Interval, contrast
from uds_lens.results.contrasts import by_group

_NAN = Interval(math.nan, math.nan)
_DRAWS = 9999

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
    seed: int = 0,
) -> Share:
    """`E = mean beyond / mean power`: 0 as retain, 1 as full; interval by resampling subjects.

    Args:
        beyond: Score of the model minus that of retain, per question.
        power: Score of full minus that of retain.
        groups: Subject of each question.
        seed: Of what is drawn.

    Returns:
        NaN with the reason "no power" where the lower bound of the mean power is not above 0, and "not asked" where no
        question has both values.
    """
    both = ~(np.isnan(beyond) | np.isnan(power))
    beyond, power, groups = beyond[both], power[both], groups[both]
    if not len(power):
        return Share(math.nan, _NAN, NOT_ASKED)
    reach = contrast(power, groups, seed=seed)
    if not reach.interval.low > 0:
        return Share(math.nan, _NAN, "no power: full does not surely score above retain under this audit")
    if np.array_equal(beyond, power):
        return Share(1.0, Interval(1.0, 1.0), None)
    top, _ = by_group(beyond, groups)
    bottom, _ = by_group(power, groups)
    random = np.random.default_rng(seed)
    drawn = random.integers(0, len(top), (_DRAWS, len(top)))
    under = bottom[drawn].sum(1)
    ratios = (top[drawn].sum(1)[under > 0]) / under[under > 0]
    low, high = np.quantile(ratios, [0.025, 0.975])
    return Share(float(top.sum() / bottom.sum()), Interval(float(low), float(high)), None)
