"""One forward of a model, remembered: what every patched variant of it shares.

Patching a layer changes nothing before it and nothing at earlier positions. So the keys and values before the
window, each block's arguments (mask, positions, rotary tables) and the states at the window are the same for every
layer patched and every source: they are recorded once.

The last block is not run over the whole sequence either: once its keys and values are there, only the window
matters, and the block is resumed on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens.data import TokenBatch
from uds_lens.errors import PatchError
from uds_lens.models import Anatomy, HookedModel, anatomy_of
from uds_lens.patching.block import run_block
from uds_lens.patching.forward import at_window, first_tensor, forward_hooks
from uds_lens.patching.logprobs import target_logprobs
from uds_lens.patching.prefix import PrefixKept, prefix_cache, recording_cache

SCORES_AT_ONCE = 1 << 26
"""Attention scores of one block held at one time (256 MiB in float32)."""


@dataclass(eq=False)
class Trace:
    """A model's pass over one batch."""

    anatomy: Anatomy
    """The modules that ran, and will be resumed."""

    batch: TokenBatch
    """The tokens, on the model's device."""

    entry: Float[Tensor, "batch win d_model"]
    """Window states that enter the first block."""

    states: Float[Tensor, "batch layer win d_model"]
    """Window states that leave each block (`resid_post`)."""

    calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
    """Arguments of each block, without the hidden states."""

    cache: Any
    """The key-value cache that the blocks wrote to (see `recording_cache`)."""

    first_column: int
    """Keys from this position on are replaced by the variants' own."""

    variants: int = 1
    """How many variants ride together at most when blocks are resumed."""

    cuts: dict[int, Tensor] = field(default_factory=dict)
    """Masks, positions and rotary tables cut to the window for that many variants, by the tensor they come from."""

    resumed: dict[tuple[int, int], tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=dict)
    """Arguments that a block is resumed with, by layer and number of variants: views of the above."""

    @cached_property
    def past(self) -> Any:
        """Keys and values before the window, put before those of resumed tokens."""
        return prefix_cache(self.cache, self.first_column)


@dataclass(eq=False)
class Recording(Trace):
    """The target's own pass over one batch, with the keys and values of every layer."""

    logprobs: Float[Tensor, "batch win"] = field(kw_only=True)
    """The target's own log-probabilities of the scored tokens, float32 nats; NaN where not scored."""

    @property
    def nbytes(self) -> int:
        """Memory held by the tensors that grow with the batch, in bytes; with the masks that will be built."""
        tensors = [self.entry, self.states, self.logprobs, *self.cache.keys, *self.cache.values]
        arguments = [value for args, kwargs in self.calls for value in (*args, *kwargs.values())]
        masks = {id(v): v for v in arguments if isinstance(v, Tensor) and v.ndim == 4}
        flying = self.variants * self.batch.window.shape[1]
        cut = len(self.batch) * flying * (self.first_column + flying)
        return sum(t.numel() * t.element_size() for t in tensors) + sum(
            m.numel() * m.element_size() + cut * m.shape[1] * m.element_size() for m in masks.values()
        )


@torch.no_grad()
def record(
    model: HookedModel, batch: TokenBatch, *, by_bridge: bool = False, scores_at_once: int | None = None
) -> Recording:
    """Run the target once over the batch and remember what patched variants share.

    Args:
        model: The target.
        batch: The tokens.
        by_bridge: Walk TransformerLens's blocks instead of the plain ones, so that hooks inside a block apply
            when variants are resumed (needed for sites other than `resid_post`).
        scores_at_once: Attention scores of one block held at one time, which bounds how many variants ride together;
            None: 256 MiB of them in float32.

    Returns:
        The recording; it holds keys and values of every position.

    Raises:
        PatchError: The model did not run each block exactly once, or keeps no key-value cache.
    """
    pass_ = trace(model, batch, keep_prefix=True, by_bridge=by_bridge)
    if pass_.anatomy.keeps_masks:
        raise PatchError(
            f"the blocks of {type(pass_.anatomy.causal_lm).__name__} keep causal masks of their own, which resumed "
            "tokens would read at wrong places. Use engine='naive'."
        )
    if not pass_.cache.complete:
        raise PatchError(
            f"{model.name!r}: not every block wrote its keys and values to the cache exactly once, so that patched "
            "variants cannot be resumed. Use engine='naive'."
        )
    batch = pass_.batch
    logprobs = target_logprobs(pass_.anatomy, pass_.states[:, -1], batch.targets, batch.scored_mask)
    kept = {
        name: getattr(pass_, name)
        for name in ("anatomy", "entry", "states", "calls", "cache", "first_column")
    }
    recording = Recording(**kept, batch=batch, logprobs=logprobs)
    recording.variants = _variants_at_once(recording, scores_at_once or SCORES_AT_ONCE)
    return recording


@torch.no_grad()
def trace(
    model: HookedModel,
    batch: TokenBatch,
    *,
    keep_prefix: bool,
    by_bridge: bool = False,
    whole: bool = False,
) -> Trace:
    """Run a model once over the batch, without logits, and keep its window states.

    Args:
        model: The model.
        batch: The tokens.
        keep_prefix: Keep the keys and values of every layer, to resume from; costs memory.
        by_bridge: Walk TransformerLens's blocks instead of the plain ones.
        whole: Run the last block over the whole sequence too.

    Returns:
        The trace.

    Raises:
        PatchError: The model did not run each block exactly once.
    """
    device = model.device
    batch = batch.to(device)
    anatomy = anatomy_of(model.bridge.original_model) if by_bridge else model.anatomy
    short = not by_bridge and not whole and _may_stop_early(model)
    cache = recording_cache(anatomy.n_layers, keep=keep_prefix, stop_at_last=short)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    entry: list[Tensor] = []
    states: list[Tensor] = []

    def keep_call(layer: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden, rest, options = _split_call(args, kwargs)
        if layer == 0:
            entry.append(at_window(hidden, batch.window).to(device))
        calls.append((rest, options))

    def keep_state(layer: int, output: Any) -> None:
        states.append(at_window(first_tensor(output), batch.window).to(device))

    stopped = False
    with forward_hooks(anatomy.layers, keep_call, pre=True), forward_hooks(anatomy.layers, keep_state):
        try:
            anatomy.base(
                input_ids=batch.input_ids,
                attention_mask=batch.attention_mask,
                position_ids=batch.position_ids,
                past_key_values=cache,
                use_cache=True,
            )
        except PrefixKept:
            stopped = True
    pass_ = Trace(anatomy, batch, entry[0], entry[0][:, None], calls, cache, int(batch.window[:, 0].max()))
    if stopped:
        before = states[-1] if states else entry[0]
        try:
            states.append(run_block(pass_, anatomy.n_layers - 1, before))
        except PatchError:
            return trace(model, batch, keep_prefix=keep_prefix, by_bridge=by_bridge, whole=True)
    require_each_once(model, states)
    pass_.states = torch.stack(states, dim=1)
    return pass_


def require_each_once(model: HookedModel, states: list[Tensor]) -> None:
    """Raise `PatchError` unless there is one state per layer."""
    if len(states) != model.n_layers:
        raise PatchError(
            f"{model.name!r}: {len(states)} layers were read in one forward, expected {model.n_layers}. The model "
            "skips or repeats blocks, which patching by layer cannot describe."
        )


def _may_stop_early(model: HookedModel) -> bool:
    """Whether the last block may be cut off after its keys and values, and resumed at the window.

    Not through accelerate's hooks, which have work to do after a block; not through TransformerLens's; and not where
    blocks keep a causal mask of their own, indexed by the layout of keys, which resumed tokens do not have.
    """
    plain = getattr(model.hf, "hf_device_map", None) is None and not model.is_wrapped
    return plain and not model.anatomy.keeps_masks


def _split_call(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, tuple[Any, ...], dict[str, Any]]:
    if args:
        return args[0], args[1:], kwargs
    options = dict(kwargs)
    return options.pop("hidden_states"), (), options


def _variants_at_once(recording: Recording, scores_at_once: int) -> int:
    """How many variants may ride together before their attention scores pass the memory bound."""
    batch = recording.batch
    width, prefix = batch.window.shape[1], recording.first_column
    heads = int(recording.anatomy.text_config.num_attention_heads)
    per_head = scores_at_once / (len(batch) * heads)
    n = 1
    while n < recording.anatomy.n_layers and (n + 1) * width * (prefix + (n + 1) * width) <= per_head:
        n += 1
    return n
