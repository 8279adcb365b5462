"""`uds-lens table`: one row per model, all metrics, UDS with its interval, for papers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from uds_lens._cli.model_tables import References
from uds_lens._cli.options import Printing
from uds_lens._cli.terminal import say
from uds_lens.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

_ORIGIN = ("base", "split", "model", "knows", "method", "config", "lr", "epochs")
_INTERVAL = ("uds", "uds_low", "uds_high")


def table(
    models: Annotated[
        Path,
        typer.Argument(
            metavar="RUNS",
            help="Folder of Open-Unlearning runs, or of results of uds-lens metrics; or CSV with one row per model.",
            show_default=False,
        ),
    ],
    format_: Annotated[
        Literal["csv", "md", "latex"], typer.Option("--format", help="CSV keeps all digits; the others round.")
    ] = "csv",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the table there instead of printing it.", dir_okay=False)
    ] = None,
    digits: Annotated[int, typer.Option(min=1, max=10, metavar="N", help="Decimal places in md and latex.")] = 3,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Also include checkpoint-* of runs that have final results.")
    ] = False,
    *,
    references: References,
    printing: Printing,
) -> None:
    """Write a table of models: one row each, with all metrics.

    UDS has its interval. Rows are sorted by base model and split, full and retain first where they were read. LaTeX
    needs the package booktabs. An empty cell (md, latex: -) has no value.

    \b
    Examples:
      uds-lens table saves --audits runs/forget10 --format latex --out table.tex
      uds-lens table saves --preset open-unlearning --format md
    """
    import pandas as pd

    from uds_lens._storage import atomic_write_marked, check_writable, located

    say(f"reading {models} ...")
    read = references.read(models, checkpoints=checkpoints)
    frame = read.frame
    if read.references is not None:
        frame = pd.concat([read.references.assign(method=read.references["role"]), frame], ignore_index=True)
    frame = frame.sort_values([name for name in ("base", "split") if name in frame.columns], kind="stable")
    shown = [name for name in _ORIGIN if name in frame.columns]
    metrics = [str(name) for name in frame.select_dtypes("number").columns if name not in (*shown, *_INTERVAL)]
    depth = [name for name in _INTERVAL if name in frame.columns]
    frame = frame[[*shown, *depth, *metrics]].dropna(axis="columns", how="all").reset_index(drop=True)
    text = frame.to_csv(index=False) if format_ == "csv" else _rounded(frame, format_, digits)
    if out is None:
        typer.echo(text, nl=False)
        return
    if located(out).resolve() == models.resolve():
        raise ConfigError("--out names the table that is read: choose another name.")
    atomic_write_marked(check_writable(out, directory=False), text)
    typer.echo(f"{len(frame)} models in {out}")


def _rounded(frame: pd.DataFrame, format_: str, digits: int) -> str:
    """Write a table whose cells are rounded, UDS and its interval in one."""
    names = [str(name) for name in frame.columns if name not in ("uds_low", "uds_high")]
    rows = [[_cell(name, row, digits) for name in names] for row in frame.to_dict("records")]
    if format_ == "md":
        lines = [names, [":--" if name in _ORIGIN[:6] else "--:" for name in names], *rows]
        return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
    kinds = "".join("l" if name in _ORIGIN[:6] else "r" for name in names)
    body = "".join(f"{' & '.join(map(_latex, row))} \\\\\n" for row in rows)
    head = " & ".join(map(_latex, names))
    return f"\\begin{{tabular}}{{{kinds}}}\n\\toprule\n{head} \\\\\n\\midrule\n{body}\\bottomrule\n\\end{{tabular}}\n"


def _cell(name: str, row: dict[Any, Any], digits: int) -> str:
    value = row[name]
    if value is None or value != value:
        return "-"
    if not isinstance(value, float):
        return " ".join(str(value).split())
    if name in ("lr", "epochs"):
        return f"{value:g}"
    low, high = row.get("uds_low", math.nan), row.get("uds_high", math.nan)
    interval = f" [{low:.{digits}f}, {high:.{digits}f}]" if name == "uds" and low == low else ""
    return f"{value:.{digits}f}{interval}"


_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def _latex(text: str) -> str:
    """Escape a text for LaTeX.

    >>> print(_latex("es_90% {x}"))
    es\\_90\\% \\{x\\}
    """
    return "".join(_SPECIAL.get(sign, f"\\{sign}" if sign in "&%$#_{}" else sign) for sign in text)
