"""RMU-LAT: RMU on states that an adversary has perturbed to restore the forget answers.

References:
    Sheshadri et al. 2024, Latent Adversarial Training Improves Robustness to Persistent Harmful Behaviors in LLMs
    (arXiv 2407.15549).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens._types import NonNegativeFloat, PositiveFloat, PositiveInt
from uds_lens.unlearning._objectives.rmu import RMUConfig, steered, train_only_layers
from uds_lens.unlearning._passes import Passes, Terms
from uds_lens.unlearning._registry import objective


def latent_attack(
    loss: Callable[[Tensor], Tensor], start: Float[Tensor, "batch pos d_model"], *, epsilon: float, steps: int
) -> Float[Tensor, "batch pos d_model"]:
    """Find a perturbation of hidden states that lowers a loss, using projected gradient descent from `start`.

    Each step moves the perturbation at every position by `2.5 epsilon / steps` against its normalised gradient, then
    projects it onto the ball of radius epsilon.

    Args:
        loss: Loss as a function of the perturbation. The loss of one row must not depend on the other rows.
        start: Initial perturbation, usually 0.
        epsilon: Maximum Euclidean norm of the perturbation at any position, above 0.
        steps: Number of steps.

    Returns:
        The perturbation, detached. Positions that do not affect the loss keep their initial value.

    Example:
        >>> latent_attack(lambda x: (x - 5).square().sum(), torch.zeros(1, 1, 1), epsilon=2.0, steps=4)
        tensor([[[2.]]])

    References:
        Madry et al. 2018, Towards Deep Learning Models Resistant to Adversarial Attacks.
    """
    found, tiny = start.detach(), torch.finfo(start.dtype).tiny
    for _ in range(steps):
        found.requires_grad_(True)
        (slope,) = torch.autograd.grad(loss(found), found)
        length = torch.linalg.vector_norm(slope, dim=-1, keepdim=True).clamp(min=tiny)
        found = found.detach() - 2.5 * epsilon / steps * slope / length
        found = found * (epsilon / torch.linalg.vector_norm(found, dim=-1, keepdim=True).clamp(min=tiny)).clamp(max=1)
    return found


@dataclass(frozen=True, kw_only=True)
class RMULATConfig(RMUConfig):
    """RMU against a latent adversary that perturbs the states one layer earlier to restore the forget answers.

    The defaults are the authors' settings for a 7-billion-parameter model. Choose epsilon and scale to match the norms
    of the model's states. The authors' code differs from this implementation: its adversary takes AdamW steps instead
    of normalised gradient steps, the model takes four training steps per attack instead of one, only the last matrix of
    each block's MLP is trained, and each batch is steered towards a new vector.
    """

    method: ClassVar[str] = "rmulat"

    alpha: NonNegativeFloat = 1200.0
    """Weight of the retain term."""

    layer: PositiveInt = 8
    """Block whose output is steered (at least 1). The adversary perturbs the output of the preceding block."""

    scale: PositiveFloat = 6.5
    """Norm c of the steering vector."""

    epsilon: PositiveFloat = 2.0
    """Maximum norm of the adversary's perturbation at any position."""

    steps: PositiveInt = 16
    """Number of adversary steps per batch."""


@objective(RMULATConfig, needs=("retain", "frozen"), prepare=train_only_layers)
def terms(config: RMULATConfig, passes: Passes) -> Terms:
    """Return RMU's terms, with the perturbed states on forget data."""
    at = config.layer - 1

    def answers_lost(added: Tensor) -> Tensor:
        with passes.adding(at, added):
            return -passes.answer_log_probs("forget").sum()

    with torch.no_grad():
        start = torch.zeros_like(passes.states("forget", at))
    with torch.enable_grad():
        added = latent_attack(answers_lost, start, epsilon=config.epsilon, steps=config.steps)
    with passes.adding(at, added):
        states = passes.states("forget", config.layer)
    return steered(config, passes, states)
