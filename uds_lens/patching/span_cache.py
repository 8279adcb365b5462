"""What was read from one model at the windows of one batch."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from uds_lens.checked_arguments import arguments_checked
from uds_lens.data import TokenBatch
from uds_lens.errors import PatchError
from uds_lens.types import LastLayer, Site


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

    @arguments_checked
    def same_as(
        self, other: Float[Tensor, "batch layer win d_model"], patched: Bool[Tensor, "batch win"]
    ) -> Bool[Tensor, "batch layer"]:
        """Where every patched state equals `other` bit for bit, so that the patch changes nothing."""
        differs = (self.states != other).any(-1) & patched[:, None, :]
        return ~differs.any(-1)

    @arguments_checked
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
