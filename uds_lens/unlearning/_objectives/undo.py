"""UNDO: distil an unlearned model into a damaged copy of itself.

References:
    Lee et al. 2025, Distillation Robustifies Unlearning (arXiv 2506.06278).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from uds_lens._compat.peft import has_adapters
from uds_lens._types import NonNegativeFloat, Share
from uds_lens.errors import ConfigError
from uds_lens.unlearning._objectives.kl import kl_to_reference
from uds_lens.unlearning._passes import Passes, Terms, per_token
from uds_lens.unlearning._registry import objective
from uds_lens.unlearning._settings import RetainConfig


@dataclass(frozen=True, kw_only=True)
class UNDOConfig(RetainConfig):
    """Distil a model that another method has unlearned into a shrunk and noised copy of itself.

    Start it from the unlearned model: started from `full`, it gives `full` back. Weights w become `(1 - noise_share) w
    + noise_share noise_scale n`, n drawn as Xavier initialises matrices, 0 for vectors. It needs more steps and a
    higher rate than unlearning does, since it teaches the copy everything again.
    """

    method: ClassVar[str] = "undo"

    noise_share: Share = 0.25
    """Share of each weight that is lost (the paper's alpha), up to 1: trained from nothing."""

    noise_scale: NonNegativeFloat = 0.1
    """Size of the noise in its place (the paper's beta), 1 being that of an initialisation."""


def damaged(config: UNDOConfig, model: nn.Module) -> None:
    """Shrink all weights and add noise."""
    if has_adapters(model):
        raise ConfigError("undo damages all weights, which adapters cannot learn again: train it without LoRA.")
    draw = torch.Generator().manual_seed(config.seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1 - config.noise_share)
            if weight.ndim == 2:
                bound = math.sqrt(6 / sum(weight.shape))
                noise = torch.empty(weight.shape).uniform_(-bound, bound, generator=draw)
                weight.add_((config.noise_share * config.noise_scale * noise).to(weight))


@objective(UNDOConfig, needs=("retain", "frozen"), prepare=damaged)
def terms(config: UNDOConfig, passes: Passes) -> Terms:
    """Return `KL_f(start || model) + alpha KL_r(start || model)`."""
    forget, retain = (
        kl_to_reference(passes.logits(side), passes.frozen_logits(side), passes.labels(side))
        for side in ("forget", "retain")
    )
    return Terms(per_token("forget", forget), per_token("retain", config.alpha * retain))
