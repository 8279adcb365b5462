"""Pictures on the dark site and on phones.

Where `x_dark.png` stands next to `x.png`, each theme shows its own; where there is `x_narrow.png` (and
`x_narrow_dark.png`), narrow screens do. The dark twin of a figure that is all drawing (SVG without a picture in it) is
made here, by exchanging the colours.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from uds_lens.plots._style import recolouring

DOCS = Path(__file__).resolve().parents[1]
NARROW = "(max-width: 37em)"
_MARK = 'class="main-svg"'  # of a figure that plotly drew
_PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)\s#]+)\.(png|svg)\)")


def recoloured(svg: str) -> str | None:
    """Return a figure in the colours of the dark theme; None where it is no figure, or holds a picture of dots."""
    if _MARK not in svg or "data:image" in svg:
        return None
    dark = {_rgb(one): _rgb(other) for one, other in recolouring().items() if one.startswith("#")}
    return re.sub(r"rgb\(\d+, \d+, \d+\)", lambda found: dark.get(found[0], found[0]), svg)


def _rgb(colour: str) -> str:
    return "rgb({}, {}, {})".format(*bytes.fromhex(colour[1:]))


def has_dark(picture: Path) -> bool:
    """Return whether there is a dark twin, or one is made."""
    if picture.with_name(f"{picture.stem}_dark{picture.suffix}").is_file():
        return True
    drawn = picture.suffix == ".svg" and picture.is_file()
    return drawn and recoloured(picture.read_text(encoding="utf-8")) is not None


def on_files(files: Any, config: Any) -> Any:
    """Add the dark twins that are made."""
    from mkdocs.structure.files import File

    for picture in sorted((DOCS / "images").glob("*.svg")):
        dark = picture.with_name(f"{picture.stem}_dark.svg")
        content = None if dark.is_file() or "_dark" in picture.stem else recoloured(picture.read_text(encoding="utf-8"))
        if content is not None:
            files.append(File.generated(config, f"images/{dark.name}", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Both pictures in the place of one; the theme hides that of the other."""
    folder = posixpath.dirname(page.file.src_uri)

    def both(found: re.Match[str]) -> str:
        words, stem, kind = found.groups()
        if not has_dark(DOCS / folder / f"{stem}.{kind}"):
            return found[0]
        return f"![{words}]({stem}.{kind}#only-light)![{words}]({stem}_dark.{kind}#only-dark)"

    return _PICTURE.sub(both, markdown)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """The narrow picture as another source of those that have one; addresses are relative to the page by now."""
    return _IMAGE.sub(_with_narrow, html)


_IMAGE = re.compile(r'<img [^>]*?src="([^"]*?)images/(\w+?)(_dark)?\.(png|svg)(?:#only-(?:light|dark))?"[^>]*?>')


def _with_narrow(found: re.Match[str]) -> str:
    above, stem, dark, kind = found.groups()
    narrow = DOCS / "images" / f"{stem}_narrow.{kind}"
    if not (has_dark(narrow) if dark else narrow.is_file()):
        return found[0]
    source = f'<source media="{NARROW}" srcset="{above}images/{stem}_narrow{dark or ""}.{kind}">'
    return f"<picture>{source}{found[0]}</picture>"
