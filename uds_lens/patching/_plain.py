"""Read a model's states at the windows of a batch, in one forward pass without logits."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from uds_lens._types import Engine, LastLayer, Site, check_choice
from uds_lens.data import TokenBatch
from uds_lens.errors import PatchError
from uds_lens.models import HookedModel, open_model
from uds_lens.patching._passes import forward_pass
from uds_lens.patching._side_by_side import require_fitting
from uds_lens.patching._states import (
    SpanCache,
    at_window,
    chosen_layers,
    first_tensor,
    hook_name,
    patch_hooks,
    read_window_states,
    require_each_once,
    require_site,
)


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


# The reference: one full `run_with_hooks` forward per patched layer. Slow and plain.


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
    model: HookedModel | nn.Module, batch: TokenBatch, cache: SpanCache, *, layer: int
) -> Float[Tensor, "batch pos d_vocab"]:
    """Logits of the target with one layer's states replaced at the patched positions.

    Args:
        model: The target.
        batch: The tokens that `cache` was captured on.
        cache: The source's states.
        layer: Which layer to patch.

    Returns:
        Logits at every position, in the model's dtype.

    Raises:
        PatchError: The cache does not fit the batch, there is no such layer, or the hook did not run exactly once.
    """
    model = as_hooked(model)
    require_site(model, cache.site)
    require_fitting(model, batch)
    batch = batch.to(model.device)
    cache.check_fits(batch, n_layers=model.n_layers, d_model=model.d_model)
    (layer,) = chosen_layers([layer], model.n_layers)
    patch = SpanPatch(batch, cache[layer])
    logits = run_hooks(model, batch, patch_hooks(cache.site, layer, patch))
    if patch.fired != 1:
        raise PatchError(
            f"the hook at {hook_name(cache.site, layer)} ran {patch.fired} times, expected once."
        )
    return logits


def run_unhooked(model: HookedModel, batch: TokenBatch) -> Float[Tensor, "batch pos d_vocab"]:
    """One plain forward over the whole batch, by the same route as `run_hooked`."""
    with model.running():
        return _forward(model.bridge if model.has_bridge else model.anatomy.causal_lm, batch)


def run_hooked(
    model: HookedModel, batch: TokenBatch, name: str, hook: Callable[..., Tensor | None]
) -> Float[Tensor, "batch pos d_vocab"]:
    """Run one forward over the whole batch with one TransformerLens hook.

    A model that TransformerLens cannot wrap gets a plain forward hook on its block instead (`resid_post` only),
    with a warning.

    Args:
        model: The model.
        batch: The tokens.
        name: TransformerLens's name of the point, for example `blocks.3.hook_resid_post`.
        hook: Takes the activation and `hook=`, returns the one to use, of the same shape. Returning None, or what it
            was given, leaves the model alone: that is how a hook only looks.

    Returns:
        Logits at every position, in the model's dtype.

    Raises:
        PatchError: There is no such point, the hook never ran, it returned something of another shape, or the point is
            inside a block of a model that TransformerLens cannot wrap.
    """
    return run_hooks(model, batch, [(name, hook)])


def run_hooks(
    model: HookedModel, batch: TokenBatch, hooks: Sequence[tuple[str, Callable[..., Tensor | None]]]
) -> Float[Tensor, "batch pos d_vocab"]:
    """Run one forward over the whole batch with several hooks; see `run_hooked`."""
    watched = [(name, _Watched(name, hook)) for name, hook in hooks]
    with model.running():
        _require_points(model, [name for name, _ in hooks])
        logits = _run_hooks(model, batch, watched)
    for name, hook in watched:
        if not hook.fired:
            raise PatchError(
                f"the hook at {name!r} never ran: the forward pass of {model.name!r} does not come by there, although "
                "the point has a name."
            )
    return logits


@dataclass(eq=False, repr=False)
class _Watched:
    """A hook that counts how often it ran, and whose value must fit: a shorter one would be spread over positions."""

    name: str
    hook: Callable[..., Tensor | None]
    fired: int = field(default=0, init=False)

    def __call__(self, activation: Any, *, hook: Any = None) -> Tensor | None:
        self.fired += 1
        found = self.hook(activation, hook=hook)
        if found is None or not isinstance(activation, Tensor):
            return found
        if not isinstance(found, Tensor) or found.shape != activation.shape:
            got = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise PatchError(
                f"the hook at {self.name!r} must return a tensor of shape {tuple(activation.shape)}, or None to leave "
                f"the activation as it is; got {got}."
            )
        return found


def _require_points(model: HookedModel, names: Sequence[str]) -> None:
    """Raise unless the model has these points, with the nearest names of those it has."""
    for name in names:
        block = re.match(r"blocks\.(\d+)\.", name)
        if block is not None and int(block[1]) >= model.n_layers:
            raise PatchError(
                f"no point {name!r}: the blocks of {model.name!r} are 0 to {model.n_layers - 1}."
            )
        if model.has_bridge and model.bridge.get_hook_point(name) is None:
            near = get_close_matches(name, list(model.bridge.hook_dict), n=3)
            meant = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise PatchError(
                f"{model.name!r} has no point {name!r}.{meant} `model.bridge.hook_dict` has the names of all points."
            )


def _run_hooks(
    model: HookedModel, batch: TokenBatch, hooks: Sequence[tuple[str, Callable[..., Tensor | None]]]
) -> Float[Tensor, "batch pos d_vocab"]:
    if model.has_bridge:
        return model.bridge.run_with_hooks(
            batch.input_ids,
            fwd_hooks=list(hooks),
            attention_mask=batch.attention_mask,
            position_ids=batch.position_ids,
            return_type="logits",
        )
    with ExitStack() as stack:
        for name, hook in hooks:
            stack.callback(_hook_block(model, name, hook).remove)
        return _forward(model.anatomy.causal_lm, batch)


def _hook_block(model: HookedModel, name: str, hook: Callable[..., Tensor | None]) -> RemovableHandle:
    """A plain forward hook on a block, where TransformerLens has none."""
    point = re.fullmatch(r"blocks\.(\d+)\.hook_resid_post", name)
    if point is None:
        raise PatchError(
            f"TransformerLens cannot wrap {model.architecture}, so that {name!r} is out of reach: use "
            "'blocks.N.hook_resid_post'."
        )

    def replace(module: nn.Module, args: Any, output: Any) -> Any:
        patched = hook(first_tensor(output), hook=None)
        if patched is None:
            return None
        return patched if isinstance(output, Tensor) else (patched, *output[1:])

    return model.anatomy.layers[int(point[1])].register_forward_hook(replace)


def _forward(run: nn.Module, batch: TokenBatch) -> Float[Tensor, "batch pos d_vocab"]:
    output = run(batch.input_ids, attention_mask=batch.attention_mask, position_ids=batch.position_ids)
    return output if isinstance(output, Tensor) else output.logits


def scored_logprobs(
    logits: Float[Tensor, "batch pos d_vocab"], batch: TokenBatch
) -> Float[Tensor, "batch win"]:
    """Log-probabilities of the scored targets from full logits: float32 nats, NaN where not scored."""
    rows = torch.arange(batch.window.shape[0], device=logits.device)[:, None]
    logprobs = logits[rows, batch.window].float().log_softmax(-1)
    picked = logprobs.gather(-1, batch.targets.clamp(min=0)[..., None])[..., 0]
    return picked.masked_fill(~batch.scored_mask, torch.nan)
