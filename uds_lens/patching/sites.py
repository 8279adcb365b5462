"""Where in a block a state is read or replaced, by TransformerLens hook name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import ModelError, PatchError, Setting
from uds_lens.models import HookedModel
from uds_lens.types import Site, check_choice


@arguments_checked
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


@arguments_checked
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
