"""Pictures on phones: where there is `x_narrow.png` next to `x.png`, narrow screens show it.

On the dark site, `docs/site.css` inverts the pictures.
"""

import re
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).resolve().parents[1] / "images"
NARROW = "(max-width: 37em)"
_IMAGE = re.compile(r'<img [^>]*?src="([^"]*?)images/(\w+)\.(png|svg)"[^>]*?>')


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Add the narrow picture as another source of those that have one; addresses are relative to the page by now."""
    return _IMAGE.sub(_with_narrow, html)


def _with_narrow(found: re.Match[str]) -> str:
    above, stem, kind = found.groups()
    if not (IMAGES / f"{stem}_narrow.{kind}").is_file():
        return found[0]
    source = f'<source media="{NARROW}" srcset="{above}images/{stem}_narrow.{kind}">'
    return f"<picture>{source}{found[0]}</picture>"
