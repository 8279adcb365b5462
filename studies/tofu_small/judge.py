"""Judge the study: every table, every claim's verdict, figures and a page.

    python studies/tofu_small/judge.py --out runs/judged
    python studies/tofu_small/judge.py runs/tofu_small --second runs/stratified --out studies/tofu_small/results

The first line judges what is kept in `results`: a table of each of the two studies, and their values per example. The
second judges sweeps that were made again: of `plan.toml`, and of `plan_stratified.toml`, which asks a sample of all
authors; it keeps their values. The page has both side by side.

It refuses a sweep that is not complete: a look at half of it would be a choice. `--cut` names what was left out of the
plan, in the order of `claims.md`, and is printed with the results. `trust.csv` is what the library says of metrics that
were in the study: it goes to `uds_lens/metrics`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Literal, TypeAlias

import pandas as pd
from verdicts import FILTERS, OUTCOMES, Judged, Verdict, interval_of_f, predictors, verdicts

import uds_lens as ul

HERE = Path(__file__).parent
RESULTS = HERE / "results"
STUDIES = {"first": "plan.toml", "all_authors": "plan_stratified.toml"}
"""The two studies, by the name under which `results` keeps them."""

Rule: TypeAlias = Literal["without", "with"]
"""Which score chooses the configuration of a method."""

SMALL = {"compression": "zstd", "compression_level": 19, "use_dictionary": False}  # how tables are written

FEW = {
    "metric": "metric",
    "auc": "F",
    "cluster_low": "low",
    "cluster_high": "high",
    "variants_low": "one kind left out, low",
    "variants_high": "one kind left out, high",
    "new_variants_low": "new kinds, low",
    "new_variants_high": "new kinds, high",
    "q": "Q",
    "r": "R",
    "rob": "Rob",
    "overall": "Overall",
    "n": "n",
    "threshold": "threshold",
    "tied_share": "ties",
    "share_at_0": "at 0",
    "share_at_1": "at 1",
}


NOTES = """\
**For which models the intervals hold.** `low` and `high` of F are for more runs of the same six kinds of models only.
Beside them stand the range of F with one kind left out, and an interval for new kinds, with kinds as clusters: three
on each side, so it is wide. Those of Q and R take whole methods as clusters and are for other methods; `q_runs_low`
and its like take runs, for more runs of these methods, and are the ones that the verdicts use. With fewer than five
clusters there is none.

**What was decided after the results were seen.** The intervals for new kinds; those of Q and R (single models had
been drawn, which makes them too narrow); to judge claims e and f as `claims.md` has them before judging them under
both filters; and the second rule of the library, which warns of a metric whose F in its worst pair of kinds (last
table) is at or below 0.5. It was made for an interval that reaches 0.5, which 19 of the 20 metrics have with five runs
a side, and narrowed later.

**What the history shows of the order of things.** Claims, plan and verdicts were committed before any measurement
was. The first rule of the library (an F below 0.75 or not surely above chance) was committed when 16 measurements, 6
of them of pool models, were in the history; all 376 followed half an hour later, with the judgement. That no F was
computed before is our word; the history cannot show it."""
"""Printed above the verdicts."""

FIRST_ROWS = (
    "Only the first rows of each set, at most 100 (forget: of 400, 5 of 20 subjects). Rows with entities are the first "
    "of their own file (6 of 20 subjects), not those of the same questions. The data are sorted by subject: the first "
    "rows do not represent the rest."
)
"""What `uds-lens sweep --status` says of the sample of plan.toml."""


def judged(
    frames: ul.study.StudyFrames, examples: pd.DataFrame | None, metrics: tuple[str, ...], *, resamples: int
) -> tuple[Judged, dict[str, pd.DataFrame]]:
    """What the verdicts look at, and the tables behind it."""
    rules: tuple[Rule, ...] = ("without", "with")
    faithful = ul.meta.faithfulness(frames.pools, metrics=metrics, n_resamples=resamples)
    cuts = ul.meta.thresholds(frames.pools, metrics=metrics, models=frames.before)
    states = frames.tables(thresholds=cuts, faithful=faithful)
    robust = ul.meta.robustness_by_filter(states, metrics=metrics)
    own = robust[robust["models"] == "own"]
    overall = {name: ul.meta.summary(faithful, own[own["filter"] == name]) for name in FILTERS}
    ranked = {rule: ul.meta.rank(frames.before, select_by=rule) for rule in rules}
    stable = {
        rule: ul.meta.stability(frames.before, examples=examples, select_by=rule, n_resamples=resamples)
        for rule in rules
    }
    drawn = "examples" if examples is not None else "configurations"
    by_row: dict[str, float] = {}
    if examples is not None:
        rows = examples.drop(columns="subject")
        for rule in rules:
            single = ul.meta.stability(frames.before, examples=rows, select_by=rule, n_resamples=resamples)
            by_row[rule] = single.reordered[drawn]
    found = Judged(
        frames=frames,
        faithful=faithful.set_index("metric"),
        robust=robust,
        overall={name: table.set_index("metric") for name, table in overall.items()},
        metrics=metrics,
        thresholds=dict(
            cuts[cuts["chosen"].fillna(False).astype(bool)][["metric", "threshold"]].itertuples(index=False)
        ),
        reordered={rule: each.reordered[drawn] for rule, each in stable.items()},
        changed={rule: bool((table["rank_with"] != table["rank_without"]).any()) for rule, table in ranked.items()},
        reordered_rows=by_row,
    )
    tables = {"faithfulness": faithful, "thresholds": cuts, "robustness": robust}
    tables |= {f"summary, {name}": table for name, table in overall.items()}
    tables |= {f"methods, chosen {rule} depth": table for rule, table in ranked.items()}
    tables["variants"] = ul.meta.variant_table(frames.pools, metrics=metrics)
    tables["pairs"] = ul.meta.compare_all(frames.pools, metrics=metrics, against="uds", n_resamples=resamples)
    tables["overall"] = _by_overall(faithful, own)
    tables |= {f"predictors of {each}": predictors(found, each).reset_index(names="metric") for each in OUTCOMES}
    tables["places"] = pd.concat(each.ranks.assign(chosen=rule) for rule, each in stable.items())
    return found, tables


def _by_overall(faithful: pd.DataFrame, own: pd.DataFrame) -> pd.DataFrame:
    """Overall of each metric, one column for each filter."""
    found = {
        name: ul.meta.summary(faithful, own[own["filter"] == name]).set_index("metric")["overall"]
        for name in dict.fromkeys(own["filter"])
    }
    return pd.DataFrame(found).sort_values("none", ascending=False).reset_index()


def trust_table(found: Judged, variants: pd.DataFrame) -> pd.DataFrame:
    """What the library says of each metric: `uds_lens/metrics/trust.csv`."""
    table = metric_table(found, "utility")
    names = {
        "one kind left out, low": "variants_low",
        "one kind left out, high": "variants_high",
        "new kinds, low": "new_low",
        "new kinds, high": "new_high",
    }
    kept = table[["metric", "F", "low", "high", "Q", "R", *names]].rename(columns=names)
    worst = variants.loc[variants.groupby("metric")["auc"].idxmin()]
    worst = worst.assign(worst_pair=worst["variant_p"] + " against " + worst["variant_n"])
    worst = worst.rename(columns={"auc": "worst", "low": "worst_low", "high": "worst_high"})
    return kept.merge(worst[["metric", "worst", "worst_low", "worst_high", "worst_pair"]], on="metric").round(4)


def metric_table(found: Judged, setting: str) -> pd.DataFrame:
    """One row per metric: F with the interval of runs, Q, R, Rob, Overall, n, threshold, ties, saturation."""
    judged_alone = found.faithful.columns.difference(found.overall[setting].columns)
    table = found.overall[setting].join(found.faithful[judged_alone])
    table["threshold"] = pd.Series(found.thresholds)
    for name in table.index:  # Wilson's where all resamples are alike
        table.loc[name, ["cluster_low", "cluster_high"]] = interval_of_f(found, name)
    table = table.sort_values("auc", ascending=False).reset_index()
    return table[list(FEW)].rename(columns=FEW)


def measured(name: str, folder: Path | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the table of a study and the values of its examples: of a finished sweep, or as they are kept here."""
    if folder is None:
        values = pd.read_parquet(RESULTS / "values.parquet")
        values = values[values["study"] == name].drop(columns="study").reset_index(drop=True)
        return pd.read_parquet(RESULTS / f"table_{name}.parquet"), values
    try:
        state = ul.study.status(folder)
    except ul.errors.ResultFormatError as error:
        raise SystemExit(f"error: {error}") from error
    if not state.is_complete:
        raise SystemExit(f"the study is not complete ({state}): a verdict on a part of it would be a choice.")
    return ul.study.table(folder), ul.study.examples_table(folder)


def judged_study(
    name: str, folder: Path | None, *, resamples: int
) -> tuple[Judged, dict[str, pd.DataFrame], pd.DataFrame, pd.DataFrame]:
    """Return what the verdicts on a study look at, the tables behind it, its long table and its examples' values."""
    plan = ul.study.plan(HERE / STUDIES[name])
    long, values = measured(name, folder)
    frames = ul.study.frames(long, plan=plan)
    metrics = tuple(each for each in plan.measure.metrics if each in frames.pools)
    found, tables = judged(frames, values, metrics, resamples=resamples)
    return found, tables, long, values


def side_by_side(first: Judged, ruled: list[Verdict], second: Judged) -> list[str]:
    """The two studies as Markdown: each claim's verdict, and each metric over useful models."""
    out = ["", "## The same models, asked about all 20 authors", ""]
    again = {each.claim: each for each in verdicts(second)}
    out += [
        "The claims are those of `claims.md`; this table was planned after the first study had been judged.",
        "",
        "| claim | first 100 rows (5 authors) | 100 rows of all 20 authors | why, there |",
        "|---|---|---|---|",
    ]
    out += [
        f"| {each.claim} | {each.verdict} | {again[each.claim].verdict} | {again[each.claim].why} |" for each in ruled
    ]
    both = (metric_table(each, "utility").set_index("metric") for each in (first, second))
    some, every = (table[["F", "low", "high", "Q", "R", "Overall"]] for table in both)
    return [*out, "", _markdown(some.join(every.add_suffix(", all authors")).reset_index())]


def page(found: Judged, ruled: list[Verdict], tables: dict[str, pd.DataFrame], told: str) -> str:
    """Everything as Markdown."""
    out = ["# What the study of the small TOFU Llamas found", "", told, "", NOTES, "", "## Verdicts", ""]
    out += ["| claim | verdict | why |", "|---|---|---|"]
    for each in ruled:
        word = f"{each.verdict} (not reproduced in this setting)" if each.verdict != "supported" else each.verdict
        out.append(f"| {each.claim} | {word} | {each.why} |")
    for setting in FILTERS:
        out += ["", f"## The 20 metrics, filter {setting}", "", _markdown(metric_table(found, setting))]
    kept = [
        "metric",
        "filter",
        "models",
        "n",
        "q",
        "q_low",
        "q_high",
        "r",
        "r_low",
        "r_high",
        "q_runs_low",
        "q_runs_high",
        "r_runs_low",
        "r_runs_high",
        "r_shift_low",
        "r_shift_high",
        "rob",
        "shift",
        "unmoved_q",
        "unmoved_r",
        "above_r",
    ]
    out += [
        "",
        "## Every filter",
        "",
        _markdown(tables["robustness"][[*kept, "interval_reason", "q_reason", "r_reason", "caution"]]),
    ]
    for name in ("methods, chosen without depth", "methods, chosen with depth"):
        shown = ["method", "rank", "model", "score_without", "score_with", "rank_without", "rank_with", "n_eligible"]
        out += ["", f"## {name.capitalize()}", "", _markdown(tables[name][shown])]
    for name, told in (
        ("places", "Places of methods over resamples"),
        ("pairs", "Differences of F"),
        ("overall", "Order by Overall under each filter"),
        *((f"predictors of {each}", f"Rank correlation with {each} after relearning") for each in OUTCOMES),
        ("variants", "F by variant"),
    ):
        out += ["", f"## {told}", "", _markdown(tables[name])]
    return "\n".join(out) + "\n"


def figures(found: Judged, tables: dict[str, pd.DataFrame], place: Path) -> None:
    """The pictures, and the page with switches."""
    ul.plots.save_figure(ul.plots.faithfulness_forest(tables["faithfulness"]), place / "faithfulness.html")
    for setting in FILTERS:
        name = setting.replace("+", "_and_")
        figure = ul.plots.metric_heatmap(tables[f"summary, {setting}"], title=f"Metrics by criterion, {setting}")
        ul.plots.save_figure(figure, place / f"criteria_{name}.html")
    ul.plots.save_figure(ul.plots.filter_dots(tables["robustness"]), place / "filters.html")
    ul.report.dashboard(
        found.frames.before,
        place / "dashboard.html",
        pools=found.frames.pools,
        robust=tables["robustness"],
        options=ul.report.DashboardOptions(title="Which of 20 metrics can be trusted, on the small TOFU Llamas?"),
    )


def _markdown(table: pd.DataFrame) -> str:
    def cell(value: object) -> str:
        if value is None or value is pd.NA or (isinstance(value, float) and pd.isna(value)):
            return ""
        return f"{value:.3f}" if isinstance(value, float) else str(value).replace("|", "\\|")

    rows = [[cell(value) for value in row] for row in table.itertuples(index=False)]
    head = [str(name) for name in table.columns]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def main() -> None:
    """Read the studies, judge, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, nargs="?", help="finished sweep of plan.toml; default: what is kept here")
    parser.add_argument("--second", type=Path, help="finished sweep of plan_stratified.toml; default: the same")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cut", default="nothing", help="what was left out of the plan")
    parser.add_argument("--resamples", type=int, default=2000)
    asked = parser.parse_args()
    found, tables, long, values = judged_study("first", asked.study, resamples=asked.resamples)
    second, _, second_long, second_values = judged_study("all_authors", asked.second, resamples=asked.resamples)
    ruled = verdicts(found)
    asked.out.mkdir(parents=True, exist_ok=True)
    for name, table in (("first", long), ("all_authors", second_long)):
        table.to_parquet(asked.out / f"table_{name}.parquet", index=False, **SMALL)
    both = pd.concat([values.assign(study="first"), second_values.assign(study="all_authors")], ignore_index=True)
    both.to_parquet(asked.out / "values.parquet", index=False, **SMALL)
    frames = found.frames
    measurements = long.groupby(["model_id", "state", "seed"], dropna=False).ngroups
    told = (
        f"{measurements} measurements. {len(frames.pools)} pool models, "
        f"{len(frames.before)} unlearned ones. Left out of the plan: {asked.cut}. {len(frames.reasons)} values of "
        f"{len(long)} are undefined, each with its reason in the table.\n\n{FIRST_ROWS}"
    )
    whole = page(found, ruled, tables, told) + "\n".join([*side_by_side(found, ruled, second), ""])
    (asked.out / "README.md").write_text(whole, encoding="utf-8")
    trust_table(found, tables["variants"]).to_csv(asked.out / "trust.csv", index=False)
    figures(found, tables, asked.out)
    for each in ruled:
        print(f"{each.verdict:12} {each.claim}: {each.why}")


if __name__ == "__main__":
    main()
