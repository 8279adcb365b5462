"""Relearning: plain fine-tuning on the forget set, one of the two perturbations of the robustness test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from uds_lens._settings import validated
from uds_lens._types import NonNegativeFloat, PositiveFloat, PositiveInt
from uds_lens.unlearning._configs import MethodConfig
from uds_lens.unlearning._likelihood import negative_log_likelihood
from uds_lens.unlearning._passes import Passes
from uds_lens.unlearning._registry import Objective
from uds_lens.unlearning._terms import Terms, per_token


@validated
@dataclass(frozen=True, kw_only=True)
class RelearnConfig(MethodConfig):
    """Plain fine-tuning on the forget answers, to see how fast they come back.

    The defaults are those of the robustness test: AdamW without weight decay, all forget rows once, 32 per step, a
    learning rate of 2e-5 that falls linearly from the first step on.
    """

    method: ClassVar[str] = "relearn"

    learning_rate: PositiveFloat = 2e-5
    epochs: PositiveInt = 1
    weight_decay: NonNegativeFloat = 0.0
    warmup_epochs: NonNegativeFloat = 0.0


def terms(config: RelearnConfig, passes: Passes) -> Terms:
    """`NLL_f`."""
    return Terms(
        per_token("forget", negative_log_likelihood(passes.logits("forget"), passes.labels("forget")))
    )


RELEARNING = Objective(config=RelearnConfig, terms=terms)
"""It is no unlearning method, and so stands beside `METHODS`."""
