"""How much a perturbation moves a metric: the formulas of Q (quantisation) and R (relearning), model by model."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import ConfigError, Setting

EPSILON = 1e-10
"""In the denominators of the symmetric forms, as published. It makes 0 / 0 count as "did not move": Q = R = 1."""


@arguments_checked
def symmetric_quantisation(
    before: Float[np.ndarray, "model"], after: Float[np.ndarray, "model"]
) -> Float[np.ndarray, "model"]:
    """Q of each model: `1 - |m' - m| / (|m'| + |m| + 1e-10)`.

    Args:
        before: m, before quantisation.
        after: m', after it.

    Returns:
        1 where nothing moves, 0 where m comes from or goes to 0 or changes sign; NaN where a value is missing.

    Example:
        >>> symmetric_quantisation(np.array([0.2, 0.0]), np.array([0.6, 0.0])).round(3).tolist()
        [0.5, 1.0]
    """
    return 1 - np.abs(after - before) / (np.abs(after) + np.abs(before) + EPSILON)


@arguments_checked
def symmetric_relearning(change: Float[np.ndarray, "model"], shift: float) -> Float[np.ndarray, "model"]:
    """R of each model: `1 - |Du - Dr| / (|Du| + |Dr| + 1e-10)`.

    Args:
        change: Du, how far relearning moves m of each model.
        shift: Dr, how far it moves m of retain.

    Returns:
        1 where both move alike, 0 where they move in opposite directions or only one moves; NaN where a value is
        missing.

    Example:
        >>> symmetric_relearning(np.array([0.3, 0.1, -0.1]), 0.1).round(3).tolist()
        [0.5, 1.0, 0.0]
    """
    return relearning_over_shifts(change, np.array([shift]), symmetric=True)[0]


@arguments_checked
def one_directional_quantisation(
    before: Float[np.ndarray, "model"], after: Float[np.ndarray, "model"]
) -> Float[np.ndarray, "model"]:
    """Q where only knowledge that comes back counts: `min(m / m', 1)`, and 1 where `m' <= m`.

    Args:
        before: m, before quantisation, >= 0.
        after: m', after it, >= 0.

    Returns:
        1 where m does not rise, 0 where it rises from 0; NaN where a value is missing or negative: a ratio of such
        values has no meaning.

    Example:
        >>> one_directional_quantisation(np.array([0.2, 0.4, 0.0]), np.array([0.4, 0.2, 0.0])).tolist()
        [0.5, 1.0, 1.0]
    """
    rises = after > before
    found = np.divide(before, after, out=np.ones_like(before, dtype=float), where=rises)
    return np.where(np.isnan(before) | np.isnan(after) | (before < 0) | (after < 0), np.nan, found)


@arguments_checked
def one_directional_relearning(
    change: Float[np.ndarray, "model"], shift: float
) -> Float[np.ndarray, "model"]:
    """R where only models that learn more than retain count: 1 if `Du <= max(Dr, 0)`, else `max(Dr, 0) / Du`.

    Args:
        change: Du, how far relearning moves m of each model.
        shift: Dr, how far it moves m of retain.

    Returns:
        1 where a model does not rise above retain's shift, 0 where it rises and retain does not; NaN where a value is
        missing.

    Example:
        >>> one_directional_relearning(np.array([0.4, 0.1, -0.3]), 0.2).tolist()
        [0.5, 1.0, 1.0]
        >>> one_directional_relearning(np.array([0.4, -0.1]), -0.2).tolist()
        [0.0, 1.0]
    """
    return relearning_over_shifts(change, np.array([shift]), symmetric=False)[0]


def relearning_over_shifts(
    change: Float[np.ndarray, "model"], shifts: Float[np.ndarray, "shift"], *, symmetric: bool
) -> Float[np.ndarray, "shift model"]:
    """R of each model for each of several shifts of retain, as `symmetric_relearning` or `one_directional_relearning`.

    Args:
        change: Du, how far relearning moves m of each model.
        shifts: Dr; a mean of differences: a number, or NaN where it was not measured.
        symmetric: Which of the two.
    """
    if np.isinf(shifts).any():
        raise ConfigError(
            Setting("shift"), f" must be a finite number, or NaN; got {shifts[np.isinf(shifts)][0]}."
        )
    moves, retain = change[None, :], shifts[:, None]
    if symmetric:
        return 1 - np.abs(moves - retain) / (np.abs(moves) + np.abs(retain) + EPSILON)
    reference = np.maximum(retain, 0.0)
    rises = moves > reference
    ones = np.ones(rises.shape)
    found = np.divide(
        np.broadcast_to(reference, ones.shape), np.broadcast_to(moves, ones.shape), out=ones, where=rises
    )
    return np.where(np.isnan(moves) | np.isnan(retain), np.nan, found)
