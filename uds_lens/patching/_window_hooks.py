"""Full forward passes with hooks that read states at the window, or overwrite them with another model's states."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from uds_lens._types import HookSite
from uds_lens.data import TokenBatch
from uds_lens.errors import ModelError, PatchError, Setting
from uds_lens.models import HookedModel
from uds_lens.patching._hooks import (
    HEADS,
    as_hooked,
    chosen_layers,
    first_tensor,
    hook_name,
    patch_hooks,
    require_site,
    run_decoder,
    run_with,
)
from uds_lens.patching._side_by_side import require_fitting
from uds_lens.patching._states import SpanCache, at_window


def read_by_hooks(model: HookedModel, batch: TokenBatch, site: HookSite) -> tuple[Tensor, int]:
    """Read every layer's states in one forward pass; also return the number of heads in the last axis (0 if none)."""
    states: list[Tensor] = []
    heads = 0

    def keep(activation: Tensor) -> None:
        nonlocal heads
        if activation.shape[:2] != batch.input_ids.shape:
            raise ModelError(
                f"blocks of {model.name!r} ({model.architecture}) pass on states of shape {tuple(activation.shape)}: "
                f"expected one state for each token of the batch, {tuple(batch.input_ids.shape)}. Models with several "
                "residual streams (Gemma-3n) are not supported."
            )
        heads = activation.shape[2] if site in HEADS else 0
        states.append(at_window(activation.flatten(2), batch.window).to(model.device))

    if site == "resid_post":
        handles = [
            block.register_forward_hook(lambda module, args, output: keep(first_tensor(output)))
            for block in model.anatomy.layers
        ]
        try:
            run_decoder(model.anatomy, batch, use_cache=False)
        finally:
            for handle in handles:
                handle.remove()
    else:
        model.bridge.run_with_hooks(
            batch.input_ids,
            fwd_hooks=[
                (hook_name(site, layer), lambda activation, hook: keep(activation)) for layer in range(model.n_layers)
            ],
            attention_mask=batch.attention_mask,
            position_ids=batch.position_ids,
            return_type=None,
        )
    if len(states) != model.n_layers:
        raise PatchError(
            f"{model.name!r}: {len(states)} layers were read in one forward pass instead of {model.n_layers}. The "
            "model skips or repeats blocks, so it cannot be patched by layer."
        )
    return torch.stack(states, dim=1), heads


@dataclass(eq=False, repr=False)  # TransformerLens prints every hook it adds, so the repr must not contain tensors
class SpanPatch:
    """A TransformerLens hook that overwrites a block's activation with source states, and counts its runs and changes.

    Use it as the hook in a `(hook_name, hook)` pair, and read `fired` and `changed` afterwards.
    """

    batch: TokenBatch
    """The positions to overwrite: `window` where `patched_mask` is True."""

    states: Float[Tensor, "batch win d_model"]
    """The states to write, which are cast to the dtype of the activation."""

    fired: int = field(default=0, init=False)
    """How often the hook ran."""

    changed: int = field(default=0, init=False)
    """How many positions changed."""

    def __call__(self, activation: Tensor, *, hook: Any = None) -> Tensor:
        """Return the activation with the patched positions replaced."""
        rows, columns = self.batch.patched_mask.to(activation.device).nonzero(as_tuple=True)
        positions = self.batch.window.to(activation.device)[rows, columns]
        source = self.states.to(activation.device)[rows, columns].to(activation.dtype)
        patched = activation.clone()
        patched[rows, positions] = source
        self.fired += 1
        self.changed += int((patched[rows, positions] != activation[rows, positions]).any(-1).sum())
        return patched


@torch.no_grad()
def run_patched(
    model: HookedModel | nn.Module, batch: TokenBatch, cache: SpanCache, *, layer: int | Sequence[int]
) -> Float[Tensor, "batch pos d_vocab"]:
    """Run the target once, replacing the states of one or several layers at the patched positions.

    Args:
        model: The target.
        batch: The tokens that `cache` was captured on.
        cache: The source's states.
        layer: The layer to patch, or several layers (`[3, 5]`, `range(i, j + 1)`) to patch together in one forward
            pass.

    Returns:
        Logits at every position, in the model's dtype.

    Raises:
        PatchError: The cache does not match the batch, there is no such layer, or a hook did not run exactly once.
    """
    model = as_hooked(model)
    require_site(model, cache.site)
    require_fitting(model, batch)
    return patched_forward(model, batch.to(model.device), cache, [layer] if isinstance(layer, int) else layer)[0]


def patched_forward(
    model: HookedModel, batch: TokenBatch, cache: SpanCache, layers: Sequence[int], *, plain: bool = False
) -> tuple[Float[Tensor, "batch pos d_vocab"], int]:
    """Run the target once with some layers patched; return the logits, and how many positions were changed.

    `plain`: see `run_with`.
    """
    require_states_of(model, batch, cache)
    patches = {layer: SpanPatch(batch, cache[layer]) for layer in chosen_layers(layers, model.n_layers)}
    hooks = [pair for layer, patch in patches.items() for pair in patch_hooks(cache.site, layer, patch)]
    logits = run_with(model, batch, hooks, plain=plain)
    for layer, patch in patches.items():
        if patch.fired != 1:
            raise PatchError(f"the hook at {hook_name(cache.site, layer)} ran {patch.fired} times instead of once.")
    return logits, sum(patch.changed for patch in patches.values())


def require_states_of(target: HookedModel, batch: TokenBatch, cache: SpanCache) -> None:
    """Raise `PatchError` unless the shape of the states matches the batch and the target."""
    width = cache.states.shape[-1] if cache.n_heads else target.d_model
    expected = (batch.window.shape[0], target.n_layers, batch.window.shape[1], width)
    if tuple(cache.states.shape) != expected:
        raise PatchError(
            f"the cache has states of shape {tuple(cache.states.shape)} (batch, layer, win, d_model), but this batch "
            f"and target need {expected}: capture the source on the same TokenBatch."
        )


def require_effect(
    target: HookedModel, cache: SpanCache, layers: Sequence[int], *, changed: int, logits: Tensor, unpatched: Tensor
) -> None:
    """Raise `PatchError` if a patch changed states but no logits."""
    # Tiny changes may legitimately be lost to rounding in half precision, and user hooks may discard a block's input.
    precise = target.dtype == torch.float32 and not target.runs_hooks
    if precise and changed and torch.equal(logits, unpatched):
        at = ", ".join(hook_name(cache.site, layer) for layer in layers)
        raise PatchError(
            f"the hook at {at} changed {changed} positions, but the logits stayed the same: the model ignores the "
            "hooked value, so this architecture cannot be patched here."
        )


@contextmanager
def patched_inside(
    model: HookedModel, batch: TokenBatch, cache: SpanCache, layer: int, back: Collection[int]
) -> Iterator[None]:
    """Patch some variants of a wave at a site inside the block; `back` counts them from the end (1 is the last).

    `cache` contains the states of this layer only.
    """
    width, runs = batch.window.shape[1], 0

    def write(activation: Tensor) -> Tensor:
        nonlocal runs
        runs += 1
        source = cache[0].to(activation.device, activation.dtype)
        patched = batch.patched_mask[..., None].to(activation.device)
        written, end = activation.clone(), activation.shape[1]
        for number in back:
            span = slice(end - number * width, end - (number - 1) * width)
            written[:, span] = torch.where(patched, source, activation[:, span])
        return written

    with model.bridge.hooks(fwd_hooks=patch_hooks(cache.site, layer, write)):
        yield
    if runs != 1:
        raise PatchError(
            f"the hook at {hook_name(cache.site, layer)} ran {runs} times instead of once. Use ",
            Setting("engine", "naive"),
            ".",
        )
