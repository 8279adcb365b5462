"""`uds-lens sweep` and `relearn-grid`: make and measure the models of a plan; relearn under many settings."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uds_lens._cli import options as opt
from uds_lens._cli.terminal import echo, number, print_json, print_table, print_wrapped, say, saying_what_is_saved
from uds_lens._quoting import csv_text
from uds_lens.data._prompts import ChatStyle
from uds_lens.metrics._options import MetricOptions
from uds_lens.study._relearn_settings import RelearnGrid
from uds_lens.study._run import SlurmOptions
from uds_lens.unlearning._settings import RelearnConfig, TrainOptions

if TYPE_CHECKING:
    from uds_lens.study import RelearnGridResults, StudyStatus

_EXAMPLE = "uds-lens sweep plan.toml --out runs/study"


def sweep(
    words: Annotated[
        list[str],
        opt.argument("PLAN | status DIR | table DIR", "Plan in TOML; or show the status, or the table, of a sweep."),
    ],
    out: Annotated[
        Path | None, opt.value("PATH", "Directory of the sweep; of `table`, a .parquet or .csv file.")
    ] = None,
    jobs: Annotated[int, opt.count("Number of workers that run at the same time.")] = 1,
    slurm: Annotated[bool, opt.flag("--slurm", "Submit the workers as an array of Slurm tasks.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait for the Slurm tasks.")] = True,
    *,
    tasks: SlurmOptions,
    printing: opt.Printing,
) -> None:
    """Make and measure all models of a plan.

    Models are fine-tuned, unlearned, relearned and quantised as the plan says, and measured
    in every state. To resume a killed sweep, run the same command again; several can run at once with the same
    --out. The exit code is 1 if something failed or is left to do.

    \b
    Examples:
      uds-lens sweep plan.toml --out runs/study --jobs 2
      uds-lens sweep plan.toml --out runs/study --slurm --jobs 16 --partition gpu
      uds-lens sweep status runs/study
      uds-lens sweep table runs/study --out table.parquet
    """
    planned = len(words) == 1 and words[0] not in ("status", "table")
    todo, place = opt.asked_for(
        ["run", *words] if planned else words,
        {"run": 1, "status": 1, "table": 1} if planned else {"status": 1, "table": 1},
        "PLAN, `status DIR` or `table DIR`",
        _EXAMPLE,
    )
    say(f"reading {place} ...")
    from uds_lens import study

    if todo == "table":
        _write_table(place, out, as_json=printing.json)
        return
    if todo == "status":
        status = study.status(place)
    else:
        opt.require_options({"--out": out}, _EXAMPLE)
        assert out is not None
        if slurm:
            status = study.run(place, out, jobs=jobs, executor="slurm", slurm=tasks, wait=wait)
        else:
            status = study.run(place, out, jobs=jobs)
    print_status(status, as_json=printing.json)
    if todo == "run" and (status.failed or (status.left and (wait or not slurm))):
        raise typer.Exit(1)


def _write_table(place: str, out: Path | None, *, as_json: bool) -> None:
    from uds_lens import study

    table = study.table(place)
    if out is None:
        echo(table.to_json(orient="records", indent=1) if as_json else csv_text(table), nl=False)
        return
    study.write_table(table, out)
    echo(json.dumps({"file": str(out), "rows": len(table)}) if as_json else f"{len(table)} rows in {out}")


def print_status(status: StudyStatus, *, as_json: bool) -> None:
    if as_json:
        print_json(status.to_dict())
        return
    print_wrapped(str(status))
    if status.sample is not None:
        print_wrapped(status.sample)
    if status.failed:
        rows = [[failure.model, failure.state, failure.reason] for failure in status.failed]
        print_table(["failed", "state", "reason"], rows)


def relearn_grid(
    model: Annotated[str, opt.model("Unlearned model: directory or Hub id.")],
    retain: Annotated[str, opt.model("Model that never saw the forget set: the control.")],
    examples: Annotated[str, opt.data("tofu:DIR or tofu:HUB_ID for all TOFU sets, or a file with a forget set.")],
    out: opt.Out,
    retain_data: Annotated[
        str | None, opt.data("Questions to measure utility on, if --examples is only a forget set.")
    ] = None,
    split: Annotated[str, opt.value("NAME", "Forget split of TOFU.")] = "forget10",
    limit: opt.Limit = None,
    *,
    grid: RelearnGrid,
    config: Annotated[RelearnConfig, opt.Only(("batch_size", "schedule", "protocol", *ChatStyle.__dataclass_fields__))],
    options: Annotated[TrainOptions, opt.Only(field.name for field in fields(TrainOptions) if field.name != "redo")],
    measuring: Annotated[MetricOptions, opt.Only(("max_new_tokens", "generation_rows", "fluency"))],
    printing: opt.Printing,
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
    measuring = replace(measuring, protocol=config.protocol, **asdict(config.chat))
    with saying_what_is_saved(lambda: "run the same command to resume"), redirect_stdout(sys.stderr):
        results = ul.study.relearn_grid(
            model, retain, data, out=out, grid=grid, config=config, options=options, metrics=measuring
        )
    if printing.json:
        print_json({"out": str(out), **results.summary()})
        return
    _print_grid(results)
    echo(f"\nSaved in {out}")


def _print_grid(results: RelearnGridResults) -> None:
    rows = [
        [
            row["model"],
            f"{row['setting']}{' (paper)' if row['paper'] else ''}",
            *(number(row[name]) for name in ("before", "after", "back", "back_untrained")),
            f"{round(100 * row['utility_loss'], 0) + 0.0:.0f}%{'' if row['allowed'] else ' (too much)'}",
        ]
        for row in results.frame.to_dict("records")
    ]
    titles = ["model", "setting", "before", "after", "regained", "untrained rows", "utility lost"]
    print_table(titles, rows, right=titles[2:])
    summary = results.summary()
    bound = f"{100 * summary['max_loss']:g}% of utility"
    for model in ("unlearned", "retain"):
        if summary[f"{model}_worst_setting"] is None:
            print_wrapped(f"! {model}: every setting costs more than {bound}")
        else:
            print_wrapped(
                f"{model}: relearning regains at most {number(summary[f'{model}_worst_back'])} "
                f"({summary['metric']} {number(summary[f'{model}_worst_after'])}, "
                f"{summary[f'{model}_worst_setting']}); the paper's setting regains "
                f"{number(summary[f'{model}_paper_back'])} "
                f"({summary['metric']} {number(summary[f'{model}_paper_after'])})."
            )
    low, high = number(summary["excess_low"]), number(summary["excess_high"])
    interval = "" if low == "-" else f" [{low}, {high}]"
    print_wrapped(
        f"Excess over retain: {number(summary['excess'])}{interval} with each model at its worst setting; "
        f"{number(summary['paper_excess'])} with the paper's setting; {number(summary['held_out_excess'])} with "
        "settings chosen on one half of the subjects and scored on the other."
    )
    print_wrapped(
        f"\nWorst setting: of {summary['n_settings']}, the one that regains the most and costs at most {bound}. It was "
        "chosen after seeing these outcomes: the interval ignores that choice, but the last number accounts for it. "
        "Regained: change towards knowledge; untrained rows: the same for rows left out of training. What retain "
        "regains, too, was newly learned."
    )
