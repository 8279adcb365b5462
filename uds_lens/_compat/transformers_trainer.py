"""Private internals of transformers' `Trainer`: its data order, its loss scaling, and its warnings on resuming.

Unlike the other modules here, this one imports transformers, so import it only for training.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from torch.utils.data import Sampler, SequentialSampler
from transformers import PrinterCallback, Trainer, TrainerState, TrainingArguments

from uds_lens.errors import ModelError


class OrderedTrainer(Trainer):
    """A `Trainer` that reads its data in order and uses the loss of the whole batch, however many passes that takes.

    Override `batch_begins`, which receives all passes of the next batch on this device, and `part_of_loss`, which
    returns what one pass contributes to the loss. The contributions of all passes and devices must add up to the
    batch's loss.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.remove_callback(PrinterCallback)
        self.loss_is_scaled_for_ga = False  # makes `training_step` divide by the number of passes in every release

    def batch_begins(self, passes: list[Any]) -> None:
        """Receive a batch before its first pass."""

    def part_of_loss(self, model: torch.nn.Module, inputs: Any) -> torch.Tensor:
        """Return one pass's contribution to the batch's loss."""
        raise NotImplementedError

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> Any:
        """Return all passes of the next batch, after handing them to `batch_begins`."""
        samples = super().get_batch_samples(epoch_iterator, num_batches, device)
        if samples[0]:
            self.batch_begins(samples[0])
        return samples

    def compute_loss(
        self, model: torch.nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return `part_of_loss` times the numbers of passes and devices, because the base class divides by both."""
        divided_by = self.current_gradient_accumulation_steps * self.accelerator.num_processes
        loss = self.part_of_loss(model, inputs) * divided_by
        return (loss, None) if return_outputs else loss

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Sampler[int]:
        return SequentialSampler(self.train_dataset)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Raise an error, not a warning, if weights do not match; a checkpoint may lack only tied weights."""
        places = {name: value.data_ptr() for name, value in self.model.state_dict().items()}
        missing = set(load_result.missing_keys)
        filled = {place for name, place in places.items() if name not in missing}
        lost = [name for name in load_result.missing_keys if places.get(name) not in filled]
        if lost or load_result.unexpected_keys:
            names = ", ".join([*lost, *load_result.unexpected_keys][:3])
            raise ModelError(
                f"a training checkpoint does not match its model ({names}, ...): remove the run's folder, and start "
                "the run again."
            )


def one_device_each(arguments: TrainingArguments) -> TrainingArguments:
    """Make each process use one device; accelerate handles several devices."""
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1
    return arguments


def checkpoint_activations(arguments: TrainingArguments) -> TrainingArguments:
    """Turn on activation checkpointing, whose setting was renamed in transformers."""
    new = "activation_checkpointing"
    setattr(arguments, new if hasattr(arguments, new) else "gradient_checkpointing", True)
    return arguments


def trainer_of(state: TrainerState) -> Trainer | None:
    """Return the `Trainer` whose callbacks are running; callbacks receive its state, but no reference to it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Trainer) and owner.state is state:
            return owner
        frame = frame.f_back
    return None


def log_beside(trainer: Trainer, logs: dict[str, float]) -> None:
    """Log numbers from a callback without affecting the next line of the log.

    `Trainer.log` is called directly, because subclasses average what they have collected since their last line. Logging
    clears `should_log`, which is then restored in case another callback asked for the loss at this step.
    """
    asked = trainer.control.should_log
    Trainer.log(trainer, logs)
    trainer.control.should_log = asked


def is_sharded(arguments: TrainingArguments, model: torch.nn.Module) -> bool:
    """Return whether the model is sharded, so that no process holds all of it (FSDP, ZeRO-3, tensor parallelism)."""
    split = any(hasattr(p, "ds_id") or type(p).__name__ in ("DTensor", "FlatParameter") for p in model.parameters())
    return bool(getattr(arguments, "fsdp", None)) or split
