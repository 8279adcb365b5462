"""TransformerLens's `TransformerBridge` on top of a model that stays as it is.

`boot_transformers` rewires the model it is given: names in its state dict change and `save_pretrained` fails.
So the Bridge gets a structural clone: new module objects, a config of its own, and the very same weight tensors.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import nn

from uds_lens.checked_arguments import arguments_checked
from uds_lens.compat.accelerate import is_offloaded, is_placed
from uds_lens.compat.torch import hook_tables, is_out_of_memory
from uds_lens.compat.transformer_lens import boot
from uds_lens.errors import ModelError
from uds_lens.models.loading_lock import LOADING

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerFast


@arguments_checked
def clone_sharing_weights(model: nn.Module) -> nn.Module:
    """Copy a module tree but not its tensors: parameters and buffers are shared with the original.

    Hooks that are on the original run on the copy too; those that come later do not.

    Args:
        model: Any module.

    Returns:
        A module of the same structure whose parameters are the same objects.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> twin = clone_sharing_weights(layer)
        >>> twin is layer, twin.weight is layer.weight
        (False, True)
    """
    memo: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    for module in model.modules():
        for hooks in hook_tables(module):
            memo[id(hooks)] = copy.copy(hooks)
    return copy.deepcopy(model, memo)


@arguments_checked
def bridge_on_shared_weights(
    model: nn.Module, tokenizer: PreTrainedTokenizerFast | None, *, name: str
) -> TransformerBridge:
    """Boot a `TransformerBridge` that shares its weights with `model` and leaves `model` untouched.

    Args:
        model: A plain transformers causal language model.
        tokenizer: Its tokenizer; the Bridge gets a copy.
        name: What the Bridge calls the model.

    Returns:
        The Bridge, without weight processing, in the model's dtype, with eager attention.

    Raises:
        ModelError: TransformerLens does not know the architecture, or fails to wrap it.
    """
    if is_offloaded(model):
        raise ModelError(
            f"TransformerLens cannot share the weights of {name!r}: accelerate keeps some of them on disk or moves "
            "them as they are needed."
        )
    twin: Any = clone_sharing_weights(model)
    if not getattr(twin.config, "architectures", None):
        twin.config.architectures = [type(model).__name__]
    dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
    try:
        device = None if is_placed(model) else str(next(model.parameters()).device)
        with LOADING:
            return boot(name, twin, tokenizer, dtype=dtype, device=device)
    except Exception as error:
        raise ModelError(f"TransformerLens cannot wrap {name!r} ({type(model).__name__}): {error}") from error


_ROUNDING = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.01}
"""Largest difference between a Bridge and the plain model that rounding explains, as a share of the largest logit."""

_agreed: WeakSet[Any] = WeakSet()
"""Bridges that were seen to agree."""


@torch.no_grad()
def require_agreement(bridge: TransformerBridge, model: Any, *, name: str) -> None:
    """Compare a Bridge with the plain model on a short text, once for each Bridge.

    Raises:
        ModelError: The Bridge does not run, or gives other logits.
    """
    if bridge in _agreed:
        return
    size = model.config.get_text_config().vocab_size
    ids = torch.tensor([[place * 7 % size for place in range(1, 9)]], device=next(model.parameters()).device)
    told = {"attention_mask": torch.ones_like(ids), "position_ids": torch.arange(ids.shape[1])[None].to(ids)}
    with torch.autocast(ids.device.type, enabled=False):
        plain = model(ids, use_cache=False, **told).logits.float()
        try:
            found = bridge(ids, return_type="logits", **told).float()
        except Exception as error:
            if is_out_of_memory(error):
                raise
            first = str(error).splitlines()[0] if str(error) else "no message"
            raise ModelError(
                f"TransformerLens wraps {name!r} ({type(model).__name__}), but its Bridge does not run "
                f"({type(error).__name__}: {first[:200]})."
            ) from error
    gap, allowed = float((found - plain).abs().max() / plain.abs().max()), _ROUNDING.get(model.dtype, 1e-3)
    if gap > allowed:  # NaN logits are reported by the pass that meets them
        raise ModelError(
            f"TransformerLens wraps {name!r} ({type(model).__name__}), but its Bridge gives other logits than the "
            f"plain model (they differ by {gap:.1%} of the largest; rounding explains {allowed:.1%})."
        )
    _agreed.add(bridge)
