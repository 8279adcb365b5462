"""`uds-lens meta`: which metrics can be trusted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uds_lens._cli.model_tables import (
    Direction,
    Judged,
    Metric,
    MinUtility,
    Perturbed,
    References,
    chosen,
    judged,
    records,
    require_table_file,
    shown,
    ways,
    write_table_file,
)
from uds_lens._cli.options import Printing
from uds_lens._cli.terminal import print_table, print_wrapped, say
from uds_lens.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.meta import ModelTable, Published


_SETTINGS = ("utility+threshold", "threshold", "utility", "none")


def meta(
    table: Annotated[
        Path,
        typer.Argument(
            metavar="TABLE",
            help="CSV with one row per model: metrics, knows, variant, run; or published: the UDS paper's values.",
            show_default=False,
        ),
    ],
    metric: Metric = None,
    direction: Direction = None,
    min_utility: MinUtility = None,
    one_directional: Annotated[
        bool, typer.Option("--one-directional", help="Q and R punish only knowledge that comes back.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write all tables there, as CSV files.", file_okay=False),
    ] = None,
    *,
    perturbed: Perturbed,
    printing: Printing,
) -> None:
    """Judge metrics: which of them can be trusted?

    Do they tell models that know from models that never did, and do they hold? F, faithfulness, is the area under the
    ROC curve of the two pools (column knows: True, False, empty for neither). Q and R, robustness to quantisation and
    relearning, need the models after each; they count models with 0.8 of full's utility below the metric's own
    threshold, and without these filters too.

    \b
    Examples:
      uds-lens meta models.csv
      uds-lens meta models.csv --quantised q.csv --relearned r.csv \\
          --retain-before retain.csv --retain-relearned again.csv
    """
    say(f"reading {table} ...")
    out = _require_places(out)
    found = References().read(table)
    from uds_lens.meta import Published

    if isinstance(found, Published):
        _published(found, out, printing)
        return
    given = ways(direction)
    names = chosen(found.frame, metric, given)
    if "knows" not in found.frame.columns and not perturbed.given:
        raise DataError(
            "the table lacks the column 'knows' (True: trained on the forget set, False: never saw it, empty: "
            "neither), and no --quantised or --relearned models were named: there is nothing to judge by."
        )
    _require_values(found, names, perturbed.given)
    result = judged(
        found.frame,
        None,
        perturbed,
        given or None,
        min_utility,
        metrics=names,
        symmetric=not one_directional,
        pairs=True,
    )
    _require_judgement(result)
    _write(result, out)
    if printing.json:
        told = {
            "source": found.source,
            **{name: None if each is None else records(each) for name, each in result._asdict().items()},
        }
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False, allow_nan=False))
        return
    if result.faithful is not None:
        _print_faithful(result.faithful, result.pairs)
    if result.robust is not None:
        _print_robust(result.robust, result.ties)
    if out is not None:
        typer.echo(f"\nSaved in {out}")


def _require_values(table: ModelTable, names: Sequence[str], perturbed: bool) -> None:
    """Some metric must have a value of some model that is judged: dashes alone are no judgement."""
    from uds_lens.meta._ranking import reason_of

    frame = table.frame
    if not perturbed:
        frame = frame[frame["knows"].notna()]
    if not len(frame) or not frame[list(names)].isna().all(axis=None):
        return
    which = "models" if perturbed else "models of the pools"
    why = reason_of(names[0], frame, table.reasons)
    shown = ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")
    raise DataError(
        f"none of the {len(frame)} {which} has a value of {shown}{f' ({why})' if why else ''}: there is nothing to "
        "judge. --metric names other columns."
    )


def _require_judgement(result: Judged) -> None:
    """Something must have come of it: a metric that is the same for every model tells none from another."""
    reasons: dict[str, str] = {}
    for row in [] if result.faithful is None else result.faithful.to_dict("records"):
        if row["auc"] == row["auc"] and row["tied_share"] < 1:
            return
        reasons.setdefault(str(row["metric"]), str(row["reason"]))
    for row in [] if result.robust is None else result.robust.to_dict("records"):
        if row["q"] == row["q"] or row["r"] == row["r"]:
            return
        reasons.setdefault(str(row["metric"]), str(row["q_reason"] or row["r_reason"]))
    told = "; ".join(f"{name}: {why}" for name, why in list(reasons.items())[:4])
    more = f" and {len(reasons) - 4} more" if len(reasons) > 4 else ""
    raise DataError(f"nothing can be judged. {told}{more}."[:480])


def _require_places(out: Path | None) -> Path | None:
    """The directory of the tables, before any work is done for them."""
    from uds_lens import meta as judge

    if out is None:
        return None
    kinds = {
        "faithful": (judge.FAITHFULNESS, judge.SUMMARY),
        "cuts": (judge.THRESHOLDS,),
        "pairs": (judge.PAIRS,),
        "robust": (judge.ROBUSTNESS,),
        "points": (judge.POINTS,),
        "ties": (judge.TIED_CUTS,),
    }
    places = [require_table_file(out / f"{name}.csv", *columns) for name, columns in kinds.items()]
    return places[0].parent


def _write(result: Judged, out: Path | None) -> None:
    for name, each in result._asdict().items():
        if out is not None and each is not None:
            write_table_file(each, out / f"{name}.csv")


def _print_faithful(faithful: pd.DataFrame, pairs: pd.DataFrame | None) -> None:
    ordered = faithful.sort_values("auc", ascending=False, na_position="last")
    rows = [
        [
            str(row["metric"]),
            shown(row["auc"]),
            _ends(row["low"], row["high"]),
            _ends(row["cluster_low"], row["cluster_high"]),
            _ends(row["variants_low"], row["variants_high"]),
            _ends(row["new_variants_low"], row["new_variants_high"]),
            f"{row['n_p']:.0f}, {row['n_n']:.0f}",
            f"{100 * row['tied_share']:.0f} %" if row["tied_share"] == row["tied_share"] else "-",
        ]
        for row in ordered.to_dict("records")
    ]
    print_table(
        ["metric", "F", "95 %", "runs as clusters", "one variant out", "new variants", "P, N", "ties"], rows
    )
    _reasons(ordered, ("reason",))
    clusters = ordered["cluster_reason"].dropna().unique()
    if len(clusters):
        print_wrapped(f"! no clusters: {clusters[0]}")
    if pairs is not None and pairs["p_holm"].notna().any():
        decided = pairs[pairs["p_holm"] < 0.05]
        told = ", ".join(f"{one} over {other}" for one, other in map(_order, decided.to_dict("records")))
        print_wrapped(
            f"{len(decided)} of {int(pairs['p_holm'].notna().sum())} differences are decided (Holm-adjusted p < 0.05)"
            + (f": {told}." if 0 < len(decided) <= 12 else ".")
        )
    print_wrapped(
        "\nF: chance that a model that knows ranks above one that does not; 0.5 is none. Its intervals hold for these "
        "variants only, but for the last one, which is for new variants."
    )


def _order(row: dict[str, object]) -> tuple[object, object]:
    up = float(str(row["difference"])) > 0
    return (row["one"], row["other"]) if up else (row["other"], row["one"])


def _print_robust(robust: pd.DataFrame, ties: pd.DataFrame | None) -> None:
    own = robust[robust["models"] == "own"]
    setting = next(name for name in _SETTINGS if name in set(own["filter"]))
    main = own[own["filter"] == setting].set_index("metric")
    free = own[own["filter"] == "none"].set_index("metric")["rob"]
    rows = [
        [
            str(name),
            shown(row["q"]),
            _ends(row["q_low"], row["q_high"]),
            shown(row["r"]),
            _ends(row["r_low"], row["r_high"]),
            _ends(row["r_shift_low"], row["r_shift_high"]),
            shown(row["rob"]),
            f"{row['p_first']:.0%}" if row["p_first"] == row["p_first"] else "-",
            shown(row["n"], 0),
            shown(free.get(name)),
        ]
        for name, row in main.sort_values("rob", ascending=False, na_position="last").iterrows()
    ]
    typer.echo("")
    print_table(
        ["metric", "Q", "95 %", "R", "95 %", "R over shift", "Rob", "first", "models", "Rob, all models"],
        rows,
    )
    _reasons(main.reset_index(), ("q_reason", "r_reason", "interval_reason", "caution"))
    for row in [] if ties is None else ties[ties["filter"] == setting].to_dict("records"):
        if not row["chosen"]:
            place = (
                f", number {row['rank_overall']:.0f} by Overall" if row["overall"] == row["overall"] else ""
            )
            print_wrapped(
                f"! {row['metric']}: with the equally good cut at {row['threshold']:.3g} {row['n']:.0f} models, Q "
                f"{shown(row['q'])}, R {shown(row['r'])}{place}; {row['first']} would be first"
            )
    clusters = main["clusters"].iloc[0]
    drawn = {
        "method": "whole methods as clusters, so for other methods",
        "run": "whole runs as clusters",
        "model": "models as if independent: the table has no column 'method' or 'run'",
    }.get(clusters, f"the column {clusters!r} as clusters")
    print_wrapped(
        f"\nQ, R, Rob: models that pass {setting.replace('+', ' and ')}; last column without filters. Their intervals: "
        f"{drawn}. first: share of resamples in which the metric has the highest Overall."
    )


def _published(found: Published, out: Path | None, printing: Printing) -> None:
    """The UDS paper's own judgement: F, Q, R as in its files, the rest computed."""
    from uds_lens import meta as judge

    table = judge.summary(found.metrics)
    if out is not None:
        _write(Judged(table, None, None, None, None), out)
    if printing.json:
        told = {"source": found.source, "summary": records(table)}
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False, allow_nan=False))
        return
    rows = [
        [
            str(row["metric"]),
            *(shown(row[name]) for name in ("overall", "auc", "rob", "q", "r")),
            shown(row["n"], 0),
        ]
        for row in table.sort_values("overall", ascending=False).to_dict("records")
    ]
    print_table(["metric", "Overall", "F", "Rob", "Q", "R", "models"], rows)
    print_wrapped(
        "\nF, Q and R as in the UDS paper's files, which hold no pool and no perturbed values: they cannot be computed "
        "again."
    )
    unprinted = table.loc[table["n"].isna(), "metric"]
    if len(unprinted):
        print_wrapped(
            f"models -: the paper prints no number of models for {' and '.join(unprinted)}, "
            "only for fisher_masked_0.001."
        )


def _ends(low: float, high: float) -> str:
    return "-" if low != low else f"{low:.3f} - {high:.3f}"


def _reasons(frame: pd.DataFrame, columns: tuple[str, ...]) -> None:
    for row in frame.to_dict("records"):
        for column in columns:
            if isinstance(row[column], str):
                print_wrapped(f"! {row['metric']}: {row[column]}")
