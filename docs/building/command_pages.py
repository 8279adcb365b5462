"""The page of all commands, written from the commands by typer's own generator."""

import re
from typing import Any

import typer
from typer.cli import get_docs_for_click

from uds_lens._cli.app import app

_EXAMPLES = re.compile(r"^\x08\nExamples?:\n((?:  .*\n)+)", re.MULTILINE)
"""An epilogue of a docstring that keeps its lines."""


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill the page that lists the commands."""
    return markdown.replace("<!-- commands -->", commands()) if page.file.src_uri == "cli.md" else markdown


def commands() -> str:
    """Every command with its options."""
    group = typer.main.get_command(app)
    context = group.make_context("uds-lens", [], resilient_parsing=True)
    written = get_docs_for_click(obj=group, ctx=context, name="uds-lens")
    written = written[written.index("\n## ") :]  # the page says the rest
    written = _EXAMPLES.sub(_as_block, written)
    written = re.sub(r"^\* `--help`: .*\n", "", written, flags=re.MULTILINE)
    written = re.sub(r"^## `(.*)`$", r"## \1", written, flags=re.MULTILINE)
    return _with_options_as_code(written)


def _as_block(found: re.Match[str]) -> str:
    lines = "\n".join(line[2:] for line in found[1].splitlines())
    return f"```bash\n{lines}\n```\n"


def _with_options_as_code(text: str) -> str:
    """Options that sentences name, as code; what is code already stays as it is."""
    parts = re.split(r"(```.*?```|`[^`\n]*`)", text, flags=re.DOTALL)
    parts[::2] = [re.sub(r"(?<![\w-])--[a-z][a-z-]*[a-z]", r"`\g<0>`", part) for part in parts[::2]]
    return "".join(parts)
