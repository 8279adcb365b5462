"""The numbers of an audit: what was measured, and every score and table that follows from it."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, TypeVar

from jaxtyping import Bool, Float
from torch import Tensor

from uds_lens.data import ExamplesLike
from uds_lens.results._intervals import (
    ROUNDING,
    IntervalBasis,
    SampleError,
    bootstrap_interval,
    interval_basis,
    sample_error,
)
from uds_lens.results._records import equal_weights
from uds_lens.results._saving import AUDIT, load_audit, save_result
from uds_lens.results._scores import layer_erasure_ratio, mean_uds, uds_per_example
from uds_lens.results._settings import AuditConfig, RunOptions
from uds_lens.results._stage_1 import Stage1
from uds_lens.results._statistics import Interval

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from uds_lens.models import ModelSource, RetainSource
    from uds_lens.plots import Theme
    from uds_lens.plots._examples import Order
    from uds_lens.plots._layers import Value
    from uds_lens.results._cautions import Caution
    from uds_lens.results._stage_1 import Damage, Spread


Audit = TypeVar("Audit", bound="AuditScores")


@dataclass(frozen=True, eq=False, kw_only=True)
class AuditScores(Stage1):
    """Deltas, scores and tables of an audit. `DepthAudit` adds figures, files and how it is measured."""

    s2_delta: Float[Tensor, "example layer"]
    """Stage 2: the same with the unlearned model's state."""

    s2_norm_ratio: Float[Tensor, "example layer"]
    """As `s1_norm_ratio`, for the unlearned model."""

    s2_cosine: Float[Tensor, "example layer"]
    """As `s1_cosine`, for the unlearned model."""

    control_s2_delta: Float[Tensor, "fact layer"] | None = None
    """Log-probability lost on the control facts with the unlearned model's state patched in, nats per token; None
    without a control."""

    @cached_property
    def ler(self) -> Float[Tensor, "example layer"]:
        """Layer erasure ratio in [0, 1]; NaN off the KE layers."""
        return layer_erasure_ratio(self.s1_delta, self.s2_delta, self.ke_mask)

    @cached_property
    def ler_raw(self) -> Float[Tensor, "example layer"]:
        """`s2_delta / s1_delta`, unclipped: above 1 is over-erasure; NaN off the KE layers."""
        return layer_erasure_ratio(self.s1_delta, self.s2_delta, self.ke_mask, clip=False)

    @cached_property
    def uds_per_example(self) -> Float[Tensor, "example"]:
        """Depth score of each example in [0, 1]; NaN where no layer holds the knowledge (not measurable)."""
        return uds_per_example(self.s1_delta, self.ler, self.ke_mask)

    @property
    def uds(self) -> float:
        """The Unlearning Depth Score in [0, 1]: 0 intact, 1 erased; NaN if no example is measurable."""
        return mean_uds(self.uds_per_example)

    @cached_property
    def uds_interval(self) -> Interval:
        """Seeded bootstrap interval of `uds`, by subject where examples share one, else by example.

        NaN with fewer than two measurable examples or with a single subject; see `uds_lens.results.bootstrap_interval`.
        Where the unlearned model has the weights of `full` or of a retain model, the score follows from its definition,
        whoever is asked about: both ends are the score.
        """
        return self.interval_of(self.uds_per_example, self.subjects)

    @cached_property
    def sample_error(self) -> SampleError | None:
        """How far `uds` may lie from that of all examples the sample was drawn from; None where all were measured.

        `uds_interval` is about other subjects, and as wide where all are measured.
        """
        told = self.provenance.get("sample")
        if not told:
            return None
        return sample_error(
            self.uds_per_example,
            of=int(told["of"]),
            drawn=len(self.examples) + len(self.skipped),
            subjects=self.subjects,
            random=told["sample"] == "random",
            confidence=self.config.confidence,
            bounds=(0.0, 1.0),
        )

    @property
    def interval_basis(self) -> IntervalBasis:
        """What the interval takes for independent draws, subjects or examples, and how many there are."""
        return interval_basis(self.uds_per_example, self.subjects)

    @property
    def subjects(self) -> list[str | None]:
        """Subject of each example."""
        return [example.subject for example in self.examples]

    def interval_of(self, scores: Float[Tensor, "some"], subjects: Sequence[str | None]) -> Interval:
        """`uds_interval` of some of the examples: their scores in [0, 1], and their subjects."""
        known = scores[~scores.isnan()].double()
        is_reference = any(role == "unlearned" for _, role in self.equal_weights)
        if is_reference and len(known) and float(known.max() - known.min()) < ROUNDING:
            return Interval(float(known.min()), float(known.max()))
        return bootstrap_interval(
            scores,
            clusters=subjects,
            confidence=self.config.confidence,
            n_resamples=self.config.n_bootstrap,
            seed=self.config.seed,
            bounds=(0.0, 1.0),
        )

    @property
    def n_measured(self) -> int:
        """Examples with at least one KE layer."""
        return int((~self.uds_per_example.isnan()).sum())

    @property
    def n_not_measurable(self) -> int:
        """Scored examples without a KE layer: neither erased nor intact."""
        return len(self.examples) - self.n_measured

    @property
    def over_erased_share(self) -> float:
        """Share of KE layers (over all examples) with `s2_delta > s1_delta`, hidden by the clip; NaN without any."""
        return self._share_of_ke(self.ler_raw > 1)

    @property
    def negative_share(self) -> float:
        """Share of KE layers with `s2_delta < 0`, hidden by the clip; NaN without any."""
        return self._share_of_ke(self.ler_raw < 0)

    def _share_of_ke(self, where: Bool[Tensor, "example layer"]) -> float:
        count = int(self.ke_mask.sum())
        return int((where & self.ke_mask).sum()) / count if count else float("nan")

    @property
    def equal_weights(self) -> list[tuple[str, str]]:
        """Pairs of roles whose checkpoints hold the same weights, byte for byte."""
        return equal_weights(self.roles)

    @cached_property
    def uds_by_retain(self) -> tuple[float, ...]:
        """The score on the scale of each retain model, in their order; with one retain model that of the audit."""
        from uds_lens.results._stage_1 import uds_against

        return tuple(mean_uds(uds_against(self, retain)) for retain in self.retains) or (self.uds,)

    @property
    def retain_spread(self) -> Spread:
        """How far the scores against several retain models lie apart: how much 0 to 1 itself moves."""
        from uds_lens.results._stage_1 import spread_of

        return spread_of(self.uds_by_retain)

    @cached_property
    def damage_estimate(self) -> Damage:
        """Loss on retained facts beside loss on forget facts: the ratio, its interval and parts, why it is NaN."""
        from uds_lens.results._stage_1 import damage_of

        return damage_of(self)

    @property
    def damage(self) -> float:
        """Loss on retained facts over loss on forget facts (`damage_of`): 0 none, 1 as much; NaN without a control."""
        return self.damage_estimate.value

    @cached_property
    def cautions(self) -> tuple[Caution, ...]:
        """What a careful reader must know before quoting the score: sentences with levels, most serious first."""
        from uds_lens.results._cautions import cautions

        return cautions(self)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The sentences of `cautions`."""
        return tuple(caution.text for caution in self.cautions)

    @property
    def fatal(self) -> tuple[str, ...]:
        """The warnings that forbid a reading: full and retain swapped, nothing measured, first rows of sorted data."""
        return tuple(caution.text for caution in self.cautions if caution.level == "fatal")

    @property
    def reading(self) -> str:
        """The score in words, such as "mostly erased"; "withheld" where a warning is fatal."""
        from uds_lens.results._scores import reading_of

        return reading_of(self)

    def with_tau(self: Audit, tau: float) -> Audit:
        """The same measurement scored with another threshold; runs no model."""
        return dataclasses.replace(self, config=dataclasses.replace(self.config, tau=tau))

    def to_frame(self) -> pd.DataFrame:
        """Long table: one row per example and layer."""
        from uds_lens.results._frames import long_frame

        return long_frame(self)

    def examples_frame(self) -> pd.DataFrame:
        """One row per scored example: text, KE layers, erasure depth, score, and the reason where it is NaN."""
        from uds_lens.results._frames import examples_frame

        return examples_frame(self)

    def layers_frame(self) -> pd.DataFrame:
        """One row per layer: S1, S2 and LER with spread, KE share, clipped shares, closeness of the patches."""
        from uds_lens.results._frames import layers_frame

        return layers_frame(self)

    def control_frame(self) -> pd.DataFrame:
        """One row per retained fact and layer: what the states of retain and of the unlearned model cost there.

        Raises:
            ConfigError: The audit was measured without a control.
        """
        from uds_lens.results._stage_1 import control_frame

        return control_frame(self)

    def control_layers_frame(self) -> pd.DataFrame:
        """One row per layer: loss on forget facts and on retained facts, with intervals.

        Raises:
            ConfigError: The audit was measured without a control.
        """
        from uds_lens.results._stage_1 import control_layers_frame

        return control_layers_frame(self)

    def retains_frame(self) -> pd.DataFrame:
        """One row per retain model: the score on its scale, with interval."""
        from uds_lens.results._stage_1 import retains_frame

        return retains_frame(self)

    def skipped_frame(self) -> pd.DataFrame:
        """One row per skipped example, with its reason."""
        from uds_lens.results._frames import skipped_frame

        return skipped_frame(self.skipped)

    def tau_sweep(self, taus: Sequence[float] | None = None) -> pd.DataFrame:
        """KE size, counts and UDS over thresholds (see `uds_lens.results.tau_sweep`)."""
        from uds_lens.results._frames import tau_sweep

        return tau_sweep(self, taus)

    def types_frame(self) -> pd.DataFrame:
        """One row per entity type: N, tokens, KE layers, UDS with interval."""
        from uds_lens.results._frames import types_frame

        return types_frame(self)

    def summary(self) -> dict[str, Any]:
        """The headline numbers and counts as plain values; NaN where undefined."""
        interval, spread, damage = self.uds_interval, self.retain_spread, self.damage_estimate
        sample = self.sample_error or SampleError(0.0, Interval(self.uds, self.uds), 0, False)
        return {
            "uds": self.uds,
            "uds_low": interval.low,
            "uds_high": interval.high,
            "confidence": self.config.confidence,
            "interval_by": self.interval_basis.by,
            "interval_degrees_of_freedom": self.interval_basis.degrees_of_freedom,
            "sample_of": sample.of or len(self.examples) + len(self.skipped),
            "sample_standard_error": sample.standard_error,
            "sample_low": sample.interval.low,
            "sample_high": sample.interval.high,
            "n_retains": max(1, len(self.retains)),
            "uds_by_retain": list(self.uds_by_retain),
            "uds_lowest": spread.low,
            "uds_highest": spread.high,
            "n_examples": len(self.examples) + len(self.skipped),
            "n_measured": self.n_measured,
            "n_not_measurable": self.n_not_measurable,
            "n_skipped": len(self.skipped),
            "n_layers": self.n_layers,
            "ke_layers_mean": float(self.ke_mask.sum(-1).double().mean())
            if len(self.examples)
            else float("nan"),
            "over_erased_share": self.over_erased_share,
            "negative_share": self.negative_share,
            "n_control": 0 if self.control is None else int(self.control.known.sum()),
            "damage": damage.value,
            "damage_low": damage.interval.low,
            "damage_high": damage.interval.high,
            "damage_reason": damage.reason,
            "forget_loss": damage.forget_loss,
            "control_loss": damage.control_loss,
            "control_retain_loss": damage.retain_loss,
            "s_full_mean": float(self.s_full.mean()) if len(self.examples) else float("nan"),
            "models": {role: record.to_dict() for role, record in self.roles.items()},
            "equal_weights": [list(pair) for pair in self.equal_weights],
            "reading": self.reading,
            "n_warnings": len(self.cautions),
            "n_fatal": len(self.fatal),
            "warnings": list(self.warnings),
            "warning_levels": [caution.level for caution in self.cautions],
            "config": self.config.to_dict(),
        }


# How a finished audit is looked at: its figures, as methods.


class AuditFigures(AuditScores):
    """Figures of an audit (`plotly.graph_objects.Figure`, never shown by themselves)."""

    def plot_layers(self, *, theme: Theme = "light") -> go.Figure:
        """S1, S2, LER and the share of KE layers by layer (see `uds_lens.plots.layer_profile`)."""
        from uds_lens.plots import layer_profile

        return layer_profile(self.layers_frame(), theme=theme)

    def plot_heatmap(self, *, order: Order = "uds", theme: Theme = "light") -> go.Figure:
        """LER of every example at every layer (see `uds_lens.plots.ler_heatmap`)."""
        from uds_lens.plots import ler_heatmap

        return ler_heatmap(self.to_frame(), self.examples_frame(), order=order, theme=theme)

    def plot_examples(self, *, theme: Theme = "light") -> go.Figure:
        """Histogram of the examples' scores (see `uds_lens.plots.uds_distribution`)."""
        from uds_lens.plots import uds_distribution

        return uds_distribution(self.examples_frame(), theme=theme)

    def plot_example(self, example_id: str, *, theme: Theme = "light") -> go.Figure:
        """S1, S2 and LER of one example by layer (see `uds_lens.plots.example_profile`).

        Raises:
            DataError: No scored example has that id.
        """
        from uds_lens.errors import DataError
        from uds_lens.plots import example_profile

        found = next((example for example in self.examples if example.id == example_id), None)
        if found is None:
            raise DataError(f"no scored example has the id {example_id!r}: see audit.examples_frame().")
        frame = self.to_frame()
        rows = frame[frame["example_id"] == example_id]
        return example_profile(rows, tau=self.config.tau, question=found.question, theme=theme)

    def plot_types(self, *, theme: Theme = "light") -> go.Figure:
        """UDS by entity type, with intervals and N (see `uds_lens.plots.type_bars`)."""
        from uds_lens.plots import type_bars

        return type_bars(self.types_frame(), theme=theme)

    def plot_length(self, *, theme: Theme = "light") -> go.Figure:
        """UDS against entity length (see `uds_lens.plots.length_scatter`)."""
        from uds_lens.plots import length_scatter

        return length_scatter(self.examples_frame(), theme=theme)

    def plot_tau(self, taus: Sequence[float] | None = None, *, theme: Theme = "light") -> go.Figure:
        """UDS and KE layers over thresholds (see `uds_lens.plots.tau_curve`)."""
        from uds_lens.plots import tau_curve

        return tau_curve(self.tau_sweep(taus), tau=self.config.tau, theme=theme)

    def plot_clip(self, *, theme: Theme = "light") -> go.Figure:
        """Shares of raw LER above 1 and below 0 (see `uds_lens.plots.clip_bars`)."""
        from uds_lens.plots import clip_bars

        return clip_bars(self.layers_frame(), theme=theme)

    def plot_control(self, *, theme: Theme = "light") -> go.Figure:
        """Loss on forget facts and on retained facts by layer (see `uds_lens.plots.forget_and_kept`).

        Raises:
            ConfigError: The audit was measured without a control.
        """
        from uds_lens.plots import forget_and_kept

        return forget_and_kept(self.control_layers_frame(), theme=theme)

    def plot_components(self, others: Sequence[AuditScores], *, theme: Theme = "light") -> go.Figure:
        """S1 by layer at this audit's patch site and at those of others (see `uds_lens.plots.component_profile`).

        Raises:
            ConfigError: The audits do not differ in the site, or differ in models, tokens, scope, protocol or dtype.
        """
        from uds_lens.errors import ConfigError
        from uds_lens.plots import component_profile
        from uds_lens.results._comparing import site_groups

        groups = site_groups([self, *others])
        if len(groups) != 1 or len(groups[0]) != 1 + len(others):
            sites = ", ".join(audit.config.site for audit in (self, *others))
            raise ConfigError(
                "expected audits of one full and one retain model on the same examples, each with a site of its own "
                f"(AuditConfig(site=...)) and all else equal; got sites {sites}."
            )
        frames = {site: audit.layers_frame() for site, audit in groups[0].items()}
        return component_profile(frames, theme=theme)

    def plot_comparison(
        self, others: Sequence[AuditScores], *, value: Value = "ler", theme: Theme = "light"
    ) -> go.Figure:
        """Mean LER or S2 by layer, this audit before others (see `uds_lens.plots.compare_layers`)."""
        from uds_lens.plots import compare_layers
        from uds_lens.results._records import references_among

        named = _named([self, *others])
        frames = {name: audit.layers_frame() for name, audit in named.items()}
        return compare_layers(
            frames, value=value, chosen=next(iter(named)), references=references_among(named), theme=theme
        )

    def plot_ranking(self, others: Sequence[AuditScores], *, theme: Theme = "light") -> go.Figure:
        """UDS with intervals, of this audit and others (see `uds_lens.plots.ranking`)."""
        from uds_lens.plots import ranking
        from uds_lens.results._comparing import models_frame
        from uds_lens.results._records import references_among

        named = _named([self, *others])
        return ranking(models_frame(named), references=references_among(named), theme=theme)


def _named(audits: Sequence[AuditScores]) -> dict[str, AuditScores]:
    from uds_lens.results._comparing import audit_names

    return dict(zip(audit_names(audits), audits, strict=True))


# How an audit shows itself in a notebook: a small table, readable in light and dark themes.


def audit_card(audit: AuditScores) -> str:
    """HTML of an audit's headline, counts and warnings; every text from outside is escaped."""
    low, high = audit.uds_interval
    interval = f"{audit.config.confidence * 100:g} % interval {number(low)} to {number(high)}, {audit.interval_basis}"
    rows = [
        ("UDS", f"<b>{number(audit.uds)}</b> ({interval})"),
        ("reading", escape(audit.reading)),
        *_beside(audit),
        ("unlearned", escape(audit.models["unlearned"].name)),
        *_sampled(audit),
        ("measured", f"{audit.n_measured} of {len(audit.examples) + len(audit.skipped)} examples"),
        ("not measurable", f"{audit.n_not_measurable} (no layer holds the knowledge)"),
        ("skipped", str(len(audit.skipped))),
        ("layers", str(audit.n_layers)),
    ]
    cell = "padding:2px 12px 2px 0;text-align:left;vertical-align:top"
    body = "".join(
        f'<tr><th style="{cell}">{name}</th><td style="{cell}">{value}</td></tr>' for name, value in rows
    )
    warnings = "".join(
        f"<li>{'<b>Fatal:</b> ' if level == 'fatal' else ''}{escape(text)}</li>"
        for level, text in audit.cautions
    )
    notes = f'<ul style="margin:4px 0 0 0">{warnings}</ul>' if warnings else ""
    return f'<div><table style="border-collapse:collapse">{body}</table>{notes}</div>'


def _sampled(audit: AuditScores) -> list[tuple[str, str]]:
    found = audit.sample_error
    return [] if found is None else [("if all asked", f"UDS {found.words} examples (error of the sample)")]


def _beside(audit: AuditScores) -> list[tuple[str, str]]:
    """What only some audits have: the score against single retain models, and damage."""
    rows = []
    if audit.retains:
        low, high, deviation = audit.retain_spread
        told = f"{number(low)} to {number(high)} over {len(audit.retains)} retain models"
        rows.append(("against each", f"{told} (standard deviation {number(deviation)})"))
    if audit.control is not None:
        found = audit.damage_estimate
        low, high = found.interval
        told = (
            f"{found.value:.3f} ({number(low)} to {number(high)})" if found.reason is None else found.reason
        )
        rows.append(("damage", f"{escape(told)}, from {int(audit.control.known.sum())} retained facts"))
    return rows


def number(value: float, *, digits: int = 3) -> str:
    """A score as text; NaN in words.

    >>> number(0.12345), number(float("nan"))
    ('0.123', 'not measurable')
    """
    return "not measurable" if math.isnan(value) else f"{value:.{digits}f}"


# `DepthAudit`: the finished measurement of one unlearned model, with every number behind its score.


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class DepthAudit(AuditFigures):
    """How deep an unlearned model has erased a forget set.

    Made by `DepthAudit.run`, `Baseline.audit` or `DepthAudit.load`. The example axis holds the scored examples in
    input order (`examples`); rows that could not be scored are in `skipped`. The model itself is not kept.
    """

    @classmethod
    def run(
        cls,
        full: ModelSource,
        retain: RetainSource,
        unlearned: ModelSource,
        examples: ExamplesLike,
        *,
        control: ExamplesLike | None = None,
        config: AuditConfig | None = None,
        options: RunOptions | None = None,
    ) -> DepthAudit:
        """Measure one unlearned model, both stages, with one model in memory at a time.

        Args:
            full: Trained on everything: directory, Hub id, transformers model or `TransformerBridge`.
            retain: Never saw the forget set. Several (a list) that differ in their seed: the layers that count go by
                their mean S1, and `uds_by_retain` has the score against each.
            unlearned: `full` after an unlearning method.
            examples: The forget set, with entity spans: examples or rows, or where `uds_lens.load_examples` reads
                them.
            control: Facts that `full` and `retain` both know, with entity spans, in the same forms: what the unlearned
                states cost there is `damage`. None measures none.
            config: What to measure; default `AuditConfig()`.
            options: How to run it; default `RunOptions()`.

        Returns:
            The audit.

        Raises:
            IncompatibleModelsError: The checkpoints differ in architecture, size or tokenizer.
            ModelError: A checkpoint cannot be opened, or gives NaN.
            DataError: No examples, or the control holds some of them.

        Example:
            >>> import uds_lens as ul
            >>> world = ul.toy.load()
            >>> audit = ul.DepthAudit.run(world.full, world.retain, world.retain, world.examples)
            >>> audit.uds
            1.0
        """
        from uds_lens.audit._two_stage import measure_stages

        _, audit = measure_stages(
            full, retain, unlearned, examples, control=control, config=config, options=options
        )
        assert audit is not None
        return audit

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the audit to a directory (JSON, safetensors, parquet), whole or not at all."""
        save_result(self, path, AUDIT, more=self.summary())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DepthAudit:
        """Read an audit written by `save`.

        Raises:
            ResultFormatError: A file is missing, altered, or of another version.
        """
        return cls(**load_audit(path))

    def push_to_hub(
        self,
        repo: str,
        *,
        dataset: str = "forget set",
        config: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        token: str | None = None,
    ) -> str:
        """Put the audit on a model's page on the Hub: its files in `uds_lens/`, and a section of the model card.

        One commit. What else the card says is kept; an earlier section about depth is replaced. The files hold the
        models' names and the command as they were given, the questions and the answers.

        Args:
            repo: `owner/name`; made if it is not there.
            dataset: The forget set: its id on the Hub, such as "locuslab/TOFU", or a name.
            config: Its configuration, such as "forget10".
            revision: Branch; default the main one.
            private: Whether a repository that is made is private.
            token: Access token; default the one of `hf auth login`.

        Returns:
            Address of the commit.

        Raises:
            ConfigError: `repo` is no name of a repository.
            ResultFormatError: The card that is there has metadata that cannot be read.
            StorageError: The Hub cannot be reached, or refuses.
        """
        from uds_lens.results._hub import push

        return push(
            self, repo, dataset=dataset, config=config, revision=revision, private=private, token=token
        )

    def __repr__(self) -> str:
        low, high = self.uds_interval
        return (
            f"DepthAudit(uds={self.uds:.3f} [{low:.3f}, {high:.3f}], measured={self.n_measured}, "
            f"not_measurable={self.n_not_measurable}, skipped={len(self.skipped)}, layers={self.n_layers}, "
            f"{self._beside()}warnings={len(self.warnings)}{self._fatal_note()}, "
            f"unlearned={self.models['unlearned'].name!r})"
        )

    def _beside(self) -> str:
        """What only some audits have."""
        low, high, _ = self.retain_spread
        several = f"retains={len(self.retains)} [{low:.3f}, {high:.3f}], " if self.retains else ""
        return several + (f"damage={self.damage:.3f}, " if self.control is not None else "")

    def _fatal_note(self) -> str:
        return f" ({len(self.fatal)} fatal, reading withheld)" if self.fatal else ""

    def _repr_html_(self) -> str:

        return audit_card(self)
