"""`uds-lens watch`: audit the checkpoints of a training run as they appear, whatever framework writes them."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uds_lens._cli import options as opt
from uds_lens._cli.options import Printing, data_option, model_option
from uds_lens._cli.terminal import audits_as_json, print_audits, say, score_in_words
from uds_lens.errors import ConfigError, UdsLensError
from uds_lens.results._settings import AuditConfig, RunOptions

if TYPE_CHECKING:
    from uds_lens.models import CheckpointFiles
    from uds_lens.results import DepthAudit

_WEIGHTS = (("model.safetensors", "config.json"), ("adapter_model.safetensors", "adapter_config.json"))
"""Weights in one file, and the configuration beside them: of a model, and of an adapter."""


def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where a training run saves its checkpoints.")],
    full: Annotated[str, model_option("Model trained on everything: directory or Hub id.")],
    retain: Annotated[list[str], model_option("Model that never saw the forget set; repeat for other seeds.")],
    examples: Annotated[str, data_option("Forget set: JSON, JSON lines, CSV, Parquet, or a Hub data set.")],
    out: opt.Out,
    control: Annotated[
        str | None, data_option("Facts to retain, known to both full and retain; a loss on them is damage.")
    ] = None,
    pattern: Annotated[
        str, typer.Option(metavar="GLOB", help="Names of the checkpoints' directories.")
    ] = "checkpoint-*",
    poll: Annotated[float, typer.Option(min=0.0, metavar="SECONDS", help="Time between two polls.")] = 10.0,
    once: Annotated[bool, typer.Option("--once", help="Poll twice, audit the complete checkpoints and exit.")] = False,
    redo: Annotated[bool, typer.Option("--redo", help="Measure again what --out already holds.")] = False,
    *,
    config: AuditConfig,
    options: RunOptions,
    printing: Printing,
) -> None:
    """Audit checkpoints as they appear, until stopped.

    Each gets a directory of --out named after it, with table.csv and the baseline they share, as with `audit`. A
    checkpoint is read once its weights are complete (by the headers of its safetensors files) and none of its files has
    changed between two polls. Ctrl-C or SIGTERM stops the command. When run again, it keeps finished audits.

    \b
    Example:
      uds-lens watch runs/npo --full ckpt/full --retain ckpt/retain \\
          --examples forget10.json --out audits/npo
    """
    if not folder.is_dir():
        raise ConfigError(f"no directory {str(folder)!r} to watch: give the output directory of a training run.")
    say(f"watching {folder} for {pattern}; opening full: {full} ...")
    import uds_lens as ul
    from uds_lens.audit import _resume as saved
    from uds_lens.audit._resume import Question, write_folder_table
    from uds_lens.results._saving import audits_in

    saved.require_table(out)
    saved.audit_places(out, [saved.BASELINE, "checkpoints"])  # several: --out must not be an audit itself
    facts = None if control is None else ul.load_examples(control)
    question = Question(
        full, retain[0] if len(retain) == 1 else retain, ul.load_examples(examples), config, options, control=facts
    )
    saved.check_models(question, {})
    audits: dict[str, DepthAudit] = {}
    failed: dict[str, str] = {}

    def report(name: str, audit: DepthAudit) -> None:
        audits[name] = audit
        say(f"{name}: {score_in_words(audit)}; saved")

    def measure(name: str) -> None:
        models, places = {name: str(folder / name)}, {name: out / name}
        saved.require_places(places.values(), baseline=out / saved.BASELINE)
        saved.check_models(question, models)
        audits.update({} if redo else saved.found_in(question, models, places))
        if name not in audits:
            saved.audit_many(question, models, out, on_saved=report)
        write_folder_table(out, _by_step(audits))  # whoever looks in meanwhile finds it

    seen: dict[str, CheckpointFiles | None] = {}
    try:
        saved.audit_many(question, {}, out, redo=redo)  # stage 1, while nothing is there yet
        looks = 0
        while not once or looks < 2:
            if looks:
                time.sleep(poll)
            looks += 1
            now = {place.name: whole_files(place) for place in sorted(folder.glob(pattern)) if place.is_dir()}
            ready = [name for name, files in now.items() if files is not None and files == seen.get(name)]
            seen = now
            for name in sorted(ready, key=_step):
                if name not in audits and name not in failed:
                    try:
                        measure(name)
                    except UdsLensError as error:
                        if (folder / name).is_dir():  # else the run has removed it meanwhile
                            failed[name] = str(error)
                            say(f"{name}: {error}")
    except KeyboardInterrupt:
        say("stopped")
    left = [name for name in seen if name not in audits and name not in failed]
    if left:
        say(f"not audited: {', '.join(left)} (incomplete, or too new)")
    earlier = {place.name: ul.DepthAudit.load(place) for place in audits_in(out, depth=1) if place.name not in audits}
    audits = _by_step(earlier | audits)
    if audits:
        write_folder_table(out, audits)
    if printing.json:
        typer.echo(audits_as_json(audits, {name: out / name for name in audits}))
    elif audits:
        print_audits(audits)
        typer.echo(f"\nSaved in {out}")
    if failed or not audits:
        raise typer.Exit(1)


def whole_files(checkpoint: Path) -> CheckpointFiles | None:
    """List the files of a checkpoint whose weights are complete; None where some are missing or cut.

    A safetensors file names at its beginning how long it is, and an index names all files of a sharded model.
    """
    from safetensors import SafetensorError, safe_open

    from uds_lens.models import checkpoint_files

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


def _by_step(audits: dict[str, DepthAudit]) -> dict[str, DepthAudit]:
    return {name: audits[name] for name in sorted(audits, key=_step)}


def _step(name: str) -> tuple[int, str]:
    """Order names by the number they end with.

    >>> sorted(["checkpoint-10", "checkpoint-9"], key=_step)
    ['checkpoint-9', 'checkpoint-10']
    """
    number = re.search(r"\d+$", name)
    return int(number[0]) if number else -1, name
