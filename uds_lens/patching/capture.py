"""Read a model's states at the windows of a batch, in one forward pass without logits."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from uds_lens.checked_arguments import arguments_checked
from uds_lens.data import TokenBatch
from uds_lens.models import HookedModel, open_model
from uds_lens.patching.decoder import at_window, read_window_states, require_each_once
from uds_lens.patching.side_by_side import require_fitting
from uds_lens.patching.sites import hook_name, require_site
from uds_lens.patching.span_cache import SpanCache
from uds_lens.patching.wavefront import forward_pass
from uds_lens.types import Engine, LastLayer, Site, check_choice


@arguments_checked
@torch.no_grad()
def capture(
    model: HookedModel | nn.Module,
    batch: TokenBatch,
    *,
    site: Site = "resid_post",
    last_layer: LastLayer = "resid_post",
    packed: bool = False,
    engine: Engine = "wavefront",
) -> SpanCache:
    """Read every layer's states at the window positions of `batch`.

    One forward of the decoder, no logits. States are copied out, so the full activations are freed.

    Args:
        model: The source: an open `HookedModel`, a transformers model or a `TransformerBridge`.
        batch: Tokens and windows, on any device.
        site: Point of each block to read.
        last_layer: `post_norm` replaces the last layer's residual stream by that after the model's final norm,
            as the `hidden_states` of transformers have it (reproduces the UDS paper's released script).
        packed: Run rows end to end, without padding between them (see `patching.wavefront.rows_layout`). Source and
            target must agree in it.
        engine: `wavefront` (or `auto`) runs the last block at the window only, where the model's blocks can be run
            alone; `naive` is one whole forward with hooks, and how a model with hooks of its own is read in any case.

    Returns:
        The states, `[batch, layer, win, d_model]`, on the model's device.

    Raises:
        PatchError: The family has no such site, a layer did not run exactly once, or rows of the batch would give
            other states than alone (see `row_layout`).

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
    with model.running():
        return _capture(model, batch, site, last_layer, packed, engine)


@arguments_checked
def as_hooked(model: HookedModel | nn.Module) -> HookedModel:
    """The model as a `HookedModel`; a live transformers model or Bridge is adopted in its own dtype."""
    if isinstance(model, HookedModel):
        return model
    dtype: Any = next(p.dtype for p in model.parameters() if p.is_floating_point())
    return open_model(model, dtype=str(dtype).removeprefix("torch."))  # type: ignore[arg-type]


def _capture(
    model: HookedModel, batch: TokenBatch, site: Site, last_layer: LastLayer, packed: bool, engine: Engine
) -> SpanCache:
    require_site(model, site)
    require_fitting(model, batch)
    batch = batch.to(model.device)
    if site == "resid_post" and (engine == "naive" or model.runs_hooks):
        states = read_window_states(model, batch)
    elif site == "resid_post":
        states = forward_pass(model, batch, keep_prefix=False, packed=packed).states
    else:
        states = _capture_by_bridge(model, batch, site)
    if last_layer == "post_norm" and site == "resid_post":
        states[:, -1] = model.anatomy.final_norm(states[:, -1])
    return SpanCache(states=states, site=site, last_layer=last_layer, name=model.name)


def _capture_by_bridge(
    model: HookedModel, batch: TokenBatch, site: Site
) -> Float[Tensor, "batch layer win d_model"]:
    states: list[Tensor] = []

    def keep(activation: Tensor, *, hook: Any) -> None:
        states.append(at_window(activation, batch.window).to(model.device))

    names = [(hook_name(site, layer), keep) for layer in range(model.n_layers)]
    model.bridge.run_with_hooks(
        batch.input_ids,
        fwd_hooks=names,
        attention_mask=batch.attention_mask,
        position_ids=batch.position_ids,
        return_type=None,
    )
    require_each_once(model, states)
    return torch.stack(states, dim=1)
