"""The target on one batch, ready to be patched: recorded once, or run anew for each layer by the reference."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens.checked_arguments import arguments_checked
from uds_lens.data import TokenBatch
from uds_lens.errors import PatchError
from uds_lens.models import HookedModel
from uds_lens.patching.capture import capture
from uds_lens.patching.naive import SpanPatch, run_hooks, run_unhooked, scored_logprobs
from uds_lens.patching.side_by_side import require_fitting
from uds_lens.patching.sites import chosen_layers, hook_name, patch_hooks
from uds_lens.patching.span_cache import SpanCache
from uds_lens.patching.wavefront import Recording, record, resume_patched
from uds_lens.types import Engine, Site


@dataclass(eq=False)
class WavefrontTarget:
    """The target on one batch, recorded; every patched layer resumes from the recording."""

    model: HookedModel
    recording: Recording

    @property
    def logprobs(self) -> Float[Tensor, "batch win"]:
        """Unpatched log-probabilities of the scored tokens."""
        return self.recording.logprobs

    @property
    def states(self) -> Float[Tensor, "batch layer win d_model"]:
        """The target's own `resid_post` at the window."""
        return self.recording.states

    @arguments_checked
    def patched(
        self, cache: SpanCache, *, layers: list[int] | None = None
    ) -> Float[Tensor, "batch layer win"]:
        """Log-probabilities with each of `layers` patched (None: all); NaN for the others."""
        return resume_patched(self.model, self.recording, cache, layers=layers)


@dataclass(eq=False)
class NaiveTarget:
    """The target on one batch; every patched layer is a full forward with a TransformerLens hook."""

    model: HookedModel
    batch: TokenBatch
    packed: bool = False
    """How `states` are read; patched forwards run on padded rows."""

    reading: Engine = "wavefront"
    """Engine that reads `states`: the one that reads those of the sources."""

    @cached_property
    def _logits(self) -> Float[Tensor, "batch pos d_vocab"]:
        with torch.no_grad():
            return run_unhooked(self.model, self.batch)

    @cached_property
    def logprobs(self) -> Float[Tensor, "batch win"]:
        """Unpatched log-probabilities of the scored tokens."""
        return scored_logprobs(self._logits, self.batch)

    @cached_property
    def states(self) -> Float[Tensor, "batch layer win d_model"]:
        """The target's own `resid_post` at the window."""
        return capture(self.model, self.batch, packed=self.packed, engine=self.reading).states

    @torch.no_grad()
    @arguments_checked
    def patched(
        self, cache: SpanCache, *, layers: list[int] | None = None
    ) -> Float[Tensor, "batch layer win"]:
        """Log-probabilities with each of `layers` patched (None: all); NaN for the others.

        Raises:
            PatchError: A hook did not run exactly once, or it changed states and the logits stayed the same.
        """
        cache.check_fits(self.batch, n_layers=self.model.n_layers, d_model=self.model.d_model)
        shape = (len(self.batch), self.model.n_layers, self.batch.window.shape[1])
        result = torch.full(shape, torch.nan, dtype=torch.float32, device=self.batch.window.device)
        for layer in chosen_layers(layers, self.model.n_layers):
            patch = SpanPatch(self.batch, cache[layer])
            name = hook_name(cache.site, layer)
            logits = run_hooks(self.model, self.batch, patch_hooks(cache.site, layer, patch))
            if patch.fired != 1:
                raise PatchError(f"the hook at {name} ran {patch.fired} times, expected once.")
            # In half precision the smallest changes may honestly round away, and hooks may drop what a block is given.
            precise = self.model.dtype == torch.float32 and not self.model.runs_hooks
            if precise and patch.changed and torch.equal(logits, self._logits):
                raise PatchError(
                    f"the hook at {name} changed {patch.changed} positions, but the logits stayed the same: the "
                    "model ignores the hooked value. This architecture cannot be patched here."
                )
            result[:, layer] = scored_logprobs(logits, self.batch)
        return result


@arguments_checked
def open_target(
    model: HookedModel,
    batch: TokenBatch,
    *,
    site: Site = "resid_post",
    engine: Engine = "wavefront",
    packed: bool = False,
    scores_at_once: int | None = None,
    reading: Engine = "wavefront",
) -> WavefrontTarget | NaiveTarget:
    """The target on one batch, ready to be patched from any number of sources; see `record`."""
    require_fitting(model, batch)
    batch = batch.to(model.device)
    if engine == "naive":
        return NaiveTarget(model, batch, packed, reading)
    recording = record(
        model, batch, by_bridge=site != "resid_post", packed=packed, scores_at_once=scores_at_once
    )
    return WavefrontTarget(model, recording)
