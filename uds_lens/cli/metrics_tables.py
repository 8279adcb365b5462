"""What `uds-lens metrics` prints: the list of metrics, the values of one model or of many, the saved JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from uds_lens.cli.output import print_cautions, print_table, print_wrapped, width
from uds_lens.cli.short_names import shortened_names

if TYPE_CHECKING:
    from uds_lens.metrics import MetricResults, MetricSpec, MetricValue
    from uds_lens.results import Interval


def print_list(*, as_json: bool) -> None:
    """The metrics there are."""
    import uds_lens as ul

    if as_json:
        typer.echo(ul.metrics.metrics_frame().to_json(orient="records", indent=2))
        return
    rows: list[list[str]] = []
    family = None
    for name, spec in ul.metrics.METRICS.items():
        if spec.group != family:
            rows.append([spec.group.upper(), ""])
            family = spec.group
        rows.append([name, _reading(spec)])
    meaning = "what 0 and 1 mean, what it is made of, asks and needs"
    print_table(["metric", meaning], rows, wrapped=meaning)
    print_wrapped(
        "F: in our study, how often it ranks a model that knows above one that does not, with 95 % intervals: for more "
        "models of the kinds that it had, in brackets for new kinds."
    )


def _reading(spec: MetricSpec) -> str:
    """What 0 and 1 mean, the metrics it is made of or the sets it asks, the other models it needs."""
    import uds_lens as ul

    parts = [f"0: {spec.meaning.zero}; 1: {spec.meaning.one}."]
    if spec.uses:
        parts.append(f"Made of {', '.join(spec.uses)}.")
    elif spec.sets:
        parts.append(f"Asks {_sets(spec)}.")
    models = [need for need in ul.metrics.all_needs(spec) if need in ("retain", "full")]
    if models:
        parts.append(f"Needs {', '.join(f'--{model}' for model in models)}.")
    trust = ul.metrics.studied().get(spec.name)
    if trust is not None:
        parts.append(
            f"F {trust.faithfulness:.2f}, {trust.low:.2f}-{trust.high:.2f} ({trust.new_low:.2f}-{trust.new_high:.2f})."
        )
    return " ".join(parts)


def _sets(spec: MetricSpec) -> str:
    """The sets it asks, each with its variants: "forget + paraphrased"."""
    bases = dict.fromkeys(name.partition("/")[0] for name in spec.sets)
    return ", ".join(
        " + ".join([base, *(n.partition("/")[2] for n in spec.sets if n.startswith(f"{base}/"))])
        for base in bases
    )


def print_results(found: Mapping[str, MetricResults]) -> None:
    """What has a value as a table; below it what has none, by reason, and what to know before quoting it."""
    if len(found) == 1:
        ((name, results),) = found.items()
        typer.echo(name)
        _print_one(results)
    else:
        _print_many(found)
    without: dict[tuple[str, str], list[str]] = {}
    for name, results in found.items():
        for metric in results:
            if metric.reason is not None:
                # What is made of a metric without a value says so before the reason itself.
                reason = metric.reason.rpartition(" is NaN: ")[2].rstrip(".")
                without.setdefault((metric.label, reason), []).append(name)
    by_reason: dict[tuple[str, str], list[str]] = {}
    for (label, reason), names in without.items():
        who = "" if len(names) == len(found) else f"{', '.join(names)}: "
        by_reason.setdefault((who, reason), []).append(label)
    for (who, reason), labels in by_reason.items():
        print_wrapped(f"{who}NaN, because {reason}: {'; '.join(labels)}.")
    print_cautions({name: [("!", text) for text in results.warnings] for name, results in found.items()})


def _print_one(results: MetricResults) -> None:
    from uds_lens.metrics.metrics_card import ARROWS, shown

    rows = [
        [
            metric.label,
            shown(metric),
            _interval(metric.interval),
            ARROWS[metric.direction],
            str(metric.n or ""),
            f"{metric.cost.seconds:.1f}",
        ]
        for metric in results
        if metric.reason is None
    ]
    titles = ["metric", "value", "95% interval", "higher is", "n", "seconds"]
    if errors := results.sample_errors:
        titles.insert(3, "if all asked")
        shown_metrics = [metric for metric in results if metric.reason is None]
        for row, metric in zip(rows, shown_metrics, strict=True):
            row.insert(3, _interval(errors[metric.name].interval) if metric.name in errors else "-")
    print_table(titles, rows, right=("n", "seconds"))


def _print_many(found: Mapping[str, MetricResults]) -> None:
    """A row per metric and a column per model; as many models side by side as fit."""
    from uds_lens.metrics.metrics_card import ARROWS

    first = next(iter(found.values()))
    names = list(found)
    short = dict(zip(names, shortened_names(names, 20), strict=True))
    cells = {
        metric.label: [ARROWS[metric.direction], *(_value(found[name][metric.name]) for name in names)]
        for metric in first
        if any(not math.isnan(found[name].values[metric.name]) for name in names)
    }
    wide = max(8, *(len(name) for name in names)) + 2
    wide = max(min(wide, 22), 2 + max((len(cell) for row in cells.values() for cell in row[1:]), default=0))
    at_once = max(1, (width() - 32) // wide)
    for start in range(0, len(names), at_once):
        shown = names[start : start + at_once]
        rows = [
            [label, higher, *values[start : start + at_once]] for label, (higher, *values) in cells.items()
        ]
        print_table(["metric", "higher is", *(short[name] for name in shown)], rows)
        if start + at_once < len(names):
            typer.echo("")


def _value(metric: MetricValue) -> str:
    """The value, with its 95 % interval where it has one."""
    if math.isnan(metric.value):
        return "NaN"
    low, high = metric.interval
    return f"{metric.value:.3f}" + ("" if math.isnan(low) else f" [{low:.2f}, {high:.2f}]")


def _interval(interval: Interval) -> str:
    return "-" if math.isnan(interval.low) else f"{interval.low:.3f} - {interval.high:.3f}"


def print_files(files: Mapping[str, Path]) -> None:
    """Saved results as JSON: one as it is, several by the names of their models."""
    texts = {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    if len(texts) == 1:
        typer.echo(next(iter(texts.values())))
        return
    typer.echo(
        json.dumps({name: json.loads(text) for name, text in texts.items()}, indent=1, ensure_ascii=False)
    )
