"""`uds-lens relearn-grid`: the most that relearning brings back, over many settings."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uds_lens._cli import options as opt
from uds_lens._cli.options import Only, Printing, data_option, model_option
from uds_lens._cli.stopping import saying_what_is_saved
from uds_lens._cli.terminal import print_table, print_wrapped, say
from uds_lens.metrics._options import MetricOptions
from uds_lens.study._relearn_settings import RelearnGrid
from uds_lens.unlearning._settings import RelearnConfig, TrainOptions

if TYPE_CHECKING:
    from uds_lens.study import RelearnGridResults


def relearn_grid(
    model: Annotated[str, model_option("Unlearned model: directory or Hub id.")],
    retain: Annotated[str, model_option("Model that never saw the forget set: the control.")],
    examples: Annotated[str, data_option("tofu:DIR or tofu:HUB_ID for all TOFU sets, or a file with a forget set.")],
    out: opt.Out,
    retain_data: Annotated[
        str | None, data_option("Questions to measure utility on, if --examples is only a forget set.")
    ] = None,
    split: Annotated[str, typer.Option(metavar="NAME", help="Forget split of TOFU.")] = "forget10",
    limit: opt.Limit = None,
    *,
    grid: RelearnGrid,
    config: Annotated[RelearnConfig, Only(("batch_size", "schedule", "protocol", "system_prompt", "chat_date"))],
    options: Annotated[TrainOptions, Only(field.name for field in fields(TrainOptions) if field.name != "redo")],
    measuring: Annotated[MetricOptions, Only(("max_new_tokens", "generation_rows", "fluency"))],
    printing: Printing,
) -> None:
    """Find the relearning setting that brings back the most.

    Relearns under every combination of --learning-rate, --epochs, --share and --lora-rank (repeat each), on the
    unlearned model and on retain, and reports the worst setting that costs at most --max-loss of the utility, next
    to the UDS paper's setting. A maximum over many tries is high by chance, and any model can learn; what counts is
    the excess over retain, with settings chosen on subjects that are not scored.

    \b
    Example:
      uds-lens relearn-grid --model ckpt/npo --retain ckpt/retain \\
          --examples tofu:data/tofu --learning-rate 2e-5 --learning-rate 1e-4 \\
          --epochs 1 --epochs 5 --share 0.25 --share 1 --out runs/relearn
    """
    say(f"{len(grid.settings)} settings on {model} and {retain} ...")
    import uds_lens as ul

    data = ul.metrics.open_metric_data(examples, split=split, limit=limit)
    if retain_data is not None:
        data = replace(data, retain=tuple(ul.load_examples(retain_data)))
    measuring = replace(
        measuring, protocol=config.protocol, system_prompt=config.system_prompt, chat_date=config.chat_date
    )
    with saying_what_is_saved(lambda: "run the same command to resume"), redirect_stdout(sys.stderr):
        results = ul.study.relearn_grid(
            model, retain, data, out=out, grid=grid, config=config, options=options, metrics=measuring
        )
    if printing.json:
        from uds_lens._storage import plain

        typer.echo(json.dumps(plain({"out": str(out), **results.summary()}), indent=2, allow_nan=False))
        return
    _print(results)
    typer.echo(f"\nSaved in {out}")


def _print(results: RelearnGridResults) -> None:
    def number(value: Any) -> str:
        return "-" if value is None or value != value else f"{value:.3f}"

    rows = [
        [
            f"{row['model']}, {row['setting']}{' (the paper)' if row['paper'] else ''}",
            *(number(row[name]) for name in ("before", "after", "back", "back_untrained")),
            f"{100 * row['utility_loss']:.0f}%{'' if row['allowed'] else ' (too much)'}",
        ]
        for row in results.frame.to_dict("records")
    ]
    titles = ["setting", "before", "after", "back", "back, untrained rows", "utility lost"]
    print_table(titles, rows, right=titles[1:])
    summary = results.summary()
    bound = f"{100 * summary['max_loss']:g}% of utility lost"
    for model in ("unlearned", "retain"):
        if summary[f"{model}_worst_setting"] is None:
            print_wrapped(f"! {model}: no setting stays within {bound}")
        else:
            print_wrapped(
                f"{model}: at most {number(summary[f'{model}_worst_back'])} comes back, to "
                f"{number(summary[f'{model}_worst_after'])} ({summary[f'{model}_worst_setting']}); with the paper's "
                f"setting {number(summary[f'{model}_paper_back'])}, to {number(summary[f'{model}_paper_after'])}."
            )
    interval = (
        ""
        if summary["excess_low"] is None or summary["excess_low"] != summary["excess_low"]
        else (f" [{summary['excess_low']:.3f}, {summary['excess_high']:.3f}]")
    )
    print_wrapped(
        f"Excess over retain, each at its own worst: {number(summary['excess'])}{interval}; with the paper's setting "
        f"{number(summary['paper_excess'])}; settings chosen on one half of the subjects, scored on the other: "
        f"{number(summary['held_out_excess'])}."
    )
    print_wrapped(
        f"\nWorst: the highest {summary['metric']} of {summary['n_settings']} settings within {bound}, chosen after "
        "seeing these outcomes; the interval ignores that choice, the last number does not. back: change towards "
        "knowledge; the part that retain reaches, too, was newly learned."
    )
