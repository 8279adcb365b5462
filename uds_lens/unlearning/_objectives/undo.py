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
    """Distil a model unlearned by another method into a copy of itself with shrunk and noised weights.

    Start from the unlearned model; starting from `full` would only restore `full`. A weight w becomes `(1 -
    noise_share) w + noise_share noise_scale n`, where n follows Xavier initialisation for matrices and is 0 for
    vectors. UNDO needs more steps and a higher learning rate than unlearning, because the copy has to relearn
    everything.
    """

    method: ClassVar[str] = "undo"

    noise_share: Share = 0.25
    """Fraction of each weight to remove (the paper's alpha). At 1, nothing is left of the original weights."""

    noise_scale: NonNegativeFloat = 0.1
    """Scale of the added noise (the paper's beta); 1 matches Xavier initialisation."""


def damaged(config: UNDOConfig, model: nn.Module) -> None:
    """Shrink all weights and add noise."""
    if has_adapters(model):
        raise ConfigError("undo damages all weights, which adapters cannot repair: train without LoRA.")
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
