"""IdkDPO: prefer a refusal to the forget answer."""

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


def dpo(
    winner: Float[Tensor, "batch"],
    winner_reference: Float[Tensor, "batch"],
    loser: Float[Tensor, "batch"],
    loser_reference: Float[Tensor, "batch"],
    *,
    beta: float,
) -> Float[Tensor, ""]:
    """Return the DPO loss, the forget term of IdkDPO and AltPO: prefer another answer to the forget answer.

    `L = -(2 / beta) mean log sigmoid(beta ((log w - log w_full) - (log l - log l_full)))`

    The factor `2 / beta` is taken from NPO (DPO itself has 1), so that retain weights are comparable with NPO's.

    Args:
        winner: Log-probability of each refusal or alternate answer under the model, in nats.
        winner_reference: Log-probability of each winner under `full`.
        loser: Log-probability of each original answer under the model.
        loser_reference: Log-probability of each loser under `full`.
        beta: Inverse temperature, above 0.

    Returns:
        A loss >= 0; `(2 / beta) log 2` if the model equals `full`.

    Example:
        >>> import torch
        >>> one = torch.tensor([-1.0])
        >>> dpo(one, one, one, one, beta=2.0)  # log 2
        tensor(0.6931)

    References:
        Rafailov et al. 2023, Direct Preference Optimization; Maini et al. 2024, TOFU (refusals);
        Mekala et al. 2024, Alternate Preference Optimization.
    """
    margin = (winner - winner_reference) - (loser - loser_reference)
    return -(2 / beta) * F.logsigmoid(beta * margin).mean()


@dataclass(frozen=True, kw_only=True)
class IdkDPOConfig(RetainConfig):
    """Prefer a refusal to the forget answer (DPO), drawing a new refusal each epoch."""

    method: ClassVar[str] = "idkdpo"

    beta: PositiveFloat = 0.1
    """Inverse temperature."""


@objective(IdkDPOConfig, needs=("retain", "reference", "refusals"))
def terms(config: IdkDPOConfig, passes: Passes) -> Terms:
    """Return `DPO(refusal over answer) + alpha NLL_r`."""
    return Terms(per_answer("forget", preferred(config.beta, passes)), retained(config, passes))


def preferred(beta: float, passes: Passes) -> Float[Tensor, ""]:
    """Return a pass's DPO loss, which prefers the winners to the forget answers."""
    return dpo(
        passes.answer_log_probs("winner"),
        passes.reference("winner"),
        passes.answer_log_probs("forget"),
        passes.reference("forget"),
        beta=beta,
    )
