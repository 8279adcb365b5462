"""Objectives over whole answers: NPO, SimNPO and DPO, on log-probabilities that were already summed.

Pure functions of `sequence_log_probs`. Reference log-probabilities are constants of `full`, computed once.
"""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


def npo(
    log_probs: Float[Tensor, "batch"], reference: Float[Tensor, "batch"], *, beta: float
) -> Float[Tensor, ""]:
    """NPO: make the answer less likely than `full` finds it; the pull fades as it becomes so.

    `L = -(2 / beta) mean log sigmoid(-beta (log p - log p_full))`

    Args:
        log_probs: Log-probability of each forget answer under the model, nats.
        reference: The same under `full`.
        beta: Inverse temperature, > 0; towards 0 the gradient becomes that of gradient ascent.

    Returns:
        >= 0; `(2 / beta) log 2` where the model equals `full`.

    Example:
        >>> import torch
        >>> npo(torch.tensor([-3.0]), torch.tensor([-3.0]), beta=0.1)  # 20 log 2
        tensor(13.8629)

    References:
        Zhang et al. 2024, Negative Preference Optimization.
    """
    return -(2 / beta) * F.logsigmoid(-beta * (log_probs - reference)).mean()


def simnpo(
    log_probs: Float[Tensor, "batch"],
    lengths: Int[Tensor, "batch"],
    *,
    beta: float,
    delta: float,
) -> Float[Tensor, ""]:
    """SimNPO: NPO without a reference, on the mean log-probability per token.

    `L = -(2 / beta) mean log sigmoid(beta (NLL / |y| - delta))`

    Args:
        log_probs: Log-probability of each forget answer under the model, nats.
        lengths: Tokens of each answer, >= 1.
        beta: Inverse temperature, > 0.
        delta: Loss per token, in nats, that counts as forgotten.

    Returns:
        >= 0; `(2 / beta) log 2` where every answer costs `delta` nats per token.

    Example:
        >>> import torch
        >>> simnpo(torch.tensor([-4.0]), torch.tensor([4]), beta=2.0, delta=1.0)  # log 2
        tensor(0.6931)

    References:
        Fan et al. 2024, Simplicity Prevails.
    """
    return -(2 / beta) * F.logsigmoid(beta * (-log_probs / lengths - delta)).mean()


def dpo(
    winner: Float[Tensor, "batch"],
    winner_reference: Float[Tensor, "batch"],
    loser: Float[Tensor, "batch"],
    loser_reference: Float[Tensor, "batch"],
    *,
    beta: float,
) -> Float[Tensor, ""]:
    """DPO, the forget term of IdkDPO and AltPO: prefer another answer to the one to forget.

    `L = -(2 / beta) mean log sigmoid(beta ((log w - log w_full) - (log l - log l_full)))`

    The factor `2 / beta` is NPO's (DPO itself has 1): with it a retain weight means the same for both.

    Args:
        winner: Log-probability of each refusal or alternate answer under the model, nats.
        winner_reference: The same under `full`.
        loser: Log-probability of each original answer under the model.
        loser_reference: The same under `full`.
        beta: Inverse temperature, > 0.

    Returns:
        >= 0; `(2 / beta) log 2` where the model equals `full`.

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
