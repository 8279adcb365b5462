"""Records of stage 1 (shared by baselines and audits), scores per retain model, and damage on retained facts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uds_lens.data import ForgetExample, SkippedExample
from uds_lens.errors import ConfigError, Setting
from uds_lens.results._cards import stage_1_card
from uds_lens.results._intervals import ratio_interval
from uds_lens.results._records import ModelRecord
from uds_lens.results._scores import ke_mask, layer_erasure_ratio, mean_uds, uds_per_example
from uds_lens.results._settings import AuditConfig
from uds_lens.results._statistics import NO_INTERVAL, Interval

if TYPE_CHECKING:
    from uds_lens.results._depth_audit import DepthAudit


S1_TENSORS = ("s1_delta", "s1_norm_ratio", "s1_cosine")  # for each retain model, and for their mean

LEAST_KNOWN = 0.1  # probability per token (geometric mean) under `full` from which a control fact counts


@dataclass(frozen=True, eq=False, kw_only=True)
class RetainStage1:
    """Stage 1 with one of several retain models."""

    model: ModelRecord
    """The model."""

    s1_delta: Float[Tensor, "example layer"]
    """Log-probability lost with the retain model's state patched in, nats per token."""

    s1_norm_ratio: Float[Tensor, "example layer"]
    """Norm of the retain model's state divided by the norm of the state it replaces."""

    s1_cosine: Float[Tensor, "example layer"]
    """Cosine between the retain model's state and the state it replaces."""

    control_s1_delta: Float[Tensor, "fact layer"] | None = None
    """Like `s1_delta`, on the control facts; None without a control."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ScoredFacts:
    """Facts that were scored, with their stage 1."""

    examples: Sequence[ForgetExample]
    """The scored examples, in input order."""

    skipped: Sequence[SkippedExample]
    """Rows that could not be scored, with reasons."""

    n_tokens: Int[Tensor, "example"]
    """Number of entity tokens in each example."""

    s_full: Float[Tensor, "example"]
    """Mean log-probability of the entity under `full`, nats per token."""

    s1_delta: Float[Tensor, "example layer"]
    """Stage 1: log-probability lost with retain's state patched in, nats per token (the mean over several retain
    models)."""

    @cached_property
    def subjects(self) -> list[str | None]:
        """Subject of each example."""
        return [example.subject for example in self.examples]


@dataclass(frozen=True, eq=False, kw_only=True)
class ControlFacts(ScoredFacts):
    """Retained facts, measured like forget facts; S1 is the cost of states from another model that knows them."""

    ids_hash: str
    """Hash of the token ids."""

    sample: Mapping[str, Any] | None
    """How the facts were sampled; None if all were measured."""

    @cached_property
    def known(self) -> Bool[Tensor, "fact"]:
        """Facts to which `full` gives a probability of at least `LEAST_KNOWN` per token; other facts cannot be lost."""
        return self.s_full >= math.log(LEAST_KNOWN)


@dataclass(frozen=True, eq=False, kw_only=True)
class Exchanged:
    """Answers of `full` and the retain models with each other's blocks, which need no unlearned model.

    Mean log-probability of each entity, in nats per token, as float64. Rows are the examples, then the control facts.
    """

    candidates: tuple[tuple[int, int, bool], ...]
    """What was transplanted: first block, number of blocks, and whether only their attention."""

    s_full: Float[Tensor, "row"]
    """Log-probability under unmodified `full`, measured in the same passes."""

    s_retain: Float[Tensor, "donor row"]
    """Log-probability under each unmodified retain model."""

    full_with_retain: Float[Tensor, "donor row candidate"]
    """Log-probability under `full` with each candidate of each retain model."""

    retain_with_full: Float[Tensor, "donor row candidate"]
    """Log-probability under each retain model with each candidate of `full`."""

    retain_with_retain: Float[Tensor, "host donor row candidate"] | None = None
    """Log-probability under each retain model with each candidate of another, NaN with its own; None with one model."""

    def of_rows(self, rows: slice | Sequence[int]) -> dict[str, Any]:
        """Return the tensors for some rows by name."""
        among = self.retain_with_retain
        return {
            "s_full": self.s_full[rows],
            "s_retain": self.s_retain[:, rows],
            "full_with_retain": self.full_with_retain[:, rows],
            "retain_with_full": self.retain_with_full[:, rows],
            "retain_with_retain": None if among is None else among[:, :, rows],
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class Stage1(ScoredFacts):
    """Stage 1 of a measurement: `full` against `retain` on a forget set."""

    config: AuditConfig
    """Settings of the measurement."""

    models: Mapping[str, ModelRecord]
    """Records of `full` and `retain` (the first of several), and of `unlearned` in an audit."""

    provenance: Mapping[str, Any]
    """Versions, machine, command, engine, first rendered prompt, hash of the token ids."""

    s1_norm_ratio: Float[Tensor, "example layer"]
    """Norm of retain's state divided by the norm of the state it replaces; 1 = equal."""

    s1_cosine: Float[Tensor, "example layer"]
    """Cosine between retain's state and the state it replaces."""

    retains: tuple[RetainStage1, ...] = ()
    """Stage 1 of each retain model; empty if there is only one."""

    s_retain: Float[Tensor, "example"] | None = None
    """Mean log-probability of the entity under `retain` itself, unpatched, nats per token: the mean over several retain
    models, or over `full`'s counterfactuals if these stand in for a retain model. None if it was not measured."""

    control: ControlFacts | None = None
    """Facts that `full` and `retain` both know, measured in the same way; None without a control."""

    @property
    def roles(self) -> dict[str, ModelRecord]:
        """The records of all models by role; several retain models are numbered."""
        roles: dict[str, ModelRecord] = {}
        for role, record in self.models.items():
            if role == "retain" and self.retains:
                roles |= {f"retain {i}": retain.model for i, retain in enumerate(self.retains, start=1)}
            else:
                roles[role] = record
        return roles

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return self.s1_delta.shape[1]

    @property
    def prompts(self) -> str:
        """The kind of prompts: "raw" or "chat template"."""
        return "chat template" if self.config.protocol == "chat" else "raw"

    @cached_property
    def ke_mask(self) -> Bool[Tensor, "example layer"]:
        """Knowledge-encoding layers: `s1_delta > tau`."""
        return ke_mask(self.s1_delta, self.config.tau)

    def _repr_html_(self) -> str:
        return stage_1_card(self)


def of_rows(names: Sequence[str | None], kept: Bool[Tensor, "row"]) -> list[str | None]:
    """Return the items of the rows that are kept."""
    return [name for name, keep in zip(names, kept.tolist(), strict=True) if keep]


# Several retain models.


class Spread(NamedTuple):
    """Spread of one unlearned model's scores against several retain models; NaN if any score is NaN."""

    low: float
    """The lowest."""
    high: float
    """The highest."""
    deviation: float
    """Standard deviation (n - 1); NaN with fewer than two scores."""


def spread_of(scores: tuple[float, ...]) -> Spread:
    """Return the range and standard deviation of scores.

    >>> spread_of((0.2, 0.4))
    Spread(low=0.2, high=0.4, deviation=0.141...)
    """
    if not scores or any(map(math.isnan, scores)):
        return Spread(math.nan, math.nan, math.nan)
    deviation = float(torch.tensor(scores, dtype=torch.float64).std()) if len(scores) > 1 else math.nan
    return Spread(min(scores), max(scores), deviation)


def uds_against(audit: DepthAudit, s1_delta: Float[Tensor, "example layer"]) -> Float[Tensor, "example"]:
    """Score each example on the scale of one of several retain models, given that model's S1.

    The layers are those where the mean S1 of all retain models exceeds tau, except layers where this model's states
    cost nothing: these have no scale and no weight.

    Returns: Scores in [0, 1]: exactly 1 if the unlearned model is this retain model, exactly 0 if it is `full`, and NaN
        if no such layer is left.
    """
    layers = audit.ke_mask & (s1_delta > 0)
    return uds_per_example(s1_delta, layer_erasure_ratio(s1_delta, audit.s2_delta, layers), layers)


def retain_ceiling(stage: Stage1) -> float:
    """Return the lowest score of any retain model on another's scale (`DepthAudit.retain_ceiling`)."""
    scores = [
        mean_uds(uds_per_example(scale, layer_erasure_ratio(scale, other.s1_delta, layers), layers))
        for own in stage.retains
        for other in stage.retains
        if own is not other
        for scale, layers in [(own.s1_delta, ke_mask(own.s1_delta, stage.config.tau))]
    ]
    return min((score for score in scores if not math.isnan(score)), default=math.nan)


# Damage: the loss on retained facts relative to the loss on forget facts.


class Damage(NamedTuple):
    """Loss on retained facts and on forget facts from patching in the unlearned model's states."""

    value: float
    """`control_loss / forget_loss`. 0: nothing is lost on retained facts. 1: a retained fact loses as much as a forget
    fact. Below 0, the states help on retained facts; above 1, they cost more on retained facts than on forget facts.
    NaN: see `reason`."""

    interval: Interval
    """Interval from resampling subjects on both sides; NaN if the value is NaN, if either side has fewer than two
    subjects, or if all subjects are alike."""

    forget_loss: float
    """Mean of `s2_delta` over measurable examples and all layers, nats per token."""

    control_loss: float
    """Mean of `s2_delta` over the retained facts that `full` knows and all layers, nats per token."""

    retain_loss: float
    """Mean loss on the same retained facts with the states of `retain`, which knows these facts; any other model's
    states cost about as much."""

    reason: str | None
    """Why the value is NaN, if it is."""


class EntityProb(NamedTuple):
    """Probability of the entity given the correct beginning of its answer (geometric mean per token, mean over facts).

    These are probabilities under the unpatched models, given the text up to the entity. NaN without facts or a control,
    and for the unlearned model if they were not measured.
    """

    full: float
    """Probability under `full`, on the forget facts."""

    unlearned: float
    """Probability under the unlearned model, on the forget facts."""

    control_full: float
    """Probability under `full`, on the retained facts that `full` knows."""

    control_unlearned: float
    """Probability under the unlearned model, on the same retained facts."""


def entity_prob_of(audit: DepthAudit) -> EntityProb:
    """Average the entities' probabilities, the `exp` of each fact's mean log-probability."""

    def mean(logprobs: Tensor | None) -> float:
        return math.nan if logprobs is None or not len(logprobs) else float(logprobs.double().exp().mean())

    if (control := audit.control) is None:
        return EntityProb(mean(audit.s_full), mean(audit.s_unlearned), math.nan, math.nan)
    kept = audit.control_s_unlearned
    return EntityProb(
        mean(audit.s_full),
        mean(audit.s_unlearned),
        mean(control.s_full[control.known]),
        mean(None if kept is None else kept[control.known]),
    )


def require_control(audit: DepthAudit) -> tuple[ControlFacts, Float[Tensor, "fact layer"]]:
    """Return an audit's control facts, and the cost of the unlearned states on these."""
    if audit.control is None or audit.control_s2_delta is None:
        raise ConfigError(
            "this audit has no control: measure it with ",
            Setting("control", ...),
            ", facts that full and retain both know.",
        )
    return audit.control, audit.control_s2_delta


def mean_loss(delta: Float[Tensor, "some layer"]) -> float:
    """Average the log-probability lost over examples and layers, nats per token; NaN without examples."""
    return float(delta.double().mean()) if delta.numel() else math.nan


def damage_of(audit: DepthAudit) -> Damage:
    """Estimate damage.

    With s2 the loss from patching in the unlearned model's state, measurable forget examples i, known retained facts j
    and all layers l,

        damage = mean_j mean_l s2_control[j, l]  /  mean_i mean_l s2[i, l]

    Returns: The ratio with its interval and its parts. The ratio is NaN, with a reason, if there is no control, if no
        retained fact could be scored, if no example is measurable, or if the loss on forget facts does not exceed tau,
        so that there is nothing to compare with.
    """
    if audit.control is None:
        return Damage(math.nan, NO_INTERVAL, math.nan, math.nan, math.nan, "no control facts were given")
    control, s2_control = require_control(audit)
    config, measured = audit.config, ~audit.uds_per_example.isnan()
    forget, retained = audit.s2_delta[measured], s2_control[control.known]
    losses = mean_loss(forget), mean_loss(retained), mean_loss(control.s1_delta[control.known])
    reason = None
    if math.isnan(losses[1]):
        reason = "no control fact could be scored, or full knows none of these facts"
    elif math.isnan(losses[0]):
        reason = "no example is measurable"
    elif losses[0] <= config.tau:
        reason = (
            f"on the forget facts the unlearned states cost {losses[0]:.3f} nats per token, which is not more than tau "
            f"({config.tau:g}), so nothing was lost"
        )
    if reason:
        return Damage(math.nan, NO_INTERVAL, *losses, reason)
    interval = ratio_interval(
        retained.double().mean(1),
        forget.double().mean(1),
        top_clusters=of_rows(control.subjects, control.known),
        bottom_clusters=of_rows(audit.subjects, measured),
        **config.resampling,
    )
    return Damage(losses[1] / losses[0], interval, *losses, None)
