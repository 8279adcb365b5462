"""`uds-lens report`, `dashboard` and `export`: turn saved results into pages and files for other programs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import uds_lens as ul
from uds_lens._cli import options as opt
from uds_lens._cli.model_tables import (
    Direction,
    MinUtility,
    Perturbed,
    Runs,
    Score,
    SelectBy,
    judged,
    known_directions,
    parse_directions,
)
from uds_lens._cli.terminal import echo, print_json, print_wrapped, say
from uds_lens._storage.files import check_writable, did_you_mean, format_of
from uds_lens.errors import ResultFormatError


def export(
    result: Annotated[Path, opt.argument("RESULT", "Saved audit or elicitation.")],
    to: Annotated[
        Literal["inspect", "open-unlearning"],
        typer.Option(help="inspect: logs of an elicitation; open-unlearning: UDS_EVAL.json of an audit."),
    ],
    out: Annotated[Path, opt.folder("Folder to write into.")],
    dataset: Annotated[str, opt.value("NAME", "inspect: name of the forget set in the logs.")] = "forget set",
    *,
    printing: opt.Printing,
) -> None:
    """Convert a saved result to another project's format.

    \b
    Examples:
      uds-lens export runs/npo-texts --to inspect --out logs
    """
    if not result.exists():
        raise ResultFormatError(f"nothing at {str(result)!r}: expected a saved audit or elicitation.")

    formats: dict[str, tuple[type[Any], Any, dict[str, Any]]] = {
        "inspect": (ul.elicitation.ElicitationResults, ul.sharing.write_inspect_logs, {"dataset": dataset}),
        "open-unlearning": (ul.DepthAudit, ul.sharing.write_uds_eval, {}),
    }
    kind, write, more = formats[to]
    files = write(_loaded(result, kind), out, **more)
    if printing.json:
        print_json({"files": [str(file) for file in files]})
        return
    for file in files:
        echo(str(file))


def _loaded(place: Path, kind: type[Any]) -> Any:
    """Load a result, which must be of the given kind."""
    file_format = format_of(place)
    if file_format == f"uds_lens.{kind.__name__}":
        return kind.load(place)
    wanted = "an audit" if kind.__name__ == "DepthAudit" else "an elicitation"
    what = f"{file_format.removeprefix('uds_lens.')}" if file_format else "no saved result"
    raise ResultFormatError(f"{str(place)!r} holds {what}: expected {wanted}.")


def report(
    directories: Annotated[
        list[Path], opt.argument("DIR", "Saved audits, or folders that contain them (up to two levels down).")
    ],
    out: Annotated[Path, opt.file("HTML file to write.")] = Path("report.html"),
    title: Annotated[str, opt.value("TEXT", "Heading of the page.")] = "How deep did unlearning go?",
    logit_lens: Annotated[
        list[Path] | None,
        opt.value(
            "FILE",
            "Results of uds-lens metrics --metric logit_lens, to draw next to UDS (repeatable).",
            dir_okay=False,
            exists=True,
        ),
    ] = None,
    elicitation: Annotated[
        list[Path] | None,
        opt.value(
            "DIR",
            "Results of uds-lens elicit, to show next to the depth of their model (repeatable).",
            file_okay=False,
            exists=True,
        ),
    ] = None,
    metrics: Annotated[
        list[Path] | None,
        opt.value(
            "FILE", "Results of uds-lens metrics, or folders of them; adds a table and a plot of depth against utility."
        ),
    ] = None,
    reference: Annotated[
        list[str] | None,
        opt.value("NAME", "Audit to show for comparison, in addition to full and retain (repeatable)."),
    ] = None,
    short_paths: Annotated[
        bool, opt.flag("--short-paths", "Shorten local paths to their last parts, for sharing the page.")
    ] = False,
    *,
    printing: opt.Printing,
) -> None:
    """Write one page about one or several audits.

    The page shows scores, warnings, figures and every example, and works offline. Audits are named after their
    unlearned models. Audits of the same models at different sites are compared by site.

    \b
    Example:
      uds-lens report runs/npo runs/rmu --out report.html
      uds-lens report runs --metrics metrics --short-paths --out report.html
    """
    say(f"reading {', '.join(map(str, directories))} ...")
    places = _audits_in(directories)  # before torch is loaded
    from uds_lens.results._comparing import audit_names
    from uds_lens.transplants._results import with_saved

    loaded = [ul.DepthAudit.load(place) for place in places]
    audits = dict(zip(audit_names(loaded, places=places), loaded, strict=True))
    lens = [ul.metrics.MetricResults.load(file) for file in logit_lens or []]
    asked = [ul.elicitation.ElicitationResults.load(place) for place in elicitation or []]
    measured = [ul.metrics.MetricResults.load(file) for file in _metrics_in(metrics or [])]
    transplants = [found for _, found in map(with_saved, loaded, places) if found is not None]
    ul.report.write(
        audits,
        out,
        title=title,
        lens=lens,
        metrics=[*measured, *transplants],
        elicitations=asked,
        references=reference or (),
        short_paths=short_paths,
    )
    if printing.json:
        written = {"report": str(out), "audits": dict(zip(audits, map(str, places), strict=True))}
        print_json(written)
        return
    echo(f"{len(audits)} {'audit' if len(audits) == 1 else 'audits'} in {out}: open it in a browser.")


def _metrics_in(places: list[Path]) -> list[Path]:
    """Return the given files, and the files in the given folders."""
    files: list[Path] = []
    for place in places:
        inside = sorted(place.glob("*.json")) if place.is_dir() else [place]
        if not inside:
            raise ResultFormatError(
                f"no metrics in {str(place)!r}: pass files written by uds-lens metrics, or a folder of such files."
            )
        files += inside
    return list(dict.fromkeys(path.resolve() for path in files))


def _audits_in(directories: list[Path]) -> list[Path]:
    """Return the saved audits among and inside the given directories, without duplicates."""
    for directory in directories:
        if not directory.is_dir():
            raise ResultFormatError(
                f"no directory {str(directory)!r}: pass directories written by uds-lens audit.{did_you_mean(directory)}"
            )
    from uds_lens.results._saving import audits_in, is_audit  # loads torch, so only after the check above

    saved: list[Path] = []
    for directory in directories:
        inside = [*([directory] if is_audit(directory) else []), *audits_in(directory)]
        if not inside:
            raise ResultFormatError(
                f"no saved audit in {str(directory)!r}, nor up to two levels down: pass directories written by "
                "uds-lens audit."
            )
        saved += inside
    return list(dict.fromkeys(path.resolve() for path in saved))


def dashboard(
    models: Annotated[
        Path,
        opt.argument(
            "RUNS",
            "CSV with one row per model, folder of Open-Unlearning runs, or 'published' (the UDS paper's values).",
        ),
    ],
    out: Annotated[Path, opt.file("HTML file to write.")] = Path("dashboard.html"),
    pools: Annotated[Path | None, opt.value("CSV", "Pool models (column `knows`), if they are not in RUNS.")] = None,
    select_by: SelectBy = "without",
    min_utility: MinUtility = None,
    direction: Direction = None,
    title: Annotated[
        str | None, opt.value("TEXT", "Heading of the page. Default: the question that its tables answer.")
    ] = None,
    *,
    score: Score,
    references: Runs,
    perturbed: Perturbed,
    printing: opt.Printing,
) -> None:
    """Which metrics and methods hold up? Write one page about many models.

    The page judges metrics, ranks methods, lists every model with the parts of its score, and works offline. From the
    UDS paper's files, the command rebuilds the paper's dashboard and adds intervals, ties and controls. If there are
    several base models or splits, each gets its own page.

    \b
    Examples:
      uds-lens dashboard published
      uds-lens dashboard models.csv --out dashboard.html
      uds-lens dashboard saves --preset open-unlearning --split forget10
    """
    say(f"reading {models} ...")
    from uds_lens.meta._tables import of_setup, setups

    table = references.read(models, examples=True)
    groups = setups(table.frame)
    places = {group: _place(out, group if len(groups) > 1 else None) for group in groups} or {(None, None): out}
    for place in places.values():
        check_writable(place, directory=False)
    from uds_lens.report._dashboard import write_dashboard

    own = None if pools is None else ul.meta.read_csv(pools).frame
    written: list[dict[str, Any]] = []
    for group, place in places.items():
        chosen = of_setup(table, group) if len(groups) > 1 else table
        parts = references.parts(score, chosen.frame)
        frame = chosen.frame if own is None else own
        usual = {name: way for name, way in (parts.direction or {}).items() if name in frame.columns}
        ways = usual | parse_directions(direction) or None
        if ways is not None:
            ways = known_directions(frame, None, ways)
        options = ul.report.DashboardOptions(
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
        print_json(written[0] if len(written) == 1 else {"dashboards": written})
        return
    for entry in written:
        echo(f"{entry['models']} models in {entry['dashboard']}: open it in a browser.")
        for note in entry["notes"]:
            print_wrapped(f"! {note}")


def _place(out: Path, setup: tuple[str | None, str | None] | None) -> Path:
    """Return the file name for a setup: `dashboard_BASE_SPLIT.html` if there are several setups."""
    words = [re.sub(r"[^A-Za-z0-9.-]+", "-", part) for part in setup or () if part]
    if setup is None:
        return out
    return out.with_name("_".join([out.stem, *(words or ["unknown"])]) + out.suffix)
