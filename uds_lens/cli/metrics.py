"""`uds-lens metrics`: any of the metrics for one model, or the list of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uds_lens.cli import shared_options as opt
from uds_lens.cli.metrics_tables import print_files, print_list, print_results
from uds_lens.cli.own_files import running_files
from uds_lens.cli.progress_lines import say
from uds_lens.cli.shared_options import Chat, Hub, Printing, Running
from uds_lens.cli.stopping import saying_what_is_saved
from uds_lens.errors import ConfigError
from uds_lens.metrics.catalogue import METRICS
from uds_lens.progress import about

if TYPE_CHECKING:
    from uds_lens.metrics import MetricResults


def _metric_help() -> str:
    """The names there are, a user's own among them."""
    return f"Metric to measure; repeat for more. Default: all, which are {', '.join(METRICS)}."


def metrics(
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL", help="Model to evaluate: directory or Hub id; repeat for more."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="tofu:DIR or tofu:HUB_ID for all TOFU sets, or a file with a forget set.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where the results go (JSON); a directory for several models.",
        ),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name of a model in table and files; once for each --model."),
    ] = None,
    retain: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Model that never saw the forget set.")
    ] = None,
    full: Annotated[str | None, typer.Option(metavar="MODEL", help="Model trained on everything.")] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=_metric_help()),
    ] = None,
    own: Annotated[
        list[Path] | None,
        typer.Option(
            "--import",
            metavar="FILE",
            callback=running_files("metric", _metric_help),
            is_eager=True,
            help="Python file that declares a metric of your own; it is run first.",
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Print the metrics there are, and stop.")] = False,
    split: Annotated[str, typer.Option(metavar="NAME", help="Forget split of TOFU.")] = "forget10",
    limit: opt.Limit = None,
    sample: opt.Sampling = "random",
    fluency: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="hub, heuristic (offline rules of thumb), or a classifier's directory or Hub id.",
        ),
    ] = "hub",
    strict_es: Annotated[
        bool, typer.Option("--strict-es", help="ES is 0, not 1/T, where nothing can be extracted.")
    ] = False,
    min_k: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of tokens for Min-K and Min-K++.")
    ] = 0.4,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, metavar="N", help="Longest generated answer, in tokens.")
    ] = 200,
    uds_in_privacy: Annotated[
        bool, typer.Option("--uds-in-privacy", help="Privacy is the harmonic mean of MIA_agg and UDS.")
    ] = False,
    tau: opt.Tau = 0.05,
    redo: Annotated[
        bool,
        typer.Option(
            "--redo", help="Replace what --out holds, with metrics that are not measured this time."
        ),
    ] = False,
    dtype: opt.DType = "float32",
    protocol: opt.AnswerProtocol = "auto",
    *,
    chat: Chat,
    running: Running,
    hub: Hub,
    printing: Printing,
) -> None:
    """Measure other metrics of one model or several.

    Memorization, generation, membership attacks, white-box metrics (UDS among them) and utility. Without --retain or
    --full the metrics that need them are NaN, with the reason.

    \b
    Examples:
      uds-lens metrics --list
      uds-lens metrics --model ckpt/npo --retain ckpt/retain --full ckpt/full \\
          --data tofu:data/tofu --out runs/npo-metrics.json
    """
    if list_:
        print_list(as_json=printing.json)
        return
    if not model or data is None or out is None:
        given = {"--model": model, "--data": data, "--out": out}
        missing = ", ".join(flag for flag, value in given.items() if not value)
        raise ConfigError(
            f"{missing} missing. For example: uds-lens metrics --model ckpt/npo --data forget10.json --out npo.json; "
            "uds-lens metrics --list shows what there is to measure, and what it needs."
        )
    say(f"measuring {len(metric) if metric else 'all'} metrics of {', '.join(model)} ...")
    import uds_lens as ul
    from uds_lens.metrics.earlier_results import require_nothing_lost
    from uds_lens.metrics.models_table import require_metrics_table, write_metrics_table
    from uds_lens.metrics.saved_metrics import FORMAT
    from uds_lens.results.directory_names import directory_names
    from uds_lens.storage import require_fresh

    names = directory_names(model, given=name or ())
    table = out / "table.csv"
    files = {n: out / f"{n}.json" for n in names} if len(names) > 1 else {names[0]: out}
    for file in files.values():
        require_fresh(file, directory=False, format=FORMAT)
    if len(names) > 1:
        require_metrics_table(table)
    options = ul.metrics.MetricOptions(
        strict_es=strict_es,
        min_k=min_k,
        max_new_tokens=max_new_tokens,
        uds_in_privacy=uds_in_privacy,
        tau=tau,
        protocol=protocol,
        **chat.settings(),
        dtype=dtype,
    )
    if not redo:
        require_nothing_lost(files.values(), metric or None, options=options)
    run, cache = running.options(hub), ul.metrics.MetricCache()
    sets = ul.metrics.open_metric_data(data, split=split, limit=limit, sample=sample)
    scorer = ul.metrics.fluency_scorer(metric or None, fluency, options=options, offline=run.offline)
    found: dict[str, MetricResults] = {}
    with saying_what_is_saved(lambda: f"{len(found)} of {len(names)} saved"):
        for number, (n, m) in enumerate(zip(names, model, strict=True), start=1):
            with about(f"{n} ({number} of {len(names)})" if len(names) > 1 else n):
                results = ul.metrics.evaluate(
                    m,
                    sets,
                    metrics=metric or None,
                    retain=retain,
                    full=full,
                    options=options,
                    run=run,
                    cache=cache,
                    fluency=scorer,
                )
            results.save(files[n])
            found[n] = results
            say(f"{n}: {len(results)} metrics; saved, {len(found)} of {len(names)}")
    if len(names) > 1:
        write_metrics_table(found, table)
    if printing.json:
        print_files(files)
        return
    print_results(found)
    typer.echo(f"\nSaved in {out}")
