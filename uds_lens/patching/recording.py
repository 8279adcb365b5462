"""One forward of the target, remembered: what every patched variant shares.

Patching a layer changes nothing before it and nothing at earlier positions. So the keys and values before the
window, each block's keyword arguments (mask, positions, rotary tables) and the states at the window are the same
for every layer patched and every source: they are recorded once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens.data import TokenBatch
from uds_lens.errors import PatchError
from uds_lens.models import Anatomy, HookedModel, anatomy_of
from uds_lens.patching.capture import at_window, first_tensor, forward_hooks
from uds_lens.patching.logprobs import target_logprobs


@dataclass(eq=False)
class Recording:
    """The target's own pass over one batch."""

    anatomy: Anatomy
    """The modules that were recorded and will be resumed."""

    batch: TokenBatch
    """The tokens, on the target's device."""

    entry: Float[Tensor, "batch win d_model"]
    """Window states that enter the first block."""

    states: Float[Tensor, "batch layer win d_model"]
    """Window states that leave each block (`resid_post`)."""

    logprobs: Float[Tensor, "batch win"]
    """The target's own log-probabilities of the scored tokens, float32 nats; NaN where not scored."""

    calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
    """Arguments of each block, without the hidden states."""

    cache: Any
    """The key-value cache that the blocks wrote to, with `keys[layer]` and `values[layer]`."""

    masks: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    """Attention masks already built for the variants, by mask and number of variants."""

    @property
    def first_column(self) -> int:
        """Keys from this position on are replaced by the variants' own."""
        return int(self.batch.window[:, 0].max())

    @property
    def nbytes(self) -> int:
        """Memory held by the tensors that grow with the batch, in bytes."""
        tensors = [self.entry, self.states, self.logprobs, *self.cache.keys, *self.cache.values]
        return sum(t.numel() * t.element_size() for t in tensors)


@torch.no_grad()
def record(model: HookedModel, batch: TokenBatch, *, by_bridge: bool = False) -> Recording:
    """Run the target once over the batch and remember what patched variants share.

    Args:
        model: The target.
        batch: The tokens.
        by_bridge: Walk TransformerLens's blocks instead of the plain ones, so that hooks inside a block apply
            when variants are resumed (needed for sites other than `resid_post`).

    Returns:
        The recording; it holds keys and values of every position.

    Raises:
        PatchError: The model did not run each block exactly once, or keeps no key-value cache.
    """
    batch = batch.to(model.device)
    anatomy = anatomy_of(model.bridge.original_model) if by_bridge else model.anatomy
    cache = _recording_cache(anatomy.n_layers)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    entry: list[Tensor] = []
    states: list[Tensor] = []

    def keep_call(layer: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden, rest, options = _split_call(args, kwargs)
        if layer == 0:
            entry.append(at_window(hidden, batch.window))
        calls.append((rest, options))

    def keep_state(layer: int, output: Any) -> None:
        states.append(at_window(first_tensor(output), batch.window).to(model.device))

    with forward_hooks(anatomy.layers, keep_call, pre=True), forward_hooks(anatomy.layers, keep_state):
        anatomy.base(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            position_ids=batch.position_ids,
            past_key_values=cache,
            use_cache=True,
        )
    if not (len(calls) == len(states) == anatomy.n_layers) or any(k is None for k in cache.keys):
        raise PatchError(
            f"{model.name!r}: expected {anatomy.n_layers} blocks, each run once with a key-value cache; "
            f"{len(states)} ran. Use engine='naive'."
        )
    logprobs = target_logprobs(anatomy, states[-1], batch.targets, batch.scored_mask)
    return Recording(
        anatomy=anatomy,
        batch=batch,
        entry=entry[0],
        states=torch.stack(states, dim=1),
        logprobs=logprobs,
        calls=calls,
        cache=cache,
    )


def _split_call(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, tuple[Any, ...], dict[str, Any]]:
    if args:
        return args[0], args[1:], kwargs
    options = dict(kwargs)
    return options.pop("hidden_states"), (), options


def _recording_cache(n_layers: int) -> Any:
    """A transformers cache that keeps references to keys and values and returns them unchanged.

    It has no config on purpose: with one, sliding-window models would cut the keys.
    """
    from transformers.cache_utils import Cache, DynamicLayer

    class _Keep(DynamicLayer):
        def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.keys, self.values, self.is_initialized = key_states, value_states, True
            return key_states, value_states

    class _Recorded(Cache):
        @property
        def keys(self) -> list[Tensor]:
            return [layer.keys for layer in self.layers]

        @property
        def values(self) -> list[Tensor]:
            return [layer.values for layer in self.layers]

    return _Recorded(layers=[_Keep() for _ in range(n_layers)])


def prefix_cache(recording: Recording) -> Any:
    """A transformers cache that prepends the recorded prefix to new keys and values and stores nothing."""
    from transformers.cache_utils import Cache, DynamicLayer

    columns = recording.first_column

    class _Prepend(DynamicLayer):
        def __init__(self, keys: Tensor, values: Tensor) -> None:
            super().__init__()
            self.keys, self.values = keys[:, :, :columns], values[:, :, :columns]
            self.is_initialized = True

        def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            return (
                torch.cat([self.keys, key_states], dim=2),
                torch.cat([self.values, value_states], dim=2),
            )

    kept = zip(recording.cache.keys, recording.cache.values, strict=True)
    return Cache(layers=[_Prepend(keys, values) for keys, values in kept])

