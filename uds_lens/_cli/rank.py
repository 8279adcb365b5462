"""`uds-lens rank` and `table`: rank methods by their best configuration, and write tables with one row per model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

import typer

import uds_lens as ul
from uds_lens._cli import options as opt
from uds_lens._cli.model_tables import (
    Direction,
    MinUtility,
    Runs,
    Score,
    SelectBy,
    parse_directions,
    require_parts,
    write_table_file,
)
from uds_lens._cli.terminal import Column, echo, number, print_frame, print_json, print_wrapped, say, table_rows, width
from uds_lens._quoting import csv_text, markdown, printable
from uds_lens._storage.files import atomic_write_marked, check_writable, located
from uds_lens.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.meta._direction import Points


View: TypeAlias = Literal["with", "without"]
"""Which score to use: with or without depth."""


def rank(
    models: Annotated[
        Path,
        opt.argument(
            "RUNS",
            "Folder of Open-Unlearning runs or of uds-lens metrics results, CSV with one row per model, or 'published' "
            "(the UDS paper's values).",
        ),
    ],
    by: Annotated[View, typer.Option(help="Rank by the score with or without depth.")] = "with",
    select_by: SelectBy = "without",
    min_utility: MinUtility = None,
    resamples: Annotated[
        int, opt.value("N", "Number of resamples for the uncertainty of the ranks; 0 skips it.", min=0)
    ] = 1000,
    out: Annotated[Path | None, opt.value("CSV", "Also write the ranking to this file.", dir_okay=False)] = None,
    direction: Direction = None,
    *,
    score: Score,
    references: Runs,
    printing: opt.Printing,
) -> None:
    """Which unlearning method is best? Rank methods by their best models.

    The score is the harmonic mean of memorization, privacy and utility; with depth, UDS is part of privacy. Ties are
    reported, not broken silently. Models of different base models or splits are ranked separately.

    \b
    Examples:
      uds-lens rank saves/eval --audits runs/forget10 \\
          --retain saves/eval/retain90 --full saves/eval/full
      uds-lens rank saves --preset open-unlearning --split forget10
      uds-lens rank runs/metrics --methods methods.csv
      uds-lens rank models.csv --min-utility 0.8 --json
    """
    say(f"reading {models} ...")
    import pandas as pd

    from uds_lens.meta._tables import setups

    out = None if out is None else check_writable(out, directory=False)
    read = references.read(models, examples=resamples > 1)
    read = replace(read, frame=_with_methods(read.frame))
    settings: dict[str, Any] = {"by": by, "select_by": select_by, "min_utility": min_utility, "resamples": resamples}
    settings |= {"score": score, "references": references, "direction": parse_directions(direction)}

    def ranked(table: ul.meta.ModelTable) -> _Ranking:
        return _ranking(table, **settings)

    groups = setups(read.frame)
    rankings = {"": ranked(read)} if len(groups) == 1 else _ranking_by_setup(read, groups, ranked)
    if out is not None:
        write_table_file(pd.concat([ranking.methods for ranking in rankings.values()], ignore_index=True), out)
    if printing.json:
        parts = [{"setup": name, **ranking.to_dict()} for name, ranking in rankings.items()]
        content = rankings[""].to_dict() if "" in rankings else {"setups": parts}
        print_json({"source": read.source, **content})
        return
    for name, ranking in rankings.items():
        if name:
            echo(f"\n{name}")
        _print(ranking)
        for note in ranking.notes:
            print_wrapped(f"! {note}")
    if out is not None:
        echo(f"\nSaved in {out}")


class _Ranking(NamedTuple):
    """A ranking with its uncertainty."""

    methods: pd.DataFrame
    shifts: pd.DataFrame
    p_first: Mapping[str, Mapping[str, float | None]]
    """P(first) by kind of resampling and method; None if nothing can vary."""
    varying: Sequence[str]
    notes: Sequence[str]
    n_models: int
    by: View

    def to_dict(self) -> dict[str, Any]:
        tables = {"methods": table_rows(self.methods), "shifts": table_rows(self.shifts)}
        return {**tables, "p_first": dict(self.p_first), "notes": list(self.notes)}


def _ranking(
    table: ul.meta.ModelTable,
    *,
    by: View,
    select_by: View,
    min_utility: float | None,
    resamples: int,
    score: Score,
    references: Runs,
    direction: dict[str, Points],
) -> _Ranking:
    """Rank the models of one base model and split."""
    from uds_lens.meta._columns import BESIDE
    from uds_lens.meta._ranking import score_cautions

    frame, parts = table.frame, references.parts(score, table.frame)
    # The preset ranks models even without depth: an attack replaces it, so both scores are the score without depth.
    depthless = references.preset is not None and (parts.depth not in frame.columns or frame[parts.depth].isna().all())
    if depthless:
        parts, by, select_by = replace(parts, depth=parts.membership[0]), "without", "without"
    require_parts(frame, parts, table.reasons)
    parts = replace(parts, direction={**(parts.direction or {}), **direction} or None)
    given: dict[str, Any] = {"min_utility": min_utility, "parts": parts}
    methods = ul.meta.rank(frame, with_uds=by == "with", select_by=select_by, **given)
    if methods["score"].isna().all():
        why = "; ".join(f"{row['method']}: {row['reason']}" for row in methods.to_dict("records"))
        why = why if len(why) <= 300 else f"{why[:300]}..."
        hint = " A lower --min-utility admits more configurations." if "of the utility" in why else ""
        raise DataError(f"no method has a score ({why}): no configuration has all parts of the score.{hint}")
    notes = score_cautions(frame, parts)
    if depthless:
        notes.insert(0, f"no {score.depth}: ranked without depth. --audits DIR adds the UDS of saved audits")
    p_first: dict[str, dict[str, float | None]] = {}
    varying: tuple[str, ...] = ()
    if resamples > 1 and methods["score_with"].notna().sum() > 1:
        stable = ul.meta.stability(frame, examples=table.examples, select_by=select_by, n_resamples=resamples, **given)
        for (way, view), rows in stable.scores.groupby(["resampled", "view"], sort=False):
            if view == by:
                shares = zip(rows["method"], rows["p_best"], strict=True)
                p_first[str(way)] = {method: None if math.isnan(p) else float(p) for method, p in shares}
        varying = stable.varying
        notes += stable.cautions
    beside = [name for name in BESIDE if name in frame.columns and frame[name].notna().any()]
    methods = methods.join(frame.set_index("model")[beside], on="model")
    shifts = ul.meta.shifts(frame, **given)
    if depthless:
        methods[["depth", "score_with", "rank_with"]] = math.nan
        shifts = shifts.iloc[:0]
    return _Ranking(methods, shifts, p_first, varying, notes, len(frame), by)


def _ranking_by_setup(
    table: ul.meta.ModelTable,
    groups: Sequence[tuple[str | None, str | None]],
    ranked: Callable[[ul.meta.ModelTable], _Ranking],
) -> dict[str, _Ranking]:
    """Rank the models of each base model and split; report those that cannot be ranked."""
    from uds_lens.meta._tables import of_setup, setup_name

    rankings: dict[str, _Ranking] = {}
    problems = []
    for group in groups:
        try:
            ranking = ranked(of_setup(table, group))
        except DataError as problem:
            problems.append(problem)
            echo(f"note: {setup_name(group)} is not ranked: {problem}", err=True)
            continue
        methods = ranking.methods.assign(base=group[0], split=group[1])
        columns = ["base", "split", *ranking.methods.columns]
        rankings[setup_name(group)] = ranking._replace(methods=methods[columns])
    if not rankings:
        raise problems[0]
    return rankings


def _with_methods(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the models that have a method; report the other models, except pool models."""
    frame = frame if "method" in frame.columns else frame.assign(method=None)
    kept = frame[frame["method"].notna()].reset_index(drop=True)
    rest = frame[frame["method"].isna()]
    if "knows" in rest.columns:
        rest = rest[rest["knows"].isna()]
    names = ", ".join(map(str, rest["model"].head(3))) + (", ..." if len(rest) > 3 else "")
    if not len(kept):
        raise DataError(
            f"no model has a method (models: {names or 'none'}). Give the methods with --methods CSV (columns "
            "model and method). Methods are also read from unlearning.json next to a model, from names such as "
            "..._forget10_NPO_lr1e-05_..., and from the column 'method' of a CSV of models."
        )
    if len(rest):
        echo(f"note: left out because they have no method: {names}", err=True)
    return kept


_WIDE = 110
"""Terminal width above which the names of configurations fit into the table."""

_BESIDE = (
    " Output: depth of the unpatched answers; host: share of the answers still lost with blocks of retain in the "
    "model; hidden: output - host. These columns are not part of the score."
)

_RESAMPLED = {"configurations": "each method's configurations", "examples": "the examples"}


def _print(ranking: _Ranking) -> None:
    from uds_lens.meta._columns import BESIDE
    from uds_lens.results._other_cautions import about_other_choice

    beside = {name.removesuffix("_depth"): name for name in BESIDE if name in ranking.methods.columns}
    ways = ranking.varying or tuple(ranking.p_first)[:1]  # if nothing can vary, this is one column of dashes
    first = {"P(first)" if len(ways) == 1 else f"P(first), {way}": f"{way}:2" for way in ways}
    methods = ranking.methods.assign(**{way: ranking.methods["method"].map(ranking.p_first[way]) for way in ways})
    columns: dict[str, Column] = {
        "": lambda row: f"{'=' if row['n_tied_rank'] > 1 else ''}{number(row['rank'], 0)}",
        "method": "method",
        "with depth": partial(_ranked, "with"),
        "without": partial(_ranked, "without"),
        "Mem": "memorization",
        "MIA": "mia",
        "depth": "depth",
        **beside,
        "utility": "utility_rel",
        **first,
        "configuration": _model,
    }
    narrow = width() < _WIDE
    print_frame(methods, {title: what for title, what in columns.items() if not narrow or title != "configuration"})
    if narrow:
        print_wrapped(f"Configurations, in this order: {', '.join(map(_model, methods.to_dict('records')))}.")
    for row in ranking.methods.to_dict("records"):
        if isinstance(row["reason"], str):
            print_wrapped(f"! {row['method']}: {row['reason']}")
    for row in ranking.shifts.to_dict("records"):
        if row["moved"] is True:
            print_wrapped(about_other_choice(row))
    resampled = " or ".join(_RESAMPLED[way] for way in ranking.varying)
    how = f" P(first): share of resamples of {resampled} in which the method is first." if resampled else ""
    note = _BESIDE if beside else ""
    print_wrapped(
        f"\n{ranking.n_models} models, ranked {ranking.by} depth. Score: harmonic mean of memorization, privacy (MIA; "
        "with depth, MIA and UDS) and utility for each method's best configuration, with its rank in "
        f"brackets.{how}{note}"
    )


def _ranked(view: View, row: Mapping[str, Any]) -> str:
    return f"{number(row[f'score_{view}'])} ({number(row[f'rank_{view}'], 0)})"


def _model(row: Mapping[str, Any]) -> str:
    return str(row["model"]) if isinstance(row["model"], str) else "-"


_ORIGIN = ("base", "split", "model", "knows", "method", "config", "lr", "epochs")


def table(
    models: Annotated[
        Path,
        opt.argument(
            "RUNS",
            "Folder of Open-Unlearning runs, uds-lens metrics results or saved audits; CSV with one row per model; or "
            "'published' (the UDS paper's values).",
        ),
    ],
    format_: Annotated[
        Literal["csv", "md", "latex"], typer.Option("--format", help="CSV keeps all digits; md and latex round.")
    ] = "csv",
    out: Annotated[Path | None, opt.file("Write the table to this file instead of printing it.")] = None,
    digits: Annotated[int, opt.value("N", "Decimal places in md and latex.", min=1, max=10)] = 3,
    checkpoints: Annotated[
        bool, opt.flag("--checkpoints", "Also include the checkpoint-* of runs that have final results.")
    ] = False,
    *,
    references: Runs,
    printing: opt.Printing,
) -> None:
    """Write a table with one row per model and all metrics.

    Numbers with an interval are shown with it. Rows are sorted by base model and split; full and retain, if they were
    read, come first. The LaTeX table needs the package booktabs. An empty cell (a dash in md and latex) means that
    there is no value.

    \b
    Examples:
      uds-lens table runs/forget10 --format latex --out table.tex
      uds-lens table saves --audits runs/forget10 --format md
      uds-lens table saves --preset open-unlearning --format md
    """
    import pandas as pd

    from uds_lens.meta._tables import conditions_in
    from uds_lens.results._conditions import marks

    say(f"reading {models} ...")
    read = references.read(models, checkpoints=checkpoints, for_table=True)
    frame = read.frame
    if read.references is not None:
        named = read.references["role" if "role" in read.references.columns else "method"]  # the paper's lack roles
        frame = pd.concat([read.references.assign(method=named), frame], ignore_index=True)
    frame = frame.sort_values([name for name in ("base", "split") if name in frame.columns], kind="stable")
    shown = [name for name in _ORIGIN if name in frame.columns]
    numbers = [str(name) for name in frame.select_dtypes("number").columns if name not in shown]
    scores = sorted((name for name in numbers if not _is_end(name, numbers)), key=lambda name: name != "uds")
    columns = [name for score in scores for name in (score, *_ends(score)) if name in numbers]
    conditions = marks(conditions_in(frame))
    marked = {"conditions": conditions} if conditions else {}
    frame = frame[[*shown, *columns]].assign(**marked).dropna(axis="columns", how="all").reset_index(drop=True)
    text = csv_text(frame) if format_ == "csv" else _rounded(frame, format_, digits)
    if out is None and printing.json:
        print_json({"source": read.source, "models": table_rows(frame), "notes": list(read.notes)})
        return
    if out is None:
        echo(text, nl=False)
        return
    if located(out).resolve() == models.resolve():
        raise ConfigError("--out names the table that is being read: choose another file.")
    atomic_write_marked(check_writable(out, directory=False), text)
    if printing.json:
        print_json({"file": str(out), "models": len(frame), "notes": list(read.notes)})
        return
    echo(f"{len(frame)} models in {out}")


def _ends(name: str) -> tuple[str, str]:
    return f"{name}_low", f"{name}_high"


def _is_end(name: str, names: Sequence[str]) -> bool:
    score = name.removesuffix("_low").removesuffix("_high")
    return score != name and score in names


_BETTER = {"knowledge": "down", "erasure": "up", "utility": "up"}
_OTHERS = {
    "output_depth": ("output depth", "up"),
    "host_depth": ("host depth", "up"),
    "hidden": ("hidden", "down"),
    "damage": ("damage", "down"),
    "utility_rel": ("utility, 1 as full", "up"),
    "n_measured": ("N", ""),
}
_ARROWS = {"md": {"up": " ↑", "down": " ↓", "": ""}, "latex": {"up": r" $\uparrow$", "down": r" $\downarrow$", "": ""}}
_LATEX = r"""\begin{{table}}
\centering
\caption{{Models. Arrows point to what is better after unlearning. Brackets: bootstrap intervals, clustered by subject
where examples share one. UDS: 0 as in full, 1 as in retain. Dash: no value.}}
\begin{{tabular}}{{{kinds}}}
\toprule
{heads} \\
\midrule
{body}\bottomrule
\end{{tabular}}
\end{{table}}
"""


def _rounded(frame: pd.DataFrame, format_: str, digits: int) -> str:
    """Format a table of rounded numbers, with each interval in the same cell as its number and arrows in the header."""
    every = [str(name) for name in frame.columns]
    names = [name for name in every if not _is_end(name, every)]
    quoted = markdown if format_ == "md" else _latex
    heads = []
    for name in names:
        metric = ul.metrics.METRICS.get(name)
        label, way = (metric.label, _BETTER[metric.meaning.direction]) if metric else _OTHERS.get(name, (name, ""))
        heads.append(quoted(label) + _ARROWS[format_][way])
    rows = [[_cell(name, row, digits, quoted) for name in names] for row in frame.to_dict("records")]
    if format_ == "md":
        lines = [heads, [":--" if name in _ORIGIN[:6] else "--:" for name in names], *rows]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)
    kinds = "".join("l" if name in _ORIGIN[:6] else "r" for name in names)
    body = "".join(f"{' & '.join(row)} \\\\\n" for row in rows)
    return _LATEX.format(kinds=kinds, heads=" & ".join(heads), body=body)


def _cell(name: str, row: dict[Any, Any], digits: int, quoted: Callable[[str], str]) -> str:
    value = row[name]
    if value is None or value != value:
        return "-"
    if not isinstance(value, float):
        return quoted(" ".join(str(value).split()))
    if name in ("lr", "epochs"):
        return f"{value:g}"
    low, high = (row.get(end, math.nan) for end in _ends(name))
    interval = "" if low != low else f" [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{value:.{digits}f}{interval}"


_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def _latex(text: str) -> str:
    """Escape text for LaTeX.

    >>> print(_latex("es_90% {x}"))
    es\\_90\\% \\{x\\}
    """
    return "".join(_SPECIAL.get(sign, f"\\{sign}" if sign in "&%$#_{}" else sign) for sign in printable(text))
