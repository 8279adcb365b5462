"""From a template, its scripts and its numbers to a page that opens offline and asks no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uds_lens.report.embedding import safe_json, script_hash

if TYPE_CHECKING:
    from jinja2 import Template

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
