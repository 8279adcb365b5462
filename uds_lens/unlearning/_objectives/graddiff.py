"""GradDiff: gradient ascent on forget answers, descent on retain answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from uds_lens.unlearning._objectives.ga import gradient_ascent
from uds_lens.unlearning._passes import Passes, Terms, per_token, retained
from uds_lens.unlearning._registry import objective
from uds_lens.unlearning._settings import RetainConfig


@dataclass(frozen=True, kw_only=True)
class GradDiffConfig(RetainConfig):
    """Gradient ascent on forget answers, descent on retain answers: `-NLL_f + alpha NLL_r`."""

    method: ClassVar[str] = "graddiff"


@objective(GradDiffConfig, needs=("retain",))
def terms(config: GradDiffConfig, passes: Passes) -> Terms:
    """Return `-NLL_f + alpha NLL_r`."""
    forget = gradient_ascent(passes.logits("forget"), passes.labels("forget"))
    return Terms(per_token("forget", forget), retained(config, passes))
