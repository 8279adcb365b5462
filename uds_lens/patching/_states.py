"""States at the window, which are read from one model and patched into another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uds_lens._types import HookSite, LastLayer
from uds_lens.data import TokenBatch
from uds_lens.errors import PatchError
from uds_lens.models import HookedModel
from uds_lens.patching._hooks import head_mask


@dataclass(frozen=True, eq=False, repr=False)
class SpanCache:
    """States of every layer at the window positions of a `TokenBatch`.

    A row's window starts at its first patched or scored position and ends with the row. Windows are left-aligned;
    shorter ones are filled by repeating their last position (`batch.window_mask` is False there).
    """

    states: Float[Tensor, "batch layer win d_model"]
    """Activations in the model's dtype; for `z`, `q`, `k` and `v`, all heads concatenated."""

    site: HookSite
    """Point in the block where the states were read."""

    last_layer: LastLayer = "resid_post"
    """Whether the last layer contains the residual stream, or (`post_norm`) its value after the final norm."""

    name: str = ""
    """Name of the model that the states come from."""

    n_heads: int = 0
    """Number of heads in the last axis; 0 at sites without heads."""

    def __getitem__(self, layer: int) -> Float[Tensor, "batch win d_model"]:
        """States of one layer."""
        return self.states[:, layer]

    def __repr__(self) -> str:
        heads = f", {self.n_heads} heads" if self.n_heads else ""
        return f"SpanCache({self.site}{heads} of {self.name!r}, [batch, layer, win, d] = {list(self.states.shape)})"

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return self.states.shape[1]

    def same_as(
        self, other: Float[Tensor, "batch layer win d_model"], patched: Bool[Tensor, "batch win"]
    ) -> Bool[Tensor, "batch layer"]:
        """Return whether all patched states equal `other` bit for bit, so that patching changes nothing."""
        differs = (self.states != other).any(-1) & patched[:, None, :]
        return ~differs.any(-1)

    def only(
        self, own: SpanCache, *, positions: Bool[Tensor, "batch win"] | None = None, heads: Sequence[int] | None = None
    ) -> SpanCache:
        """Return a cache with these states at some window positions or heads, and the target's own states elsewhere.

        Args:
            own: The target's states on the same batch, at the same site.
            positions: True where these states are kept; None for all positions.
            heads: The heads for which these states are kept (at `z`, `q`, `k`, `v`); None for all.

        Raises:
            PatchError: The caches do not match, or there is no such head.
        """
        if own.states.shape != self.states.shape or own.site != self.site:
            raise PatchError(f"{own!r} does not match {self!r}: capture both on one TokenBatch, at one site.")
        chosen = torch.ones(self.states.shape[-1], dtype=torch.bool, device=self.states.device)
        if heads is not None:
            chosen = head_mask(heads, self.n_heads, width=len(chosen)).to(chosen.device)
        if positions is not None:
            chosen = chosen & positions.to(chosen.device)[:, None, :, None]
        return replace(self, states=torch.where(chosen, self.states, own.states.to(self.states)))


class PatchEngine(ABC):
    """The target on one batch, ready to be patched."""

    model: HookedModel  # the target
    batch: TokenBatch  # the tokens, on the target's device

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
        self, cache: SpanCache, *, layers: list[int] | None = None, wanted: Bool[Tensor, "batch layer"] | None = None
    ) -> Float[Tensor, "batch layer win"]:
        """Return log-probabilities with each of `layers` patched in turn (None: all), in the `wanted` rows (None: all).

        Values are NaN for other layers, and may be NaN for other rows.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model.name!r}, {self.batch!r})"


def at_window(
    states: Float[Tensor, "batch pos d_model"], window: Int[Tensor, "batch win"]
) -> Float[Tensor, "batch win d_model"]:
    """Return the states at the window positions, as a copy."""
    starts = torch.arange(0, states.shape[0] * states.shape[1], states.shape[1], device=states.device)
    places = window.to(states.device) + starts[:, None]
    return states.flatten(0, 1).index_select(0, places.flatten()).unflatten(0, window.shape)
