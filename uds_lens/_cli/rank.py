"""`uds-lens rank`: unlearning methods by their best configuration, with and without the depth score."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from uds_lens._cli.model_tables import (
    Direction,
    MinUtility,
    References,
    Score,
    SelectBy,
    records,
    require_parts,
    require_table_file,
    score_ways,
    shown,
    ways,
    write_table_file,
)
from uds_lens._cli.options import Printing
from uds_lens._cli.terminal import print_table, print_wrapped, say, width
from uds_lens.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.meta import ModelTable, Points, ScoreParts


def rank(
    models: Annotated[
        Path,
        typer.Argument(
            metavar="RUNS",
            help="Folder of Open-Unlearning runs, or of results of uds-lens metrics; CSV with one row per model; or "
            "published: the UDS paper's values.",
            show_default=False,
        ),
    ],
    by: Annotated[
        Literal["with", "without"], typer.Option(help="Rank by the score with or without depth.")
    ] = "with",
    select_by: SelectBy = "without",
    min_utility: MinUtility = None,
    resamples: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Resamples for how sure the places are; 0 leaves that out."),
    ] = 1000,
    out: Annotated[
        Path | None, typer.Option(metavar="CSV", help="Also write the ranking as a table.", dir_okay=False)
    ] = None,
    direction: Direction = None,
    *,
    score: Score,
    references: References,
    printing: Printing,
) -> None:
    """Rank unlearning methods by their best models.

    By what these forget, leak and keep: the score is the harmonic mean of memorization, privacy and utility; with
    depth, UDS is part of privacy. Ties are reported, not broken silently. Models of several base models or splits are
    ranked apart.

    \b
    Examples:
      uds-lens rank saves/eval --audits runs/forget10 \\
          --retain saves/eval/retain90 --full saves/eval/full
      uds-lens rank saves --retain saves/eval --full saves/eval --split forget10
      uds-lens rank runs/metrics --methods methods.csv
      uds-lens rank models.csv --min-utility 0.8 --json
    """
    say(f"reading {models} ...")
    import pandas as pd

    from uds_lens import meta
    from uds_lens.meta._tables import setups

    out = None if out is None else require_table_file(out, meta.RANKING, _SETUP_RANKING)
    table = references.read(models, examples=resamples > 1)
    table = replace(table, frame=_methods(table.frame))
    ask = _Ask(by, select_by, min_utility, score.parts(), ways(direction), resamples)
    groups = setups(table.frame)
    told = {"": _ranked(table, ask)} if len(groups) == 1 else _each_ranked(table, groups, ask)
    if out is not None:
        write_table_file(pd.concat([each.methods for each in told.values()], ignore_index=True), out)
    if printing.json:
        several = {"setups": [{"setup": name, **each.told()} for name, each in told.items()]}
        found = told[""].told() if "" in told else several
        typer.echo(
            json.dumps({"source": table.source, **found}, indent=2, ensure_ascii=False, allow_nan=False)
        )
        return
    for name, each in told.items():
        if name:
            typer.echo(f"\n{name}")
        _print(each, by)
        for note in each.notes:
            print_wrapped(f"! {note}")
    if out is not None:
        typer.echo(f"\nSaved in {out}")


class _Ask(NamedTuple):
    """What is asked of every ranking of a call."""

    by: Literal["with", "without"]
    select_by: Literal["with", "without"]
    min_utility: float | None
    parts: ScoreParts
    direction: dict[str, Points]
    resamples: int


class _Ranked(NamedTuple):
    """A ranking, with how sure it is."""

    methods: pd.DataFrame
    shifts: pd.DataFrame
    first: Mapping[str, Mapping[str, float | None]]
    """P(first) by way of resampling and method; None where nothing can vary."""
    varying: Sequence[str]
    notes: Sequence[str]
    n_models: int

    def told(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "methods": records(self.methods),
            "shifts": records(self.shifts),
            "p_first": dict(self.first),
            "notes": list(self.notes),
        }


_SETUP_RANKING = ("base", "split", "method", "rank")
"""How a table of several rankings begins."""


def _ranked(table: ModelTable, ask: _Ask) -> _Ranked:
    """The ranking of the models of one base model and split."""
    from uds_lens import meta
    from uds_lens.meta._ranking import score_cautions

    frame = table.frame
    require_parts(frame, ask.parts, table.reasons)
    parts = replace(ask.parts, direction=score_ways(frame, ask.parts, ask.direction))
    given: dict[str, Any] = {"min_utility": ask.min_utility, "parts": parts}
    found = meta.rank(frame, with_uds=ask.by == "with", select_by=ask.select_by, **given)
    _require_scores(found)
    notes = score_cautions(frame, ask.parts)
    sure: dict[str, dict[str, float | None]] = {}
    varying: tuple[str, ...] = ()
    if ask.resamples > 1 and found["score_with"].notna().sum() > 1:
        stable = meta.stability(
            frame, examples=table.examples, select_by=ask.select_by, n_resamples=ask.resamples, **given
        )
        for (kind, view), own in stable.scores.groupby(["resampled", "view"], sort=False):
            if view == ask.by:
                shares = zip(own["method"], own["p_best"], strict=True)
                sure[str(kind)] = {method: None if math.isnan(p) else float(p) for method, p in shares}
        varying = stable.varying
        notes += stable.cautions
    return _Ranked(found, meta.shifts(frame, **given), sure, varying, notes, len(frame))


def _each_ranked(
    table: ModelTable, groups: Sequence[tuple[str | None, str | None]], ask: _Ask
) -> dict[str, _Ranked]:
    """One ranking for each base model and split; those that cannot be ranked are said."""
    from uds_lens.meta._tables import of_setup, setup_name

    found: dict[str, _Ranked] = {}
    problems = []
    for group in groups:
        try:
            each = _ranked(of_setup(table, group), ask)
        except DataError as problem:
            problems.append(problem)
            typer.echo(f"note: {setup_name(group)} is not ranked: {problem}", err=True)
        else:
            methods = each.methods.assign(base=group[0], split=group[1])
            columns = ["base", "split", *each.methods.columns]
            found[setup_name(group)] = each._replace(methods=methods[columns])
    if not found:
        raise problems[0]
    return found


def _methods(frame: pd.DataFrame) -> pd.DataFrame:
    """The unlearned models: pool models stay out, and so do others without a method, which is told."""
    frame = frame if "method" in frame.columns else frame.assign(method=None)
    kept = frame[frame["method"].notna()].reset_index(drop=True)
    rest = frame[frame["method"].isna()]
    if "knows" in rest.columns:
        rest = rest[rest["knows"].isna()]
    names = ", ".join(map(str, rest["model"].head(3))) + (", ..." if len(rest) > 3 else "")
    if not len(kept):
        raise DataError(
            f"no model has a method; there are {names or 'no models'}. --methods CSV says which made each: columns "
            "model and method. It is also read from unlearning.json beside a model, and from names as in "
            "..._forget10_NPO_lr1e-05_...; a CSV of models has a column 'method'."
        )
    if len(rest):
        typer.echo(f"note: without a method, and left out: {names}", err=True)
    return kept


def _require_scores(found: pd.DataFrame) -> None:
    """Dashes are no ranking: some method must have a score."""
    if not found["score"].isna().all():
        return
    told = "; ".join(f"{row['method']}: {row['reason']}" for row in found.to_dict("records"))
    told = told if len(told) <= 300 else f"{told[:300]}..."
    lower = " A lower --min-utility lets more configurations count." if "of the utility" in told else ""
    raise DataError(f"no method has a score ({told}): no configuration has all parts.{lower}")


_WIDE = 110
"""Columns of a terminal in which names of configurations stand in the table."""


_DRAWN = {"configurations": "each method's configurations", "examples": "the examples"}
"""What is drawn anew in each way of resampling."""


def _print(ranked: _Ranked, by: str) -> None:
    found, sure, varying = ranked.methods, ranked.first, ranked.varying
    titles = ["", "method", "with depth", "without", "Mem", "MIA", "depth", "utility"]
    # One column per way of resampling that can change anything; where none can, one of dashes.
    ways = varying or tuple(sure)[:1]
    rows = []
    for row in found.to_dict("records"):
        tie = "=" if row["n_tied_rank"] > 1 else ""
        rows.append(
            [
                f"{tie}{shown(row['rank'], 0)}",
                str(row["method"]),
                *(
                    f"{shown(row[f'score_{view}'])} ({shown(row[f'rank_{view}'], 0)})"
                    for view in ("with", "without")
                ),
                *(shown(row[name]) for name in ("memorization", "mia", "depth", "utility_rel")),
                *(shown(sure[way].get(row["method"]), 2) for way in ways),
                "-" if row["model"] is None or row["model"] != row["model"] else str(row["model"]),
            ]
        )
    titles += ["P(first)"] if len(ways) == 1 else [f"P(first), {way}" for way in ways]
    if width() < _WIDE:
        print_table(titles, [row[:-1] for row in rows])
        print_wrapped(f"Configurations, in this order: {', '.join(row[-1] for row in rows)}.")
    else:
        print_table([*titles, "configuration"], rows)
    for row in found.to_dict("records"):
        if isinstance(row["reason"], str):
            print_wrapped(f"! {row['method']}: {row['reason']}")
    moved = ranked.shifts
    for row in moved[moved["moved"].fillna(False).astype(bool)].to_dict("records"):
        print_wrapped(
            f"Chosen with depth, {row['method']} would be {row['model_with']} (depth {row['depth_change']:+.3f})."
        )
    drawn = " or ".join(_DRAWN[way] for way in varying)
    how = f" P(first): share of resamples in first place, {drawn} drawn anew." if drawn else ""
    print_wrapped(
        f"\n{ranked.n_models} models, ranked {by} depth. Score: harmonic mean of memorization, privacy (MIA, with "
        f"depth: and UDS) and utility, of each method's best configuration; in brackets the place.{how}"
    )
