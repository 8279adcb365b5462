"""Draw the pictures of the README and the docs from the toy world: `python docs/images/draw.py`.

Each is drawn for light and for dark surroundings, most also for narrow screens. Needs `uds-lens[static]` and a Chrome
or Chromium.
"""

import functools
import tempfile
from pathlib import Path

from photograph import beside, draw, narrow, photograph

import uds_lens as ul
from uds_lens.report._audit_page import method_picture

HERE = Path(__file__).parent
REFERENCES = ["full", "half", "retain"]


def main() -> None:
    """Audit every model of the toy world and write the pictures beside this file."""
    world = ul.toy.load()
    baseline = ul.Baseline.measure(world.full, world.retain, world.examples)
    models = {"full": world.full, "half": world.half, **world.unlearned, "retain": world.retain}
    audits = dict(zip(models, baseline.audit_all(list(models.values())), strict=True))
    transplants = ul.transplants.transplant_all(world.full, world.retain, list(models.values()), world.examples)
    hidden = ul.transplants.transplants_frame(dict(zip(models, transplants, strict=True)))
    draw("toy_layers.png", audits["idkdpo"].plot_layers)
    draw("toy_heatmap.svg", audits["idkdpo"].plot_heatmap, for_phones=False)  # too much for one
    draw("toy_hidden.png", functools.partial(ul.plots.host_depths, hidden, references=REFERENCES))
    for theme in ("light", "dark"):
        write(beside("method.svg", theme), method_picture(theme))
        write(beside(narrow("method.svg"), theme), method_picture(theme, narrow=True))
    photographs(audits)


def photographs(audits: dict[str, ul.DepthAudit]) -> None:
    """Screenshots of the top of the report on the toy world (without `half`, a reference)."""
    with tempfile.TemporaryDirectory() as folder:
        shown = {name: audit for name, audit in audits.items() if name != "half"}
        page = ul.report.write(shown, Path(folder) / "report.html")
        for theme in ("light", "dark"):
            photograph(page, HERE / beside("report.png", theme), theme=theme, height=1000)


def write(name: str, text: str) -> None:
    """Write one of the SVG pictures."""
    (HERE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
