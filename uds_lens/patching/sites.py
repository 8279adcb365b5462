"""Where in a block a state is read or replaced, by TransformerLens hook name."""

from __future__ import annotations

from collections.abc import Sequence

from uds_lens.errors import PatchError
from uds_lens.models import HookedModel
from uds_lens.types import Site, check_choice


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
            f"{model.architecture} cannot be wrapped by TransformerLens, so that {site!r} is out of reach: use "
            "site='resid_post'."
        )
    if model.bridge.get_hook_point(hook_name(site, 0)) is None:
        raise PatchError(
            f"{model.architecture} has no {site!r}: its blocks do not have that point (parallel attention and MLP "
            "have no state between them). Use site='resid_post', 'attn_out' or 'mlp_out'."
        )


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
