"""`uds-lens audit` and `demo`: audit unlearned models, checkpoints as they appear, and the toy world."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import uds_lens as ul
from uds_lens._cli import options as opt
from uds_lens._cli.terminal import (
    echo,
    print_audits,
    print_audits_as_json,
    print_transplants,
    say,
    saying_what_is_saved,
)
from uds_lens._compat.typer import missing_options
from uds_lens.data._prompts import ChatStyle
from uds_lens.errors import ConfigError, ResultFormatError, UdsLensError
from uds_lens.results._settings import AuditConfig

if TYPE_CHECKING:
    from uds_lens.audit._resume import Question
    from uds_lens.models._fingerprint import CheckpointFiles


_WITHHELD = 3
"""Exit code if a warning is fatal: the numbers are saved, but they are not a valid score."""


@dataclass(frozen=True, kw_only=True)
class Watching:
    """Options for auditing checkpoints that appear while a model trains."""

    watch: Annotated[
        Path | None,
        opt.value(
            "DIR",
            "Instead of --model: audit the checkpoints that a training run saves in this directory, until interrupted.",
            file_okay=False,
        ),
    ] = None
    pattern: Annotated[str, opt.value("GLOB", "Pattern for the names of checkpoint directories.")] = "checkpoint-*"
    poll: Annotated[float, opt.value("SECONDS", "Time between two polls.", min=0.0)] = 10.0
    once: Annotated[bool, opt.flag("--once", "Poll twice, audit the complete checkpoints and exit.")] = False


def audit(
    full: Annotated[str | None, opt.FULL] = None,
    retain: Annotated[list[str] | None, opt.RETAINS] = None,
    unlearned: Annotated[list[str] | None, opt.model("Model to audit (repeatable).", "--model")] = None,
    examples: Annotated[str | None, opt.FORGET_SET] = None,
    out: Annotated[Path | None, opt.folder("Directory for the results.")] = None,
    open_unlearning: Annotated[
        Path | None,
        opt.value(
            "TASK",
            "Folder of an Open-Unlearning run (saves/unlearn/TASK). The run's checkpoints are audited against the full "
            "and retain models named in its record, and UDS_EVAL.json is written next to its results. Other options "
            "override the record.",
            file_okay=False,
            rich_help_panel=opt.LATER,
        ),
    ] = None,
    control: Annotated[str | None, opt.CONTROL] = None,
    name: Annotated[
        list[str] | None, opt.value("NAME", "Name of a result; give one per --model, in the same order.")
    ] = None,
    keep_full: Annotated[
        bool,
        opt.flag(
            "--keep-full",
            "With several models: keep full loaded, with its recorded activations. This is faster but keeps two "
            "models in memory.",
            rich_help_panel=opt.LATER,
        ),
    ] = False,
    transplant: Annotated[
        bool,
        opt.flag(
            "--transplant",
            "Transplant blocks of retain and of full into each model and repeat the questions: does the model "
            "still hold knowledge that its answers lack? This keeps two models in memory.",
        ),
    ] = False,
    precision: Annotated[
        float | None,
        opt.value(
            "SHARE",
            "For a first look: measure just enough rows, spread over the subjects, to bring the sampling error of the "
            "first --model's UDS below this share of the interval's width (0.1 is enough).",
            rich_help_panel=opt.LATER,
        ),
    ] = None,
    redo: Annotated[bool, opt.flag("--redo", "Repeat audits that --out already holds for the same inputs.")] = False,
    *,
    watching: Annotated[Watching, opt.Offer(first=("watch",))],
    config: opt.Auditing,
    options: opt.AuditRun,
    printing: opt.Printing,
) -> None:
    """Measure how deeply a forget set was unlearned.

    The audit of a single model is saved in --out. With several models, each audit is saved in a subdirectory of --out
    named after its model, next to table.csv and the shared baseline. When run again, the command keeps finished audits
    of the same weights, examples and settings, and measures only what is missing.

    With --control, loss is also measured on retained facts. With several --retain, each retain model gives a score of
    its own. With --transplant, each result has a subdirectory `transplant` with host depth and localisation. Exit code
    3 means that a fatal warning withholds the verdict.

    With --watch, a checkpoint is read once its weights are complete and none of its files has changed between two
    polls. Ctrl-C or SIGTERM stops the command.

    If there is no retain model, the model before fine-tuning can replace it (--retain ckpt/base --stand-in base), or
    full's own states without the question or on other subjects (--stand-in counterfactual, without --retain). The
    results name the stand-in.

    \b
    Examples:
      uds-lens audit --full ckpt/full --retain ckpt/retain --model ckpt/npo \\
          --model ckpt/rmu --examples forget10.json --out runs/forget10
      uds-lens audit --watch runs/npo --full ckpt/full --retain ckpt/retain \\
          --examples forget10.json --out audits/npo
      uds-lens audit --open-unlearning saves/unlearn/TASK --examples forget10.json
    """
    run = None
    if watching.watch is not None:
        if unlearned or name or open_unlearning or keep_full or transplant:
            raise ConfigError(
                "--watch audits checkpoints as they appear: leave out --model, --name, --open-unlearning, --keep-full "
                "and --transplant."
            )
        if not watching.watch.is_dir():
            raise ConfigError(
                f"no directory {str(watching.watch)!r} to watch: pass the output directory of a training run."
            )
    if open_unlearning is not None:
        if unlearned or name:
            raise ConfigError("--open-unlearning audits the models of the run: leave out --model and --name.")
        from uds_lens.sharing._open_unlearning import require_answers

        run = ul.sharing.open_unlearning_run(open_unlearning)
        asked = retain[0] if retain else "none" if config.stand_in == "counterfactual" else None
        require_answers(run, full=full, retain=asked, examples=examples)
        config = _as_trained(run, config)
        full, examples = full or run.full, examples or run.examples
        if config.stand_in != "counterfactual":
            retain = retain or [str(run.retain)]
        unlearned, name = [str(path) for path in run.checkpoints.values()], list(run.checkpoints)
        # Even a single audit gets a directory named after it, because more checkpoints may follow.
        out = out or open_unlearning / "uds" / (name[0] if len(name) == 1 else "")
    scale = retain or config.stand_in == "counterfactual"
    audited = unlearned or watching.watch
    if not (full and scale and audited and examples and out):
        given = {"--full": full, "--retain": scale, "--model": audited, "--examples": examples, "--out": out}
        raise missing_options([flag for flag, value in given.items() if not value])
    models = unlearned or []
    what = "1 model" if len(models) == 1 else f"{len(models)} models"
    what = f"watching {watching.watch} for {watching.pattern}" if watching.watch else f"auditing {what}"
    say(f"{what}; opening full: {full} ...")
    from uds_lens.audit._resume import Question, write_folder_table

    if transplant and config.stand_in == "counterfactual":
        raise ConfigError("--transplant needs blocks of a retain model, but counterfactuals have no weights.")
    facts = None if control is None else ul.load_examples(control)
    retains = retain[0] if retain and len(retain) == 1 else retain or None
    question = Question(full, retains, ul.load_examples(examples), config, options, control=facts)
    if precision is not None:
        if config.limit is not None or not models:
            raise ConfigError("--precision chooses --limit for a --model: leave out --limit and --watch.")
        trio = (full, retains, models[0], question.examples)
        limit = ul.audit.limit_for(*trio, precision=precision, config=config, options=options)
        question = replace(question, config=replace(config, limit=limit if limit < len(question.examples) else None))
    if watching.watch is not None:
        audits, whole = _as_they_appear(question, watching.watch, out, watching, redo=redo)
        places, transplants = {name: out / name for name in audits}, {}
    else:
        audits, places = _all_of(question, models, name or (), out, redo=redo, keep_full=keep_full)
        whole, named = True, dict(zip(audits, models, strict=True))
        transplants = _transplants(question, named, audits, places, out, redo=redo) if transplant else {}
        audits |= {name: found.beside(audits[name]) for name, found in transplants.items()}
    if run is not None:
        for label, folder_of in zip(audits, run.checkpoints.values(), strict=True):
            written, _ = ul.sharing.write_uds_eval(audits[label], folder_of / "evals")
            say(f"{label}: written to {written} and UDS_SUMMARY.json")
    if audits and out not in places.values():
        write_folder_table(out, audits)
    if printing.json:
        print_audits_as_json(audits, places, transplants)
    elif audits:
        print_audits(audits)
        print_transplants(transplants)
        echo(f"\nSaved in {out}")
    if not whole or not audits:
        raise typer.Exit(1)
    if any(audit.fatal for audit in audits.values()):
        raise typer.Exit(_WITHHELD)


def _all_of(
    question: Question, models: Sequence[str], given: Sequence[str], out: Path, *, redo: bool, keep_full: bool
) -> tuple[dict[str, ul.DepthAudit], dict[str, Path]]:
    """Audit the models not yet audited on these inputs; return all audits and where they are saved."""
    from uds_lens.audit import _resume as folder
    from uds_lens.results._saving import directory_names
    from uds_lens.results._verdict import score_in_words

    names = directory_names(models, given=given, reserved=[folder.BASELINE])
    named = dict(zip(names, models, strict=True))
    places = folder.audit_places(out, names)
    folder.require_places(places.values(), baseline=out / folder.BASELINE if len(names) > 1 else None)
    if len(names) > 1:
        folder.require_table(out)
    folder.check_models(question, named)
    audits = {} if redo else folder.found_in(question, named, places)
    if audits:
        done = "Already measured, with the same weights, examples and settings"
        say(f"{done}: {', '.join(audits)}. --redo measures again.")
    left = {name: model for name, model in named.items() if name not in audits}

    def report(name: str, audit: ul.DepthAudit) -> None:
        audits[name] = audit
        say(f"{name}: {score_in_words(audit)}; saved, {len(audits)} of {len(names)}")

    with saying_what_is_saved(lambda: f"{len(audits)} of {len(names)} audits saved; run the same command to resume"):
        if len(names) == 1:
            folder.audit_alone(question, left, out, on_saved=report)
        elif left:
            folder.audit_many(question, left, out, redo=redo, keep_full=keep_full, on_saved=report)
    return {name: audits[name] for name in names}, places


def _transplants(
    question: Question,
    models: dict[str, str],
    audits: dict[str, ul.DepthAudit],
    places: dict[str, Path],
    out: Path,
    *,
    redo: bool,
) -> dict[str, ul.Transplant]:
    """Measure and save transplants of audited models, skipping those already saved for the same inputs."""
    from uds_lens.audit._resume import BASELINE
    from uds_lens.transplants._measuring import each_transplant
    from uds_lens.transplants._results import FOLDER

    found: dict[str, ul.Transplant] = {}
    for name, audit in audits.items():
        place = places[name] / FOLDER
        if place.is_dir() and not redo:
            try:
                saved = ul.Transplant.load(place)
            except ResultFormatError as error:
                say(f"{name}: {error} It is measured again.")
                continue
            if saved.belongs_to(audit):
                found[name] = saved
    left = [name for name in audits if name not in found]
    baseline = question.baseline_at(out / BASELINE) if left else None  # of several models
    is_new = baseline is not None and baseline.exchanged is None
    with saying_what_is_saved(
        lambda: f"{len(found)} of {len(audits)} transplants saved; run the same command to resume"
    ):
        measured = each_transplant(
            question.full,
            question.retain,
            [models[name] for name in left],
            question.examples,
            control=question.control,
            config=question.config,
            options=question.options,
            baseline=baseline,
        )
        for name, one in zip(left, measured if left else (), strict=True):
            if baseline is not None and is_new:
                baseline.save(out / BASELINE)
                is_new = False
            one.save(places[name] / FOLDER)
            found[name] = one
            say(f"{name}: transplant saved")
    return {name: found[name] for name in audits}


def _as_trained(run: ul.sharing.UnlearningRun, config: AuditConfig) -> AuditConfig:
    """Return the settings with the prompts used in the run's training, unless other prompts were requested."""
    if config.protocol != "auto" or config.chat != ChatStyle():
        return config
    if run.protocol is None:
        raise ConfigError(
            f"{str(run.task)!r} was trained with prompts that do not come from the tokenizer's chat template: choose "
            "prompts with --protocol raw or --protocol chat."
        )
    return replace(config, protocol=run.protocol, **asdict(run.chat))


_WEIGHTS = (("model.safetensors", "config.json"), ("adapter_model.safetensors", "adapter_config.json"))
"""File names of the weights and the configuration, for a model and for an adapter."""


def _as_they_appear(
    question: Question, folder: Path, out: Path, watching: Watching, *, redo: bool
) -> tuple[dict[str, ul.DepthAudit], bool]:
    """Audit checkpoints until stopped; return all audits, including those of earlier runs, and whether none failed."""
    from uds_lens.audit import _resume as saved
    from uds_lens.results._saving import audits_in
    from uds_lens.results._verdict import score_in_words

    saved.require_table(out)
    # the audits go into subdirectories, so --out must not be an audit itself
    saved.audit_places(out, [saved.BASELINE, "checkpoints"])
    saved.check_models(question, {})
    audits: dict[str, ul.DepthAudit] = {}
    failed: dict[str, str] = {}

    def report(name: str, audit: ul.DepthAudit) -> None:
        audits[name] = audit
        say(f"{name}: {score_in_words(audit)}; saved")

    def measure(name: str) -> None:
        models, places = {name: str(folder / name)}, {name: out / name}
        saved.require_places(places.values(), baseline=out / saved.BASELINE)
        saved.check_models(question, models)
        audits.update({} if redo else saved.found_in(question, models, places))
        if name not in audits:
            saved.audit_many(question, models, out, on_saved=report)
        saved.write_folder_table(out, _by_step(audits))  # keeps the table up to date

    seen: dict[str, CheckpointFiles | None] = {}
    try:
        saved.audit_many(question, {}, out, redo=redo)  # stage 1 is measured before the first checkpoint appears
        for look in range(2) if watching.once else itertools.count():
            if look:
                time.sleep(watching.poll)
            now = {place.name: whole_files(place) for place in folder.glob(watching.pattern) if place.is_dir()}
            ready = [name for name, files in now.items() if files is not None and files == seen.get(name)]
            seen = now
            for name in sorted(ready, key=_step):
                if name not in audits and name not in failed:
                    try:
                        measure(name)
                    except UdsLensError as error:
                        if (folder / name).is_dir():  # a missing checkpoint was removed by the training run
                            failed[name] = str(error)
                            say(f"{name}: {error}")
    except KeyboardInterrupt:
        say("stopped")
    left = [name for name in sorted(seen, key=_step) if name not in audits and name not in failed]
    if left:
        say(f"not audited: {', '.join(left)} (incomplete, or too new)")
    earlier = {place.name: ul.DepthAudit.load(place) for place in audits_in(out, depth=1) if place.name not in audits}
    return _by_step(earlier | audits), not failed


def whole_files(checkpoint: Path) -> CheckpointFiles | None:
    """List the files of a checkpoint whose weights are complete; None if some are missing or truncated.

    A safetensors file states its length in its header, and an index lists all files of a sharded model.
    """
    from safetensors import SafetensorError, safe_open

    from uds_lens.models._fingerprint import checkpoint_files

    index = checkpoint / "model.safetensors.index.json"
    try:
        if index.is_file():
            shards = set(json.loads(index.read_bytes())["weight_map"].values())
            needed = {"config.json", *shards}
        else:
            needed = next(({*both} for both in _WEIGHTS if (checkpoint / both[0]).is_file()), {"model.safetensors"})
        for name in needed:
            if name.endswith(".json"):
                json.loads((checkpoint / name).read_bytes())
            else:
                with safe_open(checkpoint / name, framework="pt"):
                    pass
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError):
        return None
    return checkpoint_files(checkpoint)


def _by_step(audits: dict[str, ul.DepthAudit]) -> dict[str, ul.DepthAudit]:
    return {name: audits[name] for name in sorted(audits, key=_step)}


def _step(name: str) -> tuple[int, str]:
    """Order names by the number they end with.

    >>> sorted(["checkpoint-10", "checkpoint-9"], key=_step)
    ['checkpoint-9', 'checkpoint-10']
    """
    number = re.search(r"\d+$", name)
    return int(number[0]) if number else -1, name


def demo(out: opt.Out = Path("runs/demo"), *, printing: opt.Printing) -> None:
    """Audit the models of the built-in toy world.

    It runs offline on the CPU and takes about a minute. The audits are saved in --out, one directory per model, with a
    report.

    \b
    Example:
      uds-lens demo --out runs/demo
    """
    say("auditing the models of the toy world ...")
    from uds_lens.audit._resume import BASELINE, require_places, require_table, write_folder_table

    world = ul.toy.load()
    models = {"full": world.full, "half": world.half, **world.unlearned, "retain": world.retain}
    require_places([out / name for name in models], baseline=out / BASELINE)
    require_table(out)
    if not printing.json:
        echo(_introduction(world))
    options = ul.RunOptions(device="cpu")
    baseline = ul.Baseline.measure(world.full, world.retain, world.examples, options=options)
    measured = dict(zip(models, baseline.audit_all(list(models.values()), options=options), strict=True))
    audits = dict(sorted(measured.items(), key=lambda item: item[1].uds))
    baseline.save(out / BASELINE)
    for name, audit in audits.items():
        audit.save(out / name)
    write_folder_table(out, audits)
    ul.report.write(audits, out / "report.html", title="The toy world", references=["half"])
    if printing.json:
        print_audits_as_json(audits, {name: out / name for name in audits})
        return
    print_audits(audits, cautions_of=list(world.unlearned))
    echo(_NEXT.format(out=out))


def _introduction(world: ul.toy.World) -> str:
    made = {
        "full": "trained on everything",
        "half": "never saw half of the forget set",
        "retain": "never saw the forget set",
    }
    recall = [
        f"  {name:<10} {made.get(name, 'full after unlearning'):<43} {world.recall[name]['forget']:>4.0%}"
        for name in ("full", "half", *world.unlearned, "retain")
    ]
    return "\n".join(
        [
            f"The toy world: small models trained on facts about invented people, {len(world.examples)} examples to "
            "forget.",
            "Probability of the correct answer to a question:",
            *recall,
            "\nKnowledge left in the layers of each model, by UDS:",
        ]
    )


_NEXT = """
Saved in {out}, one directory per model. To look closer, in Python:
  ul.DepthAudit.load("{out}/half").layers_frame()
The report: {out}/report.html
For your own checkpoints: uds-lens audit --help"""
