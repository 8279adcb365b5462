"""NPO: negative preference optimisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from uds_lens._types import PositiveFloat
from uds_lens.unlearning._passes import Passes, Terms, per_answer, retained
from uds_lens.unlearning._registry import objective
from uds_lens.unlearning._settings import RetainConfig


def npo(log_probs: Float[Tensor, "batch"], reference: Float[Tensor, "batch"], *, beta: float) -> Float[Tensor, ""]:
    """Return the NPO loss: make answers less likely than under `full`, with a gradient that fades as this succeeds.

    `L = -(2 / beta) mean log sigmoid(-beta (log p - log p_full))`

    Args:
        log_probs: Log-probability of each forget answer under the model, in nats.
        reference: Log-probability of each forget answer under `full`.
        beta: Inverse temperature, above 0; as beta approaches 0, NPO becomes gradient ascent.

    Returns:
        A loss >= 0; `(2 / beta) log 2` if the model equals `full`.

    Example:
        >>> import torch
        >>> npo(torch.tensor([-3.0]), torch.tensor([-3.0]), beta=0.1)  # 20 log 2
        tensor(13.8629)

    References:
        Zhang et al. 2024, Negative Preference Optimization.
    """
    return -(2 / beta) * F.logsigmoid(-beta * (log_probs - reference)).mean()


@dataclass(frozen=True, kw_only=True)
class NPOConfig(RetainConfig):
    """Negative preference optimisation: make forget answers less likely than under `full`, with a fading gradient."""

    method: ClassVar[str] = "npo"

    beta: PositiveFloat = 0.1
    """Inverse temperature."""


@objective(NPOConfig, needs=("retain", "reference"))
def terms(config: NPOConfig, passes: Passes) -> Terms:
    """Return `NPO_f + alpha NLL_r`."""
    forget = npo(passes.answer_log_probs("forget"), passes.reference("forget"), beta=config.beta)
    return Terms(per_answer("forget", forget), retained(config, passes))
