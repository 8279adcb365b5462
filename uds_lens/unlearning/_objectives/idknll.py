"""IdkNLL: learn to refuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from uds_lens.unlearning._passes import Passes, Terms, negative_log_likelihood, per_token, retained
from uds_lens.unlearning._registry import objective
from uds_lens.unlearning._settings import RetainConfig


@dataclass(frozen=True, kw_only=True)
class IdkNLLConfig(RetainConfig):
    """Learn to answer forget questions with a refusal, redrawn each epoch: `NLL(refusal) + alpha NLL_r`."""

    method: ClassVar[str] = "idknll"


@objective(IdkNLLConfig, needs=("retain", "refusals"))
def terms(config: IdkNLLConfig, passes: Passes) -> Terms:
    """Return `NLL(refusal) + alpha NLL_r`."""
    refusals = negative_log_likelihood(passes.logits("winner"), passes.labels("winner"))
    return Terms(per_token("winner", refusals), retained(config, passes))
