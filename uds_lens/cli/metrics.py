"""`uds-lens metrics`: any of the metrics for one model, or the list of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uds_lens.cli import options as opt
from uds_lens.errors import ConfigError

if TYPE_CHECKING:
    from uds_lens.metrics import MetricResults, MetricSpec


def metrics(
    model: Annotated[str | None, typer.Option(help="Model to evaluate: directory or Hub id.")] = None,
    data: Annotated[
        str | None,
        typer.Option(help="tofu:DIR or tofu:HUB_ID for all TOFU sets, or a file with a forget set."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for the results (JSON).", dir_okay=False)] = None,
    retain: Annotated[str | None, typer.Option(help="Model that never saw the forget set.")] = None,
    full: Annotated[str | None, typer.Option(help="Model trained on everything.")] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="Metric to measure; repeat for more. Default: all.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Print the table of metrics and stop.")] = False,
    split: Annotated[str, typer.Option(help="Forget split of TOFU.")] = "forget10",
    limit: Annotated[
        int | None, typer.Option(min=1, help="Use only the first examples of every set.")
    ] = None,
    fluency: Annotated[
        str,
        typer.Option(help="hub, heuristic (offline rules of thumb), or a classifier's directory or Hub id."),
    ] = "hub",
    strict_es: Annotated[
        bool, typer.Option("--strict-es", help="ES is 0, not 1/T, where nothing can be extracted.")
    ] = False,
    min_k: Annotated[float, typer.Option(help="Share of tokens for Min-K and Min-K++.")] = 0.4,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest generated answer, in tokens.")] = 200,
    uds_in_privacy: Annotated[
        bool, typer.Option("--uds-in-privacy", help="Privacy is the harmonic mean of MIA_agg and UDS.")
    ] = False,
    tau: opt.Tau = 0.05,
    dtype: opt.DType = "float32",
    device: opt.Device = "auto",
    device_map: opt.DeviceMap = None,
    token_budget: opt.TokenBudget = 4096,
    revision: opt.Revision = None,
    offline: opt.Offline = False,
    trust_remote_code: opt.TrustRemoteCode = False,
    json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Measure memorization, generation, membership, white-box and utility metrics of one model.

    Without --retain or --full the metrics that need them are NaN, with the reason.

    \b
    Examples:
      uds-lens metrics --list
      uds-lens metrics --model ckpt/npo --retain ckpt/retain --full ckpt/full \\
          --data tofu:data/tofu --out runs/npo-metrics.json
    """
    if list_:
        _print_list(json)
        return
    if model is None or data is None or out is None:
        raise ConfigError("uds-lens metrics needs --model, --data and --out (or --list).")
    import uds_lens as ul

    if out.is_dir():
        raise ConfigError(f"--out {out} is a directory: name a file, for example {out / 'metrics.json'}.")
    results = ul.metrics.evaluate(
        model,
        ul.metrics.open_metric_data(data, split=split, limit=limit),
        metrics=metric or None,
        retain=retain,
        full=full,
        options=ul.metrics.MetricOptions(
            strict_es=strict_es,
            min_k=min_k,
            max_new_tokens=max_new_tokens,
            uds_in_privacy=uds_in_privacy,
            tau=tau,
            dtype=dtype,
        ),
        run=ul.RunOptions(
            device=device,
            device_map=device_map,
            token_budget=token_budget,
            revision=revision,
            offline=offline,
            trust_remote_code=trust_remote_code,
        ),
        fluency=fluency,
    )
    results.save(out)
    if json:
        typer.echo(out.read_text(encoding="utf-8"))
        return
    _print_results(results)
    typer.echo(f"\nSaved in {out}")


def _print_list(as_json: bool) -> None:
    import uds_lens as ul

    if as_json:
        typer.echo(ul.metrics.metrics_frame().to_json(orient="records", indent=2))
        return
    rows = [
        [name, ", ".join(ul.metrics.all_needs(spec)), _parts(spec), _reading(spec)]
        for name, spec in ul.metrics.METRICS.items()
    ]
    _print_table(["name", "needs", "made of", "meaning"], rows)


def _parts(spec: MetricSpec) -> str:
    """Metrics it is made of, or sets it asks, each with its variants: "forget + paraphrased"."""
    bases = dict.fromkeys(name.partition("/")[0] for name in spec.sets)
    sets = [
        " + ".join([base, *(n.partition("/")[2] for n in spec.sets if n.startswith(f"{base}/"))])
        for base in bases
    ]
    return ", ".join(spec.uses or sets)


def _reading(spec: MetricSpec) -> str:
    direction, zero, one = spec.meaning
    return f"0: {zero}; 1: {one} (more {direction})"


def _print_results(results: MetricResults) -> None:
    from uds_lens.metrics.cards import ARROWS, shown

    rows = [
        [
            metric.label,
            shown(metric),
            ARROWS[metric.direction],
            str(metric.n or ""),
            f"{metric.cost.seconds:.1f}",
        ]
        for metric in results
    ]
    _print_table(["metric", "value", "higher is", "n", "seconds"], rows)


def _print_table(titles: list[str], rows: list[list[str]]) -> None:
    import sys

    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number, title in enumerate(titles):
        table.add_column(title, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    Console(file=sys.stdout, highlight=False).print(table)
