"""`DepthAudit`: the finished measurement of an unlearned model, with every number behind its score."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from uds_lens import plots
from uds_lens.data._readers import ExamplesLike
from uds_lens.errors import ConfigError, DataError, Setting
from uds_lens.results import _frames
from uds_lens.results._cards import audit_card
from uds_lens.results._cautions import Caution, cautions
from uds_lens.results._comparing import audit_names, models_frame, site_groups
from uds_lens.results._intervals import (
    ROUNDING,
    IntervalBasis,
    SampleError,
    bootstrap_interval,
    interval_basis,
    sample_error,
)
from uds_lens.results._records import equal_weights, references_among
from uds_lens.results._saving import AUDIT, load_audit, save_stages
from uds_lens.results._scores import layer_erasure_ratio, mean_uds, output_depth, uds_per_example
from uds_lens.results._settings import AuditConfig, RunOptions
from uds_lens.results._stage_1 import (
    Damage,
    EntityProb,
    Spread,
    Stage1,
    damage_of,
    entity_prob_of,
    retain_ceiling,
    spread_of,
    uds_against,
)
from uds_lens.results._statistics import Interval
from uds_lens.results._verdict import TransplantEvidence, Verdict, verdict

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go
    from typing_extensions import Unpack

    from uds_lens.models._hooked import ModelSource, RetainSource
    from uds_lens.plots import Look
    from uds_lens.plots._examples import Order
    from uds_lens.plots._layers import Value


Audit = TypeVar("Audit", bound="DepthAudit")


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class DepthAudit(Stage1):
    """Result of an audit: how deeply a forget set has been erased from an unlearned model.

    Made by `DepthAudit.run`, `Baseline.audit` or `DepthAudit.load`. The example axis holds the scored examples in
    input order (`examples`); rows that could not be scored are in `skipped`. The model itself is not kept.
    """

    s2_delta: Float[Tensor, "example layer"]
    """Stage 2: like `s1_delta`, but with the unlearned model's state; NaN where it was not measured (`stage_2_tau`)."""

    s2_norm_ratio: Float[Tensor, "example layer"]
    """Like `s1_norm_ratio`, for the unlearned model."""

    s2_cosine: Float[Tensor, "example layer"]
    """Like `s1_cosine`, for the unlearned model."""

    control_s2_delta: Float[Tensor, "fact layer"] | None = None
    """Log-probability lost on the control facts with the unlearned model's state patched in, nats per token; None
    without a control."""

    s_unlearned: Float[Tensor, "example"] | None = None
    """Mean log-probability of the entity under the unlearned model itself, unpatched, nats per token; None if it was
    not measured."""

    control_s_unlearned: Float[Tensor, "fact"] | None = None
    """Mean log-probability of the entity in the control facts under the unlearned model itself, unpatched; None if it
    was not measured, or without a control."""

    transplant: TransplantEvidence | None = None
    """Findings of a transplant, used by the verdict; set by `Transplant.beside` and not saved with the audit."""

    def __post_init__(self) -> None:
        missing = self.ke_mask & self.s2_delta.isnan()
        if missing.any():
            measured = "" if self.stage_2_tau is None else f" at tau {self.stage_2_tau:g}"
            raise ConfigError(
                f"stage 2 was measured only where full encodes knowledge{measured}, but at tau {self.config.tau:g}, "
                f"{int(missing.sum())} more pairs of example and layer need stage 2. Measure again with this tau, or "
                "with ",
                Setting("stage_2", "all", of="RunOptions"),
                " for any tau.",
            )

    @property
    def stage_2_tau(self) -> float | None:
        """S1 above which a layer was measured in stage 2; None if all layers were measured.

        With `RunOptions(stage_2="knowledge")`, `s2_delta` is NaN where S1 is at most this threshold. Scores at a lower
        tau need a new measurement.
        """
        partly = self.provenance.get("stage_2")
        return None if partly is None else float(partly["tau"])

    @classmethod
    def run(
        cls,
        full: ModelSource,
        retain: RetainSource | None,
        unlearned: ModelSource,
        examples: ExamplesLike,
        *,
        control: ExamplesLike | None = None,
        config: AuditConfig | None = None,
        options: RunOptions | None = None,
    ) -> DepthAudit:
        """Measure one unlearned model in both stages, with one model in memory at a time.

        Args:
            full: The model trained on everything: directory, Hub id, transformers model or `TransformerBridge`.
            retain: The model that never saw the forget set, or a list of such models with different seeds. With a list,
                the KE layers follow from the mean S1, and `uds_by_retain` has the score against each model. None with
                `AuditConfig(stand_in="counterfactual")`.
            unlearned: `full` after unlearning.
            examples: The forget set, with entity spans: examples, rows, or a source that `uds_lens.load_examples`
                reads.
            control: Facts that `full` and `retain` both know, in the same forms as `examples`; the cost of the
                unlearned states on these facts gives `damage`. None leaves damage unmeasured.
            config: What to measure; default `AuditConfig()`.
            options: How to run it; default `RunOptions()`.

        Returns:
            The audit.

        Raises:
            IncompatibleModelsError: The checkpoints differ in architecture, size or tokenizer.
            ModelError: A checkpoint cannot be opened, or its outputs are NaN.
            DataError: There are no examples, or the control contains some of the examples.

        Example:
            >>> import uds_lens as ul
            >>> world = ul.toy.load()
            >>> audit = ul.DepthAudit.run(world.full, world.retain, world.retain, world.examples)
            >>> audit.uds
            1.0
        """
        from uds_lens.audit._two_stage import measure_stages  # the only import from a higher-level package

        _, audit = measure_stages(full, retain, unlearned, examples, control=control, config=config, options=options)
        assert audit is not None
        return audit

    # Scores.

    @cached_property
    def ler(self) -> Float[Tensor, "example layer"]:
        """Layer erasure ratio in [0, 1]; NaN outside the KE layers."""
        return layer_erasure_ratio(self.s1_delta, self.s2_delta, self.ke_mask)

    @cached_property
    def ler_raw(self) -> Float[Tensor, "example layer"]:
        """`s2_delta / s1_delta`, unclipped: above 1 is over-erasure; NaN outside the KE layers."""
        return layer_erasure_ratio(self.s1_delta, self.s2_delta, self.ke_mask, clip=False)

    @cached_property
    def uds_per_example(self) -> Float[Tensor, "example"]:
        """Depth score of each example in [0, 1]; NaN without a KE layer (not measurable)."""
        return uds_per_example(self.s1_delta, self.ler, self.ke_mask)

    @property
    def uds(self) -> float:
        """The Unlearning Depth Score in [0, 1]: 0 intact, 1 erased; NaN if no example is measurable."""
        return mean_uds(self.uds_per_example)

    @cached_property
    def uds_interval(self) -> Interval:
        """Bootstrap interval of `uds`, clustered by subject if examples share subjects (`bootstrap_interval`).

        NaN with fewer than two measurable examples or with a single subject. If the unlearned model has the weights of
        `full` or of a retain model, the score follows from its definition, and both ends equal the score.
        """
        return self.interval_of(self.uds_per_example, self.subjects)

    def interval_of(self, scores: Float[Tensor, "some"], subjects: Sequence[str | None]) -> Interval:
        """Return an interval like `uds_interval` for some examples, given their scores in [0, 1] and their subjects."""
        defined = scores[~scores.isnan()].double()
        is_reference = any(role == "unlearned" for _, role in self.equal_weights)
        if is_reference and len(defined) and float(defined.max() - defined.min()) < ROUNDING:
            return Interval(float(defined.min()), float(defined.max()))
        return bootstrap_interval(scores, clusters=subjects, bounds=(0.0, 1.0), **self.config.resampling)

    @cached_property
    def interval_basis(self) -> IntervalBasis:
        """The unit that the interval resamples (subjects or examples), and their number."""
        return interval_basis(self.uds_per_example, self.subjects)

    @cached_property
    def sample_error(self) -> SampleError | None:
        """How far `uds` may be from its value over all examples, if only a sample was measured; otherwise None.

        `uds_interval`, by contrast, shows how much the score would vary with other subjects, and would be equally wide
        if all examples had been measured.
        """
        sample = self.provenance.get("sample")
        if not sample:
            return None
        return sample_error(
            self.uds_per_example,
            of=int(sample["of"]),
            drawn=len(self.examples) + len(self.skipped),
            subjects=self.subjects,
            random=sample["sample"] == "random",
            confidence=self.config.confidence,
            bounds=(0.0, 1.0),
        )

    @cached_property
    def output_depth_per_example(self) -> Float[Tensor, "example"]:
        """Depth of each example in the models' unpatched answers, in [0, 1] (see `uds_lens.results.output_depth`).

        NaN where `full`'s log-probability of the entity exceeds `retain`'s by at most `tau` nats per token, and for the
        reasons in `output_depth_reason`.
        """
        if self.s_retain is None or self.s_unlearned is None:
            return torch.full_like(self.s_full, torch.nan)
        return output_depth(self.s_full, self.s_unlearned, self.s_retain, self.config.tau)

    @property
    def output_depth(self) -> float:
        """Score of the unpatched answers: 0 if entities are as probable as under `full`, 1 if as under `retain`.

        No state is patched. Without a retain model, its stand-in (the base, or `full` on counterfactuals) defines 1.
        NaN: see `output_depth_reason`.
        """
        return mean_uds(self.output_depth_per_example)

    @cached_property
    def output_depth_interval(self) -> Interval:
        """Bootstrap interval of `output_depth`, as `uds_interval`."""
        return self.interval_of(self.output_depth_per_example, self.subjects)

    @property
    def output_depth_reason(self) -> str | None:
        """Why `output_depth` is NaN."""
        if self.s_retain is None or self.s_unlearned is None:
            return "the models' own answers were not measured"
        if not math.isnan(self.output_depth):
            return None
        return f"full knows no entity better than retain by more than {self.config.tau:g} nats per token"

    @cached_property
    def retain_ceiling(self) -> float:
        """The level that retraining reaches: the lowest score of any retain model on the scale of another.

        NaN with one retain model, or if nothing is measurable.
        """
        return retain_ceiling(self)

    @property
    def n_measured(self) -> int:
        """Number of examples with at least one KE layer."""
        return int((~self.uds_per_example.isnan()).sum())

    @property
    def n_not_measurable(self) -> int:
        """Number of scored examples without a KE layer, which are neither erased nor intact."""
        return len(self.examples) - self.n_measured

    @property
    def over_erased_share(self) -> float:
        """Share of all examples' KE layers with `s2_delta > s1_delta`, which clipping hides; NaN without KE layers."""
        return self._share_of_ke(self.ler_raw > 1)

    @property
    def negative_share(self) -> float:
        """Share of all examples' KE layers with `s2_delta < 0`, which clipping hides; NaN without KE layers."""
        return self._share_of_ke(self.ler_raw < 0)

    def _share_of_ke(self, where: Bool[Tensor, "example layer"]) -> float:
        count = int(self.ke_mask.sum())
        return int((where & self.ke_mask).sum()) / count if count else float("nan")

    @property
    def equal_weights(self) -> list[tuple[str, str]]:
        """Pairs of roles whose checkpoints have byte-identical weights."""
        return equal_weights(self.roles)

    @cached_property
    def uds_by_retain(self) -> tuple[float, ...]:
        """The score on each retain model's scale, in order; only `uds` if there is one retain model."""
        return tuple(mean_uds(uds_against(self, retain.s1_delta)) for retain in self.retains) or (self.uds,)

    @property
    def retain_spread(self) -> Spread:
        """Range and standard deviation of the scores against several retain models, which show how the scale varies."""
        return spread_of(self.uds_by_retain)

    @cached_property
    def damage_estimate(self) -> Damage:
        """Loss on retained facts relative to forget facts: ratio, interval, parts, and the reason if it is NaN."""
        return damage_of(self)

    @property
    def damage(self) -> float:
        """Loss on retained facts divided by loss on forget facts: 0 if none, 1 if equal; NaN without a control."""
        return self.damage_estimate.value

    @cached_property
    def entity_prob(self) -> EntityProb:
        """Probability of forget and retained entities under `full` and under the unlearned model, both unpatched.

        If the probability is low and `uds` is low too, the knowledge is hidden, not gone.
        """
        return entity_prob_of(self)

    @cached_property
    def cautions(self) -> tuple[Caution, ...]:
        """Warnings to read before quoting the score, most serious first: level, text, and a short mark."""
        return cautions(self)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The sentences of `cautions`."""
        return tuple(caution.text for caution in self.cautions)

    @property
    def fatal(self) -> tuple[str, ...]:
        """The warnings that withhold the verdict, for example that full and retain may be swapped."""
        return tuple(caution.text for caution in self.cautions if caution.level == "fatal")

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict on the model, with its reason (`uds_lens.results.verdict`).

        Without a `transplant`, it is intact, partly erased (the model still answers), damaged, undecided or withheld.
        """
        return verdict(self)

    @property
    def reading(self) -> str:
        """The verdict's word; "withheld" if a warning is fatal."""
        return str(self.verdict)

    def with_tau(self: Audit, tau: float) -> Audit:
        """Score the same measurement with another threshold, without running a model."""
        return dataclasses.replace(self, config=dataclasses.replace(self.config, tau=tau))

    # Tables.

    def to_frame(self) -> pd.DataFrame:
        """Return a long table: one row per example and layer."""
        return _frames.long_frame(self)

    def examples_frame(self) -> pd.DataFrame:
        """Return one row per scored example: text, KE layers, erasure depth, score, and the reason if it is NaN."""
        return _frames.examples_frame(self)

    def layers_frame(self) -> pd.DataFrame:
        """Return one row per layer: S1, S2 and LER with spread, KE share, shares clipped, similarity of the patches."""
        return self._layers.copy()

    @cached_property
    def _layers(self) -> pd.DataFrame:
        return _frames.layers_frame(self)

    def types_frame(self) -> pd.DataFrame:
        """Return one row per entity type: counts, tokens, KE layers, UDS with interval."""
        return _frames.types_frame(self)

    def control_frame(self) -> pd.DataFrame:
        """Return one row per retained fact and layer: what retain's and the unlearned model's states cost there.

        Raises:
            ConfigError: The audit was measured without a control.
        """
        return _frames.control_frame(self)

    def control_layers_frame(self) -> pd.DataFrame:
        """Return one row per layer: loss on forget facts and on retained facts, with intervals.

        Raises:
            ConfigError: The audit was measured without a control.
        """
        return _frames.control_layers_frame(self)

    def retains_frame(self) -> pd.DataFrame:
        """Return one row per retain model: the score on that model's scale, with interval."""
        return _frames.retains_frame(self)

    def skipped_frame(self) -> pd.DataFrame:
        """Return one row per skipped example, with its reason."""
        return _frames.skipped_frame(self.skipped)

    def tau_sweep(self, taus: Sequence[float] | None = None) -> pd.DataFrame:
        """Return KE layers, counts and UDS for several thresholds (see `uds_lens.results.tau_sweep`)."""
        return _frames.tau_sweep(self, taus)

    def summary(self) -> dict[str, Any]:
        """Return the main numbers and counts as plain values; NaN where undefined."""
        interval, spread, damage = self.uds_interval, self.retain_spread, self.damage_estimate
        sample = self.sample_error or SampleError(0.0, Interval(self.uds, self.uds), 0, False)
        some, nan = len(self.examples) > 0, math.nan
        return {
            "uds": self.uds,
            "uds_low": interval.low,
            "uds_high": interval.high,
            "output_depth": self.output_depth,
            "output_depth_low": self.output_depth_interval.low,
            "output_depth_high": self.output_depth_interval.high,
            "output_depth_reason": self.output_depth_reason,
            "host_depth": nan if self.transplant is None else self.transplant.host_depth,
            "hidden": nan if self.transplant is None else self.transplant.hidden,
            "confidence": self.config.confidence,
            "interval_by": self.interval_basis.by,
            "interval_degrees_of_freedom": self.interval_basis.degrees_of_freedom,
            "sample_of": sample.of or len(self.examples) + len(self.skipped),
            "sample_standard_error": sample.standard_error,
            "sample_low": sample.interval.low,
            "sample_high": sample.interval.high,
            "prompts": self.prompts,
            "n_retains": max(1, len(self.retains)),
            "uds_by_retain": list(self.uds_by_retain),
            "uds_lowest": spread.low,
            "uds_highest": spread.high,
            "n_examples": len(self.examples) + len(self.skipped),
            "n_measured": self.n_measured,
            "n_not_measurable": self.n_not_measurable,
            "n_skipped": len(self.skipped),
            "n_layers": self.n_layers,
            "ke_layers_mean": float(self.ke_mask.sum(-1).double().mean()) if some else nan,
            "weight_by_third": list(_frames.weight_by_third(self)),
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
            "s_full_mean": float(self.s_full.mean()) if some else nan,
            **{f"prob_{name}": value for name, value in self.entity_prob._asdict().items()},
            "models": {role: record.to_dict() for role, record in self.roles.items()},
            "equal_weights": [list(pair) for pair in self.equal_weights],
            "reading": self.reading,
            "reason": self.verdict.why,
            "n_warnings": len(self.cautions),
            "n_fatal": len(self.fatal),
            "warnings": list(self.warnings),
            "warning_levels": [caution.level for caution in self.cautions],
            "warning_marks": [caution.mark for caution in self.cautions],
            "config": self.config.to_dict(),
        }

    # Figures (`plotly.graph_objects.Figure`, which are not shown automatically); all accept `uds_lens.plots.Look`.

    def plot_layers(self, **look: Unpack[Look]) -> go.Figure:
        """Draw S1, S2, LER and the share of KE layers by layer (see `uds_lens.plots.layer_profile`)."""
        return plots.layer_profile(self.layers_frame(), **look)

    def plot_heatmap(self, *, order: Order = "uds", **look: Unpack[Look]) -> go.Figure:
        """Draw LER of every example at every layer (see `uds_lens.plots.ler_heatmap`)."""
        return plots.ler_heatmap(self.to_frame(), self.examples_frame(), order=order, **look)

    def plot_examples(self, **look: Unpack[Look]) -> go.Figure:
        """Draw a histogram of the examples' scores (see `uds_lens.plots.uds_distribution`)."""
        return plots.uds_distribution(self.examples_frame(), **look)

    def plot_example(self, example_id: str, **look: Unpack[Look]) -> go.Figure:
        """Draw S1, S2 and LER of one example by layer (see `uds_lens.plots.example_profile`).

        Raises:
            DataError: No scored example has that id.
        """
        question = next((example.question for example in self.examples if example.id == example_id), None)
        if question is None:
            raise DataError(f"no scored example has the id {example_id!r}: see audit.examples_frame().")
        frame = self.to_frame()
        return plots.example_profile(
            frame[frame["example_id"] == example_id], tau=self.config.tau, question=question, **look
        )

    def plot_types(self, **look: Unpack[Look]) -> go.Figure:
        """Draw UDS by entity type, with intervals and counts (see `uds_lens.plots.type_bars`)."""
        return plots.type_bars(self.types_frame(), **look)

    def plot_length(self, **look: Unpack[Look]) -> go.Figure:
        """Draw UDS against entity length (see `uds_lens.plots.length_scatter`)."""
        return plots.length_scatter(self.examples_frame(), **look)

    def plot_tau(self, taus: Sequence[float] | None = None, **look: Unpack[Look]) -> go.Figure:
        """Draw UDS and KE layers against the threshold (see `uds_lens.plots.tau_curve`)."""
        return plots.tau_curve(self.tau_sweep(taus), tau=self.config.tau, **look)

    def plot_clip(self, **look: Unpack[Look]) -> go.Figure:
        """Draw the shares of raw LER above 1 and below 0 (see `uds_lens.plots.clip_bars`)."""
        return plots.clip_bars(self.layers_frame(), **look)

    def plot_control(self, **look: Unpack[Look]) -> go.Figure:
        """Draw the loss on forget facts and on retained facts by layer (see `uds_lens.plots.forget_and_kept`).

        Raises:
            ConfigError: The audit was measured without a control.
        """
        return plots.forget_and_kept(self.control_layers_frame(), **look)

    def plot_components(self, others: Sequence[DepthAudit], **look: Unpack[Look]) -> go.Figure:
        """Draw S1 by layer at the patch sites of this audit and others (see `uds_lens.plots.component_profile`).

        Raises:
            ConfigError: The audits have the same site, or differ in models, tokens, scope, protocol or dtype.
        """
        groups = site_groups([self, *others])
        if len(groups) != 1 or len(groups[0]) != 1 + len(others):
            sites = ", ".join(audit.config.site for audit in (self, *others))
            raise ConfigError(
                "expected audits of one full and one retain model on the same examples, each at a different site "
                f"(AuditConfig(site=...)) and with equal settings otherwise; got sites {sites}."
            )
        return plots.component_profile({site: audit.layers_frame() for site, audit in groups[0].items()}, **look)

    def plot_comparison(self, others: Sequence[DepthAudit], *, value: Value = "ler", **look: Unpack[Look]) -> go.Figure:
        """Draw mean LER or S2 by layer, for this audit and others (see `uds_lens.plots.compare_layers`)."""
        named = self._named(others)
        return plots.compare_layers(
            {name: audit.layers_frame() for name, audit in named.items()},
            value=value,
            references=references_among(named),
            **look,
        )

    def plot_ranking(self, others: Sequence[DepthAudit], **look: Unpack[Look]) -> go.Figure:
        """Draw UDS with intervals, for this audit and others (see `uds_lens.plots.ranking`)."""
        named = self._named(others)
        return plots.ranking(models_frame(named), references=references_among(named), **look)

    def _named(self, others: Sequence[DepthAudit]) -> dict[str, DepthAudit]:
        audits = [self, *others]
        return dict(zip(audit_names(audits), audits, strict=True))

    # Files.

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the audit to a directory (JSON, safetensors, parquet), atomically."""
        save_stages(self, path, AUDIT, summary=self.summary())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DepthAudit:
        """Read an audit written by `save`.

        Raises:
            ResultFormatError: A file is missing, altered, or from another version.
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
        """Publish the audit in a model's Hub repository: its files in `uds_lens/`, and a section of the model card.

        One commit. An earlier section about depth is replaced; the rest of the card is kept. The files contain the
        questions and answers, and the models' names and the command as they were given.

        Args:
            repo: `owner/name`; created if it does not exist.
            dataset: The forget set's id on the Hub, such as "locuslab/TOFU", or another name.
            config: Configuration of the dataset, such as "forget10".
            revision: Branch to commit to; by default the main branch.
            private: Whether a newly created repository is private.
            token: Access token; by default the token saved by `hf auth login`.

        Returns:
            Address of the commit.

        Raises:
            ConfigError: `repo` is not the name of a repository.
            ResultFormatError: The metadata of the existing card cannot be read.
            StorageError: The Hub cannot be reached, or refuses the commit.
        """
        from uds_lens.results._hub import push

        return push(self, repo, dataset=dataset, config=config, revision=revision, private=private, token=token)

    def __repr__(self) -> str:
        low, high = self.uds_interval
        least, most, _ = self.retain_spread
        retains = f"retains={len(self.retains)} [{least:.3f}, {most:.3f}], " if self.retains else ""
        damage = "" if self.control is None else f"damage={self.damage:.3f}, "
        fatal = f" ({len(self.fatal)} fatal)" if self.fatal else ""
        return (
            f"DepthAudit(uds={self.uds:.3f} [{low:.3f}, {high:.3f}], output_depth={self.output_depth:.3f}, "
            f"verdict={self.reading!r}, measured={self.n_measured}, "
            f"not_measurable={self.n_not_measurable}, skipped={len(self.skipped)}, layers={self.n_layers}, "
            f"{retains}{damage}warnings={len(self.warnings)}{fatal}, unlearned={self.models['unlearned'].name!r})"
        )

    def _repr_html_(self) -> str:
        return audit_card(self)
