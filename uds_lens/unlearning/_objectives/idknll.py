"""IdkNLL: learn to refuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from uds_lens.unlearning._configs import RetainConfig
from uds_lens.unlearning._likelihood import negative_log_likelihood
from uds_lens.unlearning._passes import Passes
from uds_lens.unlearning._registry import objective
from uds_lens.unlearning._terms import Terms, per_token, retained


@dataclass(frozen=True, kw_only=True)
class IdkNLLConfig(RetainConfig):
    """Learn to answer forget questions with a refusal, another one each epoch: `NLL(refusal) + alpha NLL_r`."""

    method: ClassVar[str] = "idknll"


@objective(IdkNLLConfig, needs=("retain", "refusals"))
def terms(config: IdkNLLConfig, passes: Passes) -> Terms:
    """`NLL(refusal) + alpha NLL_r`."""
    refusals = negative_log_likelihood(passes.logits("winner"), passes.labels("winner"))
    return Terms(per_token("winner", refusals), retained(config, passes))
