"""The training loop: Hugging Face's `Trainer`, with an unlearning objective and a fixed order of data."""

from __future__ import annotations

import math
import os
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback, TrainingArguments

from uds_lens.compat.transformers_trainer import OrderedTrainer, checkpoint_activations, one_device_each
from uds_lens.errors import ConfigError, ModelError, Setting, UdsLensWarning
from uds_lens.progress import progress
from uds_lens.unlearning.batch_totals import FILLER, SideTotals, batch_totals
from uds_lens.unlearning.forward_passes import FrozenModel, Passes
from uds_lens.unlearning.length_groups import length_groups
from uds_lens.unlearning.method_config import MethodConfig
from uds_lens.unlearning.method_words import OWN_WORDS
from uds_lens.unlearning.objective_registry import Objective
from uds_lens.unlearning.padded_answers import widened
from uds_lens.unlearning.relearning import RelearnConfig
from uds_lens.unlearning.run_checkpoints import seal
from uds_lens.unlearning.terms import share
from uds_lens.unlearning.train_options import TrainOptions
from uds_lens.unlearning.visits import VisitCollator, VisitDataset


class UnlearningTrainer(OrderedTrainer):
    """`Trainer` whose loss is an unlearning objective over a whole batch, in as many passes as fit.

    Mixed precision, accumulation, checkpoints, resuming and logging are those of the base class. The frozen model is
    copied from `model` as it is now, before any checkpoint is loaded into it.
    """

    def __init__(
        self,
        model: nn.Module,
        config: MethodConfig,
        objective: Objective,
        visits: VisitDataset,
        *,
        arguments: TrainingArguments,
        pad_token_id: int,
        show_progress: bool | None = None,
        logs: Sequence[TrainerCallback] = (),
    ) -> None:
        self._config, self._objective = config, objective
        self._pad_token_id = pad_token_id
        if objective.prepare is not None:
            objective.prepare(config, model)
        needs_frozen = "frozen" in objective.needs
        self._frozen = FrozenModel(model).to(arguments.device) if needs_frozen else None
        known = (
            isinstance(config, RelearnConfig) or config.method in OWN_WORDS
        )  # all their terms are plain means
        alone = arguments.device.type == "cpu" and known and not config.counts_padding
        self._by_length: bool | None = None if alone else False
        """None: whether a pass draws at random, and depends on its rows, is not known yet."""
        self._totals: dict[str, SideTotals] = {}
        self._parts: dict[str, list[Tensor]] = defaultdict(list)
        self._n_batches = 0
        at_once = arguments.per_device_train_batch_size * arguments.world_size
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=visits.filled_up(at_once) if arguments.world_size > 1 else visits,
            data_collator=VisitCollator(pad_token_id),
            callbacks=[_Bar(show_progress), _LastStep(), _Sealing(), *logs],
        )

    def batch_begins(self, passes: list[Any]) -> None:
        """Count what the batch holds, on all devices: a pass may be a part of it."""
        self._n_batches += 1
        if self._config.counts_padding:
            passes[:] = self._as_wide_as_the_batch(passes)
        counts = {side: self.accelerator.reduce(count, "sum") for side, count in batch_totals(passes).items()}
        self._totals = {side: SideTotals(*count.tolist()) for side, count in counts.items()}

    def _as_wide_as_the_batch(self, passes: list[Any]) -> list[Any]:
        """All passes with the padding they have where the batch is taken at once."""
        own = {side: max(batch[side]["labels"].shape[1] for batch in passes) for side in passes[0]}
        device = self.accelerator.device
        widths = {
            side: int(self.accelerator.gather(torch.tensor([width], device=device)).max())
            for side, width in own.items()
        }
        return [
            {
                side: widened(values, widths[side], pad_token_id=self._pad_token_id)
                for side, values in batch.items()
            }
            for batch in passes
        ]

    def part_of_loss(self, model: nn.Module, inputs: Any) -> Tensor:
        """The objective's terms on one pass, by their share of the batch; kept for the loss curve."""
        if self._by_length is None:
            random = torch.get_rng_state()
            whole = self._part(model, inputs)
            self._by_length = torch.equal(random, torch.get_rng_state())
            return whole
        groups = length_groups(inputs) if self._by_length else [inputs]
        return torch.stack([self._part(model, group) for group in groups]).sum()

    def _part(self, model: nn.Module, inputs: Any) -> Tensor:
        passes = Passes(model, inputs, frozen=self._frozen, totals=self._totals)
        terms = self._objective.terms(self._config, passes)
        parts = {"forget_loss": terms.forget, "retain_loss": terms.retain}
        weighted = {
            name: mean.value * (0.0 if FILLER in inputs[mean.side] else share(mean, passes))
            for name, mean in parts.items()
            if mean is not None
        }
        for name, value in weighted.items():
            self._parts[name].append(value.detach())
        return torch.stack(list(weighted.values())).sum()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the parts of the loss; stop a run whose loss is no number any more."""
        if "loss" in logs:
            for name, values in self._parts.items():
                logs[name] = (
                    float(self.accelerator.reduce(torch.stack(values).sum(), "sum")) / self._n_batches
                )
            self._parts.clear()
            self._n_batches = 0
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
    """Hugging Face's settings for a configuration.

    Args:
        config: What to train.
        options: How to run it.
        n_forget: Number of forget examples, which makes the length of an epoch.
        folder: Where checkpoints go.
        name: What the run is called where it is logged.

    Returns:
        The settings; one pass of `Trainer` over `VisitDataset` is the whole run.

    Raises:
        ConfigError: The batch cannot be divided over devices and passes.

    Warns:
        UdsLensWarning: The warm-up is as long as the training, or longer.
    """
    steps_per_epoch = math.ceil(n_forget / config.batch_size)
    save_every = steps_per_epoch if options.checkpoint_every is None else options.checkpoint_every
    world = int(os.environ.get("WORLD_SIZE", "1"))
    share = options.device_batch_size or max(1, config.batch_size // world)
    if config.batch_size % (share * world):
        raise ConfigError(
            Setting("batch_size"),
            f" {config.batch_size} is no multiple of ",
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
        warmup_steps=_warmup_steps(config, n_forget),
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
        # Buffers of language models (rotary tables) are constant, and groups by length make unequal numbers of passes:
        # processes that send them before each pass would wait for one another.
        ddp_broadcast_buffers=False,
    )
    arguments = one_device_each(arguments)
    return checkpoint_activations(arguments) if options.gradient_checkpointing else arguments


def _warmup_steps(config: MethodConfig, n_forget: int) -> int:
    """Steps over which the learning rate rises; said where it never arrives."""
    steps = math.ceil(
        config.epochs * n_forget / config.batch_size
    )  # batches go on from one epoch to the next
    rising = round(config.warmup_epochs * n_forget / config.batch_size)
    if rising and rising >= steps:
        warnings.warn(
            UdsLensWarning(
                f"the warm-up takes {rising} steps and the training {steps}: the learning rate never reaches "
                f"{config.learning_rate:g}. Lower ",
                Setting("warmup_epochs", ..., of=type(config).__name__),
                f", now {config.warmup_epochs:g}, or raise ",
                Setting("epochs", ..., of=type(config).__name__),
                f", now {config.epochs}.",
            ),
            stacklevel=2,
        )
    return rising


class _LastStep(TrainerCallback):
    """Makes the last step a point of the loss curve by itself."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps - 1:
            control.should_log = True


class _Sealing(TrainerCallback):
    """Lets a checkpoint count once all of it is written, and only then removes the one before."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        if state.is_world_process_zero:
            seal(Path(args.output_dir) / f"checkpoint-{state.global_step}")


class _Bar(TrainerCallback):
    """A progress bar over optimiser steps."""

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
