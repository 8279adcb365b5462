"""What goes into the page besides markup: JSON that cannot end its script element, numbers, and hashes of scripts."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

if TYPE_CHECKING:
    from jinja2 import Template


_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def safe_json(value: Any) -> str:
    r"""JSON for a script element: pure ASCII, and no letter that HTML could read as markup.

    Args:
        value: Strict JSON (no NaN; see `uds_lens._storage.plain`).

    Raises:
        ValueError: NaN or infinity.

    Example:
        >>> safe_json({"question": "</script>"})
        '{"question":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for letter, code in _UNSAFE.items():
        text = text.replace(letter, code)
    return text


def floats(values: Float[Tensor, "..."]) -> str:
    """Numbers as little-endian float32 in base64; NaN stays NaN.

    >>> import torch
    >>> floats(torch.tensor([1.0]))
    'AACAPw=='
    """
    return base64.b64encode(values.numpy().astype("<f4").tobytes()).decode("ascii")


def deltas(values: Float[Tensor, "example layer"], tau: float | int) -> str:
    """`floats` that stay on the side of `tau` where they were, so that the page finds the same KE layers."""
    exact = values.numpy()
    near = exact.astype("<f4")
    limit = np.float32(tau)
    near = np.where((exact > tau) & (near <= limit), np.nextafter(limit, np.float32(np.inf)), near)
    near = np.where((exact <= tau) & (near > limit), limit, near)
    return base64.b64encode(near.astype("<f4").tobytes()).decode("ascii")


def script_hash(text: str) -> str:
    """Source expression of an inline script for a content security policy.

    >>> script_hash("")
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    """
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"


# From a template, its scripts and its numbers to a page that opens offline and asks no network.

_PAGE = Path(__file__).parent / "page"


def fill(
    name: str, *, scripts: Sequence[str], styles: Sequence[str], data: Any, context: dict[str, Any]
) -> str:
    """A page with plotly, scripts, styles and numbers inside.

    Args:
        name: The template, a file in `page/`.
        scripts: Files there that make up the one script of the page, in this order.
        styles: Files there that make up its style sheet.
        data: Strict JSON values for the scripts.
        context: Names in the template; texts are escaped.
    """
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    from uds_lens import __version__

    library, script = get_plotlyjs(), _joined(scripts)
    return template(name).render(
        version=__version__,
        policy=_policy(library, script),
        style=Markup(_joined(styles)),
        library=Markup(library),
        script=Markup(script),
        data=Markup(safe_json(data)),
        **context,
    )


def template(name: str) -> Template:
    """A template of `page/`: texts are escaped, and a name it does not get is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(_PAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template(name)


def _joined(names: Sequence[str]) -> str:
    return "\n".join((_PAGE / name).read_text(encoding="utf-8") for name in names)


def _policy(*scripts: str) -> str:
    """Only our own scripts run, and nothing is loaded: the second lock behind the escaping of texts."""
    hashes = " ".join(map(script_hash, scripts))
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
