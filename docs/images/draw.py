"""Draw the pictures of the README and the docs from the toy world: `python docs/images/draw.py`.

Each is drawn for light and for dark surroundings, most also for narrow screens. Needs `uds-lens[static]` and a Chrome
or Chromium.
"""

import functools
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from photograph import beside, draw, narrow, photograph
from terminal_picture import terminal_picture

import uds_lens as ul
from uds_lens.report._audit_page import method_picture

HERE = Path(__file__).parent
COLUMNS = 96
REFERENCES = ["full", "half", "retain"]
COMMAND = "uds-lens audit --full full --retain retain --model npo --model idkdpo --examples forget.json --out runs"


def main() -> None:
    """Audit every model of the toy world and write the pictures beside this file."""
    world = ul.toy.load()
    baseline = ul.Baseline.measure(world.full, world.retain, world.examples)
    models = {"full": world.full, "half": world.half, **world.unlearned, "retain": world.retain}
    audits = dict(zip(models, baseline.audit_all(list(models.values())), strict=True))
    transplants = ul.transplants.transplant_all(world.full, world.retain, list(models.values()), world.examples)
    hidden = ul.transplants.transplants_frame(dict(zip(models, transplants, strict=True)))
    printed = terminal(world)
    table = ul.results.models_frame(audits)
    draw("toy_layers.png", audits["idkdpo"].plot_layers)
    draw("toy_heatmap.svg", audits["idkdpo"].plot_heatmap, for_phones=False)  # too much for one
    draw("toy_ranking.png", functools.partial(ul.plots.ranking, table, references=REFERENCES))
    draw("toy_hidden.png", functools.partial(ul.plots.host_depths, hidden, references=REFERENCES))
    for theme in ("light", "dark"):
        write(beside("method.svg", theme), method_picture(theme))
        write(beside(narrow("method.svg"), theme), method_picture(theme, narrow=True))
        write(beside("terminal.svg", theme), terminal_picture(printed, theme=theme, columns=COLUMNS))
    photographs(audits)


def photographs(audits: dict[str, ul.DepthAudit]) -> None:
    """Screenshots of the top of the report on the toy world (without `half`, a reference)."""
    with tempfile.TemporaryDirectory() as folder:
        shown = {name: audit for name, audit in audits.items() if name != "half"}
        page = ul.report.write(shown, Path(folder) / "report.html")
        for theme in ("light", "dark"):
            photograph(page, HERE / beside("report.png", theme), theme=theme, height=1000)


def terminal(world: ul.toy.World) -> str:
    """The command and its output on a terminal, without the line on memory and the legend."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("full", "retain", "npo", "idkdpo"):
            (Path(folder) / name).symlink_to(world.checkpoints[name])
        (Path(folder) / "forget.json").symlink_to(world.path / "forget.json")
        words = [sys.executable, "-m", "uds_lens", *COMMAND.split()[1:]]
        output = watched(words, Path(folder))
    table, _, rest = re.sub(r"\[\d+:\d\d\] memory: .*\n( {7}.*\n)*", "", output).partition("\n\n")
    command = COMMAND.replace(" --model idkdpo", " \\\n    --model idkdpo")
    return f"$ {command}\n{table}\n{rest.splitlines()[-1]}"


def watched(words: list[str], folder: Path) -> str:
    """The output of a command on a terminal of `COLUMNS`, without progress bars."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    with subprocess.Popen(words, cwd=folder, env=environment, stdout=theirs, stderr=theirs) as running:
        os.close(theirs)
        output = b""
        while part := _read(ours):
            output += part
    os.close(ours)
    if running.returncode:
        raise SystemExit(output.decode())
    lines = output.decode().replace("\r\n", "\n").split("\n")
    return "\n".join(line.rpartition("\r")[2].replace("\x1b[A", "") for line in lines)


def _read(place: int) -> bytes:
    """The next bytes of a terminal; empty when its program has ended."""
    try:
        return os.read(place, 1 << 16)
    except OSError:
        return b""


def write(name: str, text: str) -> None:
    """Write one of the SVG pictures."""
    (HERE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
