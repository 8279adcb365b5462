"""The interval of an F that was published without its values: from the two pool sizes alone."""

from __future__ import annotations

import math

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import ConfigError
from uds_lens.meta.placements import NO_INTERVAL, Interval, logit_interval, normal_quantile, wilson_interval


@arguments_checked
def hanley_mcneil(
    auc: float | int, n_p: int, n_n: int, *, confidence: float | int = 0.95
) -> tuple[float, float]:
    """About how sure an area under the ROC curve is, if all models were independent.

    `var = (F(1 - F) + (n_P - 1)(Q1 - F^2) + (n_N - 1)(Q2 - F^2)) / (n_P n_N)` with `Q1 = F / (2 - F)` and `Q2 = 2
    F^2 / (1 + F)`, on the logit scale; Wilson's interval with the smaller pool at F = 0 or 1. Values in hand give
    a better
    one: `faithfulness`. Checkpoints of one run are not independent, so that the true interval is wider.

    Args:
        auc: F, 0 to 1; NaN has no interval.
        n_p: Models that know.
        n_n: Models that do not.
        confidence: Of the interval.

    Returns:
        Both ends; NaN without F or with an empty pool.

    Raises:
        ConfigError: F lies outside 0 to 1.

    Example:
        >>> [round(end, 3) for end in hanley_mcneil(0.971, 30, 30)]
        [0.875, 0.994]

    References:
        Hanley and McNeil (1982), Radiology 143, 29-36.
    """
    if math.isnan(auc) or n_p < 1 or n_n < 1:
        return NO_INTERVAL
    if not 0 <= auc <= 1:
        raise ConfigError(f"auc must lie within 0 and 1; got {auc!r}.")
    z = normal_quantile(confidence)
    if auc in (0, 1):
        found: Interval = wilson_interval(float(auc), min(n_p, n_n), z)
        return found
    one, other = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    spread = auc * (1 - auc) + (n_p - 1) * (one - auc**2) + (n_n - 1) * (other - auc**2)
    return logit_interval(float(auc), math.sqrt(spread / (n_p * n_n)), z)
