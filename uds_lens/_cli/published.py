"""`uds-lens published`: published models measured again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import uds_lens as ul
from uds_lens._cli import options as opt
from uds_lens._cli.model_tables import write_table_file
from uds_lens._cli.sweep import print_status
from uds_lens._cli.terminal import Column, print_frame, print_json, print_wrapped, say, table_rows, width
from uds_lens.errors import ConfigError
from uds_lens.study._plan import Role


def published(
    words: Annotated[
        list[str],
        opt.argument(
            "list | plan | run PLAN | compare RUN",
            "List the models, write a plan, measure its models one at a time, or compare the results.",
        ),
    ],
    data: Annotated[
        str | None,
        opt.value(
            "NAME",
            "Only models of this data set: tofu (or one size: tofu-1b, tofu-3b, tofu-8b), muse (muse-news, "
            "muse-books) or wmdp. A plan covers only one data set and size, by default tofu-1b.",
        ),
    ] = None,
    role: Annotated[Role | None, typer.Option(help="Only models with this role.")] = None,
    method: Annotated[
        list[str] | None, opt.names("Only models of this method (repeatable or comma-separated).", "--method")
    ] = None,
    name: Annotated[
        list[str] | None, opt.names("Only this model, by name or Hub id (repeatable or comma-separated).")
    ] = None,
    metric: Annotated[
        list[str] | None,
        opt.names(
            "Metric to include in the plan (repeatable or comma-separated); 'all' for every published metric. "
            "Default: uds,es.",
            "--metric",
        ),
    ] = None,
    perturb: Annotated[bool, opt.flag("--perturb", "Also plan to quantise and relearn the models.")] = False,
    examples: Annotated[
        str | None, opt.value("DIR", "Use a local copy of the data set instead of the one on the Hub.")
    ] = None,
    limit: Annotated[int | None, opt.count("Use a sample of the questions, for a quick look.")] = None,
    out: Annotated[
        Path | None,
        opt.value("PATH", "File for the plan, directory for the run, or figure or .csv file for the comparison."),
    ] = None,
    keep_downloads: Annotated[
        bool, opt.flag("--keep-downloads", "Download the models into the Hub cache and keep them there.")
    ] = False,
    *,
    printing: opt.Printing,
) -> None:
    """Measure published models again, and compare the values.

    The models are 150 unlearned and 60 pool models from the UDS paper, its full and retain models in three sizes, and
    the models published for MUSE and WMDP. For each metric, a plan uses the prompts behind the published number. A run
    downloads one model at a time and removes it once it is measured; to resume a killed run, call it again. A
    comparison also reads run folders written by the paper's released script and Open-Unlearning's saves; the exit code
    is 1 if a value differs without a known reason.

    \b
    Examples:
      uds-lens published list --method npo
      uds-lens published plan --method npo --metric uds,es --out plan.toml
      uds-lens published run plan.toml --out runs/npo
      uds-lens published compare runs/npo --out comparison.html
    """
    todo, place = opt.asked_for(
        words,
        {"list": 0, "plan": 0, "run": 1, "compare": 1},
        "list, plan, run PLAN, or compare RUN",
        "uds-lens published plan --method npo --out plan.toml",
    )
    say(f"reading {place} ..." if place else "reading the list of published models ...")
    if todo == "run":
        _run(place, out, keep_downloads, as_json=printing.json)
    elif todo == "compare":
        _compare(place, out, as_json=printing.json)
    else:
        chosen = _chosen(data, role, method or [], name or [], one_group=todo == "plan")
        if todo == "list":
            _list(chosen, as_json=printing.json)
        else:
            copy = None if examples is None else examples.removeprefix("tofu:")
            given = {"perturb": perturb, "data": copy, "limit": limit}
            _plan(chosen, metric, out, given, as_json=printing.json)


def _chosen(
    data: str | None, role: Role | None, methods: list[str], names: list[str], *, one_group: bool
) -> list[ul.published.PublishedModel]:
    find = ul.published.find
    if one_group and data is None:
        first = find(names[0]) if names else None
        data = "tofu-1b" if first is None else first.group.name
    asked: list[str | None] = [*methods] or [None]
    chosen = [model for method in asked for model in ul.published.models(group=data, role=role, method=method)]
    by_name = {
        name: [model for model in chosen if model in (find(name), find(name, group=model.group.name))] for name in names
    }
    if unknown := [name for name, same in by_name.items() if not same]:
        raise ConfigError(f"no published model {unknown[0][:80]!r}: `uds-lens published list` shows the names.")
    return [model for model in chosen if any(model in same for same in by_name.values())] if names else chosen


def _list(chosen: list[ul.published.PublishedModel], *, as_json: bool) -> None:
    from uds_lens.published._registry import registry_frame

    table = registry_frame()
    table = table[table["hub_id"].isin({model.hub_id for model in chosen})]
    if as_json:
        print_json(table_rows(table))
        return
    columns: dict[str, Column] = {"model": "model", "part": "role", "values": "published", "Hub id": "hub_id"}
    narrow = width() < sum(max(map(len, table[name].map(str))) + 2 for name in columns.values())
    print_frame(table, {title: what for title, what in columns.items() if not narrow or title != "Hub id"})
    licences = "; ".join(dict.fromkeys(f"{model.group.base}: {model.group.licence}" for model in chosen))
    print_wrapped(
        f"{len(table)} models. values: number of published metrics per model. Licences: {licences}."
        + (" To see the Hub ids, widen the terminal or use --json." if narrow else "")
    )


def _plan(
    chosen: list[ul.published.PublishedModel],
    metrics: list[str] | None,
    out: Path | None,
    given: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    from uds_lens.published._plan import DEFAULT_METRICS, write_plan

    asked = None if metrics == ["all"] else metrics or DEFAULT_METRICS
    made = ul.published.plan(chosen, metrics=asked, **given)
    opt.require_options({"--out": out}, "uds-lens published plan --method npo --out plan.toml")
    assert out is not None
    write_plan(made, out)
    n = len({model.hub_id for model in chosen} | {made.full, made.retain})
    if as_json:
        print_json({"plan": str(out), "models": n})
        return
    size = n * chosen[0].group.download_bytes / 1e9
    print_wrapped(
        f"{n} models, {size:.3g} GB to download, one model at a time. Next: uds-lens published run {out} --out DIR"
    )


def _run(plan: str, out: Path | None, keep: bool, *, as_json: bool) -> None:
    opt.require_options({"--out": out}, "uds-lens published run plan.toml --out runs/npo")
    assert out is not None
    status = ul.published.run(plan, out, keep_downloads=keep)
    print_status(status, as_json=as_json)
    if not status.is_complete:
        raise typer.Exit(1)


def _compare(run: str, out: Path | None, *, as_json: bool) -> None:
    comparison = ul.published.compare(run)
    if out is not None and out.suffix.lower() == ".csv":
        write_table_file(comparison.frame, out)
    elif out is not None:
        ul.plots.save_figure(comparison.plot(), out)
    if as_json:
        parts = {"values": comparison.frame, "by_metric": comparison.by_metric, "of_pools": comparison.of_pools}
        record = {"run": comparison.source, "measured_by": comparison.measured_by, "unknown": list(comparison.unknown)}
        print_json({**record, **{name: table_rows(frame) for name, frame in parts.items()}})
    else:
        _print_comparison(comparison, out)
    if not comparison.agrees:
        raise typer.Exit(1)


def _print_comparison(comparison: ul.published.Comparison, out: Path | None) -> None:
    from uds_lens.results._other_cautions import about_difference

    columns: dict[str, Column] = {
        "metric": "metric",
        "models": "n",
        "agree": "agree",
        "as expected": "expected",
        "differ": "differ",
        "Spearman": "spearman",
        "largest": "largest_difference:4",
        "in model": lambda row: row["largest_model"] if isinstance(row["largest_model"], str) else "-",
    }
    print_frame(comparison.by_metric, columns)
    if len(comparison.of_pools):
        print_frame(
            comparison.of_pools, {name: name for name in ("metric", "quantity", "measured", "published", "verdict")}
        )
    problems = {row["metric"]: row["known"] for row in comparison.by_metric.to_dict("records") if row["known"]}
    for row in comparison.frame[comparison.frame["verdict"] == "differs"].head(10).to_dict("records"):
        print_wrapped(f"! {about_difference(row, problems.get(row['metric'], ''))}")
    for metric, words in problems.items():
        print_wrapped(f"Known problems with the published {metric}: {words}.")
    ranges = comparison.frame["kind"].value_counts().drop("exact", errors="ignore")
    if len(ranges):
        kinds = ", ".join(f"{n} {kind}" for kind, n in ranges.items())
        print_wrapped(f"Published values that stand for a range: {kinds}.")
    if comparison.unknown:
        names = ", ".join(comparison.unknown[:4]) + (", ..." if len(comparison.unknown) > 4 else "")
        print_wrapped(f"Not among the published models: {names}.")
    print_wrapped(str(comparison) + (f", in {out}" if out is not None else "") + ".")
