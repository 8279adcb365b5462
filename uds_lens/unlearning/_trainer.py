"""The training loop: transformers' `Trainer` with an unlearning objective and a fixed data order."""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback, TrainingArguments

from uds_lens._compat.transformers_trainer import OrderedTrainer, checkpoint_activations, one_device_each
from uds_lens._progress import progress
from uds_lens._quoting import csv_text
from uds_lens._storage.files import atomic_write_marked
from uds_lens.errors import ConfigError, ModelError, Setting, UdsLensWarning
from uds_lens.unlearning._data import PairCollator, PairDataset, length_groups
from uds_lens.unlearning._passes import FILLER, FrozenModel, Passes, SideTotals, batch_totals, widened
from uds_lens.unlearning._registry import OWN_WORDS, Objective
from uds_lens.unlearning._run_folder import seal
from uds_lens.unlearning._settings import MethodConfig, RelearnConfig, TrainOptions

WEIGHT = "uds_lens_weight"
"""Key in the trainer's saved state for the weight of an objective that changes it during training."""


class UnlearningTrainer(OrderedTrainer):
    """A `Trainer` whose loss is an unlearning objective over a whole batch, computed in several passes if needed.

    Mixed precision, accumulation, checkpoints, resuming and logging are inherited. The frozen model is copied from
    `model` before the objective prepares it and before any checkpoint is loaded.
    """

    def __init__(
        self,
        model: nn.Module,
        config: MethodConfig,
        objective: Objective,
        pairs: PairDataset,
        *,
        arguments: TrainingArguments,
        pad_token_id: int,
        show_progress: bool | None = None,
        more: Sequence[TrainerCallback] = (),
    ) -> None:
        self._config, self._objective = config, objective
        self._pad_token_id = pad_token_id
        self._frozen = FrozenModel(model).to(arguments.device) if "frozen" in objective.needs else None
        if objective.prepare is not None:
            objective.prepare(config, model)
        # every built-in objective is a plain mean over the rows of each side
        known = isinstance(config, RelearnConfig) or config.method in OWN_WORDS
        groups = arguments.device.type == "cpu" and known and not config.counts_padding
        self._by_length: bool | None = None if groups else False
        """Whether passes may be split by length, which is not possible if they draw random numbers; None if not yet
        known."""
        self._totals: dict[str, SideTotals] = {}
        self._parts: dict[str, list[Tensor]] = defaultdict(list)
        self._n_batches = 0
        self._retained: list[Tensor] = []
        """Parts of the last batch's unweighted retain term."""
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=pairs,
            data_collator=PairCollator(pad_token_id),
            callbacks=[_Bar(show_progress), _LastStep(), _Sealing(), _Reweighing(self), *more],
        )

    def batch_begins(self, passes: list[Any]) -> None:
        """Count the rows and tokens of a batch over all devices, since a pass may be only a part of the batch."""
        self._n_batches += 1
        self._retained.clear()
        if self._config.counts_padding:
            passes[:] = self._as_wide_as_the_batch(passes)
        counts = {side: self.accelerator.reduce(count, "sum") for side, count in batch_totals(passes).items()}
        self._totals = {side: SideTotals(*count.tolist()) for side, count in counts.items()}

    def _as_wide_as_the_batch(self, passes: list[Any]) -> list[Any]:
        """Pad all passes to the width of the whole batch."""
        widths = {}
        for side in passes[0]:
            width = max(batch[side]["labels"].shape[1] for batch in passes)
            gathered = self.accelerator.gather(torch.tensor([width], device=self.accelerator.device))
            widths[side] = int(gathered.max())
        return [
            {side: widened(values, widths[side], pad_token_id=self._pad_token_id) for side, values in batch.items()}
            for batch in passes
        ]

    def part_of_loss(self, model: nn.Module, inputs: Any) -> Tensor:
        """Return the objective's terms on one pass, weighted by their share of the batch."""
        # with several processes, the pass must run, since other processes wait for it
        if self.args.world_size == 1 and all(FILLER in side for side in inputs.values()):
            return next(p for p in model.parameters() if p.requires_grad).sum() * 0.0
        if self._by_length is None:
            random = torch.get_rng_state()
            whole = self._part(model, inputs)
            self._by_length = torch.equal(random, torch.get_rng_state())
            return whole
        groups = length_groups(inputs) if self._by_length else [inputs]
        return torch.stack([self._part(model, group) for group in groups]).sum()

    def _part(self, model: nn.Module, inputs: Any) -> Tensor:
        weight = self.state.stateful_callbacks.get(WEIGHT)
        passes = Passes(model, inputs, frozen=self._frozen, totals=self._totals, weight=weight)
        terms = self._objective.terms(self._config, passes)
        loss = []
        for name, mean in (("forget_loss", terms.forget), ("retain_loss", terms.retain)):
            if mean is not None:
                share = passes.counted(mean.side).count(mean.per) / self._totals[mean.side].count(mean.per)
                part = mean.value * (0.0 if FILLER in inputs[mean.side] else share)
                loss.append(part * mean.weight)
                self._parts[name].append(loss[-1].detach())
                if mean is terms.retain:
                    self._retained.append(part.detach())
        return torch.stack(loss).sum()

    def reweigh(self) -> None:
        """Update the objective's weight after a batch, and store it in the trainer's saved state."""
        if self._objective.reweigh is None:
            return
        kept, done = self.state.stateful_callbacks, self.state.global_step / self.state.max_steps
        mine = sum(self._retained, torch.zeros((), device=self.accelerator.device))
        retained = self.accelerator.reduce(mine, "sum").item()
        kept[WEIGHT] = self._objective.reweigh(self._config, kept.get(WEIGHT), retained, done)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the parts of the loss; raise an error if the loss is not finite."""
        if "loss" in logs:
            for name, values in self._parts.items():
                total = self.accelerator.reduce(torch.stack(values).sum(), "sum")
                logs[name] = float(total) / self._n_batches
            self._parts.clear()
            self._n_batches = 0
            if (weight := self.state.stateful_callbacks.get(WEIGHT)) is not None:
                logs["weight"] = weight
            if not math.isfinite(logs["loss"]):
                raise ModelError(
                    f"the loss is {logs['loss']} at step {self.state.global_step}: training has diverged. Lower "
                    "learning_rate or epochs, or raise alpha."
                )
        super().log(logs, start_time)


def training_arguments(
    config: MethodConfig,
    options: TrainOptions,
    *,
    n_forget: int,
    folder: str | os.PathLike[str],
    name: str = "uds_lens",
) -> TrainingArguments:
    """Return the settings for `Trainer`, which sees the whole run as one epoch over the `PairDataset`."""
    steps_per_epoch = math.ceil(n_forget / config.batch_size)
    save_every = steps_per_epoch if options.checkpoint_every is None else options.checkpoint_every
    world = int(os.environ.get("WORLD_SIZE", "1"))
    share = options.device_batch_size or max(1, config.batch_size // world)
    if config.batch_size % (share * world):
        raise ConfigError(
            Setting("batch_size"),
            f" {config.batch_size} is not a multiple of ",
            Setting("device_batch_size"),
            f" {share} times {world} device(s).",
        )
    arguments = TrainingArguments(
        output_dir=os.fspath(folder),
        num_train_epochs=1,
        per_device_train_batch_size=share,
        gradient_accumulation_steps=config.batch_size // (share * world),
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        warmup_steps=_warmup_steps(config, steps_per_epoch),
        lr_scheduler_type=config.schedule,
        max_grad_norm=config.max_grad_norm,
        optim="adamw_torch",
        seed=config.seed,
        bf16=options.mixed_precision == "bfloat16",
        fp16=options.mixed_precision == "float16",
        use_cpu=options.device == "cpu" or not torch.cuda.is_available(),
        save_strategy="steps" if save_every else "no",
        save_steps=save_every or 1,
        logging_steps=options.log_every,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        report_to=[place for place in options.log_to if place != "csv"] or "none",
        run_name=name,
        project="uds_lens",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        # Buffers of language models (rotary tables) are constant. Grouping by length gives processes unequal numbers of
        # passes, so synchronising buffers before each pass would make processes wait for each other.
        ddp_broadcast_buffers=False,
    )
    arguments = one_device_each(arguments)
    return checkpoint_activations(arguments) if options.gradient_checkpointing else arguments


def _warmup_steps(config: MethodConfig, steps_per_epoch: int) -> int:
    """Return the number of warm-up steps; warn if the learning rate never reaches its peak."""
    steps, rising = config.epochs * steps_per_epoch, round(config.warmup_epochs * steps_per_epoch)
    if rising and rising >= steps:
        warnings.warn(
            UdsLensWarning(
                f"the warm-up takes {rising} of {steps} training steps, so the learning rate never reaches "
                f"{config.learning_rate:g}. Lower ",
                Setting("warmup_epochs", ..., of=type(config).__name__),
                f", now {config.warmup_epochs:g}, or raise ",
                Setting("epochs", ..., of=type(config).__name__),
                f", now {config.epochs}.",
            ),
            stacklevel=2,
        )
    return rising


class _Reweighing(TrainerCallback):
    """Update the objective's weight before a step is saved."""

    def __init__(self, trainer: UnlearningTrainer) -> None:
        self._trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer.reweigh()


class _LastStep(TrainerCallback):
    """Log the last step as a separate point."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps - 1:
            control.should_log = True


class _Sealing(TrainerCallback):
    """Mark a checkpoint as complete once all its files are written, and only then remove the previous checkpoint."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        if state.is_world_process_zero:
            seal(Path(args.output_dir) / f"checkpoint-{state.global_step}")


class _Bar(TrainerCallback):
    """Show a progress bar over optimiser steps."""

    def __init__(self, enabled: bool | None) -> None:
        self._enabled = enabled
        self._steps: Iterator[int] = iter(())

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        steps = range(state.global_step, state.max_steps)
        self._steps = progress(steps, desc="training", unit="step", enabled=self._enabled)
        next(self._steps, None)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        next(self._steps, None)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for _ in self._steps:
            pass


COLUMNS = ("step", "loss", "forget_loss", "retain_loss", "weight", "grad_norm", "learning_rate")
"""Optional fields of a point on the loss curve."""


def loss_curve(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Extract the loss curve from the Trainer's log history."""
    return [{name: point[name] for name in COLUMNS if name in point} for point in history if "loss" in point]


def curve_file(out: Path) -> Path:
    """Return the path of a run's CSV log, which is next to the result and has the same name.

    >>> curve_file(Path("ckpt/npo")).name
    'npo.csv'
    """
    return out.with_name(f"{out.name}.csv")


def training_logs(options: TrainOptions, out: Path) -> list[TrainerCallback]:
    """Return callbacks for logging in addition to the `Trainer`'s own (Weights & Biases, Trackio)."""
    csv_log = [_CsvLog(curve_file(out))] if "csv" in options.log_to else []
    return [*csv_log, *([_EndWandbRun()] if "wandb" in options.log_to else [])]


class _CsvLog(TrainerCallback):
    """Rewrite the whole loss curve at each point, so that the file is always complete, even after resuming."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            import pandas as pd

            curve = pd.DataFrame(loss_curve(state.log_history), columns=COLUMNS)
            atomic_write_marked(self._path, csv_text(curve))


class _EndWandbRun(TrainerCallback):
    """Finish the Weights & Biases run after training, so that the next training starts a new run."""

    def __init__(self) -> None:
        self._ours = getattr(sys.modules.get("wandb"), "run", None) is None

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._ours and state.is_world_process_zero:
            import wandb

            wandb.finish()
