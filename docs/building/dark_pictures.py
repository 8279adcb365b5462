"""Pictures on the dark site: where `x_dark.png` stands beside `x.png`, each theme shows its own."""

import posixpath
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1]
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
