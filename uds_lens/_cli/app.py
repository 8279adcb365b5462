"""The `uds-lens` program: its commands, and the errors, warnings and version that all commands print."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from uds_lens import __version__
from uds_lens._cli.annotate import annotate
from uds_lens._cli.audit import audit, demo
from uds_lens._cli.checkpoints import doctor, weights
from uds_lens._cli.elicit import elicit
from uds_lens._cli.meta import meta
from uds_lens._cli.metrics import metrics
from uds_lens._cli.options import with_records
from uds_lens._cli.published import published
from uds_lens._cli.rank import rank, table
from uds_lens._cli.report import dashboard, export, report
from uds_lens._cli.sweep import sweep
from uds_lens._cli.terminal import echo, progress_printed, stoppable
from uds_lens._cli.training import finetune, quantise, relearn, unlearn
from uds_lens._compat.typer import HELP_ALL, PlainCommand, parameters_of
from uds_lens.errors import Setting, UdsLensError, UdsLensWarning


def one_line(kind: str, message: object, options: Mapping[str, Any]) -> str:
    """Format an error or warning as one line, with settings written as options of the command that ran."""
    if isinstance(message, UdsLensError | UdsLensWarning):
        text = message.worded(lambda setting: as_option(setting, options))
    else:
        text = str(message)
    return f"{kind}: {' '.join(text.split())}"


def as_option(setting: Setting, options: Mapping[str, Any]) -> str:
    """Format a setting as a command-line option, or as a Python argument if the command has no such option.

    Example:
        >>> from types import SimpleNamespace
        >>> dtype = SimpleNamespace(opts=["--dtype"], secondary_opts=[])
        >>> as_option(Setting("dtype", "float32"), {"dtype": dtype})
        '--dtype float32'
        >>> as_option(Setting("use_fast", True), {"dtype": dtype})
        'use_fast=True'
    """
    if (setting.of or "").endswith("Config") and "set_" in options:
        return f"--set {setting.name}={setting.value if setting.has_value else 'VALUE'}"
    option = options.get(setting.name)
    flags = [] if option is None else option.secondary_opts if setting.value is False else option.opts
    if not flags:
        return str(setting)
    named = setting.has_value and not isinstance(setting.value, bool)
    return f"{flags[0]} {setting.value}" if named else flags[0]


@contextmanager
def one_line_warnings(options: Mapping[str, Any]) -> Iterator[None]:
    """Print this library's warnings, one per line; warnings from other packages appear only with --debug."""

    def show(message: Warning | str, *where: object, **more: object) -> None:
        echo(one_line("warning", message, options), err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UdsLensWarning)
        warnings.showwarning = show
        yield


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
    export,
    finetune,
    meta,
    metrics,
    published,
    quantise,
    rank,
    relearn,
    report,
    sweep,
    table,
    unlearn,
    weights,
):
    app.command(_command.__name__.replace("_", "-"), cls=PlainCommand)(stoppable()(with_records(_command)))

_STOPPED = 130
"""Exit code after Ctrl-C."""


def _print_version(wanted: bool) -> bool:
    if wanted:
        echo(f"uds-lens {__version__}")
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
    """Run the program and exit: 0 on success, 1 on errors (one line on standard error), 2 on invalid arguments."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    PlainCommand.everything = HELP_ALL in words
    words = ["--help" if word == HELP_ALL else word for word in words]
    if "--offline" in words:  # for data sets and classifiers too; huggingface_hub reads it on import
        os.environ["HF_HUB_OFFLINE"] = "1"
    if isinstance(sys.stdout, io.TextIOWrapper):  # file names may contain bytes that are not valid text
        sys.stdout.reconfigure(errors="backslashreplace")
    program: Any = typer.main.get_command(app)  # calling `app` would build the command again
    options = parameters_of(program, words)
    with progress_printed(verbose="--verbose" in words):
        if "--debug" in words:
            program(words, prog_name="uds-lens")
        with one_line_warnings(options):
            try:
                program(words, prog_name="uds-lens")
            except SystemExit as leaving:
                if leaving.code == _STOPPED and isinstance(leaving.__context__, typer.Exit):
                    echo("Stopped before anything was done.", err=True)  # while the arguments were being parsed
                raise
            except (UdsLensError, OSError) as error:
                echo(one_line("error", error, options), err=True)
                raise SystemExit(1) from error
