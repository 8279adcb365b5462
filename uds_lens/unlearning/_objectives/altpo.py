"""AltPO: prefer alternate answers, sampled from `full` itself, to the forget answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from uds_lens._types import PositiveFloat, PositiveInt
from uds_lens.unlearning._objectives.idkdpo import preferred
from uds_lens.unlearning._passes import Passes, Terms, per_answer, retained
from uds_lens.unlearning._registry import objective
from uds_lens.unlearning._settings import RetainConfig


@dataclass(frozen=True, kw_only=True)
class AltPOConfig(RetainConfig):
    """Prefer alternate answers, sampled from `full` itself, to the forget answer (DPO)."""

    method: ClassVar[str] = "altpo"

    beta: PositiveFloat = 0.1
    """Inverse temperature."""

    n_alternates: PositiveInt = 5
    """Number of alternate answers per question; each epoch uses the next one, in rotation."""

    temperature: PositiveFloat = 1.0
    """Sampling temperature, raised by 0.5 each time an alternate gives away the true answer."""

    max_new_tokens: PositiveInt = 96
    """Maximum length of an alternate answer, in tokens."""


@objective(AltPOConfig, needs=("retain", "reference", "alternates"))
def terms(config: AltPOConfig, passes: Passes) -> Terms:
    """Return `DPO(alternate over answer) + alpha NLL_r`."""
    return Terms(per_answer("forget", preferred(config.beta, passes)), retained(config, passes))
