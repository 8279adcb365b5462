"""RR (circuit breakers): make the states on forget data orthogonal to the states of `full`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from uds_lens._types import NonNegativeFloat, NonNegativeInt
from uds_lens.errors import ConfigError, Setting
from uds_lens.unlearning._objectives.rmu import train_only
from uds_lens.unlearning._passes import Passes, Terms, at_least_float32, per_token, predicting
from uds_lens.unlearning._registry import objective
from uds_lens.unlearning._settings import RetainConfig


def rerouting(
    states: Float[Tensor, "batch pos d_model"],
    before: Float[Tensor, "batch pos d_model"],
    mask: Bool[Tensor, "batch pos"],
) -> Float[Tensor, ""]:
    """Return RR's forget term: how closely states still align with the states of `full`.

    `L = mean over masked positions of ReLU(cos(h, h_full))`

    Args:
        states: Residual stream after a layer.
        before: Residual stream of `full` after the same layer.
        mask: Positions to average over (at least one).

    Returns:
        A value from 0 (orthogonal or opposed) to 1 (same direction).

    Example:
        >>> import torch
        >>> rerouting(torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[2.0, 0.0]]]), torch.tensor([[True]]))
        tensor(1.)

    References:
        Zou et al. 2024, Improving Alignment and Robustness with Circuit Breakers (algorithm 1).
    """
    here, there = at_least_float32(states[mask]), at_least_float32(before[mask])
    return F.cosine_similarity(here, there, dim=-1).relu().mean()


def state_norm_distance(
    states: Float[Tensor, "batch pos d_model"],
    before: Float[Tensor, "batch pos d_model"],
    mask: Bool[Tensor, "batch pos"],
) -> Float[Tensor, ""]:
    """Return RR's retain term, the mean over masked positions of the Euclidean norm `|h - h_full|`.

    Args:
        states: Residual stream after a layer.
        before: Residual stream of `full` after the same layer.
        mask: Positions to average over (at least one).

    Returns:
        A distance >= 0, in units of the residual stream.
    """
    here, there = at_least_float32(states[mask]), at_least_float32(before[mask])
    return torch.linalg.vector_norm(here - there, dim=-1).mean()


@dataclass(frozen=True, kw_only=True)
class RRConfig(RetainConfig):
    """Circuit breakers: make two layers' states orthogonal to `full`'s on forget data; preserve them on retain data.

    During training, weight shifts from the forget term to the retain term until both terms have half of it. Only the
    blocks up to `top_layer` are trained. The authors train low-rank adapters of rank 16 with a learning rate of 1e-4.
    Their code averages the retain term over the states after every block, not only after these two blocks, and includes
    padding.
    """

    method: ClassVar[str] = "rr"

    alpha: NonNegativeFloat = 10.0
    """Total weight of the two terms."""

    layer: NonNegativeInt = 9
    """First block whose output is rerouted, counted from 0. The authors use the states after 10 and 20 of 32 blocks."""

    top_layer: NonNegativeInt = 19
    """Second block whose output is rerouted; set it to `layer` to reroute only one block."""


def train_only_below(config: RRConfig, model: nn.Module) -> None:
    """Freeze everything except blocks 0 to `top_layer`."""
    if config.top_layer < config.layer:
        raise ConfigError(Setting("top_layer", config.top_layer), f" is below layer {config.layer}.")
    train_only(model, 0, config.top_layer, setting=Setting("top_layer", ..., of="RRConfig"))


def halfway(config: RRConfig, weight: float | None, retain_loss: float, progress: float) -> float:
    """Return the retain term's share of the weight, which is half the fraction of completed steps."""
    return progress / 2


@objective(RRConfig, needs=("retain", "frozen"), prepare=train_only_below, reweigh=halfway)
def terms(config: RRConfig, passes: Passes) -> Terms:
    """Return `alpha (1 - s) ReLU(cos)_f + alpha s distance_r`, where s rises from 0 to 1/2."""
    layers = sorted({config.layer, config.top_layer})
    share = passes.weight or 0.0
    turned, kept = (
        torch.stack(
            [
                measure(here, there, predicting(passes.labels(side)))
                for here, there in zip(
                    passes.states_of(side, layers), passes.frozen_states_of(side, layers), strict=True
                )
            ]
        ).mean()
        for side, measure in (("forget", rerouting), ("retain", state_norm_distance))
    )
    return Terms(
        per_token("forget", turned, weight=config.alpha * (1 - share)),
        per_token("retain", kept, weight=config.alpha * share),
    )
