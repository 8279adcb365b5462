"""PDU: flatten the logits on forget answers under a constraint on the retain loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from uds_lens._types import NonNegativeFloat
from uds_lens.errors import ConfigError, Setting
from uds_lens.unlearning._passes import Passes, Terms, at_least_float32, labelled, negative_log_likelihood, per_token
from uds_lens.unlearning._registry import objective
from uds_lens.unlearning._settings import RetainConfig


def logit_margin(logits: Float[Tensor, "batch pos d_vocab"], labels: Int[Tensor, "batch pos"]) -> Float[Tensor, ""]:
    """Return PDU's forget term: the squared gap between the largest logit and the mean logit.

    `L = mean_t (max_v z_t(v) - mean_v z_t(v))^2`, where t runs over the positions that predict an answer.
    Open-Unlearning instead averages over the positions *of* the answer's tokens, one position further right.

    Args:
        logits: Unshifted logits on the forget batch.
        labels: Unshifted labels; -100 marks positions to ignore.

    Returns:
        A loss >= 0, in squared logits; 0 for uniform distributions.

    Raises:
        DataError: The batch has no labels.

    Example:
        >>> import torch
        >>> logit_margin(torch.tensor([[[3.0, 0.0, 0.0], [9.0, 0.0, 0.0]]]), torch.tensor([[-100, 1]]))  # (3 - 1)^2
        tensor(4.)

    References:
        Entesari et al. 2025, Constrained Entropic Unlearning: A Primal-Dual Framework.
    """
    found = at_least_float32(logits[:, :-1][labelled(labels)])
    return (found.amax(-1) - found.mean(-1)).square().mean()


@dataclass(frozen=True, kw_only=True)
class PDUConfig(RetainConfig):
    """Flatten the logits of forget answers while the retain loss stays below epsilon (primal-dual).

    The defaults are the authors' settings for TOFU. Choose epsilon slightly above the retain loss of `full`.
    """

    method: ClassVar[str] = "pdu"

    alpha: NonNegativeFloat = 100.0
    """Initial value of the dual variable, which weights the retain term."""

    epsilon: NonNegativeFloat = 0.3
    """Maximum retain loss that the constraint allows, in nats per token."""

    dual_step: NonNegativeFloat = 5.0
    """Change in the dual variable per step and per nat by which the retain loss exceeds epsilon."""

    dual_warmup_epochs: NonNegativeFloat = 5.0
    """Number of epochs during which the dual variable stays at alpha; must be less than `epochs`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dual_warmup_epochs >= self.epochs:
            raise ConfigError(
                Setting("dual_warmup_epochs", self.dual_warmup_epochs),
                f" must be below the {self.epochs} epochs of training, or the dual variable never changes.",
            )


def dual_ascent(config: PDUConfig, weight: float | None, retain_loss: float, progress: float) -> float:
    """Return the next dual variable, `max(0, weight + dual_step (NLL_r - epsilon))`."""
    weight = config.alpha if weight is None else weight
    if round(progress * config.epochs, 6) < config.dual_warmup_epochs:
        return weight
    return max(0.0, weight + config.dual_step * (retain_loss - config.epsilon))


@objective(PDUConfig, needs=("retain",), reweigh=dual_ascent)
def terms(config: PDUConfig, passes: Passes) -> Terms:
    """Return `logit margin_f + weight NLL_r`; the weight starts at alpha and is updated by `dual_ascent`."""
    weight = config.alpha if passes.weight is None else passes.weight
    kept = negative_log_likelihood(passes.logits("retain"), passes.labels("retain"))
    forget = logit_margin(passes.logits("forget"), passes.labels("forget"))
    return Terms(per_token("forget", forget), per_token("retain", kept, weight=weight))
