"""`uds-lens report`: saved audits as one HTML page."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import typer

from uds_lens.cli import options as opt
from uds_lens.cli.results import directory_names


def report(
    directories: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="Saved audits, or directories of saved audits.", show_default=False
        ),
    ],
    out: Annotated[Path, typer.Option(help="HTML file to write.", dir_okay=False)] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "How deep did unlearning go?",
    json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Write one page about one or several audits: scores, warnings, figures, every example. It opens offline.

    \b
    Example:
      uds-lens report runs/npo runs/rmu --out report.html
    """
    import uds_lens as ul

    places = _audits_in(directories)
    audits = {name: ul.DepthAudit.load(place) for name, place in places.items()}
    ul.report.write_report(audits, out, title=title)
    if json:
        found = {"report": str(out), "audits": {name: str(place) for name, place in places.items()}}
        typer.echo(json_format.dumps(found, indent=2, ensure_ascii=False))
        return
    typer.echo(f"{len(audits)} {'audit' if len(audits) == 1 else 'audits'} in {out}: open it in a browser.")


def _audits_in(directories: list[Path]) -> dict[str, Path]:
    """Saved audits by a short name: each directory that is one, or the audits that lie in it."""
    from uds_lens.audit.files import is_audit
    from uds_lens.errors import ResultFormatError

    found: list[Path] = []
    for directory in directories:
        inside = sorted(path for path in directory.iterdir() if is_audit(path)) if directory.is_dir() else []
        if not is_audit(directory) and not inside:
            raise ResultFormatError(
                f"no saved audit in {str(directory)!r}: name directories written by uds-lens audit."
            )
        found += [directory] if is_audit(directory) else inside
    unique = list(dict.fromkeys(path.resolve() for path in found))
    return dict(zip(directory_names([str(path) for path in unique]), unique, strict=True))
