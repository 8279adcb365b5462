"""`uds-lens dashboard`: many models and the metrics that judge them, as one HTML page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

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
        Path | None,
        typer.Option(metavar="CSV", help="Models of known pools (column `knows`), if they are not in RUNS."),
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

    It judges metrics, ranks methods and lists every model with the parts of its score, and opens offline. From the UDS
    paper's files it makes the paper's dashboard, with intervals, ties and controls. Models of several base models or
    splits get a page each.

    \b
    Examples:
      uds-lens dashboard published
      uds-lens dashboard models.csv --out dashboard.html
      uds-lens dashboard saves --preset open-unlearning --split forget10
    """
    say(f"reading {models} ...")
    from uds_lens._storage import check_writable
    from uds_lens.meta._tables import of_setup, setups

    table = references.read(models, examples=True)
    groups = setups(table.frame)
    places = {group: _place(out, group if len(groups) > 1 else None) for group in groups} or {(None, None): out}
    for place in places.values():
        check_writable(place, directory=False)
    from uds_lens import meta
    from uds_lens.report import DashboardOptions
    from uds_lens.report._dashboard import write_dashboard

    own = None if pools is None else meta.read_csv(pools).frame
    written: list[dict[str, Any]] = []
    for group, place in places.items():
        chosen = of_setup(table, group) if len(groups) > 1 else table
        parts = references.parts(score, chosen.frame)
        frame = chosen.frame if own is None else own
        usual = {name: way for name, way in (parts.direction or {}).items() if name in frame.columns}
        ways = usual | parse_directions(direction) or None
        if ways is not None:
            ways = meta.directions(frame, metrics_to_judge(frame, None, ways), ways)
        options = DashboardOptions(
            parts=replace(parts, direction=ways), min_utility=min_utility, select_by=select_by, title=title
        )
        robust = points = None
        if perturbed.given:
            tables = judged(chosen.frame, perturbed, pools=own, min_utility=min_utility, metrics=None, direction=ways)
            robust, points = tables.robust, tables.points
        page, notes = write_dashboard(chosen, place, pools=own, robust=robust, points=points, options=options)
        written.append(
            {"dashboard": str(page), "models": len(chosen.frame), "source": table.source, "notes": list(notes)}
        )
    if printing.json:
        content = written[0] if len(written) == 1 else {"dashboards": written}
        typer.echo(json.dumps(content, indent=2, ensure_ascii=False))
        return
    for entry in written:
        typer.echo(f"{entry['models']} models in {entry['dashboard']}: open it in a browser.")
        for note in entry["notes"]:
            print_wrapped(f"! {note}")


def _place(out: Path, setup: tuple[str | None, str | None] | None) -> Path:
    """Return the file of a setup: `dashboard_BASE_SPLIT.html` where there are several."""
    words = [re.sub(r"[^A-Za-z0-9.-]+", "-", part) for part in setup or () if part]
    if setup is None:
        return out
    return out.with_name("_".join([out.stem, *(words or ["unknown"])]) + out.suffix)
