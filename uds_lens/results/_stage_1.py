"""What a baseline and an audit both hold: the forget set, who was measured with what, and stage 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uds_lens.data import ForgetExample, SkippedExample
from uds_lens.errors import ConfigError, Setting
from uds_lens.results._intervals import column_intervals, ratio_interval
from uds_lens.results._records import ModelRecord
from uds_lens.results._scores import ke_mask, layer_erasure_ratio, mean_uds, uds_per_example
from uds_lens.results._settings import AuditConfig
from uds_lens.results._statistics import Interval

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.results._depth_audit import AuditScores


# Several retain models: one scale each, and how far the scores against them lie apart.


@dataclass(frozen=True, eq=False, kw_only=True)
class RetainStage1:
    """Stage 1 of one of several retain models."""

    model: ModelRecord
    """The model."""

    s1_delta: Float[Tensor, "example layer"]
    """Log-probability lost with its state patched in, nats per token."""

    s1_norm_ratio: Float[Tensor, "example layer"]
    """Norm of its state over that of the state it replaces."""

    s1_cosine: Float[Tensor, "example layer"]
    """Cosine between its state and the state it replaces."""

    control_s1_delta: Float[Tensor, "fact layer"] | None = None
    """As `s1_delta`, on the control facts; None without a control."""


class Spread(NamedTuple):
    """Scores of one unlearned model against several retain models; NaN where a score is."""

    low: float
    """The lowest."""
    high: float
    """The highest."""
    deviation: float
    """Standard deviation; NaN with fewer than two."""


def uds_against(audit: AuditScores, retain: RetainStage1) -> Float[Tensor, "example"]:
    """Depth score of each example on the scale of one retain model.

    The layers are those where the mean S1 of all retain models exceeds tau, but for layers where this one's states cost
    nothing: there it has no scale, and no weight.

    Returns:
        In [0, 1]; exactly 1 where the unlearned model is this retain model, exactly 0 where it is `full`. NaN where no
        such layer is left.
    """
    layers = audit.ke_mask & (retain.s1_delta > 0)
    return uds_per_example(
        retain.s1_delta, layer_erasure_ratio(retain.s1_delta, audit.s2_delta, layers), layers
    )


def retains_frame(audit: AuditScores) -> pd.DataFrame:
    """One row per retain model, in their order.

    Returns:
        `retain` (its name), `fingerprint`, `uds`, `uds_low`, `uds_high` (bootstrap, by subject where examples share
        one), `n_measured`, `s1_mean` (over examples and layers, nats per token). With one retain model a single row,
        that of the audit itself.
    """
    import pandas as pd

    rows = []
    for retain in audit.retains or (_only(audit),):
        scores = uds_against(audit, retain)
        interval = audit.interval_of(scores, audit.subjects)
        rows.append(
            {
                "retain": retain.model.name,
                "fingerprint": retain.model.fingerprint,
                "uds": mean_uds(scores),
                "uds_low": interval.low,
                "uds_high": interval.high,
                "n_measured": int((~scores.isnan()).sum()),
                "s1_mean": float(retain.s1_delta.mean()) if len(scores) else math.nan,
            }
        )
    return pd.DataFrame(rows)


def _only(audit: AuditScores) -> RetainStage1:
    return RetainStage1(
        model=audit.models["retain"],
        s1_delta=audit.s1_delta,
        s1_norm_ratio=audit.s1_norm_ratio,
        s1_cosine=audit.s1_cosine,
    )


def spread_of(scores: tuple[float, ...]) -> Spread:
    """Lowest, highest, standard deviation (n - 1) of scores.

    >>> spread_of((0.2, 0.4))
    Spread(low=0.2, high=0.4, deviation=0.141...)
    """
    if not scores or any(map(math.isnan, scores)):
        return Spread(math.nan, math.nan, math.nan)
    deviation = float(torch.tensor(scores, dtype=torch.float64).std()) if len(scores) > 1 else math.nan
    return Spread(min(scores), max(scores), deviation)


# Facts that `full` and `retain` both know: what a patch costs on them is damage, not forgetting.

LEAST_KNOWN = 0.1
"""Probability per token (geometric mean) that `full` must give a control fact, for the fact to count."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ControlFacts:
    """Retained facts, measured like forget facts: stage 1, with `retain`'s states, on facts that `retain` knows."""

    examples: Sequence[ForgetExample]
    """The scored facts, in input order."""

    skipped: Sequence[SkippedExample]
    """Rows that could not be scored, with reasons."""

    ids_hash: str
    """Hash of the token ids."""

    sample: Mapping[str, Any] | None
    """How they were chosen, where not all were measured."""

    n_tokens: Int[Tensor, "fact"]
    """Entity tokens of each fact."""

    s_full: Float[Tensor, "fact"]
    """Mean log-probability of the entity under `full`, nats per token."""

    s1_delta: Float[Tensor, "fact layer"]
    """Log-probability lost with retain's state patched in, nats per token: what the states of another model cost,
    though it knows the fact."""

    @cached_property
    def known(self) -> Bool[Tensor, "fact"]:
        """Facts to which `full` gives at least `LEAST_KNOWN` per token; what it does not know cannot be lost."""
        return self.s_full >= math.log(LEAST_KNOWN)

    @property
    def subjects(self) -> list[str | None]:
        """Subject of each fact."""
        return [example.subject for example in self.examples]


def require_control(audit: AuditScores) -> tuple[ControlFacts, Float[Tensor, "fact layer"]]:
    """The control of an audit, and what the unlearned model's states cost on it.

    Raises:
        ConfigError: It was measured without.
    """
    if audit.control is None or audit.control_s2_delta is None:
        raise ConfigError(
            "this audit has no control: measure it with ",
            Setting("control", ...),
            ", facts that full and retain both know.",
        )
    return audit.control, audit.control_s2_delta


def control_frame(audit: AuditScores) -> pd.DataFrame:
    """One row per retained fact and layer; columns as in `long_frame`, and whether `full` knows the fact."""
    import pandas as pd

    control, s2_delta = require_control(audit)
    n, layers = control.s1_delta.shape
    return pd.DataFrame(
        {
            "example_id": np.repeat([e.id for e in control.examples], layers),
            "row": np.repeat([e.row for e in control.examples], layers).astype(int),
            "subject": np.repeat(np.array(control.subjects, dtype=object), layers),
            "layer": np.tile(np.arange(layers), n),
            "known": np.repeat(control.known.numpy(), layers),
            "s1_delta": control.s1_delta.flatten().numpy(),
            "s2_delta": s2_delta.flatten().numpy(),
        }
    )


def control_layers_frame(audit: AuditScores) -> pd.DataFrame:
    """What the unlearned model's states cost by layer, on forget facts and on retained ones, nats per token.

    Returns:
        One row per layer: `layer`; `forget_mean`, `forget_low`, `forget_high`, S2 over the measurable examples with its
        interval; `control_mean`, `control_low`, `control_high`, S2 over the retained facts that `full` knows;
        `control_retain_mean`, what retain's states cost there. Intervals by subject where examples share one. NaN where
        there is no example.
    """
    import pandas as pd

    control, s2_delta = require_control(audit)
    known = control.known
    measured = ~audit.uds_per_example.isnan()
    groups = (
        ("forget", audit.s2_delta[measured], of_rows(audit.subjects, measured)),
        ("control", s2_delta[known], of_rows(control.subjects, known)),
    )
    columns: dict[str, Any] = {"layer": np.arange(audit.n_layers)}
    for name, values, clusters in groups:
        columns[f"{name}_mean"] = column_means(values)
        config = audit.config
        columns[f"{name}_low"], columns[f"{name}_high"] = column_intervals(
            values,
            clusters=clusters,
            confidence=config.confidence,
            n_resamples=config.n_bootstrap,
            seed=config.seed,
        )
    columns["control_retain_mean"] = column_means(control.s1_delta[known])
    return pd.DataFrame(columns)


def of_rows(names: Sequence[str | None], kept: Bool[Tensor, "row"]) -> list[str | None]:
    """The names of the rows that are kept."""
    return [name for name, keep in zip(names, kept.tolist(), strict=True) if keep]


def column_means(values: Float[Tensor, "some layer"]) -> list[float]:
    """Mean of each layer; NaN without rows."""
    return values.double().mean(0).tolist()


@dataclass(frozen=True, eq=False, kw_only=True)
class Stage1:
    """`full` against `retain` on a forget set."""

    config: AuditConfig
    """What was measured."""

    models: Mapping[str, ModelRecord]
    """Records of `full` and `retain` (the first, where there are several), and of `unlearned` in an audit."""

    examples: Sequence[ForgetExample]
    """The scored examples, in input order."""

    skipped: Sequence[SkippedExample]
    """Rows that could not be scored, with reasons."""

    provenance: Mapping[str, Any]
    """Versions, machine, command, engine, first rendered prompt, hash of the token ids."""

    n_tokens: Int[Tensor, "example"]
    """Entity tokens of each example."""

    s_full: Float[Tensor, "example"]
    """Mean log-probability of the entity under `full`, nats per token."""

    s1_delta: Float[Tensor, "example layer"]
    """Stage 1: log-probability lost with retain's state patched in, nats per token; of several retain models the
    mean."""

    s1_norm_ratio: Float[Tensor, "example layer"]
    """Norm of retain's state over that of the state it replaces; 1 = equal."""

    s1_cosine: Float[Tensor, "example layer"]
    """Cosine between retain's state and the state it replaces."""

    retains: tuple[RetainStage1, ...] = ()
    """Stage 1 of each retain model, where there are several; empty with one."""

    control: ControlFacts | None = None
    """Facts that `full` and `retain` both know, measured in the same way; None without."""

    @property
    def roles(self) -> dict[str, ModelRecord]:
        """All models by role; several retain models are numbered."""
        if not self.retains:
            return dict(self.models)
        numbered = {f"retain {i}": retain.model for i, retain in enumerate(self.retains, start=1)}
        return {
            role: record
            for name, found in self.models.items()
            for role, record in (numbered if name == "retain" else {name: found}).items()
        }

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return self.s1_delta.shape[1]

    @cached_property
    def ke_mask(self) -> Bool[Tensor, "example layer"]:
        """Knowledge-encoding layers: `s1_delta > tau`."""
        return ke_mask(self.s1_delta, self.config.tau)


# Damage: how much of what unlearning cost the layers is lost on facts that were to be kept, too.

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
