"""What each method minimises: its configuration and the passes of a batch, turned into two terms."""

from __future__ import annotations

from functools import singledispatch
from typing import NamedTuple

from torch import Tensor

from uds_lens.errors import ConfigError
from uds_lens.unlearning import configs as c
from uds_lens.unlearning.likelihood import (
    answer_lengths,
    gradient_ascent,
    kl_to_reference,
    negative_log_likelihood,
    predicting,
    sequence_log_probs,
    undial,
)
from uds_lens.unlearning.passes import Passes
from uds_lens.unlearning.preference import dpo, npo, simnpo
from uds_lens.unlearning.steering import state_distance


class Terms(NamedTuple):
    """The parts of a loss, weighted as they are added."""

    forget: Tensor
    """Term on forget data."""

    retain: Tensor | None
    """Term on retain data, if the method has one."""

    @property
    def total(self) -> Tensor:
        """What is minimised."""
        return self.forget if self.retain is None else self.forget + self.retain


NEEDS_FROZEN = (c.KLConfig, c.UNDIALConfig, c.RMUConfig)
"""Methods that compare whole distributions or states with `full`, and so keep a copy of it during training."""

NEEDS_REFERENCE = (c.NPOConfig, c.IdkDPOConfig, c.AltPOConfig)
"""Methods that need only the log-probabilities of answers under `full`, computed once before training."""

NEEDS_REFUSALS = (c.IdkNLLConfig, c.IdkDPOConfig)
"""Methods that teach refusals."""


@singledispatch
def objective(config: c.MethodConfig, passes: Passes) -> Terms:
    """Loss of one batch.

    Args:
        config: Which method, with its weights.
        passes: The batch and the models.

    Returns:
        The forget term and the retain term; their sum is minimised.

    Raises:
        ConfigError: There is no objective for this configuration.
    """
    raise ConfigError(
        f"{type(config).__name__} belongs to no method: expected one of {', '.join(c.METHODS)}."
    )


@objective.register
def _(config: c.GAConfig, passes: Passes) -> Terms:
    return Terms(gradient_ascent(passes.logits("forget"), passes.labels("forget")), None)


@objective.register
def _(config: c.RelearnConfig, passes: Passes) -> Terms:
    return Terms(negative_log_likelihood(passes.logits("forget"), passes.labels("forget")), None)


@objective.register
def _(config: c.GradDiffConfig, passes: Passes) -> Terms:
    forget = gradient_ascent(passes.logits("forget"), passes.labels("forget"))
    return Terms(forget, config.alpha * _retained(passes))


@objective.register
def _(config: c.KLConfig, passes: Passes) -> Terms:
    forget = gradient_ascent(passes.logits("forget"), passes.labels("forget"))
    held = kl_to_reference(passes.logits("retain"), passes.frozen_logits("retain"), passes.labels("retain"))
    return Terms(forget, config.alpha * held)


@objective.register
def _(config: c.NPOConfig, passes: Passes) -> Terms:
    forget = npo(_answers(passes, "forget"), passes.reference("forget"), beta=config.beta)
    return Terms(forget, config.alpha * _retained(passes))


@objective.register
def _(config: c.SimNPOConfig, passes: Passes) -> Terms:
    lengths = answer_lengths(passes.labels("forget"))
    forget = simnpo(_answers(passes, "forget"), lengths, beta=config.beta, delta=config.delta)
    return Terms(config.gamma * forget, config.alpha * _retained(passes))


@objective.register
def _(config: c.IdkNLLConfig, passes: Passes) -> Terms:
    refusals = negative_log_likelihood(passes.logits("winner"), passes.labels("winner"))
    return Terms(refusals, config.alpha * _retained(passes))


@objective.register(c.IdkDPOConfig)
@objective.register(c.AltPOConfig)
def _(config: c.IdkDPOConfig | c.AltPOConfig, passes: Passes) -> Terms:
    forget = dpo(
        _answers(passes, "winner"),
        passes.reference("winner"),
        _answers(passes, "forget"),
        passes.reference("forget"),
        beta=config.beta,
    )
    return Terms(forget, config.alpha * _retained(passes))


@objective.register
def _(config: c.RMUConfig, passes: Passes) -> Terms:
    if passes.goal is None:
        raise ConfigError("RMU steers towards a vector: pass goal=steering_vector(...).")
    forget = state_distance(passes.states("forget"), passes.goal, predicting(passes.labels("forget")))
    held = state_distance(
        passes.states("retain"), passes.frozen_states("retain"), predicting(passes.labels("retain"))
    )
    return Terms(forget, config.alpha * held)


@objective.register
def _(config: c.UNDIALConfig, passes: Passes) -> Terms:
    forget = undial(
        passes.logits("forget"), passes.frozen_logits("forget"), passes.labels("forget"), beta=config.beta
    )
    return Terms(forget, config.alpha * _retained(passes))


def _retained(passes: Passes) -> Tensor:
    return negative_log_likelihood(passes.logits("retain"), passes.labels("retain"))


def _answers(passes: Passes, side: str) -> Tensor:
    return sequence_log_probs(passes.logits(side), passes.labels(side))
