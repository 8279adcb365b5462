"""Run notebooks from nothing and write their outputs back: `make notebooks`.

    python notebooks/execute.py                    # all of them
    python notebooks/execute.py 01_first_audit.ipynb

Figures are stored as plotly JSON for Jupyter, and as a PNG for viewers without JavaScript and for the site (needs
`uds-lens[static]` and a Chrome or Chromium). Paths of this machine and progress bars are removed from the outputs.
"""

from __future__ import annotations

import argparse
import base64
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import plotly.io
from huggingface_hub.constants import HF_HOME
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
SHARED = Path(os.environ.get("UDS_LENS_SHARED", REPOSITORY.parent / "shared")).resolve()
PLOTLY = "application/vnd.plotly.v1+json"


@contextmanager
def kernel() -> Iterator[KernelManager]:
    """A kernel with nothing in it."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PLOTLY_RENDERER": "plotly_mimetype"}
    )
    try:
        yield manager
    finally:
        manager.shutdown_kernel(now=True)
        manager.context.destroy(linger=0)


def execute(path: Path, folder: Path, running: KernelManager) -> nbformat.NotebookNode:
    """Run one notebook in `folder`, and return it with its outputs (figures as plotly JSON).

    Args:
        path: The notebook.
        folder: The kernel's working directory.
        running: A kernel. What an earlier notebook named is forgotten first; modules stay loaded.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell raises.
    """
    notebook = nbformat.read(path, as_version=4)
    client = running.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    forget = f"%reset -f\nimport os; os.chdir({str(folder)!r}); del os"
    answer = client.execute_interactive(forget, silent=True, output_hook=lambda message: None)
    client.stop_channels()
    if answer["content"]["status"] != "ok":
        raise RuntimeError(f"the kernel could not be emptied: {answer['content']}")
    runner = NotebookClient(notebook, timeout=900, km=running)
    try:
        runner.execute()
    finally:
        if runner.kc is not None:
            runner.kc.stop_channels()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [without_places(output) for output in cell.outputs if not is_transient(output)]
    notebook.metadata.pop("widgets", None)
    return notebook


def is_transient(output: nbformat.NotebookNode) -> bool:
    """Whether the output is a progress bar or goes to standard error."""
    return output.get("name") == "stderr" or "application/vnd.jupyter.widget-view+json" in output.get("data", {})


def add_pictures(notebook: nbformat.NotebookNode) -> None:
    """Put a PNG next to the JSON of every figure."""
    for output in figures(notebook):
        output["data"]["image/png"] = base64.b64encode(drawn(output["data"][PLOTLY])).decode("ascii")


def figures(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The outputs that are figures."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output for output in outputs if PLOTLY in output.get("data", {})]


def packed(picture: bytes) -> bytes:
    """Return a PNG with its pixels compressed as far as zlib can: notebooks stay small."""
    begin, parts, at = picture[:8], [], 8
    while at < len(picture):
        (length,) = struct.unpack(">I", picture[at : at + 4])
        parts.append((picture[at + 4 : at + 8], picture[at + 8 : at + 8 + length]))
        at += 12 + length
    pixels = zlib.compress(zlib.decompress(b"".join(content for kind, content in parts if kind == b"IDAT")), 9)
    first = [kind for kind, _ in parts].index(b"IDAT")
    kept = [part for part in parts if part[0] != b"IDAT"]
    kept.insert(first, (b"IDAT", pixels))
    return begin + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in kept
    )


def drawn(figure: Mapping[str, Any]) -> bytes:
    """A figure as PNG."""
    plain = {key: figure[key] for key in ("data", "layout")}
    return packed(plotly.io.to_image(plain, format="png", width=760, validate=False))


def without_places(output: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The output with paths of this machine made relative to the repository, or to where the toy world is unpacked."""
    if "text" in output:
        output["text"] = _relative(output["text"])
    for kind, value in output.get("data", {}).items():
        if kind.startswith("text/"):
            output["data"][kind] = _relative(value)
    return output


def _relative(text: str) -> str:
    for place, instead in ((REPOSITORY, ""), (SHARED.parent, "../"), (HF_HOME, "")):
        text = text.replace(f"{place}{os.sep}", instead)
    return text


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", help="file names in notebooks/; default: all")
    asked = options.parse_args()
    os.environ["UDS_LENS_SHARED"] = str(SHARED)  # notebooks that know larger models use them
    for path in [HERE / name for name in asked.names] or sorted(HERE.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder, kernel() as fresh:
            notebook = execute(path, Path(folder), fresh)
        add_pictures(notebook)
        nbformat.write(notebook, path)
        print(f"{path.name}: {path.stat().st_size // 1024} KB")


if __name__ == "__main__":
    main()
