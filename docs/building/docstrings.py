"""Lets mkdocstrings read this library's docstrings: examples stand under `Example:`, or alone as `>>>` lines."""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Give every doctest the heading that mkdocstrings knows."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring:
            obj.docstring.value = with_headings(obj.docstring.value)


def with_headings(text: str) -> str:
    """Rename `Example:`, and put a heading over a paragraph that begins with `>>>`."""
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    return re.sub(r"^(>>> .*(?:\n.+)*)", _under_heading, text, flags=re.MULTILINE)


def _under_heading(paragraph: re.Match[str]) -> str:
    lines = "\n".join(f"    {line}" for line in paragraph[1].splitlines())
    return f"Examples:\n{lines}"
