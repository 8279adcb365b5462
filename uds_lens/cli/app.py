"""The `uds-lens` program: its commands, and what all of them share (errors, warnings, version)."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from uds_lens import __version__
from uds_lens.cli.annotate import annotate
from uds_lens.cli.audit import audit
from uds_lens.cli.dashboard import dashboard
from uds_lens.cli.demo import demo
from uds_lens.cli.doctor import doctor
from uds_lens.cli.elicit import elicit
from uds_lens.cli.messages import one_line, one_line_warnings
from uds_lens.cli.meta import meta
from uds_lens.cli.metrics import metrics
from uds_lens.cli.option_groups import grouped
from uds_lens.cli.progress_lines import spoken
from uds_lens.cli.quantise import quantise
from uds_lens.cli.rank import rank
from uds_lens.cli.relearn import relearn
from uds_lens.cli.report import report
from uds_lens.cli.stopping import stoppable
from uds_lens.cli.sweep import sweep
from uds_lens.cli.unlearn import unlearn
from uds_lens.compat.typer import PlainCommand, parameters_of
from uds_lens.errors import UdsLensError

app = typer.Typer(
    name="uds-lens",
    help="How deep did unlearning go? Audits of unlearned language models by activation patching.",
    epilog="Start with: uds-lens demo",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for _command in (
    annotate,
    audit,
    dashboard,
    demo,
    doctor,
    elicit,
    meta,
    metrics,
    quantise,
    rank,
    relearn,
    report,
    sweep,
    unlearn,
):
    app.command(cls=PlainCommand)(stoppable()(grouped(_command)))

_STOPPED = 130
"""Exit code after Ctrl-C."""


def _print_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"uds-lens {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program and exit: 0 on success, 1 with one line on standard error, 2 on wrong usage.

    Args:
        arguments: The words after the program's name; None takes those of this process.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # file names may hold bytes that are no text
        sys.stdout.reconfigure(errors="backslashreplace")
    options = parameters_of(app, words)
    with spoken(verbose="--verbose" in words):
        if "--debug" in words:
            app(words, prog_name="uds-lens")
        with one_line_warnings(options):
            try:
                app(words, prog_name="uds-lens")
            except SystemExit as leaving:
                if leaving.code == _STOPPED and isinstance(leaving.__context__, typer.Exit):
                    typer.echo("Stopped before anything was done.", err=True)  # while the words were read
                raise
            except (UdsLensError, OSError) as error:
                typer.echo(one_line("error", error, options), err=True)
                raise SystemExit(1) from error
