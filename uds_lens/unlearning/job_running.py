"""A job from its model to its saved result: opened, compared with what is there, trained, saved."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from uds_lens.data import AnswerSequence
from uds_lens.data.prompts import protocol_told
from uds_lens.models.quiet_files import quiet_files
from uds_lens.progress import tell
from uds_lens.storage import writing
from uds_lens.unlearning.joint_processes import JointProcesses
from uds_lens.unlearning.loss_curve import loss_curve
from uds_lens.unlearning.method_config import MethodConfig
from uds_lens.unlearning.model_saving import save_model
from uds_lens.unlearning.parent import Parent, open_parent
from uds_lens.unlearning.run_folder import RunFolder
from uds_lens.unlearning.train_options import TrainOptions
from uds_lens.unlearning.training_data import encoded, pairs_of, training_data, winning_answers
from uds_lens.unlearning.training_job import Job
from uds_lens.unlearning.training_record import make_record


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
    prompts = protocol_told(asked.protocol, job.config.protocol)
    return f"{asked.method} on {len(job.forget)} forget{retain} answers of {parent.name}, {prompts}"


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

    from uds_lens.compat.peft import merge_adapters
    from uds_lens.unlearning.lora import add_adapters
    from uds_lens.unlearning.run_checkpoints import last_whole, step_of
    from uds_lens.unlearning.training_logs import training_logs
    from uds_lens.unlearning.unlearning_trainer import UnlearningTrainer, training_arguments
    from uds_lens.unlearning.visits import VisitDataset

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
