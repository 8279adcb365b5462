"""Full forward passes with TransformerLens hooks that read or replace states."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from uds_lens._types import HookSite, check_choice
from uds_lens.data import TokenBatch
from uds_lens.errors import ModelError, PatchError, Setting
from uds_lens.models import HookedModel, open_model
from uds_lens.models._anatomy import Anatomy

Hook: TypeAlias = Callable[..., "Tensor | None"]
"""Takes an activation and `hook=`, and returns the activation to use, or None to leave it unchanged."""

HEADS = ("z", "q", "k", "v")  # sites whose activation is `[batch, pos, head, d_head]`

_effective: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()
"""Hook points of each model (without the layer) at which a hook has already been seen to change the logits."""


def hook_name(site: HookSite, layer: int) -> str:
    """Return TransformerLens's name for a site.

    >>> hook_name("resid_post", 3), hook_name("z", 0)
    ('blocks.3.hook_resid_post', 'blocks.0.attn.hook_z')
    """
    check_choice("site", site, HookSite)
    return f"blocks.{layer}.{'attn.' if site in HEADS else ''}hook_{site}"


def chosen_layers(layers: Sequence[int] | None, n_layers: int) -> list[int]:
    """Return the layers to patch, in increasing order; None means all."""
    chosen = list(range(n_layers)) if layers is None else sorted(layers)
    if len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(n_layers)):
        raise PatchError(f"layers must be distinct numbers from 0 to {n_layers - 1}; got {list(layers or ())}.")
    return chosen


def chosen_combinations(layers: Sequence[Sequence[int]], n_layers: int) -> list[list[int]]:
    """Return the layers of each combination in increasing order."""
    if not layers or not all(map(len, layers)):
        raise PatchError(f"expected combinations of layers, as in [[1, 2], [1, 2, 3]]; got {list(layers)}.")
    return [chosen_layers(together, n_layers) for together in layers]


def head_mask(heads: Sequence[int], n_heads: int, *, width: int) -> Bool[Tensor, "width"]:
    """Mark the entries that belong to some heads, in an axis of concatenated heads."""
    if not set(heads) <= set(range(n_heads)):
        raise PatchError(f"heads must be numbers from 0 to {n_heads - 1}; got {list(heads)}.")
    mask = torch.zeros(n_heads, width // n_heads, dtype=torch.bool)
    mask[list(heads)] = True
    return mask.flatten()


def require_site(model: HookedModel, site: HookSite) -> None:
    """Raise `PatchError` if the model's blocks do not have the site."""
    check_choice("site", site, HookSite)
    if site == "resid_post":
        return
    if not model.has_bridge:
        why = f"TransformerLens does not reproduce the logits of {model.name!r}."
        try:
            _ = model.bridge
        except ModelError as error:
            why = str(error)
        raise PatchError(f"{why} So {site!r} is not available: use ", Setting("site", "resid_post"), ".")
    if model.bridge.get_hook_point(hook_name(site, 0)) is None:
        raise PatchError(
            f"{model.architecture} has no {site!r}: its blocks do not have that point (parallel attention and MLP "
            "have no state in between). Use ",
            Setting("site", "resid_post"),
            ", 'attn_out' or 'mlp_out'.",
        )


def patch_hooks(
    site: HookSite, layer: int, write: Callable[[Tensor], Tensor]
) -> list[tuple[str, Callable[..., Tensor]]]:
    """Make the TransformerLens hooks that replace a site's activation wherever it is used.

    `hook_resid_mid` is at the input of the MLP's norm: its return value reaches the MLP, but not the residual
    connection around it. For that site, a second hook therefore adds the change to the block's output.

    Args:
        site: Point in the block.
        layer: Number of the block.
        write: Takes the activation `[batch, pos, width]` (heads concatenated) and returns its replacement; called once
            per forward pass.

    Returns:
        Pairs of a hook name and a hook.
    """

    def replace(activation: Tensor, *, hook: Any = None) -> Tensor:
        return write(activation.flatten(2)).view_as(activation)

    if site != "resid_mid":
        return [(hook_name(site, layer), replace)]
    moved: list[Tensor] = []

    def before_mlp(activation: Tensor, *, hook: Any = None) -> Tensor:
        patched = write(activation)
        moved.append(patched - activation)
        return patched

    def after_block(activation: Tensor, *, hook: Any = None) -> Tensor:
        return activation + moved.pop()

    return [(hook_name("resid_mid", layer), before_mlp), (hook_name("resid_post", layer), after_block)]


def as_hooked(model: HookedModel | nn.Module) -> HookedModel:
    """Return the model as a `HookedModel`; a live transformers model or Bridge keeps its dtype."""
    if isinstance(model, HookedModel):
        return model
    dtype: Any = next(p.dtype for p in model.parameters() if p.is_floating_point())
    return open_model(model, dtype=str(dtype).removeprefix("torch."))  # type: ignore[arg-type]


def run_unhooked(model: HookedModel, batch: TokenBatch, *, plain: bool = False) -> Float[Tensor, "batch pos d_vocab"]:
    """Run one forward pass over the whole batch like `run_hooked`, but without hooks (`plain`: see `run_with`)."""
    with model.running():
        return _forward(model.bridge if not plain and model.has_bridge else model.anatomy.causal_lm, batch)


def run_hooked(model: HookedModel, batch: TokenBatch, name: str, hook: Hook) -> Float[Tensor, "batch pos d_vocab"]:
    """Run one forward pass over the whole batch with a TransformerLens hook.

    If TransformerLens cannot wrap the model, a plain forward hook is put on the block instead (`resid_post` only).

    Args:
        model: The model.
        batch: The tokens.
        name: TransformerLens's name for the hook point, such as `blocks.3.hook_resid_post`.
        hook: Takes the activation and `hook=`, and returns the activation to use, in the same shape. A hook that only
            reads should return None or the activation itself.

    Returns:
        Logits at every position, in the model's dtype.

    Raises:
        PatchError: There is no such point; it is inside a block of a model that TransformerLens cannot wrap; or the
            hook never ran, returned another shape or an unchanged copy, or changed values without any effect on the
            logits.
    """
    return run_hooks(model, batch, [(name, hook)])


def run_hooks(
    model: HookedModel, batch: TokenBatch, hooks: Sequence[tuple[str, Hook]]
) -> Float[Tensor, "batch pos d_vocab"]:
    """Run one forward pass over the whole batch with several hooks; see `run_hooked`."""
    watched = [(name, _Watched(name, hook)) for name, hook in hooks]
    logits = run_with(model, batch, watched)
    for name, hook in watched:
        if hook.copies and not hook.changes:
            raise PatchError(
                f"the hook at {name!r} returned a copy with the same values: it changed nothing. To read an "
                "activation without changing it, return None."
            )
    kinds = {re.sub(r"^blocks\.\d+\.", "", name) for name, hook in watched if hook.changes}
    known = _effective.setdefault(model.hf, set())
    if kinds - known and model.dtype == torch.float32 and not model.runs_hooks:
        with torch.no_grad():
            if torch.equal(logits, run_unhooked(model, batch)):
                names = ", ".join(repr(name) for name, hook in watched if hook.changes)
                raise PatchError(
                    f"the hook at {names} changed values, but the logits of {model.name!r} stayed the same: the "
                    "logits do not depend on the changed values."
                )
        if len(kinds) == 1:
            known |= kinds
    return logits


def run_with(
    model: HookedModel, batch: TokenBatch, hooks: Sequence[tuple[str, Hook]], *, plain: bool = False
) -> Float[Tensor, "batch pos d_vocab"]:
    """Run one forward pass with hooks, and check that each hook runs and returns values of the right shape.

    With `plain`, forward hooks are put on the blocks even if TransformerLens could wrap the model (`resid_post` only).
    """
    watched = [(name, hook if isinstance(hook, _Watched) else _Watched(name, hook)) for name, hook in hooks]
    with model.running():
        by_bridge = not plain and model.has_bridge
        _require_points(model, [name for name, _ in hooks], by_bridge=by_bridge)
        if by_bridge:
            logits = model.bridge.run_with_hooks(
                batch.input_ids,
                fwd_hooks=watched,
                attention_mask=batch.attention_mask,
                position_ids=batch.position_ids,
                return_type="logits",
            )
        else:
            with ExitStack() as stack:
                for name, hook in watched:
                    stack.callback(_hook_block(model, name, hook).remove)
                logits = _forward(model.anatomy.causal_lm, batch)
    for name, hook in watched:
        if not hook.runs:
            raise PatchError(
                f"the hook at {name!r} never ran: the forward pass of {model.name!r} does not reach this point."
            )
    return logits


@dataclass(eq=False, repr=False)
class _Watched:
    """A hook that counts its runs and checks the shape of its return value, which would otherwise be broadcast."""

    name: str
    hook: Hook
    runs: int = field(default=0, init=False)
    copies: int = field(default=0, init=False)
    changes: int = field(default=0, init=False)

    def __call__(self, activation: Any, *, hook: Any = None) -> Tensor | None:
        self.runs += 1
        value = self.hook(activation, hook=hook)
        if value is None or value is activation or not isinstance(activation, Tensor):
            return value
        if not isinstance(value, Tensor) or value.shape != activation.shape:
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise PatchError(
                f"the hook at {self.name!r} must return a tensor of shape {tuple(activation.shape)}, or None to leave "
                f"the activation as it is; got {got}."
            )
        self.copies += 1
        self.changes += not torch.equal(value, activation)
        return value


def _require_points(model: HookedModel, names: Sequence[str], *, by_bridge: bool) -> None:
    """Raise `PatchError` if the model does not have these hook points, suggesting the closest names."""
    for name in names:
        block = re.match(r"blocks\.(\d+)\.", name)
        if block is not None and int(block[1]) >= model.n_layers:
            raise PatchError(f"there is no point {name!r}: the blocks of {model.name!r} are 0 to {model.n_layers - 1}.")
        if by_bridge and model.bridge.get_hook_point(name) is None:
            near = get_close_matches(name, list(model.bridge.hook_dict), n=3)
            meant = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise PatchError(f"{model.name!r} has no point {name!r}.{meant} `model.bridge.hook_dict` lists all points.")


def _hook_block(model: HookedModel, name: str, hook: Hook) -> RemovableHandle:
    """Put a plain forward hook on a block, for models without a Bridge."""
    point = re.fullmatch(r"blocks\.(\d+)\.hook_resid_post", name)
    if point is None:
        raise PatchError(
            f"TransformerLens cannot wrap {model.architecture}, so {name!r} is not available: use "
            "'blocks.N.hook_resid_post'."
        )

    def replace(module: nn.Module, args: Any, output: Any) -> Any:
        patched = hook(first_tensor(output), hook=None)
        return patched if patched is None or isinstance(output, Tensor) else (patched, *output[1:])

    return model.anatomy.layers[int(point[1])].register_forward_hook(replace)


def _forward(run: nn.Module, batch: TokenBatch) -> Float[Tensor, "batch pos d_vocab"]:
    output = run(batch.input_ids, attention_mask=batch.attention_mask, position_ids=batch.position_ids)
    return output if isinstance(output, Tensor) else output.logits


def run_decoder(anatomy: Anatomy, batch: TokenBatch, **options: Any) -> Any:
    """Run one forward pass of the decoder, without the head."""
    return anatomy.base(
        input_ids=batch.input_ids, attention_mask=batch.attention_mask, position_ids=batch.position_ids, **options
    )


def first_tensor(output: Any) -> Tensor:
    """Return a block's hidden states, whether it returns a tensor or a tuple that starts with it."""
    return output if isinstance(output, Tensor) else output[0]


def split_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, tuple[Any, ...], dict[str, Any]]:
    """Split a block's arguments into the hidden states and the remaining ones."""
    if args:
        return args[0], args[1:], kwargs
    options = dict(kwargs)
    return options.pop("hidden_states"), (), options
