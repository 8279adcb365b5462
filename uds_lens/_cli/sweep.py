"""`uds-lens sweep`: make and measure the models in a plan."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import uds_lens as ul
from uds_lens._cli import options as opt
from uds_lens._cli.terminal import echo, print_frame, print_json, print_wrapped, say
from uds_lens._quoting import csv_text
from uds_lens.study._parts import SlurmOptions

_EXAMPLE = "uds-lens sweep plan.toml --out runs/study"


def sweep(
    words: Annotated[
        list[str],
        opt.argument("PLAN | status DIR | table DIR", "Plan to run (a TOML file), or directory of a sweep to inspect."),
    ],
    out: Annotated[
        Path | None, opt.value("PATH", "Directory of the sweep; for `table`, a .parquet or .csv file.")
    ] = None,
    jobs: Annotated[
        int, opt.count("Number of models to work on at a time; with --slurm, number of tasks in the array.")
    ] = 1,
    slurm: Annotated[bool, opt.flag("--slurm", "Submit the work as an array of Slurm tasks.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait until the Slurm tasks have ended.")] = True,
    *,
    tasks: Annotated[SlurmOptions, opt.Offer(first=("partition", "gpus", "minutes"))],
    printing: opt.Printing,
) -> None:
    """Make and measure all models in a plan.

    Models are fine-tuned, unlearned, relearned and quantised according to the plan, and measured in every state. To
    resume a killed sweep, run the same command again. Several commands can work on the same --out at once. The exit
    code is 1 if something failed or remains to be done.

    \b
    Examples:
      uds-lens sweep plan.toml --out runs/study --jobs 2
      uds-lens sweep plan.toml --out runs/study --slurm --jobs 16 --partition gpu
      uds-lens sweep status runs/study
      uds-lens sweep table runs/study --out table.parquet
    """
    planned = len(words) == 1 and words[0] not in ("status", "table")
    todo, place = opt.asked_for(
        ["run", *words] if planned else words,
        {"run": 1, "status": 1, "table": 1} if planned else {"status": 1, "table": 1},
        "PLAN, `status DIR` or `table DIR`",
        _EXAMPLE,
    )
    say(f"reading {place} ...")
    if todo == "table":
        _write_table(place, out, as_json=printing.json)
        return
    if todo == "status":
        status = ul.study.status(place)
    else:
        opt.require_options({"--out": out}, _EXAMPLE)
        assert out is not None
        plan = ul.study.plan(place)  # before `run` loads torch
        status = ul.study.run(plan, out, jobs=jobs, slurm=tasks if slurm else None, wait=wait)
    print_status(status, as_json=printing.json)
    if todo == "run" and (status.failed or (status.left and (wait or not slurm))):
        raise typer.Exit(1)


def _write_table(place: str, out: Path | None, *, as_json: bool) -> None:
    table = ul.study.table(place)
    if out is None:
        echo(table.to_json(orient="records", indent=1) if as_json else csv_text(table), nl=False)
        return
    ul.study.write_table(table, out)
    echo(json.dumps({"file": str(out), "rows": len(table)}) if as_json else f"{len(table)} rows in {out}")


def print_status(status: ul.study.StudyStatus, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(status))
        return
    print_wrapped(str(status))
    if status.sample is not None:
        print_wrapped(status.sample)
    if status.failed:
        print_frame(map(vars, status.failed), {"failed": "model", "state": "state", "reason": "reason"})
