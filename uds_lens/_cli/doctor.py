"""`uds-lens doctor`: check the installation, and whether models and data would work."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from uds_lens._cli.options import Printing
from uds_lens._cli.terminal import print_json, print_wrapped, say
from uds_lens.results._settings import AuditConfig, RunOptions

_MARKS = {"ok": "ok ", "note": "-  ", "problem": "!! "}


def doctor(
    full: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Model trained on everything: directory or Hub id.")
    ] = None,
    retain: Annotated[str | None, typer.Option(metavar="MODEL", help="Model that never saw the forget set.")] = None,
    unlearned: Annotated[
        list[str] | None, typer.Option("--model", metavar="MODEL", help="Model to audit; repeat for more.")
    ] = None,
    examples: Annotated[str | None, typer.Option(metavar="DATA", help="Forget set, as for uds-lens audit.")] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where results would be written.")] = Path(),
    *,
    config: AuditConfig,
    options: RunOptions,
    printing: Printing,
) -> None:
    """Check whether an audit of these models and data would work.

    Checks versions, devices, memory, disk space and access to the Hub and, given models and data, whether an audit of
    them would start. Opens no weights, and downloads only what a Hub id needs. Exit code 1 if something will not
    work.

    \b
    Example:
      uds-lens doctor --full ckpt/full --retain ckpt/retain --model ckpt/npo \\
          --examples forget10.json
    """
    say("checking this installation ...")
    import uds_lens as ul

    models = {role: model for role, model in (("full", full), ("retain", retain)) if model is not None}
    models |= {f"unlearned {i}" if i > 1 else "unlearned": m for i, m in enumerate(unlearned or (), start=1)}
    findings = ul.doctor.examine_environment(place=out)
    if models or examples is not None:
        findings += ul.doctor.examine_inputs(models, examples, config=config, options=options)
    if printing.json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            print_wrapped(f"{_MARKS[finding.verdict]}{finding.what}: {finding.found}")
            if finding.fix is not None:
                print_wrapped(f"   -> {finding.fix}")
        problems = sum(finding.verdict == "problem" for finding in findings)
        typer.echo(f"\n{problems} to fix (!!)." if problems else "\nReady.")
    if any(finding.verdict == "problem" for finding in findings):
        raise typer.Exit(1)
