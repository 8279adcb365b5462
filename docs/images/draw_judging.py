"""Draw the pictures of the page about the dashboard: `python docs/images/draw_judging.py`.

Needs `uds-lens[static]` and a Chrome or Chromium (on the PATH).
"""

import functools
import tempfile
from pathlib import Path

import pandas as pd
from photograph import beside, draw, photograph

import uds_lens as ul

HERE = Path(__file__).parent
SHOWN = ["uds", "em", "prob", "logit_lens", "paraprob", "es", "truth_ratio", "mia_loss", "rouge", "cka"]
"""Metrics in the picture of the filters."""


def by_filter(metrics: pd.DataFrame, useful: int) -> pd.DataFrame:
    """Q, R and Rob as published, under the utility filter alone and under both."""
    parts = []
    for name, end, n in (("utility", "_utility", useful), ("utility+threshold", "", metrics["n"])):
        part = metrics[["metric", "label", "auc"]].assign(q=metrics[f"q{end}"], r=metrics[f"r{end}"], n=n)
        parts.append(part.assign(rob=ul.meta.summary(part)["rob"].to_numpy(), filter=name))
    return pd.concat(parts)


def main() -> None:
    """Write the pictures beside this file."""
    published = ul.meta.read_published()
    useful = int((published.frame["utility_rel"] >= 0.8).sum())
    metrics = published.metrics[published.metrics["metric"].isin(SHOWN)]
    ranked, changes = ul.meta.rank(published.frame), by_filter(metrics, useful)
    draw("published_methods.png", functools.partial(ul.plots.method_dumbbell, ranked))
    draw("published_filters.png", functools.partial(ul.plots.filter_dots, changes))
    with tempfile.TemporaryDirectory() as folder:
        page = ul.report.dashboard(published, Path(folder) / "dashboard.html")
        for theme in ("light", "dark"):
            photograph(page, HERE / beside("dashboard.png", theme), theme=theme)


if __name__ == "__main__":
    main()
