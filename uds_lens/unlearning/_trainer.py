"""The training loop: Hugging Face's `Trainer`, with an unlearning objective and a fixed order of data."""

from __future__ import annotations

import csv
import io
import math
import os
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback, TrainingArguments

from uds_lens._compat.transformers_trainer import OrderedTrainer, checkpoint_activations, one_device_each
from uds_lens._progress import progress
from uds_lens._storage import atomic_write_text
from uds_lens.errors import ConfigError, ModelError, Setting, UdsLensWarning
from uds_lens.unlearning._configs import MethodConfig
from uds_lens.unlearning._data import VisitCollator, VisitDataset
from uds_lens.unlearning._likelihood import widened
from uds_lens.unlearning._method_words import OWN_WORDS
from uds_lens.unlearning._options import TrainOptions
from uds_lens.unlearning._passes import FILLER, FrozenModel, Passes, SideTotals, batch_totals
from uds_lens.unlearning._registry import Objective
from uds_lens.unlearning._relearning import RelearnConfig
from uds_lens.unlearning._run_folder import seal
from uds_lens.unlearning._terms import share

# Rows of one pass by length: on a CPU, padding is work like any other, and random batches are nearly half
# padding.

ROWS_TOGETHER = 8
"""Rows of similar length that are run together: of four, products become small; of sixteen, padding comes back."""

Batch = Mapping[str, Mapping[str, Tensor]]
"""Sides by name, each with `input_ids`, `attention_mask` and `labels` [batch pos], and values [batch] beside them."""


def length_groups(batch: Batch, *, rows: int = ROWS_TOGETHER) -> list[dict[str, dict[str, Tensor]]]:
    """The same rows in groups of similar length, each without the padding it has no use for.

    A forget answer and the answer to prefer to it stay side by side; retain answers are grouped for themselves, so that
    one no longer stands beside the forget answer it stood beside. What is a mean over the rows of a side, as in every
    objective of this package, does not change by more than rounding.

    Args:
        batch: Sides of one pass, padded on the right; each side has as many rows.
        rows: Rows of a group at most.

    Returns:
        Groups of short rows first; the batch itself where that leaves no padding out.

    Example:
        >>> labels = torch.tensor([[-100, 5, 6, 2], [-100, 7, -100, -100]])
        >>> mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
        >>> short, long = length_groups({"forget": {"attention_mask": mask, "labels": labels}}, rows=1)
        >>> short["forget"]["labels"].tolist(), long["forget"]["labels"].tolist()
        ([[-100, 7]], [[-100, 5, 6, 2]])
    """
    lengths = {side: values["attention_mask"].sum(1) for side, values in batch.items()}
    n = len(next(iter(lengths.values())))
    groups = math.ceil(n / rows)
    if groups == 1 or all(bool((length == length[0]).all()) for length in lengths.values()):
        return [{side: dict(values) for side, values in batch.items()}]
    together = torch.stack([length for side, length in lengths.items() if side != "retain"]).sum(0)
    order = {
        side: (length if side == "retain" else together).argsort(stable=True)
        for side, length in lengths.items()
    }
    edges = [round(i * n / groups) for i in range(groups + 1)]
    cuts = [slice(start, stop) for start, stop in pairwise(edges)]
    return [{side: _taken(values, order[side][cut]) for side, values in batch.items()} for cut in cuts]


def _taken(values: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """Some rows, up to the end of the longest."""
    width = int(values["attention_mask"][rows].sum(1).max())
    return {name: value[rows, :width] if value.ndim == 2 else value[rows] for name, value in values.items()}


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


# The loss curve of a training run: its points, and as a CSV file.

COLUMNS = ("step", "loss", "forget_loss", "retain_loss", "grad_norm", "learning_rate")
"""What a point holds, as far as the method has it."""

HEAD = ",".join(COLUMNS).encode()
"""How a CSV file of ours begins."""


def loss_curve(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Points of the loss curve: step, loss, its parts, gradient norm, learning rate."""
    return [{name: point[name] for name in COLUMNS if name in point} for point in history if "loss" in point]


def as_csv(curve: Sequence[Mapping[str, Any]]) -> str:
    r"""The points as rows of CSV.

    >>> as_csv([{"step": 1, "loss": 0.5}])
    'step,loss,forget_loss,retain_loss,grad_norm,learning_rate\n1,0.5,,,,\n'
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(curve)
    return text.getvalue()


def curve_file(out: Path) -> Path:
    """The CSV file of a run: beside its result, named after it.

    >>> curve_file(Path("ckpt/npo")).name
    'npo.csv'
    """
    return out.with_name(f"{out.name}.csv")


# Where a training run is followed while it goes on: a CSV file, and the end of a run at Weights & Biases.
#
# Weights & Biases and Trackio are the `Trainer`'s own callbacks. Imports transformers: import it where a
# training loop is wanted.


def training_logs(options: TrainOptions, out: Path) -> list[TrainerCallback]:
    """What is asked for beside the `Trainer`'s own."""
    csv = [CsvLog(curve_file(out))] if "csv" in options.log_to else []
    return [*csv, *([EndWandbRun()] if "wandb" in options.log_to else [])]


class CsvLog(TrainerCallback):
    """Writes the whole loss curve anew at each point: the file is whole, and goes on where a run goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write what is known."""
        if state.is_world_process_zero:
            atomic_write_text(self._path, as_csv(loss_curve(state.log_history)))


class EndWandbRun(TrainerCallback):
    """Ends the run at Weights & Biases that this training began, so that the next training begins another."""

    def __init__(self) -> None:
        self._ours = getattr(sys.modules.get("wandb"), "run", None) is None

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End it."""
        if self._ours and state.is_world_process_zero:
            import wandb

            wandb.finish()
