"""TransformerLens hooks: where a state is read or replaced, and whole forwards with hooks on."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from uds_lens._types import Site, check_choice
from uds_lens.data import TokenBatch
from uds_lens.errors import ModelError, PatchError, Setting
from uds_lens.models import HookedModel, open_model
from uds_lens.patching._states import first_tensor


def hook_name(site: Site, layer: int) -> str:
    """TransformerLens's name of a site.

    >>> hook_name("resid_post", 3)
    'blocks.3.hook_resid_post'
    """
    check_choice("site", site, Site)
    return f"blocks.{layer}.hook_{site}"


def require_site(model: HookedModel, site: Site) -> None:
    """Raise unless the model's blocks have the site.

    Raises:
        PatchError: The family has no such point (GPT-NeoX runs attention and MLP in parallel, so there is no
            `resid_mid`).
    """
    check_choice("site", site, Site)
    if site == "resid_post":
        return
    if not model.has_bridge:
        raise PatchError(
            f"{_why_no_bridge(model)} So {site!r} is out of reach: use ",
            Setting("site", "resid_post"),
            ".",
        )
    if model.bridge.get_hook_point(hook_name(site, 0)) is None:
        raise PatchError(
            f"{model.architecture} has no {site!r}: its blocks do not have that point (parallel attention and MLP "
            "have no state between them). Use ",
            Setting("site", "resid_post"),
            ", 'attn_out' or 'mlp_out'.",
        )


def _why_no_bridge(model: HookedModel) -> str:
    try:
        return f"{model.name!r} has a Bridge: {model.bridge.cfg.n_layers} layers."
    except ModelError as error:
        return str(error)


def patch_hooks(
    site: Site, layer: int, write: Callable[[Tensor], Tensor]
) -> list[tuple[str, Callable[..., Tensor]]]:
    """TransformerLens hooks that replace a site's activation by `write(activation)` for all that reads it.

    `hook_resid_mid` stands at the input of the MLP's norm: what it returns reaches the MLP, but not the residual
    connection around it. So for that site a second hook adds the change to the block's output, where the residual
    stream would have carried it.

    Args:
        site: Point of the block.
        layer: Which block.
        write: Takes the activation, returns the one to use instead; called once per forward.

    Returns:
        Pairs of hook name and hook.
    """
    if site != "resid_mid":
        return [(hook_name(site, layer), lambda activation, *, hook=None: write(activation))]
    moved: list[Tensor] = []

    def before_mlp(activation: Tensor, *, hook: Any = None) -> Tensor:
        patched = write(activation)
        moved.append(patched - activation)
        return patched

    def after_block(activation: Tensor, *, hook: Any = None) -> Tensor:
        return activation + moved.pop()

    return [(hook_name("resid_mid", layer), before_mlp), (hook_name("resid_post", layer), after_block)]


def as_hooked(model: HookedModel | nn.Module) -> HookedModel:
    """The model as a `HookedModel`; a live transformers model or Bridge is adopted in its own dtype."""
    if isinstance(model, HookedModel):
        return model
    dtype: Any = next(p.dtype for p in model.parameters() if p.is_floating_point())
    return open_model(model, dtype=str(dtype).removeprefix("torch."))  # type: ignore[arg-type]


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
