"""What an objective returns: means that say what they run over, so that the passes of a batch add up to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from uds_lens.unlearning._configs import RetainConfig
from uds_lens.unlearning._likelihood import negative_log_likelihood
from uds_lens.unlearning._passes import Passes, Per, Side


@dataclass(frozen=True)
class Mean:
    """A term of a loss on one pass: a mean, weighted, and what it was taken over."""

    value: Float[Tensor, ""]
    """The mean over this pass, times its weight."""

    side: Side
    """The side whose rows or tokens it runs over."""

    per: Per
    """Whether each token counts the same, or each answer."""


class Terms(NamedTuple):
    """The parts of a loss, weighted as they are added."""

    forget: Mean
    """Term on forget data."""

    retain: Mean | None = None
    """Term on retain data, if the method has one."""

    @property
    def total(self) -> Tensor:
        """What is minimised, where this pass is the whole batch."""
        return self.forget.value if self.retain is None else self.forget.value + self.retain.value


def per_token(side: Side, value: Float[Tensor, ""]) -> Mean:
    """A term that is a mean over all labelled tokens of a side.

    A batch may be taken in several passes, of unequal numbers of tokens. The term of a pass then counts by its share of
    the batch's tokens, so that the sum over passes is the mean over the batch.
    """
    return Mean(value, side, "token")


def per_answer(side: Side, value: Float[Tensor, ""]) -> Mean:
    """A term that is a mean over the answers of a side, whatever their length."""
    return Mean(value, side, "answer")


def retained(config: RetainConfig, passes: Passes) -> Mean:
    """The retain term of most methods: `alpha NLL_r`, the mean over all tokens of the retain answers."""
    loss = negative_log_likelihood(passes.logits("retain"), passes.labels("retain"))
    return per_token("retain", config.alpha * loss)


def share(mean: Mean, passes: Passes) -> float:
    """What part of the batch's mean the mean over this pass makes up: 1 where the pass is the batch."""
    part = passes.counted(mean.side).count(mean.per)
    return part / passes.totals(mean.side).count(mean.per)
