"""RMU: steer one layer's states to a random vector on forget data, and preserve them on retain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from uds_lens._types import NonNegativeInt, PositiveFloat
from uds_lens.errors import ConfigError, DataError, Setting
from uds_lens.unlearning._passes import (
    IGNORED,
    Mean,
    Passes,
    Side,
    Terms,
    at_least_float32,
    decoder_blocks,
    per_answer,
    per_token,
    predicting,
)
from uds_lens.unlearning._registry import objective
from uds_lens.unlearning._settings import ReducedConfig


def state_distance(
    states: Float[Tensor, "batch pos d_model"],
    goal: Float[Tensor, "batch pos d_model"] | Float[Tensor, "d_model"],
    mask: Bool[Tensor, "batch pos"],
) -> Float[Tensor, ""]:
    """Return the mean squared distance between hidden states and a target, used in both terms of RMU.

    `L = mean over masked positions and dimensions of (h - g)^2`. On forget data the target g is one vector, `c u`; on
    retain data it is the frozen model's states.

    Args:
        states: Residual stream after a layer.
        goal: One vector for all positions, or one state per position.
        mask: Positions to average over (at least one).

    Returns:
        A distance >= 0, in squared units of the residual stream.

    Example:
        >>> states = torch.tensor([[[1.0, 2.0], [9.0, 9.0]]])
        >>> state_distance(states, torch.tensor([0.0, 0.0]), torch.tensor([[True, False]]))
        tensor(2.5000)

    References:
        Li et al. 2024, The WMDP Benchmark (RMU).
    """
    return (at_least_float32(states) - at_least_float32(goal)).square().mean(-1)[mask].mean()


def summed_state_distance(
    states: Float[Tensor, "batch pos d_model"],
    goal: Float[Tensor, "batch pos d_model"] | Float[Tensor, "d_model"],
    mask: Bool[Tensor, "batch pos"],
    *,
    mean_inverse_length: float | None = None,
) -> Float[Tensor, ""]:
    """Return Open-Unlearning's variant of the distance: the mean of sums, times the mean of inverse lengths.

    `L = mean_i (sum_t (h_it - g_it)^2) * mean_i (1 / n_i)`, where the square is averaged over dimensions and n_i is the
    number of masked positions in row i. A mean of means was probably intended. As implemented, long answers count more,
    and every answer's weight depends on the lengths of the other answers. For equal lengths, the result equals
    `state_distance`.

    Args:
        states: Residual stream after a layer.
        goal: One vector for all positions, or one state per position.
        mask: Positions to sum over. Open-Unlearning uses the positions *of* the answer tokens, one to the right of the
            positions that predict these tokens.
        mean_inverse_length: The second factor for the whole batch, if these rows are only a part of the batch.

    Returns:
        A distance >= 0, in squared units of the residual stream.

    Raises:
        DataError: A row has an empty mask.

    Example:
        >>> states = torch.tensor([[[1.0], [1.0]], [[2.0], [9.0]]])
        >>> summed_state_distance(states, torch.tensor([0.0]), torch.tensor([[True, True], [True, False]]))  # 3 * 3/4
        tensor(2.2500)
    """
    lengths = mask.sum(-1)
    if not bool(lengths.all()):
        raise DataError("a row has an empty mask: every answer needs at least one token.")
    sums = ((at_least_float32(states) - at_least_float32(goal)).square().mean(-1) * mask).sum(-1)
    inverse = (1 / lengths.double()).mean().item() if mean_inverse_length is None else mean_inverse_length
    return sums.mean() * inverse


def steering_vector(d_model: int, *, scale: float, seed: int, positive: bool = False) -> Float[Tensor, "d_model"]:
    """Draw RMU's target on forget data: a random vector of norm `scale`, the same on every machine for a given seed.

    `g = c u`, with u uniform on the unit sphere.

    Args:
        d_model: Width of the residual stream.
        scale: Norm c of the vector, above 0.
        seed: Seed of the direction.
        positive: Draw every entry from [0, 1) before scaling, as Open-Unlearning and RMU's authors do. Such vectors lie
            in the positive orthant and have a pairwise cosine similarity of about 0.75.

    Returns:
        The vector, float32 on the CPU.

    Raises:
        ConfigError: `scale` is not positive.

    Example:
        >>> round(float(steering_vector(64, scale=10.0, seed=0).norm()), 3)
        10.0
    """
    if scale <= 0:
        raise ConfigError(Setting("scale"), f" must be > 0; got {scale!r}.")
    draw = torch.rand if positive else torch.randn
    direction = draw(d_model, generator=torch.Generator().manual_seed(seed))
    return scale * direction / direction.norm()


@dataclass(frozen=True, kw_only=True)
class RMUConfig(ReducedConfig):
    """Steer the states of one layer to a random vector on forget data, and preserve them on retain data.

    Only the blocks `layer - 2` to `layer` are trained.
    """

    method: ClassVar[str] = "rmu"

    layer: NonNegativeInt = 5
    """Block whose output is steered, counted from 0. The UDS paper uses 5, 10 and 15 of 16; a shallower model needs a
    lower value."""

    scale: PositiveFloat = 10.0
    """Norm c of the steering vector. Choose it relative to the norm of the model's states."""


def train_only_layers(config: RMUConfig, model: nn.Module) -> None:
    """Freeze everything except blocks `layer - 2` to `layer`."""
    train_only(model, max(0, config.layer - 2), config.layer, setting=Setting("layer", ..., of=type(config).__name__))


def train_only(model: nn.Module, first: int, last: int, *, setting: Setting) -> None:
    """Freeze everything except blocks `first` to `last`; the error message names `setting` as the source of `last`."""
    blocks = decoder_blocks(model)
    if last >= len(blocks):
        raise ConfigError(
            f"there is no layer {last}: the model has layers 0 to {len(blocks) - 1}. Choose another value for ",
            setting,
            ".",
        )
    kept = {id(p) for block in blocks[first : last + 1] for p in block.parameters()}
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.requires_grad and id(parameter) in kept)


@objective(RMUConfig, needs=("retain", "frozen"), prepare=train_only_layers)
def terms(config: RMUConfig, passes: Passes) -> Terms:
    """Return `distance to c u on forget data + alpha distance to full's states on retain data`."""
    return steered(config, passes, passes.states("forget", config.layer))


def steered(config: RMUConfig, passes: Passes, states: Tensor) -> Terms:
    """Return RMU's terms, given the layer's states on forget data."""
    goal = steering_vector(states.shape[-1], scale=config.scale, seed=config.seed, positive=config.counts_padding)
    held, kept = passes.states("retain", config.layer), passes.frozen_states("retain", config.layer)
    return Terms(
        _distance(config, passes, "forget", states, goal.to(states.device)),
        _distance(config, passes, "retain", held, kept, weight=config.alpha),
    )


def _distance(
    config: RMUConfig, passes: Passes, side: Side, states: Tensor, goal: Tensor, *, weight: float = 1.0
) -> Mean:
    labels = passes.labels(side)
    if not config.counts_padding:
        return per_token(side, weight * state_distance(states, goal, predicting(labels)))
    inverse = passes.totals(side).mean_inverse_length
    distance = summed_state_distance(states, goal, labels != IGNORED, mean_inverse_length=inverse)
    return per_answer(side, weight * distance)
