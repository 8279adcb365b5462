"""`uds-lens meta`: judge which metrics can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import uds_lens as ul
from uds_lens._cli import options as opt
from uds_lens._cli.model_tables import (
    Direction,
    Judged,
    Metric,
    MinUtility,
    Perturbed,
    Runs,
    Score,
    judged,
    known_directions,
    parse_directions,
    write_table_file,
)
from uds_lens._cli.terminal import Column, echo, number, print_frame, print_json, print_wrapped, say, table_rows
from uds_lens._storage.files import check_writable, located
from uds_lens.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.meta._direction import Points


def meta(
    table: Annotated[
        Path,
        opt.argument(
            "TABLE",
            "CSV with one row per model (metrics, knows, variant, run), folder of Open-Unlearning runs, or 'published' "
            "(the UDS paper's values).",
        ),
    ],
    metric: Metric = None,
    direction: Direction = None,
    min_utility: MinUtility = None,
    one_directional: Annotated[
        bool, opt.flag("--one-directional", "Make Q and R penalise only knowledge that comes back.")
    ] = False,
    out: Annotated[Path | None, opt.folder("Also write all tables to this directory, as CSV files.")] = None,
    *,
    references: Runs,
    perturbed: Annotated[Perturbed, opt.Offer(first=("quantised", "relearned"))],
    printing: opt.Printing,
) -> None:
    """Which metrics can be trusted? Judge them on models whose history is known.

    Do metrics separate models that know the forget set from models that never saw it, and are they robust? F
    (faithfulness) is the area under the ROC curve for the two pools (column knows: True, False, empty for neither). Q
    and R (robustness to quantisation and relearning) need the same models after quantisation and after relearning. Q
    and R include only models that keep at least 0.8 of full's utility and that the metric calls unlearned; values
    without these filters are also printed.

    In a folder of Open-Unlearning runs, the pools are the models pos_tofu_... and neg_tofu_...; metrics are judged
    separately for each base model and split.

    \b
    Examples:
      uds-lens meta models.csv
      uds-lens meta saves --preset open-unlearning
      uds-lens meta models.csv --quantised q.csv --relearned r.csv \\
          --retain-before retain.csv --retain-relearned again.csv
    """
    say(f"reading {table} ...")
    if out is not None:  # checked before any work is done
        out = located(out)
        for name in Judged._fields:
            check_writable(out / f"{name}.csv", directory=False)
    models = references.read(table)

    if isinstance(models, ul.meta.Published):
        _published(models, out, as_json=printing.json)
        return
    directions = parse_directions(direction)
    if "knows" not in models.frame.columns and not perturbed.given:
        raise DataError(
            "the table lacks the column 'knows' (True: trained on the forget set, False: never saw it, empty: "
            "neither), and no --quantised or --relearned models were given: there is nothing to judge metrics on."
        )
    if models.references is not None and not perturbed.given:
        ways = {**(references.parts(Score(), models.frame).direction or {}), **directions}
        _runs(models, metric, ways, out, as_json=printing.json)
        return
    names = list(known_directions(models.frame, metric, directions))
    result = judged(
        models.frame,
        perturbed,
        min_utility=min_utility,
        pairs=True,
        symmetric=not one_directional,
        metrics=names,
        direction=directions or None,
    )
    _require_judgement(result)
    _write(result, out)
    if printing.json:
        tables = {name: None if frame is None else table_rows(frame) for name, frame in result._asdict().items()}
        print_json({"source": models.source, **tables})
        return
    if result.faithful is not None:
        _print_faithful(result.faithful, result.pairs)
    if result.robust is not None:
        _print_robust(result.robust)
    if out is not None:
        echo(f"\nSaved in {out}")


def _runs(
    models: ul.meta.ModelTable,
    metric: Sequence[str] | None,
    direction: dict[str, Points],
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    """Judge metrics on the pool models among Open-Unlearning runs, separately for each base model and split."""
    import pandas as pd

    from uds_lens.meta._tables import of_setup, setup_name, setups

    parts: dict[str, Judged] = {}
    for group in setups(models.frame):
        pools = of_setup(models, group).frame
        pools = pools[pools["knows"].notna()].dropna(axis="columns", how="all").reset_index(drop=True)
        ways = {name: way for name, way in direction.items() if name in pools.columns}
        if not len(pools):
            continue
        try:
            names = list(known_directions(pools, metric, ways))
            judgement = judged(pools, Perturbed(), min_utility=None, pairs=True, metrics=names, direction=ways or None)
        except DataError as problem:
            echo(f"note: {setup_name(group)} is not judged: {problem}", err=True)
            continue
        parts[setup_name(group)] = judgement
    if not parts:
        raise DataError("no base model and split has pools of models on which metrics can be judged.")
    for name in ("faithful", "cuts", "pairs"):
        tables = {setup: table for setup, part in parts.items() if (table := getattr(part, name)) is not None}
        if tables and out is not None:
            whole = pd.concat([table.assign(setup=setup) for setup, table in tables.items()], ignore_index=True)
            write_table_file(whole, out / f"{name}.csv")
    if as_json:
        setups_json = [
            {"setup": name, **{k: None if v is None else table_rows(v) for k, v in judgement._asdict().items()}}
            for name, judgement in parts.items()
        ]
        print_json({"source": models.source, "setups": setups_json})
        return
    for name, judgement in parts.items():
        echo(f"\n{name}")
        assert judgement.faithful is not None
        _print_faithful(judgement.faithful, judgement.pairs)
    if out is not None:
        echo(f"\nSaved in {out}")


def _require_judgement(result: Judged) -> None:
    """Raise `DataError` if nothing could be judged: a metric with a single value separates no models."""
    reasons: dict[str, str] = {}
    faithful, robust = ([] if table is None else table.to_dict("records") for table in (result.faithful, result.robust))
    for row in faithful:
        if row["auc"] == row["auc"] and row["tied_share"] < 1:
            return
        reasons.setdefault(str(row["metric"]), str(row["reason"]))
    for row in robust:
        if row["q"] == row["q"] or row["r"] == row["r"]:
            return
        reasons.setdefault(str(row["metric"]), str(row["q_reason"] or row["r_reason"]))
    some = "; ".join(f"{name}: {why}" for name, why in list(reasons.items())[:4])
    more = f" and {len(reasons) - 4} more" if len(reasons) > 4 else ""
    raise DataError(f"nothing can be judged. {some}{more}."[:480])


def _write(result: Judged, out: Path | None) -> None:
    for name, frame in result._asdict().items():
        if out is not None and frame is not None:
            write_table_file(frame, out / f"{name}.csv")


def _print_faithful(faithful: pd.DataFrame, pairs: pd.DataFrame | None) -> None:
    from uds_lens.results._other_cautions import significant_differences

    ordered = faithful.sort_values("auc", ascending=False, na_position="last")
    columns: dict[str, Column] = {
        "metric": "metric",
        "F": "auc",
        "95%": ("low", "high"),
        "runs as clusters": ("cluster_low", "cluster_high"),
        "one variant out": ("variants_low", "variants_high"),
        "new variants": ("new_variants_low", "new_variants_high"),
        "P, N": lambda row: f"{row['n_p']:.0f}, {row['n_n']:.0f}",
        "ties": lambda row: _percent(row["tied_share"]),
    }
    print_frame(ordered, columns)
    _print_reasons(ordered, "reason")
    for reason in ordered["cluster_reason"].dropna().unique()[:1]:
        print_wrapped(f"! no clusters: {reason}")
    if pairs is not None and pairs["p_holm"].notna().any():
        print_wrapped(significant_differences(pairs))
    print_wrapped(
        "\nF: probability that a model that knows ranks above a model that does not; 0.5 is chance. The last interval "
        "covers new variants; the other intervals hold for these variants only."
    )


def _print_robust(robust: pd.DataFrame) -> None:
    each_alone = robust[robust["models"] == "own"]
    filters = ("utility+threshold", "threshold", "utility", "none")
    chosen = next(name for name in filters if name in set(each_alone["filter"]))
    main = each_alone[each_alone["filter"] == chosen].set_index("metric")
    free = each_alone[each_alone["filter"] == "none"].set_index("metric")["rob"]
    columns: dict[str, Column] = {
        "metric": "metric",
        "Q": "q",
        "Q, 95%": ("q_low", "q_high"),
        "R": "r",
        "R, 95%": ("r_low", "r_high"),
        "R over shift": ("r_shift_low", "r_shift_high"),
        "Rob": "rob",
        "models": "n:0",
        "Rob, all models": lambda row: number(free.get(row["metric"])),
    }
    echo("")
    print_frame(main.reset_index().sort_values("rob", ascending=False, na_position="last"), columns)
    _print_reasons(main.reset_index(), "q_reason", "r_reason", "interval_reason", "caution")
    clusters = main["clusters"].iloc[0]
    drawn = {
        "method": "clustered by method, so they extend to other methods",
        "run": "clustered by run",
        "model": "models treated as independent, because the table has no column 'method' or 'run'",
    }.get(clusters, f"the column {clusters!r} as clusters")
    print_wrapped(
        f"\nQ, R, Rob: averaged over the models that pass the filters ({chosen.replace('+', ' and ')}); the last "
        "column uses no "
        f"filters. Intervals: {drawn}."
    )


def _published(values: ul.meta.Published, out: Path | None, *, as_json: bool) -> None:
    """Print the UDS paper's own results: F, Q and R are read from its files, other columns are computed here."""
    table = ul.meta.summary(values.metrics)
    _write(Judged(table), out)
    if as_json:
        print_json({"source": values.source, "summary": table_rows(table)})
        return
    columns: dict[str, Column] = {
        "metric": "metric",
        "Overall": "overall",
        "F": "auc",
        "Rob": "rob",
        "Q": "q",
        "R": "r",
        "models": "n:0",
    }
    print_frame(table.sort_values("overall", ascending=False), columns)
    print_wrapped(
        "\nF: faithfulness, the probability that a model that knows ranks above a model that does not. Q, R: "
        "robustness to quantisation (1 = unaffected) and to relearning (1 = same change as in retain); Rob: harmonic "
        "mean of Q and R; Overall: harmonic mean of F and Rob. F, Q and R are quoted from the UDS paper's files, which "
        "do not contain the underlying values."
    )
    printed = {**values.metrics.set_index("metric")["rob_printed"], "fisher_masked_0.0001": 0.713}  # of Table 9
    other = [
        f"{row['metric']} {row['rob']:.4f}, printed {printed[row['metric']]:.3f}"
        for row in table.to_dict("records")
        if number(printed[row["metric"]]) not in ("-", number(row["rob"]))
    ]
    print_wrapped(
        "Rob is computed here from Q and R with four decimals. The paper prints different values for "
        f"{'; '.join(other)}, which were rounded twice or truncated."
    )


def _percent(share: float) -> str:
    return "-" if share != share else f"{100 * share:.0f} %"


def _print_reasons(frame: pd.DataFrame, *columns: str) -> None:
    for row in frame.to_dict("records"):
        for column in columns:
            if isinstance(row[column], str):
                print_wrapped(f"! {row['metric']}: {row[column]}")
