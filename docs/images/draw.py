"""Draw the pictures of the README and the docs from the toy world and the published values.

python docs/images/draw.py           # all
python docs/images/draw.py judging   # those of the page about the dashboard

Most are also drawn for narrow screens. Needs `uds-lens[static]` and a Chrome or Chromium.
"""

import functools
import sys
import tempfile
from pathlib import Path

import pandas as pd
from photograph import draw, named, photograph

import uds_lens as ul
from uds_lens.report._audit_page import method_picture

HERE = Path(__file__).parent
REFERENCES = ["full", "half", "retain"]
SHOWN = ["uds", "em", "prob", "logit_lens", "paraprob", "es", "truth_ratio", "mia_loss", "rouge", "cka"]
"""Metrics in the picture of the filters."""


def auditing() -> None:
    """Audit every model of the toy world and draw the results."""
    world = ul.toy.load()
    baseline = ul.Baseline.measure(world.full, world.retain, world.examples)
    models = {"full": world.full, "half": world.half, **world.unlearned, "retain": world.retain}
    audits = dict(zip(models, baseline.audit_all(list(models.values())), strict=True))
    transplants = ul.transplants.transplant_all(world.full, world.retain, list(models.values()), world.examples)
    hidden = ul.transplants.transplants_frame(dict(zip(models, transplants, strict=True)))
    draw("toy_layers.png", audits["idkdpo"].plot_layers)
    draw("toy_heatmap.svg", audits["idkdpo"].plot_heatmap, for_phones=False)  # too much for one
    draw("toy_hidden.png", functools.partial(ul.plots.host_depths, hidden, references=REFERENCES), dark=True)
    (HERE / "method.svg").write_text(method_picture("light"), encoding="utf-8")
    (HERE / named("method.svg", "_narrow")).write_text(method_picture("light", narrow=True), encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        shown = {name: audit for name, audit in audits.items() if name != "half"}  # a reference
        photograph(ul.report.write(shown, Path(folder) / "report.html"), HERE / "report.png", height=1000)


def judging() -> None:
    """Draw the published values."""
    published = ul.meta.read_published()
    useful = int((published.frame["utility_rel"] >= 0.8).sum())
    metrics = published.metrics[published.metrics["metric"].isin(SHOWN)]
    draw("published_methods.png", functools.partial(ul.plots.method_dumbbell, ul.meta.rank(published.frame)))
    draw("published_filters.png", functools.partial(ul.plots.filter_dots, by_filter(metrics, useful)))
    with tempfile.TemporaryDirectory() as folder:
        photograph(ul.report.dashboard(published, Path(folder) / "dashboard.html"), HERE / "dashboard.png")


def by_filter(metrics: pd.DataFrame, useful: int) -> pd.DataFrame:
    """Return Q, R and Rob as published, under the utility filter alone and under both."""
    parts = []
    for name, end, n in (("utility", "_utility", useful), ("utility+threshold", "", metrics["n"])):
        part = metrics[["metric", "label", "auc"]].assign(q=metrics[f"q{end}"], r=metrics[f"r{end}"], n=n)
        parts.append(part.assign(rob=ul.meta.summary(part)["rob"].to_numpy(), filter=name))
    return pd.concat(parts)


if __name__ == "__main__":
    if "judging" not in sys.argv:
        auditing()
    judging()
