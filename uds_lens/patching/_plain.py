"""The plain engine: states read by hooks, and one full forward per patched layer. Slow, and the reference."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from uds_lens._types import Engine, HookSite, LastLayer, check_choice
from uds_lens.data import TokenBatch
from uds_lens.errors import PatchError
from uds_lens.models import HookedModel
from uds_lens.patching._hooks import (
    HEADS,
    as_hooked,
    first_tensor,
    hook_name,
    patch_hooks,
    require_site,
    run_decoder,
    run_unhooked,
    run_with,
)
from uds_lens.patching._side_by_side import require_fitting
from uds_lens.patching._states import PatchEngine, Score, SpanCache, at_window, chosen_layers
from uds_lens.patching._wave import own_pass

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

    One forward of the decoder, no logits; the full activations are freed.

    Args:
        model: The source: an open `HookedModel`, a transformers model or a `TransformerBridge`.
        batch: Tokens and windows, on any device.
        site: Point of each block to read.
        last_layer: `post_norm` replaces the last layer's residual stream by that after the model's final norm (as the
            UDS paper's released script).
        packed: Run rows end to end, without padding between them. Source and target must agree in it.
        engine: `wavefront` (or `auto`) runs the last block at the window only, where blocks can be run alone; `naive`
            is one whole forward with hooks, as for any model that has user hooks.

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
        require_site(model, site)
        require_fitting(model, batch)
        batch = batch.to(model.device)
        if site != "resid_post" or engine == "naive" or model.runs_hooks:
            return _read_by_hooks(model, batch, site, last_layer)
        try:
            states = own_pass(model, batch, keep_prefix=False, packed=packed).states
        except PatchError as error:
            if packed:
                raise
            logger.info("%r: states are read by a whole forward, because %s", model.name, error)
            return _read_by_hooks(model, batch, site, last_layer)
        return _cache_of(model, states, site, last_layer)


def _read_by_hooks(model: HookedModel, batch: TokenBatch, site: HookSite, last_layer: LastLayer) -> SpanCache:
    """Read states by one whole forward: through the Bridge inside a block, else with plain hooks on the blocks."""
    states: list[Tensor] = []
    heads = 0

    def keep(activation: Tensor) -> None:
        nonlocal heads
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
            f"{model.name!r}: {len(states)} layers were read in one forward, expected {model.n_layers}. The model "
            "skips or repeats blocks, which patching by layer cannot describe."
        )
    return _cache_of(model, torch.stack(states, dim=1), site, last_layer, heads)


def _cache_of(model: HookedModel, states: Tensor, site: HookSite, last_layer: LastLayer, heads: int = 0) -> SpanCache:
    if last_layer == "post_norm" and site == "resid_post":
        states[:, -1] = model.anatomy.final_norm(states[:, -1])
    return SpanCache(states, site, last_layer, model.name, heads)


@dataclass(eq=False, repr=False)  # TransformerLens prints every hook it adds: no tensors in its repr
class SpanPatch:
    """A TransformerLens hook that writes source states over a block's activation, and counts its work.

    Use it as the function of a `(hook_name, hook)` pair; read `fired` and `changed` afterwards.
    """

    batch: TokenBatch
    """Which positions to write (`window` where `patched_mask`)."""

    states: Float[Tensor, "batch win d_model"]
    """What to write; cast to the activation's dtype."""

    fired: int = field(default=0, init=False)
    """How often the hook ran."""

    changed: int = field(default=0, init=False)
    """How many positions got another value than they had."""

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
    """Run the target once, with the states of one layer, or of several at once, replaced at the patched positions.

    Args:
        model: The target.
        batch: The tokens that `cache` was captured on.
        cache: The source's states.
        layer: Which layer to patch; several (`[3, 5]`, `range(i, j + 1)`) are patched together in one forward.

    Returns:
        Logits at every position, in the model's dtype.

    Raises:
        PatchError: The cache does not fit the batch, there is no such layer, or a hook did not run exactly once.
    """
    model = as_hooked(model)
    require_site(model, cache.site)
    require_fitting(model, batch)
    return _patched(model, batch.to(model.device), cache, [layer] if isinstance(layer, int) else layer)[0]


def _patched(
    model: HookedModel, batch: TokenBatch, cache: SpanCache, layers: Sequence[int]
) -> tuple[Float[Tensor, "batch pos d_vocab"], int]:
    """Return the logits, and how many positions were changed."""
    cache.check_fits(batch, n_layers=model.n_layers, d_model=model.d_model)
    patches = {layer: SpanPatch(batch, cache[layer]) for layer in chosen_layers(layers, model.n_layers)}
    hooks = [pair for layer, patch in patches.items() for pair in patch_hooks(cache.site, layer, patch)]
    logits = run_with(model, batch, hooks)
    for layer, patch in patches.items():
        if patch.fired != 1:
            raise PatchError(f"the hook at {hook_name(cache.site, layer)} ran {patch.fired} times, expected once.")
    return logits, sum(patch.changed for patch in patches.values())


@dataclass(eq=False, repr=False)
class NaiveTarget(PatchEngine):
    """The target on one batch; every patched layer is a full forward with a TransformerLens hook."""

    model: HookedModel
    batch: TokenBatch
    packed: bool = False
    """How `states` are read; patched forwards run on padded rows."""

    reading: Engine = "wavefront"
    """Engine that reads `states`: the one that reads those of the sources."""

    score: Score | None = None
    """Measured instead of log-probabilities."""

    @cached_property
    def _logits(self) -> Float[Tensor, "batch pos d_vocab"]:
        with torch.no_grad():
            return run_unhooked(self.model, self.batch)

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
        """Log-probabilities with each of `layers` patched in turn (None: all); NaN for the others. All rows are run.

        Raises:
            PatchError: A hook did not run exactly once, or it changed states and the logits stayed the same.
        """
        shape = (len(self.batch), self.model.n_layers, self.batch.window.shape[1])
        result = torch.full(shape, torch.nan, dtype=torch.float32, device=self.batch.window.device)
        cache.check_fits(self.batch, n_layers=self.model.n_layers, d_model=self.model.d_model)
        for layer in chosen_layers(layers, self.model.n_layers):
            logits, changed = _patched(self.model, self.batch, cache, [layer])
            # In half precision the smallest changes may honestly round away, and hooks may drop what a block is given.
            precise = self.model.dtype == torch.float32 and not self.model.runs_hooks
            if precise and changed and torch.equal(logits, self._logits):
                raise PatchError(
                    f"the hook at {hook_name(cache.site, layer)} changed {changed} positions, but the logits stayed "
                    "the same: the model ignores the hooked value. This architecture cannot be patched here."
                )
            result[:, layer] = scored_logprobs(logits, self.batch, score=self.score)
        return result


def scored_logprobs(
    logits: Float[Tensor, "batch pos d_vocab"], batch: TokenBatch, *, score: Score | None = None
) -> Float[Tensor, "batch win"]:
    """Return the log-probabilities of the scored targets, float32 nats, or what `score` gives; NaN where not scored."""
    rows = torch.arange(batch.window.shape[0], device=logits.device)[:, None]
    at, targets = logits[rows, batch.window].float(), batch.targets.clamp(min=0)
    if score is None:
        values = at.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    else:
        values = score(at.flatten(0, 1), targets.flatten()).view_as(targets).float()
    return values.masked_fill(~batch.scored_mask, torch.nan)
