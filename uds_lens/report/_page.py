"""Build pages that open offline from templates, scripts and numbers: embedding, hashes, security policy."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # a dashboard does not need torch
    from jaxtyping import Float
    from jinja2 import Template
    from torch import Tensor

_PAGE = Path(__file__).parent / "page"


def safe_json(value: Any) -> str:
    r"""Write JSON for a script element: ASCII, without characters that HTML could interpret as markup.

    Example:
        >>> safe_json({"question": "</script>"})
        '{"question":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def plain_figure(figure: Any) -> dict[str, Any]:
    """Return a figure as JSON values without title and template; the page stores the template only once."""
    spec = jsonable(figure)
    for name in ("template", "title"):
        spec["layout"].pop(name, None)
    return spec


def jsonable(part: Any) -> Any:
    """Return a figure or a part of it as JSON values."""
    from plotly.io.json import to_json_plotly

    return json.loads(to_json_plotly(part))


def floats(values: Float[Tensor, "..."]) -> str:
    """Encode numbers as little-endian float32 in base64; NaN stays NaN.

    >>> import torch
    >>> floats(torch.tensor([1.0]))
    'AACAPw=='
    """
    return base64.b64encode(values.numpy().astype("<f4").tobytes()).decode("ascii")


def deltas(values: Float[Tensor, "example layer"], tau: float | int) -> str:
    """Encode deltas like `floats`, without rounding any across `tau`, so that the page has the same KE layers."""
    exact, limit = values.numpy(), np.float32(tau)
    near = exact.astype("<f4")
    near = np.where((exact > tau) & (near <= limit), np.nextafter(limit, np.float32(np.inf)), near)
    near = np.where((exact <= tau) & (near > limit), limit, near)
    return base64.b64encode(near.astype("<f4").tobytes()).decode("ascii")


def script_hash(text: str) -> str:
    """Return an inline script's source expression for a content security policy.

    >>> script_hash("")
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    """
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"


def fill(name: str, *, scripts: Sequence[str], styles: Sequence[str], data: Any, context: dict[str, Any]) -> str:
    """Fill a template with plotly, scripts, styles and data."""
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    from uds_lens import __version__

    library, script = get_plotlyjs(), _joined(scripts)
    # only this page's scripts run and nothing is loaded, as a second safeguard in addition to escaping
    policy = (
        f"default-src 'none'; script-src {script_hash(library)} {script_hash(script)}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return template(name).render(
        version=__version__,
        policy=policy,
        style=Markup(_joined(styles)),
        library=Markup(library),
        script=Markup(script),
        data=Markup(safe_json(data)),
        **context,
    )


@functools.cache
def template(name: str) -> Template:
    """Return a template from `page/` that escapes texts and treats undefined names as errors."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    pages = Environment(
        loader=FileSystemLoader(_PAGE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return pages.get_template(name)


def _joined(names: Sequence[str]) -> str:
    return "\n".join((_PAGE / name).read_text(encoding="utf-8") for name in names)
