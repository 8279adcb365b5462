"""States at the window: what is read from one model and patched into another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from uds_lens._types import LastLayer, Site
from uds_lens.data import TokenBatch
from uds_lens.errors import PatchError
from uds_lens.models import Anatomy, HookedModel


@dataclass(frozen=True, eq=False)
class SpanCache:
    """States of every layer at the window positions of a `TokenBatch`.

    The window of a row runs from its first patched to its last scored position, left-aligned; entries beyond a
    row's own window repeat its last position and mean nothing (`batch.window_mask` is False there).
    """

    states: Float[Tensor, "batch layer win d_model"]
    """Activations in the model's dtype."""

    site: Site
    """Point of the block they were read at."""

    last_layer: LastLayer = "resid_post"
    """Whether the last layer holds its residual stream, or (`post_norm`) that after the final norm."""

    name: str = ""
    """Name of the model they come from."""

    def __getitem__(self, layer: int) -> Float[Tensor, "batch win d_model"]:
        """States of one layer."""
        return self.states[:, layer]

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return self.states.shape[1]

    def same_as(
        self, other: Float[Tensor, "batch layer win d_model"], patched: Bool[Tensor, "batch win"]
    ) -> Bool[Tensor, "batch layer"]:
        """Where every patched state equals `other` bit for bit, so that the patch changes nothing."""
        differs = (self.states != other).any(-1) & patched[:, None, :]
        return ~differs.any(-1)

    def check_fits(self, batch: TokenBatch, *, n_layers: int, d_model: int) -> None:
        """Raise unless the states have the shape of `batch` and of the target model.

        Raises:
            PatchError: Naming both shapes.
        """
        expected = (batch.window.shape[0], n_layers, batch.window.shape[1], d_model)
        if tuple(self.states.shape) != expected:
            raise PatchError(
                f"the cache has states of shape {tuple(self.states.shape)} (batch, layer, win, d_model), but this "
                f"batch and target need {expected}: capture the source on the same TokenBatch."
            )


class PatchEngine(ABC):
    """The target on one batch, ready to be patched."""

    model: HookedModel
    """The target."""

    batch: TokenBatch
    """The tokens, on the target's device."""

    @property
    @abstractmethod
    def logprobs(self) -> Float[Tensor, "batch win"]:
        """Unpatched log-probabilities of the scored tokens."""

    @property
    @abstractmethod
    def states(self) -> Float[Tensor, "batch layer win d_model"]:
        """The target's own `resid_post` at the window."""

    @abstractmethod
    def patched(
        self, cache: SpanCache, *, layers: list[int] | None = None
    ) -> Float[Tensor, "batch layer win"]:
        """Log-probabilities with each of `layers` patched (None: all); NaN for the others."""


def chosen_layers(layers: Sequence[int] | None, n_layers: int) -> list[int]:
    """The layers to patch in increasing order; None takes all.

    Raises:
        PatchError: A layer does not exist, or is named twice.

    Example:
        >>> chosen_layers([2, 0], 4), chosen_layers(None, 2)
        ([0, 2], [0, 1])
    """
    chosen = list(range(n_layers)) if layers is None else sorted(layers)
    if len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(n_layers)):
        raise PatchError(
            f"layers must be distinct numbers from 0 to {n_layers - 1}; got {list(layers or ())}."
        )
    return chosen


def at_window(
    states: Float[Tensor, "batch pos d_model"], window: Int[Tensor, "batch win"]
) -> Float[Tensor, "batch win d_model"]:
    """Copy the window positions out of a full activation."""
    starts = torch.arange(0, states.shape[0] * states.shape[1], states.shape[1], device=states.device)
    places = window.to(states.device) + starts[:, None]
    return states.flatten(0, 1).index_select(0, places.flatten()).unflatten(0, window.shape)


def first_tensor(output: Any) -> Tensor:
    """A block's hidden state, whether it returns a tensor or a tuple that starts with it."""
    return output if isinstance(output, Tensor) else output[0]


def run_decoder(anatomy: Anatomy, batch: TokenBatch, **options: Any) -> Any:
    """One forward of the decoder without the head."""
    return anatomy.base(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        position_ids=batch.position_ids,
        **options,
    )


def split_call(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, tuple[Any, ...], dict[str, Any]]:
    """The hidden states that a block is called with, and its other arguments."""
    if args:
        return args[0], args[1:], kwargs
    options = dict(kwargs)
    return options.pop("hidden_states"), (), options


@torch.no_grad()
def read_window_states(model: HookedModel, batch: TokenBatch) -> Float[Tensor, "batch layer win d_model"]:
    """Window states of each layer, by one whole forward of the decoder and hooks on its blocks: the reference.

    Raises:
        PatchError: A layer did not run exactly once.
    """
    states: list[Tensor] = []

    def keep(layer: int, output: Any) -> None:
        states.append(at_window(first_tensor(output), batch.window).to(model.device))

    with forward_hooks(model.anatomy.layers, keep):
        run_decoder(model.anatomy, batch, use_cache=False)
    require_each_once(model, states)
    return torch.stack(states, dim=1)


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


def require_each_once(model: HookedModel, states: list[Tensor]) -> None:
    """Raise `PatchError` unless there is one state per layer."""
    if len(states) != model.n_layers:
        raise PatchError(
            f"{model.name!r}: {len(states)} layers were read in one forward, expected {model.n_layers}. The model "
            "skips or repeats blocks, which patching by layer cannot describe."
        )
