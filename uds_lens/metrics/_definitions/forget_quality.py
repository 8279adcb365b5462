"""TOFU's Forget Quality: could the model's Truth Ratios have come from `retain`?"""

from __future__ import annotations

import math
from collections.abc import Sequence

from uds_lens.metrics._declaration import Evidence, Meaning, Outcome, Role, Undefined, metric, needs_answers
from uds_lens.metrics._definitions.membership_attacks import mean_nll

_KINDS = ("paraphrased", "perturbed")
_SETS = tuple(f"forget/{kind}" for kind in _KINDS)


def forget_quality(model: Sequence[float], retain: Sequence[float]) -> float:
    """Return the p-value of a two-sample Kolmogorov-Smirnov test of Truth Ratios.

    Args:
        model: Truth Ratio of each example, or any monotonic function of it (only the order matters). NaNs are ignored.
        retain: The same for `retain`.

    Returns:
        The p-value in [0, 1] (TOFU plots its logarithm); 1 means distributed as in `retain`. For a given difference,
        the p-value falls as the number of examples grows. NaN if either model has no examples.

    References:
        Maini et al. 2024, TOFU.

    Example:
        >>> round(forget_quality([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]), 6)
        0.1
    """
    from scipy.stats import ks_2samp

    sides = [[value for value in values if not math.isnan(value)] for values in (model, retain)]
    return float(ks_2samp(*sides).pvalue) if all(sides) else math.nan


def log_truth_ratios(evidence: Evidence, role: Role) -> list[float]:
    """Return `log p_w - log p_c` of each example, which keeps the order of Truth Ratios that round to 0 or 1."""

    def losses(name: str) -> list[float]:
        values = [mean_nll(row.tolist()) for row in evidence.answers(name, role).logprobs]
        listed = evidence.by_example(name, values)
        return [math.fsum(several) / len(several) if several else math.nan for several in listed]

    return [right - wrong for right, wrong in zip(*map(losses, _SETS), strict=True)]


@metric(
    name="forget_quality",
    label="Forget Quality",
    group="memorization",
    meaning=Meaning("erasure", "Truth Ratios unlike those of retain", "as those of retain"),
    passes=(*needs_answers(*_SETS), *needs_answers(*_SETS, role="retain")),
)
def of_truth_ratios(evidence: Evidence) -> Outcome:
    """Return Forget Quality, with its base-10 logarithm in the details."""
    value = forget_quality(*(log_truth_ratios(evidence, role) for role in ("model", "retain")))
    if math.isnan(value):
        raise Undefined("no example has both a paraphrased and a perturbed answer")
    return Outcome(value, details={"log10": math.log10(value) if value > 0 else -math.inf})
