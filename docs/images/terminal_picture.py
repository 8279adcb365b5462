"""What a command prints, as a picture of a terminal: an SVG whose letters stand in their columns in any font."""

from __future__ import annotations

import re
from html import escape

COLOURS = {
    "light": {"paper": "#ffffff", "edge": "#d9dce2", "text": "#2b303a", "faint": "#747b88", "warn": "#a8480a",
              "mark": "#0b7a5c", "dots": ("#e5b8b3", "#ead9ae", "#b9d8bb")},
    "dark": {"paper": "#14171c", "edge": "#2a2f38", "text": "#c6ccd6", "faint": "#8b93a1", "warn": "#f2a267",
             "mark": "#41c79e", "dots": ("#6e3b37", "#6b5a2e", "#35583a")},
}  # fmt: skip

_LETTER, _LINE, _LEFT, _TOP = 7.8, 19, 22, 58
_BOLD = re.compile(r"\x1b\[1m(.*?)\x1b\[0m")
_CODES = re.compile(r"\x1b\[[0-9;]*m")


def terminal_picture(text: str, *, theme: str, columns: int) -> str:
    """`text` as a terminal shows it, its bold letters bold; the first line is the command."""
    colours = COLOURS[theme]
    lines = text.rstrip("\n").split("\n")
    width, height = round(2 * _LEFT + columns * _LETTER), _TOP + _LINE * len(lines) + 6
    dots = "".join(
        f'<circle cx="{24 + 20 * i}" cy="22" r="6" fill="{colour}"/>' for i, colour in enumerate(colours["dots"])
    )
    warned, rows = False, []
    for number, line in enumerate(lines):
        warned = line.startswith("!") or (warned and line.startswith("  "))
        rows += _row(line, number, "warn" if warned else "text", colours)
    font = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="{font}" '
            'font-size="13">',
            f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10" fill="{colours["paper"]}" '
            f'stroke="{colours["edge"]}"/>',
            dots,
            *rows,
            "</svg>\n",
        ]
    )


def _row(line: str, number: int, look: str, colours: dict[str, str]) -> list[str]:
    """The pieces of a line, each as wide as its columns."""
    plain, bold = _CODES.sub("", line), []
    for found in _BOLD.finditer(line):
        start = len(_CODES.sub("", line[: found.start()]))
        bold += range(start, start + len(_CODES.sub("", found[1])))
    kinds = []
    times = len(found[0]) if (found := re.match(r"\[\d+:\d\d\]", plain)) else 0
    for place in range(len(plain)):
        if number == 0:
            kinds.append("mark" if place == 0 else "bold")
        elif place < times or set(plain) == {"─"}:
            kinds.append("faint")
        else:
            kinds.append("bold" if place in bold else look)
    pieces, begin = [], 0
    for place in range(1, len(plain) + 1):
        if place < len(plain) and kinds[place] == kinds[begin]:
            continue
        piece = plain[begin:place]
        if piece.strip():
            lead = len(piece) - len(piece.lstrip())
            pieces.append(_piece(piece.strip(), begin + lead, number, kinds[begin], colours))
        begin = place
    return pieces


def _piece(text: str, column: int, line: int, kind: str, colours: dict[str, str]) -> str:
    weight = ' font-weight="700"' if kind in ("bold", "mark") else ""
    return (
        f'<text x="{_LEFT + _LETTER * column:.1f}" y="{_TOP + _LINE * line}" xml:space="preserve"{weight} '
        f'textLength="{_LETTER * len(text):.1f}" fill="{colours["text" if kind == "bold" else kind]}">'
        f"{escape(text)}</text>"
    )
