"""Reading a source's states, and the naive engine: one full forward pass per patched layer, slow but simple."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from uds_lens._types import Engine, HookSite, LastLayer, check_choice
from uds_lens.data import TokenBatch
from uds_lens.errors import PatchError
from uds_lens.models import HookedModel
from uds_lens.patching._hooks import as_hooked, chosen_combinations, chosen_layers, require_site, run_unhooked
from uds_lens.patching._readout import Score, scored_logprobs
from uds_lens.patching._side_by_side import require_fitting
from uds_lens.patching._states import PatchEngine, SpanCache
from uds_lens.patching._wave import own_passes
from uds_lens.patching._window_hooks import patched_forward, read_by_hooks, require_effect

logger = logging.getLogger(__name__)


@torch.no_grad()
def capture(
    model: HookedModel | nn.Module,
    batch: TokenBatch,
    *,
    site: HookSite = "resid_post",
    last_layer: LastLayer = "resid_post",
    packed: bool = False,
    engine: Engine = "wavefront",
) -> SpanCache:
    """Read every layer's states at the window positions of `batch`.

    This runs one forward pass of the decoder without computing logits. Full activations are not kept.

    Args:
        model: The source: an open `HookedModel`, a transformers model or a `TransformerBridge`.
        batch: Tokens and windows, on any device.
        site: Point in each block to read.
        last_layer: `post_norm` replaces the last layer's residual stream with its value after the final norm (as in the
            UDS paper's script).
        packed: Whether to run rows end to end, without padding. It must be the same for source and target.
        engine: `wavefront` (or `auto`) runs the last block only at the window, if blocks can be run separately. `naive`
            runs one full forward pass with hooks, which is always done for models with user hooks.

    Returns:
        The states, `[batch, layer, win, d_model]`, on the model's device.

    Raises:
        PatchError: The family has no such site, a layer did not run exactly once, or batching the rows would change
            their states (see `row_layout`).

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
    settings: Any = {"site": site, "last_layer": last_layer, "packed": packed, "engine": engine}
    return capture_all(as_hooked(model), [batch], **settings)[0]


@torch.no_grad()
def capture_all(
    model: HookedModel,
    batches: Sequence[TokenBatch],
    *,
    site: HookSite = "resid_post",
    last_layer: LastLayer = "resid_post",
    packed: bool = False,
    engine: Engine = "wavefront",
    desc: str = "reading",
    show: bool | None = None,
) -> list[SpanCache]:
    """Read several batches like `capture`; each block of a streamed model is loaded once for all of them.

    `desc` is the label of the progress bar over the blocks of a streamed model; `show` is whether to show it.
    """
    check_choice("last_layer", last_layer, LastLayer)
    with model.running():
        require_site(model, site)
        for batch in batches:
            require_fitting(model, batch)
        if site == "resid_post" and engine != "naive" and not model.runs_hooks:
            try:
                passes = own_passes(model, batches, keep_prefix=False, packed=packed, desc=desc, show=show)
                return [cache_of(model, own.states, site, last_layer) for own in passes]
            except PatchError as error:
                if packed or not model.is_resident:
                    raise
                logger.info("%r: reading states in a full forward pass, because %s", model.name, error)
        caches = []
        for batch in batches:
            states, heads = read_by_hooks(model, batch.to(model.device), site)
            caches.append(cache_of(model, states, site, last_layer, heads))
        return caches


def cache_of(model: HookedModel, states: Tensor, site: HookSite, last_layer: LastLayer, heads: int = 0) -> SpanCache:
    """Make a cache of states, applying the final norm if requested."""
    if last_layer == "post_norm" and site == "resid_post":
        states[:, -1] = model.anatomy.final_norm(states[:, -1])
    return SpanCache(states, site, last_layer, model.name, heads)


@dataclass(eq=False, repr=False)
class NaiveTarget(PatchEngine):
    """The target on one batch, with one full forward pass (with hooks) per patched layer."""

    model: HookedModel
    batch: TokenBatch
    packed: bool = False
    """Whether `states` are read on packed rows; patched forward passes always run on padded rows."""

    reading: Engine = "wavefront"
    """The engine that reads `states`, which must be the same as for the sources."""

    score: Score | None = None
    """What to measure instead of log-probabilities."""

    plain: bool = False
    """Whether to use plain forward hooks on blocks; TransformerLens's hooks would require wrapping the model first."""

    @cached_property
    def _logits(self) -> Float[Tensor, "batch pos d_vocab"]:
        with torch.no_grad():
            return run_unhooked(self.model, self.batch, plain=self.plain)

    @cached_property
    def logprobs(self) -> Float[Tensor, "batch win"]:
        """Unpatched log-probabilities of the scored tokens."""
        return scored_logprobs(self._logits, self.batch, score=self.score)

    @cached_property
    def states(self) -> Float[Tensor, "batch layer win d_model"]:
        """The target's own `resid_post` at the window."""
        return capture(self.model, self.batch, packed=self.packed, engine=self.reading).states

    @torch.no_grad()
    def patched(
        self, cache: SpanCache, *, layers: list[int] | None = None, wanted: Bool[Tensor, "batch layer"] | None = None
    ) -> Float[Tensor, "batch layer win"]:
        """Return log-probabilities with each of `layers` patched in turn (None: all), in all rows; NaN for the others.

        Raises:
            PatchError: A hook did not run exactly once, or it changed states but not the logits.
        """
        shape = (len(self.batch), self.model.n_layers, self.batch.window.shape[1])
        result = torch.full(shape, torch.nan, dtype=torch.float32, device=self.batch.window.device)
        for layer in chosen_layers(layers, self.model.n_layers):
            result[:, layer] = self._patched_at(cache, [layer])
        return result

    @torch.no_grad()
    def patched_together(
        self, cache: SpanCache, layers: Sequence[Sequence[int]]
    ) -> Float[Tensor, "batch combination win"]:
        """Return log-probabilities with several layers patched at once, for each combination in `layers`.

        Raises:
            PatchError: As for `patched`, or a combination is empty.
        """
        combinations = chosen_combinations(layers, self.model.n_layers)
        return torch.stack([self._patched_at(cache, together) for together in combinations], dim=1)

    def _patched_at(self, cache: SpanCache, layers: list[int]) -> Float[Tensor, "batch win"]:
        logits, changed = patched_forward(self.model, self.batch, cache, layers, plain=self.plain)
        require_effect(self.model, cache, layers, changed=changed, logits=logits, unpatched=self._logits)
        return scored_logprobs(logits, self.batch, score=self.score)
