"""Damage: how much of what unlearning cost the layers is lost on facts that were to be kept, too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from jaxtyping import Float
from torch import Tensor

from uds_lens.results.control_facts import of_rows, require_control
from uds_lens.results.intervals import Interval
from uds_lens.results.ratio_intervals import ratio_interval

if TYPE_CHECKING:
    from uds_lens.results.audit_scores import AuditScores

_NAN = Interval(math.nan, math.nan)


class Damage(NamedTuple):
    """What the unlearned model's states cost on retained facts, beside what they cost on forget facts."""

    value: float
    """`control_loss / forget_loss`. 0: nothing is lost on retained facts, all of the loss is about the forget set. 1:
    as much is lost on a retained fact as on a forgotten one. Below 0: the states help there; above 1: it hurts them
    more. NaN: see `reason`."""

    interval: Interval
    """By subject on both sides; NaN where the value is, with fewer than two subjects on one side, or where no subject
    differs from the others."""

    forget_loss: float
    """Mean of `s2_delta` over measurable examples and all layers, nats per token."""

    control_loss: float
    """Mean of `s2_delta` over the retained facts that `full` knows and all layers, nats per token."""

    retain_loss: float
    """The same with the states of `retain`, which knows these facts: what the states of any other model cost."""

    reason: str | None
    """Why the value is NaN."""


def mean_loss(delta: Float[Tensor, "some layer"]) -> float:
    """Log-probability lost, mean over examples and layers, nats per token; NaN without examples.

    >>> import torch
    >>> mean_loss(torch.tensor([[0.0, 1.0], [2.0, 3.0]]))
    1.5
    """
    return float(delta.double().mean()) if delta.numel() else math.nan


def damage_of(audit: AuditScores) -> Damage:
    """Damage of an audit.

    With s2 the loss from patching the unlearned model's state in, over measurable forget examples i, known retained
    facts j and all L layers,

        damage = mean_j mean_l s2_control[j, l]  /  mean_i mean_l s2[i, l]

    Args:
        audit: A finished audit.

    Returns:
        The ratio with its interval and its parts. It is NaN, with a reason, without a control, where no retained fact
        could be scored or no example is measurable, and where the loss on forget facts does not exceed tau: where
        nothing was lost there is nothing to share out.
    """
    if audit.control is None:
        return Damage(math.nan, _NAN, math.nan, math.nan, math.nan, "no control facts were given")
    control, s2_control = require_control(audit)
    measured = ~audit.uds_per_example.isnan()
    forget = audit.s2_delta[measured]
    kept = s2_control[control.known]
    losses = mean_loss(forget), mean_loss(kept), mean_loss(control.s1_delta[control.known])
    reason = _undefined(losses[0], losses[1], audit.config.tau)
    if reason:
        return Damage(math.nan, _NAN, *losses, reason)
    subjects = of_rows(control.subjects, control.known), of_rows(audit.subjects, measured)
    interval = _interval(audit, kept, forget, *subjects)
    return Damage(losses[1] / losses[0], interval, *losses, None)


def _undefined(forget_loss: float, control_loss: float, tau: float) -> str | None:
    if math.isnan(control_loss):
        return "no control fact could be scored, or full knows none of them"
    if math.isnan(forget_loss):
        return "no example is measurable"
    if forget_loss <= tau:
        return (
            f"on the forget facts the unlearned states cost {forget_loss:.3f} nats per token, not more than tau "
            f"({tau:g}): nothing was lost"
        )
    return None


def _interval(
    audit: AuditScores,
    above: Tensor,
    below: Tensor,
    clusters_above: Sequence[str | None],
    clusters_below: Sequence[str | None],
) -> Interval:
    config = audit.config
    return ratio_interval(
        above.double().mean(1),
        below.double().mean(1),
        top_clusters=clusters_above,
        bottom_clusters=clusters_below,
        confidence=config.confidence,
        n_resamples=config.n_bootstrap,
        seed=config.seed,
    )
