"""Formulas of the pages as MathML, which browsers draw by themselves: no script, nothing fetched.

Pages hold LaTeX between dollars (`$...$`, `$$...$$`), as GitHub reads it too; `pymdownx.arithmatex` finds it.
"""

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

_FOUND = re.compile(r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL)


def on_page_content(html: str, **_: Any) -> str:
    """Replace what arithmatex has marked."""
    return _FOUND.sub(_as_mathml, html)


_OPERATOR = re.compile(r"<mi>(?:log|min|max)</mi>(?=<m(?:i|sub|sup|subsup|frac)\b)")
"""A function's name with its argument behind it, without brackets."""


def _as_mathml(found: re.Match[str]) -> str:
    block = found["tag"] == "div"
    mathml = convert(unescape(found["latex"]).strip(), display="block" if block else "inline")
    mathml = _OPERATOR.sub(r'\g<0><mspace width="0.17em"/>', mathml)
    return f'<div class="formula">{mathml}</div>' if block else mathml
