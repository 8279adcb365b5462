"""The numbers of an audit: what was measured, and every score and table that follows from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from jaxtyping import Bool, Float
from torch import Tensor

from uds_lens.checked_arguments import arguments_checked
from uds_lens.results.intervals import ROUNDING, Interval, IntervalBasis, bootstrap_interval, interval_basis
from uds_lens.results.records import equal_weights
from uds_lens.results.sampling_error import SampleError, sample_error
from uds_lens.results.scores import layer_erasure_ratio, mean_uds, uds_per_example
from uds_lens.results.stage_1 import Stage1

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.results.caution_levels import Caution
    from uds_lens.results.damage import Damage
    from uds_lens.results.retain_models import Spread

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

    @arguments_checked
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
        from uds_lens.results.retain_models import uds_against

        return tuple(mean_uds(uds_against(self, retain)) for retain in self.retains) or (self.uds,)

    @property
    def retain_spread(self) -> Spread:
        """How far the scores against several retain models lie apart: how much 0 to 1 itself moves."""
        from uds_lens.results.retain_models import spread_of

        return spread_of(self.uds_by_retain)

    @cached_property
    def damage_estimate(self) -> Damage:
        """Loss on retained facts beside loss on forget facts: the ratio, its interval and parts, why it is NaN."""
        from uds_lens.results.damage import damage_of

        return damage_of(self)

    @property
    def damage(self) -> float:
        """Loss on retained facts over loss on forget facts (`damage_of`): 0 none, 1 as much; NaN without a control."""
        return self.damage_estimate.value

    @cached_property
    def cautions(self) -> tuple[Caution, ...]:
        """What a careful reader must know before quoting the score: sentences with levels, most serious first."""
        from uds_lens.results.cautions import cautions

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
        from uds_lens.results.reading import reading_of

        return reading_of(self)

    @arguments_checked
    def with_tau(self: Audit, tau: float) -> Audit:
        """The same measurement scored with another threshold; runs no model."""
        return dataclasses.replace(self, config=dataclasses.replace(self.config, tau=tau))

    def to_frame(self) -> pd.DataFrame:
        """Long table: one row per example and layer."""
        from uds_lens.results.frames import long_frame

        return long_frame(self)

    def examples_frame(self) -> pd.DataFrame:
        """One row per scored example: text, KE layers, erasure depth, score, and the reason where it is NaN."""
        from uds_lens.results.frames import examples_frame

        return examples_frame(self)

    def layers_frame(self) -> pd.DataFrame:
        """One row per layer: S1, S2 and LER with spread, KE share, clipped shares, closeness of the patches."""
        from uds_lens.results.frames import layers_frame

        return layers_frame(self)

    def control_frame(self) -> pd.DataFrame:
        """One row per retained fact and layer: what the states of retain and of the unlearned model cost there.

        Raises:
            ConfigError: The audit was measured without a control.
        """
        from uds_lens.results.control_facts import control_frame

        return control_frame(self)

    def control_layers_frame(self) -> pd.DataFrame:
        """One row per layer: loss on forget facts and on retained facts, with intervals.

        Raises:
            ConfigError: The audit was measured without a control.
        """
        from uds_lens.results.control_facts import control_layers_frame

        return control_layers_frame(self)

    def retains_frame(self) -> pd.DataFrame:
        """One row per retain model: the score on its scale, with interval."""
        from uds_lens.results.retain_models import retains_frame

        return retains_frame(self)

    def skipped_frame(self) -> pd.DataFrame:
        """One row per skipped example, with its reason."""
        from uds_lens.results.frames import skipped_frame

        return skipped_frame(self.skipped)

    @arguments_checked
    def tau_sweep(self, taus: Sequence[float] | None = None) -> pd.DataFrame:
        """KE size, counts and UDS over thresholds (see `uds_lens.results.tau_sweep`)."""
        from uds_lens.results.analyses import tau_sweep

        return tau_sweep(self, taus)

    def types_frame(self) -> pd.DataFrame:
        """One row per entity type: N, tokens, KE layers, UDS with interval."""
        from uds_lens.results.analyses import types_frame

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
