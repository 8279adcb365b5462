"""`uds-lens sweep`: make and measure the models of a plan, or report how far that is."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uds_lens._cli.options import Printing
from uds_lens._cli.terminal import print_table, print_wrapped, say
from uds_lens.errors import ConfigError
from uds_lens.study._slurm import SlurmOptions

if TYPE_CHECKING:
    from uds_lens.study import StudyStatus


def sweep(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="PLAN | status DIR | table DIR", help="Plan in TOML; or show the status, or the table, of a sweep."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Directory of the sweep; of `table`, a .parquet or .csv file.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Number of workers that run at the same time.")] = 1,
    slurm: Annotated[bool, typer.Option("--slurm", help="Submit the workers as an array of Slurm tasks.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait for the Slurm tasks.")] = True,
    *,
    tasks: SlurmOptions,
    printing: Printing,
) -> None:
    """Make and measure all models of a plan.

    Models are fine-tuned, unlearned, relearned and quantised as the plan says, and measured
    in every state. The command resumes if it is killed and run again; several may share one --out.
    The exit code is 1 where something failed or is left to do.

    \b
    Examples:
      uds-lens sweep plan.toml --out runs/study --jobs 2
      uds-lens sweep plan.toml --out runs/study --slurm --jobs 16 --partition gpu
      uds-lens sweep status runs/study
      uds-lens sweep table runs/study --out table.parquet
    """
    todo, place = _asked(words)
    say(f"reading {place} ...")
    from uds_lens import study

    if todo == "table":
        _write_table(place, out, as_json=printing.json)
        return
    if todo == "status":
        status = study.status(place)
    else:
        if out is None:
            raise ConfigError("--out missing. For example: uds-lens sweep plan.toml --out runs/study")
        with progress_lines():
            if slurm:
                status = study.run(place, out, jobs=jobs, executor="slurm", slurm=tasks, wait=wait)
            else:
                status = study.run(place, out, jobs=jobs)
    print_status(status, as_json=printing.json)
    if todo == "run" and (status.failed or (status.left and (wait or not slurm))):
        raise typer.Exit(1)


def _asked(words: list[str]) -> tuple[str, str]:
    """Return what to do, and with which plan or directory."""
    if len(words) == 2 and words[0] in ("status", "table"):
        return words[0], words[1]
    if len(words) == 1 and words[0] not in ("status", "table"):
        return "run", words[0]
    raise ConfigError(
        f"expected PLAN, `status DIR` or `table DIR`; got {' '.join(words)[:100]!r}. For example: uds-lens sweep "
        "plan.toml --out runs/study"
    )


def _write_table(place: str, out: Path | None, *, as_json: bool) -> None:
    from uds_lens import study

    table = study.table(place)
    if out is None:
        typer.echo(table.to_json(orient="records", indent=1) if as_json else table.to_csv(index=False), nl=False)
        return
    study.write_table(table, out)
    typer.echo(json.dumps({"file": str(out), "rows": len(table)}) if as_json else f"{len(table)} rows in {out}")


def print_status(status: StudyStatus, *, as_json: bool) -> None:
    from uds_lens._storage import plain

    if as_json:
        typer.echo(json.dumps(plain(status.to_dict()), indent=2, ensure_ascii=False))
        return
    print_wrapped(str(status))
    if status.sample is not None:
        print_wrapped(status.sample)
    if status.failed:
        rows = [[failure.model, failure.state, failure.reason] for failure in status.failed]
        print_table(["failed", "state", "because"], rows)


@contextmanager
def progress_lines() -> Iterator[None]:
    """Print the library's lines about a study on standard error."""
    logger, handler = logging.getLogger("uds_lens.study"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    before = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False  # with --verbose the command's own handler would say each line again
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before
