"""Attacks that train nothing: pruning, noise, and removing a direction from the residual stream.

References:
    Pruning by magnitude: Han et al. 2015 (arXiv 1506.02626). Noise: Tice et al. 2024 (arXiv 2412.01784).
    Difference of means, ablated: Arditi et al. 2024 (arXiv 2406.11717), against unlearning Lucki et al. 2024
    (arXiv 2409.18025). Attacks that train (`_relearn_settings.py`): benign rows, Qi et al. 2023 (arXiv 2310.03693);
    some facts, tested on others, Deeb and Roger 2024 (arXiv 2410.08827).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from uds_lens._types import Protocol
from uds_lens.data import ForgetExample
from uds_lens.data._prompts import ChatStyle
from uds_lens.data._tokens import answer_prompt, prompt_ids
from uds_lens.errors import DataError, ModelError
from uds_lens.models import HookedModel
from uds_lens.patching._hooks import first_tensor


@dataclass(frozen=True, kw_only=True)
class Questions:
    """Data that an attack may read in addition to the weights."""

    forget: Sequence[ForgetExample]
    retain: Sequence[ForgetExample]
    protocol: Protocol
    chat: ChatStyle
    seed: int


def matrices(model: HookedModel) -> list[nn.Parameter]:
    """Return the matrices of the blocks; the matrices of experts are stacked.

    Raises:
        ModelError: The model is quantised.
    """
    found = [weight for weight in model.anatomy.layers.parameters() if weight.ndim >= 2]
    if not all(weight.is_floating_point() for weight in found):
        raise ModelError(
            f"{model.name!r} is quantised, so its weights cannot be pruned or perturbed with noise. Unpack it first."
        )
    return found


def prune(model: HookedModel, share: float, questions: Questions) -> None:
    """Set `w = 0` where `|w|` is among the smallest `share` of its matrix."""
    for weight in matrices(model):
        count = round(share * weight.numel())
        weight.view(-1)[weight.abs().flatten().argsort(stable=True)[:count]] = 0


def noise(model: HookedModel, scale: float, questions: Questions) -> None:
    """Add `scale rms(W) eta` to each matrix W, eta standard normal."""
    generator = torch.Generator().manual_seed(questions.seed)
    for weight in matrices(model):
        eta = torch.randn(weight.shape, generator=generator).to(weight.device)
        weight.add_((scale * weight.float().square().mean().sqrt() * eta).to(weight.dtype))


def refusal(model: HookedModel, depth: float, questions: Questions) -> None:
    """Replace states h of the embedding and the blocks with `h - (h r) r`, where r is the unit difference of means."""
    block = model.anatomy.layers[min(int(depth * model.n_layers), model.n_layers - 1)]
    means = [_mean_state(model, block, rows, questions) for rows in (questions.forget, questions.retain)]
    direction = means[0] - means[1]
    if not bool(direction.any()):
        raise DataError("the forget and the retained questions have the same mean state: use other retained rows.")
    direction = direction / direction.norm()

    def remove(module: nn.Module, args: Any, output: Any) -> Any:
        states = first_tensor(output)
        along = direction.to(states)
        new = states - (states @ along)[..., None] * along
        return new if isinstance(output, Tensor) else type(output)((new, *output[1:]))

    remove.__module__ = "tampering"  # this library's hooks do not count as changes to a model, but this one must
    for module in (model.hf.get_input_embeddings(), *model.anatomy.layers):
        module.register_forward_hook(remove)


TAMPERING: dict[str, Callable[[HookedModel, float, Questions], None]] = {
    "prune": prune,
    "noise": noise,
    "refusal": refusal,
}
"""Attacks by name; each one changes an open model with a strength from 0 to 1."""


def tamper(model: HookedModel, attack: str, questions: Questions) -> None:
    """Change an open model: `prune:0.3`."""
    word, _, strength = attack.partition(":")
    with torch.no_grad(), model.held():
        TAMPERING[word](model, float(strength), questions)


def _mean_state(
    model: HookedModel, block: nn.Module, rows: Sequence[ForgetExample], questions: Questions
) -> Float[Tensor, "d_model"]:
    """Return the mean output state of a block at the last token of the questions."""
    tokenizer: Any = model.tokenizer
    asked = {"protocol": questions.protocol, "tokenizer": tokenizer, "chat": questions.chat}
    prompts = [answer_prompt(row.question, **asked) for row in rows]
    last: list[Tensor] = []
    with block.register_forward_hook(lambda module, args, output: last.append(first_tensor(output)[0, -1].float())):
        for ids in prompt_ids(tokenizer, prompts, protocol=questions.protocol):
            model.anatomy.base(input_ids=torch.tensor([ids], device=model.device), use_cache=False)
    return torch.stack(last).mean(0)
