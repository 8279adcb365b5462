"""Read a model's states at the windows of a batch, in one forward pass without logits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from uds_lens.data import TokenBatch
from uds_lens.errors import PatchError
from uds_lens.models import HookedModel, open_model
from uds_lens.patching.sites import hook_name, require_site
from uds_lens.patching.span_cache import SpanCache
from uds_lens.types import LastLayer, Site, check_choice


@torch.no_grad()
def capture(
    model: HookedModel | nn.Module,
    batch: TokenBatch,
    *,
    site: Site = "resid_post",
    last_layer: LastLayer = "resid_post",
) -> SpanCache:
    """Read every layer's states at the window positions of `batch`.

    One forward of the decoder, no logits. States are copied out, so the full activations are freed.

    Args:
        model: The source: an open `HookedModel`, a transformers model or a `TransformerBridge`.
        batch: Tokens and windows, on any device.
        site: Point of each block to read.
        last_layer: `post_norm` replaces the last layer's residual stream by that after the model's final norm,
            as the `hidden_states` of transformers have it (reproduces the UDS paper's released script).

    Returns:
        The states, `[batch, layer, win, d_model]`, on the model's device.

    Raises:
        PatchError: The family has no such site, or a layer did not run exactly once.

    Example:
        >>> import uds_lens as ul
        >>> world = ul.toy.load()
        >>> with ul.open_model(world.full, device="cpu") as model:
        ...     encoded = ul.data.encode(world.examples[:2], model.tokenizer)
        ...     batch = ul.data.make_batch(encoded.rows, pad_token_id=model.tokenizer.pad_token_id)
        ...     cache = ul.patching.capture(model, batch)
        >>> cache.n_layers == cache.states.shape[1]
        True
    """
    check_choice("last_layer", last_layer, LastLayer)
    model = as_hooked(model)
    require_site(model, site)
    batch = batch.to(model.device)
    read = _capture_resid_post if site == "resid_post" else _capture_by_bridge
    states = read(model, batch, site)
    if last_layer == "post_norm" and site == "resid_post":
        states[-1] = model.anatomy.final_norm(states[-1])
    stacked = torch.stack([layer.to(model.device) for layer in states], dim=1)
    return SpanCache(states=stacked, site=site, last_layer=last_layer, name=model.name)


def as_hooked(model: HookedModel | nn.Module) -> HookedModel:
    """The model as a `HookedModel`; a live transformers model or Bridge is adopted in its own dtype."""
    if isinstance(model, HookedModel):
        return model
    dtype: Any = next(p.dtype for p in model.parameters() if p.is_floating_point())
    return open_model(model, dtype=str(dtype).removeprefix("torch."))  # type: ignore[arg-type]


def at_window(
    states: Float[Tensor, "batch pos d_model"], window: Int[Tensor, "batch win"]
) -> Float[Tensor, "batch win d_model"]:
    """Copy the window positions out of a full activation."""
    rows = torch.arange(window.shape[0], device=states.device)[:, None]
    return states[rows, window.to(states.device)]


def first_tensor(output: Any) -> Tensor:
    """A block's hidden state, whether it returns a tensor or a tuple that starts with it."""
    return output if isinstance(output, Tensor) else output[0]


@contextmanager
def forward_hooks(modules: nn.ModuleList, hook: Any, *, pre: bool = False) -> Iterator[None]:
    """Register `hook(layer, ...)` on every block for the length of the `with` block."""
    handles = []
    try:
        for layer, module in enumerate(modules):
            if pre:
                handles.append(
                    module.register_forward_pre_hook(
                        lambda m, args, kwargs, layer=layer: hook(layer, args, kwargs), with_kwargs=True
                    )
                )
            else:
                handles.append(
                    module.register_forward_hook(lambda m, args, output, layer=layer: hook(layer, output))
                )
        yield
    finally:
        for handle in handles:
            handle.remove()


def run_decoder(model: HookedModel, batch: TokenBatch, **options: Any) -> Any:
    """One forward of the decoder without the head."""
    return model.anatomy.base(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        position_ids=batch.position_ids,
        **options,
    )


def _capture_resid_post(model: HookedModel, batch: TokenBatch, site: Site) -> list[Tensor]:
    states: list[Tensor] = []

    def keep(layer: int, output: Any) -> None:
        states.append(at_window(first_tensor(output), batch.window))

    with forward_hooks(model.anatomy.layers, keep):
        run_decoder(model, batch, use_cache=False)
    return _require_each_once(model, states)


def _capture_by_bridge(model: HookedModel, batch: TokenBatch, site: Site) -> list[Tensor]:
    states: list[Tensor] = []

    def keep(activation: Tensor, *, hook: Any) -> None:
        states.append(at_window(activation, batch.window))

    names = [(hook_name(site, layer), keep) for layer in range(model.n_layers)]
    model.bridge.run_with_hooks(
        batch.input_ids,
        fwd_hooks=names,
        attention_mask=batch.attention_mask,
        position_ids=batch.position_ids,
        return_type=None,
    )
    return _require_each_once(model, states)


def _require_each_once(model: HookedModel, states: list[Tensor]) -> list[Tensor]:
    if len(states) != model.n_layers:
        raise PatchError(
            f"{model.name!r}: {len(states)} layers were read in one forward, expected {model.n_layers}. The model "
            "skips or repeats blocks, which patching by layer cannot describe."
        )
    return states
