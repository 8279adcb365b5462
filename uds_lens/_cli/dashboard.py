"""`uds-lens dashboard`: many models and the metrics that judge them, as one HTML page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from uds_lens._cli.model_tables import (
    Direction,
    MinUtility,
    Perturbed,
    References,
    Score,
    SelectBy,
    judged,
    metrics_to_judge,
    parse_directions,
)
from uds_lens._cli.options import Printing
from uds_lens._cli.terminal import print_wrapped, say


def dashboard(
    models: Annotated[
        Path,
        typer.Argument(
            metavar="RUNS",
            help="CSV with one row per model, folder of Open-Unlearning runs, or published: the UDS paper's values.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="HTML file to write.", dir_okay=False)] = Path(
        "dashboard.html"
    ),
    pools: Annotated[
        Path | None, typer.Option(metavar="CSV", help="Models with a column knows, where they are not among RUNS.")
    ] = None,
    select_by: SelectBy = "without",
    min_utility: MinUtility = None,
    direction: Direction = None,
    title: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Heading of the page. Default: the question its tables answer.")
    ] = None,
    *,
    score: Score,
    references: References,
    perturbed: Perturbed,
    printing: Printing,
) -> None:
    """Write one page about many models, metrics and methods.

    Metrics judged, methods ranked, every model with its parts; the page opens offline. With the UDS paper's files it is
    the paper's dashboard, with intervals, ties and switches.

    \b
    Examples:
      uds-lens dashboard published
      uds-lens dashboard models.csv --out dashboard.html
    """
    say(f"reading {models} ...")
    from uds_lens._storage import require_fresh

    out = require_fresh(out, directory=False)
    table = references.read(models, examples=True)
    from uds_lens import meta
    from uds_lens.report import DashboardOptions
    from uds_lens.report._dashboard import write_dashboard

    own = None if pools is None else meta.read_csv(pools).frame
    given = parse_directions(direction) or None
    if given is not None:
        frame = table.frame if own is None else own
        given = meta.directions(frame, metrics_to_judge(frame, None, given), given)
    parts = replace(score.parts(), direction=given)
    options = DashboardOptions(parts=parts, min_utility=min_utility, select_by=select_by, title=title)
    robust = points = None
    if perturbed.given:
        found = judged(table.frame, perturbed, pools=own, min_utility=min_utility, metrics=None, direction=given)
        robust, points = found.robust, found.points
    out, notes = write_dashboard(table, out, pools=own, robust=robust, points=points, options=options)
    if printing.json:
        told = {"dashboard": str(out), "models": len(table.frame), "source": table.source, "notes": list(notes)}
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False))
        return
    typer.echo(f"{len(table.frame)} models in {out}: open it in a browser.")
    for note in notes:
        print_wrapped(f"! {note}")
