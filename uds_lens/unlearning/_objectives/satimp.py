"""SatImp: gradient ascent, mainly on tokens that are neither forgotten yet (saturation) nor certain (importance)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from uds_lens._types import NonNegativeFloat
from uds_lens.unlearning._objectives.wga import weighted_ascent
from uds_lens.unlearning._passes import Passes, Terms, per_token, retained
from uds_lens.unlearning._registry import objective
from uds_lens.unlearning._settings import RetainConfig


@dataclass(frozen=True, kw_only=True)
class SatImpConfig(RetainConfig):
    """Gradient ascent with each forget token weighted by `p^beta1 (1 - p)^beta2`: saturation and importance.

    The paper uses a retain weight of 0.1; Open-Unlearning's configuration inverts this ratio (alpha=10).
    """

    method: ClassVar[str] = "satimp"

    alpha: NonNegativeFloat = 0.1
    """Weight of the retain term."""

    beta1: NonNegativeFloat = 5.0
    """Exponent of p. Values above 0 down-weight tokens that are already forgotten."""

    beta2: NonNegativeFloat = 1.0
    """Exponent of 1 - p. Values above 0 down-weight tokens that are certain; 0 gives WGA."""


@objective(SatImpConfig, needs=("retain",))
def terms(config: SatImpConfig, passes: Passes) -> Terms:
    """Return `mean p^beta1 (1 - p)^beta2 log p + alpha NLL_r`."""
    logits, labels = passes.logits("forget"), passes.labels("forget")
    forget = weighted_ascent(logits, labels, likely=config.beta1, unlikely=config.beta2)
    return Terms(per_token("forget", forget), retained(config, passes))
