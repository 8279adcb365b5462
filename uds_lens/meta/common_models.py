"""Which models all metrics can be judged on, and why there may be none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from uds_lens.meta.perturbed import Perturbed


def common_models(found: Sequence[Perturbed]) -> np.ndarray:
    """Models that pass for all metrics that take part, with all values that were measured."""
    shared = np.ones(len(found[0].models), dtype=bool)
    for each in found:
        if takes_part(each):
            shared &= _complete(each)
    return shared


def takes_part(each: Perturbed) -> bool:
    """Whether a metric has values and, where thresholds are used, one of its own."""
    without_cut = np.isnan(each.threshold) and not each.forgot.any()
    return not without_cut and not np.isnan(each.before).all()


def why_none(found: Sequence[Perturbed]) -> str:
    """Why no model is common: the metrics that let none pass, or that each passes others."""
    if not found[0].useful.any():
        return "no model passes the filters"
    blocking = [each.metric for each in found if takes_part(each) and not _complete(each).any()]
    if not blocking:
        return "no model is common to all metrics: each lets others pass"
    named = ", ".join(blocking[:3]) + (f" and {len(blocking) - 3} more" if len(blocking) > 3 else "")
    return f"no model is common to all metrics: none passes for {named}"


def _complete(each: Perturbed) -> np.ndarray:
    complete = each.kept.copy()
    for after in (each.quantised, each.relearned):
        if after is not None and not np.isnan(after).all():
            complete &= ~np.isnan(after)
    return complete
