"""The notebooks as pages: their texts, code and outputs; figures as the pictures they were saved with."""

import base64
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add a page and its pictures for every notebook."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        text, pictures = page_of(path)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    return files


def page_of(path: Path) -> tuple[str, dict[str, bytes]]:
    """The Markdown of a notebook, and its pictures by name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(_text(source))
        elif cell["id"] != "cell-colab":
            parts.append(f"```python\n{source}\n```")
            parts += [shown for output in cell["outputs"] if (shown := _output(output, path.stem, pictures))]
    return "\n\n".join(parts) + "\n", pictures


def _text(source: str) -> str:
    """A cell of text: links to pages, and a link instead of the badge, which would be fetched from elsewhere."""
    source = re.sub(r"!\[(Open in Colab)\]\([^)]*\)", r"\1", source)
    source = source.replace("](../docs/", "](../")
    return re.sub(r"\]\((\w+)\.ipynb\)", r"](\1.md)", source)


def _output(output: dict[str, Any], stem: str, pictures: dict[str, bytes]) -> str:
    if output["output_type"] == "stream":
        return _plain(output["text"])
    data = output["data"]
    if "image/png" in data:
        name = f"{stem}_{len(pictures) + 1}.png"
        pictures[name] = base64.b64decode("".join(data["image/png"]))
        return f"![A figure]({name})"
    if "text/markdown" in data:
        return "".join(data["text/markdown"])
    if "text/html" in data:
        html = re.sub(r"<style.*?</style>", "", "".join(data["text/html"]), flags=re.DOTALL)
        lines = (line.strip() for line in html.splitlines())
        return f'<div class="output">{"".join(lines)}</div>'
    return _plain(data["text/plain"])


def _plain(lines: list[str] | str) -> str:
    return f"```text\n{''.join(lines).rstrip()}\n```"
