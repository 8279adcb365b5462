"""Reference pages: what people come for first, then everything else that a room offers."""

from importlib import import_module
from typing import Any


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the names of the page's `first` before the others."""
    if not page.file.src_uri.startswith("api/"):
        return markdown
    room = page.file.src_uri.removeprefix("api/").removesuffix(".md")
    first = list(page.meta.get("first", []))
    offered = list(import_module(f"uds_lens.{room}").__all__)
    names = [*first, *(name for name in offered if name not in first)]
    return markdown.replace("    options:", f"    options:\n      members: [{', '.join(names)}]")
