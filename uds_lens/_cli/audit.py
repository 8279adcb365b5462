"""`uds-lens audit`: one or several unlearned models against one full and one retain model."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uds_lens._cli.options import Printing, data_option, model_option
from uds_lens._cli.stopping import saying_what_is_saved
from uds_lens._cli.terminal import audits_as_json, print_audits, say, score_in_words
from uds_lens._compat.typer import missing_options
from uds_lens.data._prompts import ChatStyle
from uds_lens.errors import ConfigError
from uds_lens.results._settings import AuditConfig, RunOptions

if TYPE_CHECKING:
    from uds_lens.results import DepthAudit
    from uds_lens.sharing import UnlearningRun


_WITHHELD = 3
"""Exit code where a warning is fatal: the numbers are saved, and mean no score."""


def audit(
    full: Annotated[str | None, model_option("Model trained on everything: directory or Hub id.")] = None,
    retain: Annotated[
        list[str] | None, model_option("Model that never saw the forget set; repeat for other seeds.")
    ] = None,
    unlearned: Annotated[list[str] | None, model_option("Model to audit; repeat for more.", "--model")] = None,
    examples: Annotated[
        str | None, data_option("Forget set: JSON, JSON lines, CSV, Parquet, or a Hub data set.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Directory for the results.", file_okay=False)] = None,
    open_unlearning: Annotated[
        Path | None,
        typer.Option(
            metavar="TASK",
            help="Folder of an Open-Unlearning run (saves/unlearn/TASK): audits its checkpoints against the full and "
            "retain that its record names, and writes UDS_EVAL.json beside its results. Other options override.",
            file_okay=False,
        ),
    ] = None,
    control: Annotated[
        str | None, data_option("Facts to retain, known to both full and retain; a loss on them is damage.")
    ] = None,
    name: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Name of a result; once for each --model, in their order.")
    ] = None,
    keep_full: Annotated[
        bool,
        typer.Option(
            "--keep-full", help="With several models: full stays open and recorded. Faster; two models in memory."
        ),
    ] = False,
    redo: Annotated[
        bool, typer.Option("--redo", help="Measure again what --out already holds for the same inputs.")
    ] = False,
    *,
    config: AuditConfig,
    options: RunOptions,
    printing: Printing,
) -> None:
    """Measure how deep the unlearning of a forget set went.

    One model: the audit is saved in --out. Several: each in a directory of --out named after it, with table.csv and the
    baseline they share. When run again, the command keeps finished audits of the same weights, examples and
    settings, and measures the rest.

    With --control the same is measured on retained facts. With several --retain there is a score against each.
    Exit code 3: a warning is fatal, and the verdict is withheld.

    No retain model? --retain ckpt/base --stand-in base takes the model before fine-tuning, --stand-in counterfactual
    (without --retain) full's own states on the same questions about other subjects; the results say so.

    \b
    Example:
      uds-lens audit --full ckpt/full --retain ckpt/retain --model ckpt/npo \\
          --model ckpt/rmu --examples forget10.json --out runs/forget10
      uds-lens audit --open-unlearning saves/unlearn/TASK --examples forget10.json
    """
    run = None
    if open_unlearning is not None:
        if unlearned or name:
            raise ConfigError("--open-unlearning takes the models of the run: leave out --model and --name.")
        from uds_lens import sharing
        from uds_lens.sharing._open_unlearning import require_answers

        run = sharing.open_unlearning_run(open_unlearning)
        asked = retain[0] if retain else "none" if config.stand_in == "counterfactual" else None
        require_answers(run, full=full, retain=asked, examples=examples)
        config = _as_trained(run, config)
        full, examples = full or run.full, examples or run.examples
        if config.stand_in != "counterfactual":
            retain = retain or [str(run.retain)]
        unlearned, name = [str(path) for path in run.checkpoints.values()], list(run.checkpoints)
        # Each audit in a directory of its name, the only one too: another checkpoint may come later.
        out = out or open_unlearning / "uds" / (name[0] if len(name) == 1 else "")
    scale = retain or config.stand_in == "counterfactual"
    if not (full and scale and unlearned and examples and out):
        given = {"--full": full, "--retain": scale, "--model": unlearned, "--examples": examples, "--out": out}
        raise missing_options([flag for flag, value in given.items() if not value])
    count = "1 model" if len(unlearned) == 1 else f"{len(unlearned)} models"
    say(f"auditing {count}; opening full: {full} ...")
    import uds_lens as ul
    from uds_lens.audit import _resume as folder
    from uds_lens.audit._resume import Question, require_table, write_folder_table
    from uds_lens.results._saving import directory_names

    names = directory_names(unlearned, given=name or (), reserved=[folder.BASELINE])
    models = dict(zip(names, unlearned, strict=True))
    places = folder.audit_places(out, names)
    folder.require_places(places.values(), baseline=out / folder.BASELINE if len(names) > 1 else None)
    if len(names) > 1:
        require_table(out)
    retains = retain[0] if retain and len(retain) == 1 else retain or None
    facts = None if control is None else ul.load_examples(control)
    question = Question(full, retains, ul.load_examples(examples), config, options, control=facts)
    folder.check_models(question, models)
    audits = {} if redo else folder.found_in(question, models, places)
    if audits:
        done = "Already measured, with the same weights, examples and settings"
        say(f"{done}: {', '.join(audits)}. --redo measures again.")
    left = {name: model for name, model in models.items() if name not in audits}

    def report(name: str, audit: DepthAudit) -> None:
        audits[name] = audit
        say(f"{name}: {score_in_words(audit)}; saved, {len(audits)} of {len(names)}")

    with saying_what_is_saved(lambda: f"{len(audits)} of {len(names)} saved; run the same command to resume"):
        if len(names) == 1:
            folder.audit_alone(question, left, out, on_saved=report)
        elif left:
            folder.audit_many(question, left, out, redo=redo, keep_full=keep_full, on_saved=report)
    audits = {name: audits[name] for name in names}
    if run is not None:
        for label, folder_of in zip(names, run.checkpoints.values(), strict=True):
            written, _ = sharing.write_uds_eval(audits[label], folder_of / "evals")
            say(f"{label}: written to {written} and UDS_SUMMARY.json")
    if len(names) > 1:
        write_folder_table(out, audits)
    if printing.json:
        typer.echo(audits_as_json(audits, places))
    else:
        print_audits(audits)
        typer.echo(f"\nSaved in {out}")
    if any(audit.fatal for audit in audits.values()):
        raise typer.Exit(_WITHHELD)


def _as_trained(run: UnlearningRun, config: AuditConfig) -> AuditConfig:
    """Return the settings with the prompts of a run's training, unless others were asked for."""
    if config.protocol != "auto" or config.chat != ChatStyle():
        return config
    if run.protocol is None:
        raise ConfigError(
            f"{str(run.task)!r} was trained with prompts that do not come from the tokenizer's chat template: choose "
            "some with --protocol raw or --protocol chat."
        )
    return replace(config, protocol=run.protocol, **asdict(run.chat))
