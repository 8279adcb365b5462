"""`uds-lens conformance`: a kit for other implementations of UDS, and the check of what they computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from uds_lens._cli.options import Printing
from uds_lens._cli.terminal import print_wrapped, say
from uds_lens.errors import ConfigError


def conformance(
    words: Annotated[
        list[str],
        typer.Argument(metavar="export DIR | check CSV", help="Write the kit, or check results computed on it."),
    ],
    kit: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the kit, for `check`. Default: a new kit is made.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0, metavar="NATS", help="Largest difference attributed to rounding.")
    ] = 1e-3,
    *,
    printing: Printing,
) -> None:
    """Check another implementation of UDS.

    The kit has small models, tokens, positions, and S1 and S2 of each example and layer; its README says how to use it
    without this library. A check names the first row that differs and the convention that explains it; the exit code
    is 1 where the table does not conform.

    \b
    Examples:
      uds-lens conformance export kit
      uds-lens conformance check mine.csv --kit kit
    """
    if len(words) != 2 or words[0] not in ("export", "check"):
        raise ConfigError(
            f"expected `export DIR` or `check CSV`; got {' '.join(words)[:100]!r}. For example: uds-lens conformance "
            "export kit"
        )
    todo, place = words
    say("measuring the models of the kit ..." if kit is None else f"reading {place} ...")
    from uds_lens import published

    if todo == "export":
        folder = published.export_conformance(place)
        typer.echo(json.dumps({"kit": str(folder)}) if printing.json else f"The kit is in {folder}: see its README.md.")
        return
    verdict = published.check_conformance(place, kit, tolerance=tolerance)
    if printing.json:
        typer.echo(json.dumps({"conforms": verdict.conforms, "findings": list(verdict.findings)}, indent=2))
    else:
        for finding in verdict.findings:
            print_wrapped(f"! {finding}")
        typer.echo("conforms" if verdict.conforms else "does not conform")
    if not verdict.conforms:
        raise typer.Exit(1)
