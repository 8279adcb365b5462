"""AltPO: prefer alternate answers, sampled from `full` itself, to the forget answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from uds_lens.unlearning._configs import RetainConfig
from uds_lens.unlearning._objectives.idkdpo import preferred
from uds_lens.unlearning._passes import Passes
from uds_lens.unlearning._registry import objective
from uds_lens.unlearning._terms import Terms, per_answer, retained


@dataclass(frozen=True, kw_only=True)
class AltPOConfig(RetainConfig):
    """Prefer alternate answers, sampled from `full` itself, to the forget answer (DPO)."""

    method: ClassVar[str] = "altpo"

    beta: float = 0.1
    """Inverse temperature."""

    n_alternates: int = 5
    """Alternate answers per question; epochs take them in turn."""

    temperature: float = 1.0
    """Temperature of their sampling; raised by 0.5 for questions that keep giving the true answer."""

    max_new_tokens: int = 96
    """Longest alternate, in tokens."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("beta", "n_alternates", "temperature", "max_new_tokens")


@objective(AltPOConfig, needs=("retain", "reference", "alternates"))
def terms(config: AltPOConfig, passes: Passes) -> Terms:
    """`DPO(alternate over answer) + alpha NLL_r`."""
    return Terms(per_answer("forget", preferred(config.beta, passes)), retained(config, passes))
