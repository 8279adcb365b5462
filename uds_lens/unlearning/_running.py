"""Train checkpoints: `unlearn`, `relearn` and `finetune`."""

from __future__ import annotations

import math
import os
import random
import shutil
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from uds_lens._compat.peft import merge_adapters, quiet_wrapping, save_adapter
from uds_lens._compat.transformers import forget_longer_texts
from uds_lens._optional_packages import require_package
from uds_lens._progress import tell
from uds_lens._settings import as_settings
from uds_lens._storage.files import atomic_directory, check_writable, located, writing
from uds_lens.data import ForgetExample, load_examples
from uds_lens.data._prompts import describe_protocol
from uds_lens.data._tokens import AnswerSequence
from uds_lens.errors import ConfigError, ModelError, ResultFormatError, Setting, UdsLensWarning
from uds_lens.models import fingerprint
from uds_lens.models._checkpoint import (
    PACKAGE,
    checkpoint_folders,
    is_local,
    place_of,
    quiet_files,
    rounded_fingerprints,
)
from uds_lens.training._curve import RECORD
from uds_lens.unlearning._data import (
    ALTERNATES,
    PairDataset,
    TrainingData,
    completed,
    encoded,
    load_refusals,
    pairs_of,
    preferred_answers,
)
from uds_lens.unlearning._job import CheckedRows, Job, Parent, open_parent
from uds_lens.unlearning._passes import Passes, Terms, answer_log_probs, negative_log_likelihood, per_token
from uds_lens.unlearning._record import (
    FINETUNING_RECORD,
    FORMAT,
    RELEARNING_RECORD,
    UNLEARNING_RECORD,
    dated,
    read_record,
    write_record,
)
from uds_lens.unlearning._registry import Objective, make_config, objective_named
from uds_lens.unlearning._run_folder import JointProcesses, RunFolder, file_sums, last_intact, step_of
from uds_lens.unlearning._settings import FinetuneConfig, LoraSettings, MethodConfig, RelearnConfig, TrainOptions

Examples = str | os.PathLike[str] | Sequence[ForgetExample] | Sequence[Mapping[str, Any]]
"""Input of `load_examples`: a file, a Hub data set, examples, or rows."""


def unlearn(
    full: str | os.PathLike[str],
    forget: Examples,
    retain: Examples | None = None,
    *,
    method: str | MethodConfig,
    out: str | os.PathLike[str],
    refusals: str | os.PathLike[str] | None = None,
    lora: LoraSettings | None = None,
    options: TrainOptions | None = None,
) -> Path:
    """Train a model to forget.

    The result is a plain transformers checkpoint with `unlearning.json` next to the weights, written atomically. If a
    run is interrupted, repeating the call resumes from the last checkpoint; a finished run is not repeated. The same
    seed gives the same weights on the same machine.

    Args:
        full: The model before unlearning, as a directory or Hub id.
        forget: Questions and the answers to forget.
        retain: Questions and the answers to keep; not needed by every method (for example `ga`).
        method: Name of a method, to use its defaults, or a configuration such as `NPOConfig(beta=0.5)`.
        out: Output directory.
        refusals: File of refusals for `idknll` and `idkdpo`, one per line; None uses the built-in refusals.
        lora: Train low-rank adapters, which are merged at the end by default; None trains the model's weights.
        options: Run options; default `TrainOptions()`.

    Returns:
        `out`.

    Raises:
        ConfigError: Retain data is missing, settings do not suit the model, or `out` holds the result of another run.
        ResultFormatError: `out` holds something other than a training result.
        ModelError: The model cannot be opened, or training diverged.
        DataError: The data cannot be read, or an answer is too long for the model.
        MissingDependencyError: A package for adapters or logging is not installed.

    Warns:
        UdsLensWarning: Training changed no weights, or hardly any, or took very few steps.
    """
    config = make_config(method) if isinstance(method, str) else method
    if not isinstance(config, MethodConfig):
        raise ConfigError(
            Setting("method", "npo"), f" or method=NPOConfig(...) was expected, but got {type(config).__name__}."
        )
    if isinstance(config, RelearnConfig):
        raise ConfigError("relearning is not an unlearning method: call relearn(model, forget, out=...).")
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
        out=check_writable(out, directory=True, format=FORMAT),
        record=UNLEARNING_RECORD,
    )
    return run(job)


def relearn(
    model: str | os.PathLike[str],
    forget: Examples,
    *,
    out: str | os.PathLike[str],
    config: RelearnConfig | None = None,
    lora: LoraSettings | None = None,
    options: TrainOptions | None = None,
) -> Path:
    """Fine-tune a model on the forget set again, as one of the two perturbations in the robustness test.

    Args:
        model: The model to fine-tune, as a directory or Hub id.
        forget: Questions and the answers to learn.
        out: Output directory, which also gets a `relearning.json`.
        config: Settings; the default is one epoch of AdamW at 2e-5 with 32 examples per step.
        lora: Train low-rank adapters, which are merged at the end by default.
        options: Run options; default `TrainOptions()`.

    Returns:
        `out`.

    Raises:
        UdsLensError: As for `unlearn`.
    """
    job = Job(
        config=as_settings(RelearnConfig, config, name="config"),
        objective=Objective(config=RelearnConfig, terms=_relearning_terms),
        source=model,
        forget=tuple(load_examples(forget)),
        lora=_adapters(lora),
        options=_options(options, out),
        out=check_writable(out, directory=True, format=FORMAT),
        record=RELEARNING_RECORD,
    )
    return run(job)


def finetune(
    model: str | os.PathLike[str],
    data: Examples | Mapping[str, Examples],
    *,
    out: str | os.PathLike[str],
    unseen: Mapping[str, Examples] | None = None,
    config: FinetuneConfig | None = None,
    lora: LoraSettings | None = None,
    options: TrainOptions | None = None,
) -> Path:
    """Teach a model the answers to questions, to make the `full` and `retain` models for an audit.

    Training, resuming and records work as in `unlearn`. The record shows whether training worked: for each set in
    `data` and `unseen`, `prob` holds the mean probability per answer token before and after training (as in the metric
    Prob, over at most 100 rows).

    Args:
        model: The initial model, as a directory, GGUF file, Hub id or `package:NAME`.
        data: Questions and the answers to learn, or a mapping from names to several such sets.
        out: Output directory, which also gets a `finetuning.json`.
        unseen: Mapping from names to sets that are not trained on, such as the forget set for a retain model.
        config: Settings; default `FinetuneConfig()`.
        lora: Train low-rank adapters, which are saved without the base model unless `save="merged"`.
        options: Run options; default `TrainOptions()`.

    Returns:
        `out`.

    Raises:
        UdsLensError: As for `unlearn`.

    Example:
        >>> import tempfile, uds_lens as ul
        >>> world, folder = ul.toy.load(), tempfile.mkdtemp()
        >>> short = FinetuneConfig(epochs=1, warmup_epochs=0)
        >>> out = finetune(world.retain, world.examples[:4], out=f"{folder}/taught", config=short)
        >>> record = ul.unlearning.read_record(out)
        >>> record["method"], record["prob"][0]["after"] > record["prob"][0]["before"]
        ('finetune', True)
    """
    taught = [CheckedRows(name, tuple(load_examples(rows)), True) for name, rows in _named(data).items()]
    left_out = [CheckedRows(name, tuple(load_examples(rows)), False) for name, rows in (unseen or {}).items()]
    config, lora = as_settings(FinetuneConfig, config, name="config"), _adapters(lora)
    if config.learning_rate is None:
        config = replace(config, learning_rate=5e-5 if lora is None else 2e-3)
    job = Job(
        config=config,
        objective=Objective(config=FinetuneConfig, terms=_relearning_terms),
        source=model,
        forget=tuple(chain.from_iterable(part.rows for part in taught)),
        lora=replace(lora, save="adapter") if lora is not None and lora.save is None else lora,
        options=_options(options, out),
        out=check_writable(out, directory=True, format=FORMAT),
        record=FINETUNING_RECORD,
        checked=(*taught, *left_out),
    )
    return run(job)


def _named(data: Examples | Mapping[str, Examples]) -> Mapping[str, Examples]:
    """Return sets by name, naming a single set after its file."""
    if isinstance(data, Mapping):
        return data
    return {os.fspath(data) if isinstance(data, str | os.PathLike) else "data": data}


def _relearning_terms(config: RelearnConfig, passes: Passes) -> Terms:
    """Return `NLL_f`."""
    return Terms(per_token("forget", negative_log_likelihood(passes.logits("forget"), passes.labels("forget"))))


def _options(options: TrainOptions | None, out: str | os.PathLike[str]) -> TrainOptions:
    """Return the options, after checking the packages and files for logging."""
    with quiet_files(report=True):  # transformers' trainer imports bitsandbytes
        from uds_lens.unlearning._trainer import curve_file

    options = as_settings(TrainOptions, options, name="options")
    for place in options.log_to:
        if place == "csv":
            check_writable(curve_file(located(out)), directory=False)
        else:
            require_package(place, needed_by=f"logging to {place} needs")
    return options


def _adapters(lora: LoraSettings | None) -> LoraSettings | None:
    """Return the adapter settings, after checking that PEFT is installed."""
    if lora is None:
        return None
    require_package("peft", needed_by="training adapters (LoRA) needs")
    return as_settings(LoraSettings, lora, name="lora")


def run(job: Job) -> Path:
    """Train and save a job, resuming an interrupted job; do nothing if its result already exists."""
    _require_base_elsewhere(job)
    with quiet_files(report=True):
        processes = JointProcesses.joined(job.options.device)
        parent = open_parent(job.source, job.options)
        asked, job = job.config, job.settled(parent)
        forget, retain = (encoded(parent, job.config, pairs_of(rows)) for rows in (job.forget, job.retain))
        depends_on = job.depends_on(parent, [*forget, *retain])
        redo = job.options.redo
        place = RunFolder(job.out, depends_on=depends_on, record=job.record, processes=processes, redo=redo)
        if place.is_finished():
            if job.options.callbacks:
                warnings.warn(
                    UdsLensWarning(
                        f"the model in {str(job.out)!r} has already been trained, so the callbacks did not run."
                    ),
                    stacklevel=3,
                )
            return job.out
        if processes.is_first:
            beside = f" and {len(job.retain)} retain" if job.retain else ""
            words = describe_protocol(
                asked.protocol,
                job.config.protocol,
                parent.protocol is not None,
                tokenizer=parent.tokenizer,
                chat=job.config.chat,
            )
            kind = "" if job.record == FINETUNING_RECORD else " forget"
            tell(f"{asked.method} on {len(job.forget)}{kind}{beside} answers of {parent.name}, prompts: {words}")
        with place.opened() as folder:
            if place.is_finished():  # another process finished the run in the meantime
                return job.out
            base = {"name": parent.name, "fingerprint": parent.fingerprint}
            # compute the fingerprint before wrapping the model, since an adapter may later be opened in another dtype
            of_adapter = rounded_fingerprints(parent.model) if job.saves_adapter else {}
            trained, training = _train(job, parent, TrainingData(forget, retain), folder, processes)
            record = {
                **dated(asked),
                "protocol": job.config.protocol,
                "lora": None if job.lora is None else asdict(job.lora),
                "parent": {**base, **of_adapter},
                "data": job.sides,
                "options": {k: v for k, v in vars(job.options).items() if k not in ("log_to", "callbacks", "redo")},
                **training,
                "key": place.key,
                "depends_on": depends_on,
            }
            if processes.is_first:
                _save(trained, parent, record, job, folder)
    return job.out


def _train(
    job: Job, parent: Parent, data: TrainingData, folder: Path, processes: JointProcesses
) -> tuple[Any, dict[str, Any]]:
    """Return the trained model with any adapters, and the record's entries about training."""
    from transformers import set_seed

    from uds_lens.unlearning._trainer import UnlearningTrainer, loss_curve, training_arguments, training_logs

    started = time.perf_counter()
    config, options = job.config, job.options
    set_seed(config.seed)
    # the first process samples alternates; other processes read its file
    for mine in (processes.is_first, not processes.is_first):
        if mine:
            winners = preferred_answers(job, parent, folder)
            checkpoint = last_intact(folder)
        processes.wait()
    data = completed(data, job, parent, winners)
    if parent.runs_apart([*data.forget, *data.retain, *chain(*data.winners)]):
        if config.counts_padding:
            raise ConfigError(
                Setting("reduction", "open_unlearning"),
                " pads rows to equal length, but this model's rotary frequencies depend on the padded length of long "
                "rows: shorten the texts, or use ",
                Setting("reduction", "answers"),
                ".",
            )
        options = replace(options, device_batch_size=1)  # one row per pass, accumulated to the same batch
    checked = [(part, encoded(parent, config, pairs_of(_some(part.rows)))) for part in job.checked]
    before = [_prob(parent.model, rows, parent) for _, rows in checked]
    start = None if job.lora else _sampled(parent.model)
    model = parent.model.requires_grad_(True)
    forgetting = forget_longer_texts(model)
    caching = getattr(model.config, "use_cache", None)
    trained = model if job.lora is None else _with_adapters(model, job.lora)
    trainer = UnlearningTrainer(
        trained,
        config,
        job.objective,
        PairDataset(data, epochs=config.epochs, seed=config.seed, batch_size=config.batch_size),
        arguments=training_arguments(config, options, n_forget=len(data.forget), folder=folder, name=job.out.name),
        more=[*training_logs(options, job.out), *options.callbacks],
        pad_token_id=parent.pad_token_id,
        show_progress=options.progress if processes.is_first else False,
    )
    advice = "Earlier checkpoints are kept: free up space, and run the same command again."
    try:
        with quiet_wrapping(), writing(folder, advice=advice):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except UnpicklingError as error:
        raise ResultFormatError(
            f"{str(checkpoint)!r} holds pickled objects other than tensors, which are never loaded: remove "
            f"{str(folder)!r}, and run the same command again."
        ) from error
    for handle in forgetting:
        handle.remove()
    if processes.is_first:
        _caution(job, steps=trainer.state.global_step, moved=None if start is None else _moved(start, _sampled(model)))
    if caching is not None:
        model.config.use_cache = caching  # Trainer disabled it, which would make generation slow
    prob = [
        {
            "name": part.name,
            "trained": part.trained,
            "n": len(rows),
            "before": first,
            "after": _prob(trained, rows, parent),
        }
        for (part, rows), first in zip(checked, before, strict=True)
    ]
    return trained, {
        "steps": trainer.state.global_step,
        "resumed_from_step": step_of(checkpoint) if checkpoint else None,
        "device": str(trainer.args.device),
        "n_devices": processes.world,
        "visits": config.epochs * len(data.forget),
        "loss_curve": loss_curve(trainer.state.log_history),
        **({"prob": prob} if prob else {}),
        "seconds": round(time.perf_counter() - started, 2),
    }


_FEW_STEPS, _HARDLY = 10, 1e-5


def _caution(job: Job, *, steps: int, moved: float | None) -> None:
    """Warn if training had little effect, because of few steps or hardly changed weights."""
    config, of = job.config, type(job.config).__name__
    if steps < _FEW_STEPS:
        many = f"{steps} optimiser step{' was' if steps == 1 else 's were'}"
        n, epochs = len(job.forget), f"{config.epochs} epoch{'' if config.epochs == 1 else 's'}"
        warnings.warn(
            UdsLensWarning(
                f"only {many} made ({epochs} of {n} rows, {config.batch_size} per step), which may be too few to have "
                "any effect: lower ",
                Setting("batch_size", ..., of=of),
                " or raise ",
                Setting("epochs", ..., of=of),
                ".",
            ),
            stacklevel=3,
        )
    if moved is not None and 0 < moved < _HARDLY:
        warnings.warn(
            UdsLensWarning(
                f"training hardly changed the weights (relative change {moved:.0e}): raise ",
                Setting("learning_rate", ..., of=of),
                " or ",
                Setting("epochs", ..., of=of),
                ", and train in float32.",
            ),
            stacklevel=3,
        )


def _sampled(model: torch.nn.Module) -> torch.Tensor:
    """Return the first thousand values of every weight, in float64."""
    return torch.cat([p.detach().flatten()[:1000].double().cpu() for p in model.parameters()])


def _moved(before: torch.Tensor, after: torch.Tensor) -> float:
    return float((after - before).norm() / before.norm())


def _require_base_elsewhere(job: Job) -> None:
    """Refuse to let an adapter overwrite the model that it needs."""
    if not job.saves_adapter or not isinstance(job.source, str | os.PathLike):
        return
    out = job.out.resolve()
    if any(Path(folder).expanduser().resolve() == out for folder in checkpoint_folders(job.source)):
        raise ConfigError(
            Setting("out", str(job.out)),
            f" is the model {os.fspath(job.source)!r} that the adapter starts from, or a base of that model. "
            "Adapters need their base: choose another directory, or save the whole model with ",
            Setting("save", "merged"),
            ".",
        )


_MOST_CHECKED = 100
"""Maximum number of rows per set for measuring probability."""


def _some(rows: Sequence[ForgetExample]) -> list[ForgetExample]:
    """Return up to `_MOST_CHECKED` randomly chosen rows, in order."""
    chosen = random.Random(0).sample(range(len(rows)), min(len(rows), _MOST_CHECKED))
    return [rows[at] for at in sorted(chosen)]


def _prob(model: Any, rows: Sequence[AnswerSequence], parent: Parent) -> float:
    """Return the mean length-normalised probability of the answers."""
    log_probs = answer_log_probs(model, rows, pad_token_id=parent.pad_token_id)
    each = [math.exp(value / len(row.labelled)) for value, row in zip(log_probs, rows, strict=True)]
    return round(math.fsum(each) / len(each), 6)


def _with_adapters(model: Any, settings: LoraSettings) -> Any:
    """Wrap a model with PEFT, so that only the adapters are trained."""
    from peft import LoraConfig, get_peft_model

    targets = settings.target_modules
    adapters = LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
    )
    with quiet_wrapping():
        wrapped = get_peft_model(model, adapters)
    for config in wrapped.peft_config.values():  # otherwise PEFT would look for the base at every checkpoint
        config.base_model_name_or_path = ""  # set at the end
    return wrapped


def _save(trained: Any, parent: Parent, record: dict[str, Any], job: Job, folder: Path) -> None:
    """Save a trained model or its adapter atomically, with the tokenizer and record.

    The recorded fingerprint belongs to the whole saved model, reloaded in its training dtype.
    """
    broken = [name for name, p in trained.named_parameters() if not bool(torch.isfinite(p).all())]
    if broken:
        raise ModelError(
            f"training has diverged: {len(broken)} weights are not finite ({', '.join(broken[:3])}, ...). Lower "
            "learning_rate or epochs, or raise alpha. Nothing was saved."
        )
    trained_dtype = next(p.dtype for p in trained.parameters() if p.is_floating_point())
    dtype, out = getattr(torch, job.options.save_dtype), job.out
    trained = trained.to("cpu")
    own = {UNLEARNING_RECORD, RELEARNING_RECORD, FINETUNING_RECORD}
    with suppress(ResultFormatError):  # replace a damaged earlier result; keep other files
        own |= {name.partition("/")[0] for name in read_record(out).get("files") or ()}
    with writing(out), atomic_directory(out, own=own) as place:
        if job.saves_adapter:
            save_adapter(trained, place, base=_seen_from(out, parent.name), dtype=dtype)
            model = merge_adapters(trained)
        else:
            model = merge_adapters(trained).to(dtype)
            model.config.dtype = dtype
            model.save_pretrained(place)
        parent.tokenizer.save_pretrained(place)
        for name in (ALTERNATES, RECORD):
            if (folder / name).is_file():
                shutil.copyfile(folder / name, place / name)
        record = {**record, "fingerprint": fingerprint(model.to(trained_dtype)), "files": file_sums(place)}
        write_record(record, place / job.record)
        own.update(path.name for path in place.iterdir())
    if record["fingerprint"] == parent.fingerprint:
        warnings.warn(
            f"{str(out)!r} has the same weights as {parent.name!r}: training changed nothing in "
            f"{job.options.save_dtype}. Raise learning_rate or epochs, or save in float32.",
            UdsLensWarning,
            stacklevel=2,
        )


def _seen_from(out: Path, source: str) -> str:
    """Return the path from an adapter to its base model, relative if possible, so that both can be moved together."""
    if source.startswith(PACKAGE) or not is_local(source):
        return source
    place = place_of(source).resolve()
    try:
        return Path(os.path.relpath(place, out.resolve())).as_posix()
    except ValueError:  # on another drive on Windows
        return str(place)
