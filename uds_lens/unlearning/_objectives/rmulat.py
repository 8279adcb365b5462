"""RMU-LAT: RMU on states that an adversary has perturbed to restore the answers.

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
    """Find a perturbation of hidden states that lowers a loss, by projected gradient descent from `start`.

    Each step moves every position by `2.5 epsilon / steps` against its normalised gradient, then projects it back into
    the ball of radius epsilon.

    Args:
        loss: Loss as a function of the perturbation. The loss of one row must not depend on the other rows.
        start: Initial perturbation, usually 0.
        epsilon: Largest Euclidean norm of the perturbation at any position, > 0.
        steps: Number of steps.

    Returns:
        The perturbation, without gradient. A position that the loss does not depend on stays where it started.

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
    """RMU against a latent adversary, which perturbs the states one layer earlier to restore the forget answers.

    The defaults are those the authors use for a model with 7 billion parameters. Epsilon and scale must be chosen to
    suit the norms of the model's states. The authors' code differs from this method: its adversary takes AdamW steps
    rather than steps along the normalised gradient, the model takes four training steps against each attack rather
    than one, only the last matrix of each block's MLP trains, and each batch is steered towards a new vector.
    """

    method: ClassVar[str] = "rmulat"

    alpha: NonNegativeFloat = 1200.0
    """Weight of the retain term."""

    layer: PositiveInt = 8
    """Block whose output is steered, at least 1; the adversary perturbs the output of the preceding block."""

    scale: PositiveFloat = 6.5
    """Length c of the steering vector."""

    epsilon: PositiveFloat = 2.0
    """Largest norm of the adversary's perturbation at any position."""

    steps: PositiveInt = 16
    """Steps that the adversary takes on each batch."""


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
