"""`uds-lens metrics`: measure metrics of one or several models, or list the available metrics."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Literal

import typer

import uds_lens as ul
from uds_lens._cli import options as opt
from uds_lens._cli.terminal import (
    Column,
    echo,
    grouped,
    interval,
    print_cautions,
    print_frame,
    print_json,
    print_table,
    print_wrapped,
    say,
    saying_what_is_saved,
    shortened_names,
    width,
    with_names,
)
from uds_lens._progress import about
from uds_lens._storage.files import check_writable
from uds_lens.data._prompts import ChatStyle
from uds_lens.errors import ModelError
from uds_lens.metrics._catalogue import METRICS
from uds_lens.metrics._options import MetricOptions


def print_list(*, as_json: bool) -> None:
    """Print the available metrics, one table per group."""
    if as_json:
        echo(ul.metrics.metrics_frame().to_json(orient="records", indent=2))
        return
    columns: dict[str, Column] = {
        "metric": "name",
        "scale": lambda row: f"0 = {row['zero']}, 1 = {row['one']}",
        "data": lambda row: ", ".join(dict.fromkeys(name.partition("/")[0] for name in row["data"].split(", "))),
        "models": lambda row: ", ".join(need for need in ("retain", "full") if need in row["needs"].split(", ")),
        "F": "studied_f:2",
        "95%": lambda row: interval(row["studied_f_low"], row["studied_f_high"], 2),
    }
    for group, rows in ul.metrics.metrics_frame().groupby("group", sort=False):
        echo(f"\n{group}".upper())
        print_frame(rows, columns, shortest=20)
    print_wrapped(
        "\nF (faithfulness): AUC for separating models that know the forget set from models that never saw it (0.5 = "
        "chance), measured in a study of six kinds of small Llamas. The 95% interval is for new runs of these kinds; "
        "--json also has the interval for other kinds."
    )


def print_results(measured: Mapping[str, ul.metrics.MetricResults]) -> None:
    """Print a table of metrics with a value, then metrics without a value (grouped by reason), then cautions."""
    if len(measured) == 1:
        ((name, results),) = measured.items()
        echo(name)
        _print_one(results)
    else:
        _print_many(measured)
    without = grouped(  # the reason of an aggregate starts with the metric without a value
        ((metric.label, metric.reason.rpartition(" is NaN: ")[2].rstrip(".")), name)
        for name, results in measured.items()
        for metric in results
        if metric.reason is not None
    )
    by_reason = grouped(
        (("" if len(names) == len(measured) else f"{', '.join(names)}: ", reason), label)
        for (label, reason), names in without.items()
    )
    for (who, reason), labels in by_reason.items():
        print_wrapped(f"{who}NaN, because {reason}: {'; '.join(labels)}.")
    print_cautions({name: [("!", text) for text in results.warnings] for name, results in measured.items()})
    prompts = with_names((_prompts(results), name) for name, results in measured.items())
    found = [metric for results in measured.values() for metric in results if metric.reason is None]
    white_box = any(metric.group == "representation" for metric in found)
    raw = " (white-box metrics: raw)" if white_box and "chat template" in map(_prompts, measured.values()) else ""
    print_wrapped(f"Prompts: {prompts}{raw}.")


def _prompts(results: ul.metrics.MetricResults) -> str:
    return "chat template" if results.provenance.get("protocol") == "chat" else "raw"


def _print_one(results: ul.metrics.MetricResults) -> None:
    from uds_lens.metrics._results import ARROWS

    errors = {name: error.interval for name, error in results.sample_errors.items()}
    columns: dict[str, Column] = {
        "metric": lambda row: row["metric"].label,
        "value": lambda row: str(row["metric"]),
        "95% interval": lambda row: interval(*row["metric"].interval),
        "all examples": lambda row: interval(*errors.get(row["metric"].name, (math.nan, math.nan))) if errors else None,
        "higher is": lambda row: ARROWS[row["metric"].direction],
        "n": lambda row: row["metric"].n or None,
        "seconds": lambda row: f"{row['metric'].cost.seconds:.1f}",
    }
    rows = [{"metric": metric} for metric in results if metric.reason is None]
    longest = max((len(row["metric"].label) for row in rows), default=0)
    print_frame(rows, columns, undefined="", optional=("all examples",), shortest=longest)


def _print_many(results: Mapping[str, ul.metrics.MetricResults]) -> None:
    """Print a row per metric and a column per model, as many columns as fit."""
    from uds_lens.metrics._results import ARROWS

    names = list(results)
    titles, at_once = shortened_names(names, 20), max(1, (width() - 32) // 22)
    rows = [
        [metric.label, ARROWS[metric.direction], *(_value(results[name][metric.name]) for name in names)]
        for metric in results[names[0]]
        if any(not math.isnan(results[name][metric.name].value) for name in names)
    ]
    for start in range(0, len(names), at_once):
        shown = slice(start, start + at_once)
        print_table(["metric", "higher is", *titles[shown]], [[*row[:2], *row[2:][shown]] for row in rows])


def _value(metric: ul.metrics.MetricValue) -> str:
    """Return the value, with its 95% interval if it has one."""
    if math.isnan(metric.value):
        return "NaN"
    low, high = metric.interval
    return f"{metric.value:.3f}" + ("" if math.isnan(low) else f" [{low:.2f}, {high:.2f}]")


def _metric_help() -> str:
    """List the names of all metrics, including the user's own."""
    return f"Metric to measure (repeatable or comma-separated). Default: all, which are {', '.join(METRICS)}."


_OPEN_UNLEARNING = ("es", "prob", "paraprob", "truth_ratio", "rouge", "mia_min_k", "model_utility")
"""Metrics in Open-Unlearning's default configuration or needed by `ScoreParts.preset("open_unlearning")`."""


def _as_open_unlearning(
    metric: list[str] | None, options: MetricOptions, with_retain: bool
) -> tuple[list[str], MetricOptions]:
    """Return the requested or Open-Unlearning's default metrics, and the options with Open-Unlearning's prompts."""
    from uds_lens.data._prompts import chat_style_named

    style, given = asdict(chat_style_named("open_unlearning")), asdict(ChatStyle())
    if all(getattr(options, name) == value for name, value in given.items()) and options.protocol != "raw":
        options = replace(options, **style)
    if metric:
        return metric, options
    return [*_OPEN_UNLEARNING, *(["s_mia_min_k", "forget_quality", "privleak"] if with_retain else [])], options


def metrics(
    model: Annotated[list[str] | None, opt.model("Model to evaluate: directory or Hub id (repeatable).")] = None,
    data: Annotated[
        str | None, opt.data("tofu:DIR or tofu:HUB_ID for all TOFU sets, or a file with a forget set.", "--examples")
    ] = None,
    out: Annotated[
        Path | None, opt.value("FILE", "JSON file for the results; for several models, a directory.")
    ] = None,
    name: Annotated[
        list[str] | None, opt.value("NAME", "Name of a model in the table and in file names; give one per --model.")
    ] = None,
    retain: Annotated[str | None, opt.RETAIN] = None,
    full: Annotated[str | None, opt.FULL] = None,
    retain_data: Annotated[
        str | None, opt.data("Facts to retain: Prob and ROUGE on them show what else was lost.")
    ] = None,
    holdout_data: Annotated[
        str | None, opt.data("Questions of the same kind that no model has seen, for membership attacks.")
    ] = None,
    passages: Annotated[
        str | None,
        opt.data(
            "Texts to forget, each in two parts: the beginning (question), which models continue, and the rest "
            "(answer).",
            rich_help_panel=opt.LATER,
        ),
    ] = None,
    metric: Annotated[list[str] | None, opt.names(_metric_help())] = None,
    own: Annotated[list[Path] | None, opt.own_files("metric", _metric_help)] = None,
    preset: Annotated[
        Literal["open-unlearning"] | None,
        typer.Option(
            help="Measure the metrics of Open-Unlearning's default TOFU configuration, with its prompts, unless "
            "--metric names other metrics.",
            rich_help_panel=opt.LATER,
        ),
    ] = None,
    list_: Annotated[bool, opt.flag("--list", "List the available metrics and exit.")] = False,
    split: Annotated[str, opt.value("NAME", "Forget split of TOFU.", rich_help_panel=opt.LATER)] = "forget10",
    limit: opt.Limit = None,
    sample: opt.Sampling = "random",
    redo: Annotated[
        bool,
        opt.flag(
            "--redo",
            "Replace the contents of --out, even metrics of other weights and metrics that this run does not measure.",
        ),
    ] = False,
    *,
    options: Annotated[MetricOptions, opt.Offer(first=("protocol",))],
    run: opt.MetricRun,
    printing: opt.Printing,
) -> None:
    """Measure metrics of one or several models.

    The metrics measure memorization, generation and utility; they include membership attacks and white-box metrics such
    as UDS. Without --retain or --full, the metrics that need these models are NaN, with a reason.

    \b
    Examples:
      uds-lens metrics --list
      uds-lens metrics --model ckpt/npo --retain ckpt/retain --full ckpt/full \\
          --examples tofu:data/tofu --out runs/npo-metrics.json
    """
    if list_:
        print_list(as_json=printing.json)
        return
    opt.require_options(
        {"--model": model, "--examples": data, "--out": out},
        "uds-lens metrics --model ckpt/npo --examples forget10.json --out npo.json; uds-lens metrics --list shows the "
        "metrics and what they need.",
    )
    assert model is not None and data is not None and out is not None
    if preset is not None:
        metric, options = _as_open_unlearning(metric, options, retain is not None)
    count = "all metrics" if not metric else "1 metric" if len(metric) == 1 else f"{len(metric)} metrics"
    say(f"measuring {count} of {', '.join(model)} ...")
    from uds_lens.metrics._fluency import fluency_scorer
    from uds_lens.metrics._results import KIND, require_metrics_table, require_nothing_lost, write_metrics_table
    from uds_lens.results._saving import directory_names

    names = directory_names(model, given=name or ())
    table = out / "table.csv"
    files = {n: out / f"{n}.json" for n in names} if len(names) > 1 else {names[0]: out}
    for file in files.values():
        check_writable(file, directory=False, format=KIND.format)
    if len(names) > 1:
        require_metrics_table(table)
    sets = ul.metrics.open_metric_data(
        data, retain=retain_data, holdout=holdout_data, passages=passages, split=split, limit=limit, sample=sample
    )
    if not redo:
        others = {"retain": retain, "full": full}
        asked = {files[n]: {"model": m, **others} for n, m in zip(names, model, strict=True)}
        require_nothing_lost(asked, metric or None, data=sets, options=options, run=run)
    cache = ul.metrics.MetricCache()
    try:
        fluency_scorer(options, metrics=metric or None, offline=run.offline)
    except ModelError as error:
        if metric or options.fluency != "hub":
            raise
        say(f"fluency, and the metrics that depend on it, are left out: {error}")  # it was not requested by name
    measured: dict[str, ul.metrics.MetricResults] = {}
    with saying_what_is_saved(lambda: f"{len(measured)} of {len(names)} saved"):
        for number, (n, m) in enumerate(zip(names, model, strict=True), start=1):
            with about(f"{n} ({number} of {len(names)})" if len(names) > 1 else n):
                results = ul.metrics.evaluate(
                    m, sets, metrics=metric or None, retain=retain, full=full, options=options, run=run, cache=cache
                )
            results.save(files[n])
            measured[n] = results
            say(f"{n}: {len(results)} metric{'' if len(results) == 1 else 's'}; saved, {len(measured)} of {len(names)}")
    if len(names) > 1:
        write_metrics_table(measured, table)
    if printing.json:
        contents = {n: json.loads(file.read_text(encoding="utf-8")) for n, file in files.items()}
        print_json(contents if len(contents) > 1 else contents[names[0]])
        return
    print_results(measured)
    echo(f"\nSaved in {out}")
