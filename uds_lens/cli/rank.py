"""`uds-lens rank`: unlearning methods by their best configuration, with and without the depth score."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from uds_lens.cli.missing_parts import require_parts
from uds_lens.cli.model_tables import (
    Direction,
    MinUtility,
    References,
    Score,
    SelectBy,
    records,
    score_ways,
    shown,
    ways,
)
from uds_lens.cli.output import print_table, print_wrapped, width
from uds_lens.cli.progress_lines import say
from uds_lens.cli.shared_options import Printing
from uds_lens.cli.table_files import require_table_file, write_table_file
from uds_lens.errors import DataError

if TYPE_CHECKING:
    import pandas as pd


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
    depth, UDS is part of privacy. Ties are told, not broken in silence.

    \b
    Examples:
      uds-lens rank saves/eval --audits runs/forget10 \\
          --retain saves/eval/retain90 --full saves/eval/full
      uds-lens rank runs/metrics --methods methods.csv
      uds-lens rank models.csv --min-utility 0.8 --json
    """
    say(f"reading {models} ...")
    from uds_lens import meta
    from uds_lens.meta.score_gaps import score_cautions

    out = None if out is None else require_table_file(out, meta.RANKING)
    table = references.read(models, examples=resamples > 1)
    frame, parts = _methods(table.frame), score.parts()
    require_parts(frame, parts, table.reasons)
    given: dict[str, Any] = {
        "min_utility": min_utility,
        "parts": parts,
        "direction": score_ways(frame, parts, ways(direction)),
    }
    found = meta.rank(frame, with_uds=by == "with", select_by=select_by, **given)
    _require_scores(found)
    notes = score_cautions(frame, parts)
    moved = meta.shifts(frame, **given)
    sure: dict[str, dict[str, float | None]] = {}
    varying: tuple[str, ...] = ()
    if resamples > 1 and found["score_with"].notna().sum() > 1:
        stable = meta.stability(
            frame, examples=table.examples, select_by=select_by, n_resamples=resamples, **given
        )
        first = stable.scores[stable.scores["view"] == by]
        sure = {
            str(kind): {
                m: None if math.isnan(p) else p for m, p in zip(own["method"], own["p_best"], strict=True)
            }
            for kind, own in first.groupby("resampled", sort=False)
        }
        varying = stable.varying
        notes += stable.cautions
    if out is not None:
        write_table_file(found, out)
    if printing.json:
        told = {
            "source": table.source,
            "methods": records(found),
            "shifts": records(moved),
            "p_first": sure,
            "notes": notes,
        }
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False, allow_nan=False))
        return
    _print(found, moved, sure, varying, by, len(frame))
    for note in notes:
        print_wrapped(f"! {note}")
    if out is not None:
        typer.echo(f"\nSaved in {out}")


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


def _print(
    found: pd.DataFrame,
    moved: pd.DataFrame,
    sure: dict[str, dict[str, float | None]],
    varying: tuple[str, ...],
    by: str,
    n: int,
) -> None:
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
    for row in moved[moved["moved"].fillna(False).astype(bool)].to_dict("records"):
        print_wrapped(
            f"Chosen with depth, {row['method']} would be {row['model_with']} (depth {row['depth_change']:+.3f})."
        )
    drawn = " or ".join(_DRAWN[way] for way in varying)
    how = f" P(first): share of resamples in first place, {drawn} drawn anew." if drawn else ""
    print_wrapped(
        f"\n{n} models, ranked {by} depth. Score: harmonic mean of memorization, privacy (MIA, with depth: and UDS) "
        f"and utility, of each method's best configuration; in brackets the place.{how}"
    )
