"""RMU-LAT: RMU on states that an adversary has moved to bring the answers back.

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
    """Return what, added to hidden states, lowers a loss: projected gradient descent from `start`.

    Each step goes `2.5 epsilon / steps` along the gradient of a position, and back into the ball of radius epsilon.

    Args:
        loss: Loss by what is added, in which rows do not depend on one another.
        start: Where to begin, commonly 0.
        epsilon: Largest Euclidean norm at any position, > 0.
        steps: Number of steps.

    Returns:
        The addition, without gradient; 0 at positions that the loss does not depend on, if they start there.

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
    """RMU against a latent adversary, who moves the states one layer earlier to bring the forget answers back.

    The defaults are the authors' for a model of 7 billion parameters; epsilon and scale need to fit the states' norms.
    The authors' adversary takes steps of AdamW, ours of the normalised gradient; they train the model four steps
    against each attack, ours one, and of each block only the MLP's last matrix, towards another vector in each batch.
    """

    method: ClassVar[str] = "rmulat"

    alpha: NonNegativeFloat = 1200.0
    """Weight of the retain term."""

    layer: PositiveInt = 8
    """Block whose output is steered, from 1; the adversary adds to the output of the block before."""

    scale: PositiveFloat = 6.5
    """Length c of the steering vector."""

    epsilon: PositiveFloat = 2.0
    """Largest length of what the adversary adds at any position."""

    steps: PositiveInt = 16
    """Steps of the adversary for each batch."""


@objective(RMULATConfig, needs=("retain", "frozen"), prepare=train_only_layers)
def terms(config: RMULATConfig, passes: Passes) -> Terms:
    """Return RMU's terms, with the states of forget data as they are under attack."""
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
