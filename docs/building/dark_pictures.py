"""Pictures on the dark site and on phones.

Where `x_dark.png` stands beside `x.png`, each theme shows its own; where there is `x_narrow.png` (and
`x_narrow_dark.png`), narrow screens do.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1]
NARROW = "(max-width: 37em)"
_PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)\s#]+)\.(png|svg)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Both pictures in the place of one; the theme hides that of the other."""
    folder = posixpath.dirname(page.file.src_uri)

    def both(found: re.Match[str]) -> str:
        words, stem, kind = found.groups()
        if not (DOCS / folder / f"{stem}_dark.{kind}").is_file():
            return found[0]
        return f"![{words}]({stem}.{kind}#only-light)![{words}]({stem}_dark.{kind}#only-dark)"

    return _PICTURE.sub(both, markdown)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """The narrow picture as another source of those that have one; addresses are relative to the page by now."""
    return _IMAGE.sub(_with_narrow, html)


_IMAGE = re.compile(r'<img [^>]*?src="([^"]*?)images/(\w+?)(_dark)?\.(png|svg)(?:#only-(?:light|dark))?"[^>]*?>')


def _with_narrow(found: re.Match[str]) -> str:
    above, stem, dark, kind = found.groups()
    narrow = f"{stem}_narrow{dark or ''}.{kind}"
    if not (DOCS / "images" / narrow).is_file():
        return found[0]
    source = f'<source media="{NARROW}" srcset="{above}images/{narrow}">'
    return f"<picture>{source}{found[0]}</picture>"
