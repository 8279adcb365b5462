"""Where a training run is followed while it goes on: a CSV file, and the end of a run at Weights & Biases.

Weights & Biases and Trackio are the `Trainer`'s own callbacks. Imports transformers: import it where a training loop is
wanted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from uds_lens.storage import atomic_write_text
from uds_lens.unlearning.loss_curve import as_csv, curve_file, loss_curve
from uds_lens.unlearning.train_options import TrainOptions


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
