"""From checkpoint to checkpoint: `unlearn` and `relearn`."""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from uds_lens._optional_packages import require_package
from uds_lens._progress import tell
from uds_lens._settings import as_settings
from uds_lens._storage import atomic_directory, located, require_fresh, writing
from uds_lens._types import DType
from uds_lens.data import AnswerSequence, ForgetExample, load_examples
from uds_lens.data._prompts import describe_protocol
from uds_lens.errors import (
    ConfigError,
    ModelError,
    ResultFormatError,
    Setting,
    UdsLensWarning,
)
from uds_lens.models import fingerprint
from uds_lens.models._checkpoint import quiet_files
from uds_lens.unlearning._alternates import FILE
from uds_lens.unlearning._configs import MethodConfig
from uds_lens.unlearning._data import (
    encoded,
    load_refusals,
    pairs_of,
    training_data,
    winning_answers,
)
from uds_lens.unlearning._job import Job, LoraSettings, Parent, open_parent
from uds_lens.unlearning._options import TrainOptions
from uds_lens.unlearning._record import (
    FORMAT,
    RELEARNING_RECORD,
    UNLEARNING_RECORD,
    make_record,
    read_record,
    write_record,
)
from uds_lens.unlearning._registry import make_config, method_class, objective_named
from uds_lens.unlearning._relearning import RELEARNING, RelearnConfig
from uds_lens.unlearning._run_folder import JointProcesses, RunFolder, file_sums
from uds_lens.unlearning._trainer import HEAD, curve_file, loss_curve

# After training: look at the weights, and save them with their record.


def save_model(
    model: Any,
    parent: Parent,
    record: dict[str, Any],
    *,
    out: Path,
    folder: Path,
    file: str,
    dtype: DType,
) -> None:
    """Save a trained model with its tokenizer and record, whole or not at all.

    The record's fingerprint is that of the saved weights, read in the dtype they were trained in.

    Args:
        model: The plain transformers model.
        parent: What it started from.
        record: Its record, without fingerprint and sums of files.
        out: Directory of the result.
        folder: Where alternates lie, if there are any.
        file: File name of the record.
        dtype: Dtype to save in.

    Raises:
        ModelError: A weight is not a finite number; nothing is saved.

    Warns:
        UdsLensWarning: The weights are those of the parent.
    """
    require_finite(model)
    trained_dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
    model = model.to("cpu").to(getattr(torch, dtype))
    model.config.dtype = getattr(torch, dtype)
    own = {file} | _files_before(out)
    with writing(out), atomic_directory(out, own=own) as place:
        model.save_pretrained(place)
        parent.tokenizer.save_pretrained(place)
        if (folder / FILE).is_file():
            shutil.copyfile(folder / FILE, place / FILE)
        record = {**record, "fingerprint": fingerprint(model.to(trained_dtype)), "files": file_sums(place)}
        write_record(record, place / file)
        own.update(path.name for path in place.iterdir())
    if record["fingerprint"] == parent.fingerprint:
        warnings.warn(
            f"{str(out)!r} has the weights of {parent.name!r}: training changed nothing (in {dtype}). Raise "
            "learning_rate or epochs, or save in float32.",
            UdsLensWarning,
            stacklevel=2,
        )


def _files_before(out: Path) -> set[str]:
    """What an earlier, damaged result of this library left at a place; anything else there stays."""
    try:
        record = read_record(out)
    except ResultFormatError:
        return set()
    return {name.partition("/")[0] for name in record.get("files") or ()}


def require_finite(model: Any) -> None:
    """Raise unless every weight is a finite number.

    Raises:
        ModelError: Naming the first weights that are not.
    """
    broken = [name for name, p in model.named_parameters() if not bool(torch.isfinite(p).all())]
    if broken:
        raise ModelError(
            f"training has diverged: {len(broken)} weights are not finite ({', '.join(broken[:3])}, ...). Lower "
            "learning_rate or epochs, or raise alpha. Nothing was saved."
        )


# A job from its model to its saved result: opened, compared with what is there, trained, saved.


def run(job: Job) -> Path:
    """Do a job, or the rest of it, or nothing where its result is already there."""
    with quiet_files(report=True):
        return _run(job)


def _run(job: Job) -> Path:
    processes = JointProcesses.joined(job.options.device)
    parent = open_parent(job.source, job.options)
    asked, job = job.config, job.settled(parent)
    forget, retain = (encoded(parent, job.config, pairs_of(rows)) for rows in (job.forget, job.retain))
    depends_on = job.depends_on(parent, [*forget, *retain])
    place = RunFolder(job.out, depends_on=depends_on, record=job.record, processes=processes)
    if place.is_finished():
        return job.out
    if processes.is_first:
        tell(_beginning(job, parent, asked))
    with place.opened() as folder:
        if not place.is_finished():  # by another process, since
            outcome = _train(job, parent, forget, retain, folder, processes)
            record = make_record(
                asked,
                protocol=job.config.protocol,
                key=place.key,
                depends_on=depends_on,
                parent={"name": parent.name, "fingerprint": parent.fingerprint},
                data=job.sides,
                lora=job.lora,
                options=_told(job.options),
                training=outcome.training,
            )
            if processes.is_first:
                save_model(
                    outcome.model,
                    parent,
                    record,
                    out=job.out,
                    folder=folder,
                    file=job.record,
                    dtype=job.options.save_dtype,
                )
    return job.out


def _told(options: TrainOptions) -> dict[str, Any]:
    """The options that say how a result was made."""
    return {name: value for name, value in asdict(options).items() if name != "log_to"}


def _beginning(job: Job, parent: Parent, asked: MethodConfig) -> str:
    """What is about to be trained, in a line."""
    retain = f" and {len(job.retain)} retain" if job.retain else ""
    prompts = describe_protocol(asked.protocol, job.config.protocol)
    return f"{asked.method} on {len(job.forget)} forget{retain} answers of {parent.name}, prompts: {prompts}"


class _Trained(NamedTuple):
    model: Any
    training: dict[str, Any]


def _train(
    job: Job,
    parent: Parent,
    forget: Sequence[AnswerSequence],
    retain: Sequence[AnswerSequence],
    folder: Path,
    processes: JointProcesses,
) -> _Trained:
    from transformers import set_seed

    from uds_lens._compat.peft import merge_adapters
    from uds_lens.unlearning._data import VisitDataset
    from uds_lens.unlearning._job import add_adapters
    from uds_lens.unlearning._run_folder import last_whole, step_of
    from uds_lens.unlearning._trainer import UnlearningTrainer, training_arguments, training_logs

    started = time.perf_counter()
    config, needs = job.config, job.objective.needs
    set_seed(config.seed)
    for mine in (
        processes.is_first,
        not processes.is_first,
    ):  # the first draws alternates, the others read them
        if mine:
            winners = winning_answers(parent, config, needs, job.forget, job.refusals, folder, job.options)
            checkpoint = last_whole(folder)
        processes.wait()
    data = training_data(parent, config, needs, forget, retain, job.forget, winners, job.options)
    model = parent.model.requires_grad_(True)
    caching = getattr(model.config, "use_cache", None)
    trained = add_adapters(model, job.lora) if job.lora is not None else model
    trainer = UnlearningTrainer(
        trained,
        config,
        job.objective,
        VisitDataset(data, epochs=config.epochs, seed=config.seed),
        arguments=training_arguments(
            config, job.options, n_forget=len(data.forget), folder=folder, name=job.out.name
        ),
        logs=training_logs(job.options, job.out),
        pad_token_id=parent.pad_token_id,
        show_progress=job.options.progress if processes.is_first else False,
    )
    with writing(folder, advice="What was saved before is kept: free space, and run the same again."):
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if caching is not None:
        # Trainer turns it off for good, and generation would be slow ever after.
        model.config.use_cache = caching
    training = {
        "steps": trainer.state.global_step,
        "resumed_from_step": step_of(checkpoint) if checkpoint else None,
        "device": str(trainer.args.device),
        "n_devices": processes.world,
        "visits": config.epochs * len(data.forget),
        "loss_curve": loss_curve(trainer.state.log_history),
        "seconds": round(time.perf_counter() - started, 2),
    }
    return _Trained(merge_adapters(trained), training)


Examples = str | os.PathLike[str] | Sequence[ForgetExample] | Sequence[Mapping[str, Any]]
"""What `load_examples` reads: a file, a Hub data set, examples, or rows."""


def unlearn(
    full: str | os.PathLike[str],
    forget: Examples,
    retain: Examples | None = None,
    *,
    method: str | None = None,
    config: MethodConfig | None = None,
    out: str | os.PathLike[str],
    refusals: str | os.PathLike[str] | None = None,
    lora: LoraSettings | None = None,
    options: TrainOptions | None = None,
) -> Path:
    """Train a model to forget.

    The result is a plain checkpoint that transformers loads, with `unlearning.json` beside the weights. It appears
    whole or not at all. A run that was killed goes on from its last checkpoint when it is called again in the same way;
    one that is finished is not run again. With one seed on one machine the weights come out the same.

    Args:
        full: The model that knows: a directory, or a Hub id.
        forget: Questions with the answers to forget.
        retain: Questions with the answers to keep; gradient ascent (`ga`) needs none.
        method: The method's word; may be left out where `config` says it.
        config: The method's settings; None takes its defaults.
        out: Directory of the result.
        refusals: File of refusals, one per line, for `idknll` and `idkdpo`; None takes those of this package.
        lora: Train low-rank adapters, merged at the end; None trains the weights themselves.
        options: How to run it; default `TrainOptions()`.

    Returns:
        `out`.

    Raises:
        ConfigError: Method and settings do not fit, retain data is missing, or `out` holds the result of another run.
        ResultFormatError: `out` holds something else.
        ModelError: The model cannot be opened, training diverged, or weights are no numbers any more.
        DataError: Data cannot be read, or an answer is too long for the model.
        MissingDependencyError: Adapters or a log are asked for, and what makes them is not installed.

    Warns:
        UdsLensWarning: The weights are those of `full`.
    """
    config = _settings(method, config)
    if isinstance(config, RelearnConfig):
        raise ConfigError("relearning is no unlearning method: call relearn(model, forget, out=...).")
    declared = objective_named(config.method)
    needs_retain = "retain" in declared.needs
    if needs_retain and retain is None:
        raise ConfigError(f"{config.method} needs retain data: pass ", Setting("retain", ...), ".")
    job = Job(
        config=config,
        objective=declared,
        source=full,
        forget=tuple(load_examples(forget)),
        retain=tuple(load_examples(retain)) if retain is not None and needs_retain else (),
        refusals=load_refusals(refusals) if "refusals" in declared.needs else (),
        lora=_adapters(lora),
        options=_options(options, out),
        out=require_fresh(out, directory=True, format=FORMAT),
        record=UNLEARNING_RECORD,
    )
    return run(job)


def relearn(
    model: str | os.PathLike[str],
    forget: Examples,
    *,
    out: str | os.PathLike[str],
    epochs: int = 1,
    config: RelearnConfig | None = None,
    lora: LoraSettings | None = None,
    options: TrainOptions | None = None,
) -> Path:
    """Fine-tune a model on the forget set again, one of the two perturbations of the robustness test.

    Args:
        model: A directory, or a Hub id.
        forget: Questions with the answers to learn.
        out: Directory of the result, with `relearning.json` beside the weights.
        epochs: How often each example is visited.
        config: Other settings; default AdamW at 2e-5 and 32 examples per step. Its `epochs` give way to `epochs`.
        lora: Train low-rank adapters, merged at the end.
        options: How to run it; default `TrainOptions()`.

    Returns:
        `out`.

    Raises:
        ConfigError: A value is outside its range, or `out` holds the result of another run.
        ResultFormatError: `out` holds something else.
        ModelError: The model cannot be opened, or training diverged.
        DataError: Data cannot be read, or an answer is too long for the model.
        MissingDependencyError: Adapters or a log are asked for, and what makes them is not installed.
    """
    job = Job(
        config=replace(as_settings(RelearnConfig, config, name="config"), epochs=epochs),
        objective=RELEARNING,
        source=model,
        forget=tuple(load_examples(forget)),
        retain=(),
        refusals=(),
        lora=_adapters(lora),
        options=_options(options, out),
        out=require_fresh(out, directory=True, format=FORMAT),
        record=RELEARNING_RECORD,
    )
    return run(job)


def _options(options: TrainOptions | None, out: str | os.PathLike[str]) -> TrainOptions:
    """How to run it, where what follows the run is installed, and its file may be written."""
    options = as_settings(TrainOptions, options, name="options")
    for place in options.log_to:
        if place == "csv":
            require_fresh(curve_file(located(out)), directory=False, begins=HEAD)
        else:
            require_package(place, needed_by=f"logging to {place} needs")
    return options


def _adapters(lora: LoraSettings | None) -> LoraSettings | None:
    """The adapters that were asked for, which need a package of their own."""
    if lora is None:
        return None
    require_package("peft", needed_by="training adapters (LoRA) needs")
    return as_settings(LoraSettings, lora, name="lora")


def _settings(method: str | None, config: MethodConfig | None) -> MethodConfig:
    if config is None:
        if method is None:
            raise ConfigError("say which method: ", Setting("method", "npo"), ", or config=NPOConfig(...).")
        return make_config(method)
    if not isinstance(config, MethodConfig):
        raise ConfigError(
            Setting("config"),
            f" must be settings of a method, as make_config gives; got {type(config).__name__}.",
        )
    if method is not None and not isinstance(config, method_class(method)):
        raise ConfigError(
            f"method={method!r} does not go with {type(config).__name__}, which is {config.method!r}."
        )
    return config
