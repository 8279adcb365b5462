"""UDS as an evaluator of Open-Unlearning: calls `uds-lens` in its own environment on the checkpoint that was saved.

Copy this file to `src/evals/uds.py` and `uds.yaml` to `configs/eval/uds.yaml`, and register it in
`src/evals/__init__.py`:

    from evals.uds import UDSEvaluator
    _register_evaluator(UDSEvaluator)

Then `python src/eval.py eval=uds ...` writes `UDS_EVAL.json` and `UDS_SUMMARY.json` beside the other results.
"""

import logging
import os
import shlex
import subprocess
from typing import Any

from evals.base import Evaluator

logger = logging.getLogger("evaluator")


class UDSEvaluator(Evaluator):
    """Audit a saved run of unlearning; a model that is only in memory is left out, with a warning."""

    def __init__(self, eval_cfg: Any, **kwargs: Any) -> None:
        self.name = "UDS"
        self.eval_cfg = eval_cfg
        self.metrics = dict.fromkeys(("uds", "uds_low", "uds_high", "damage"))  # what summarize() keeps

    def evaluate(
        self, model: Any, output_dir: str | None = None, overwrite: bool | None = None, **kwargs: Any
    ) -> dict[str, float]:
        """Run `uds-lens audit --open-unlearning` on the run that `model` was loaded from; return the summary."""
        overwrite = self.eval_cfg.get("overwrite", False) if overwrite is None else overwrite
        place = output_dir or self.eval_cfg.output_dir
        results = self.get_logs_file_path(place)
        logs = {} if overwrite else self.load_logs_from_file(results)
        if logs.get("uds"):
            logger.info("Skipping uds, already evaluated.")
            return dict(self.summarize(logs))
        checkpoint = str(getattr(model, "name_or_path", ""))
        # During training the Trainer names an output folder, and the weights it evaluates are on no disk.
        if output_dir is not None or not os.path.isfile(os.path.join(checkpoint, ".hydra", "config.yaml")):
            logger.warning(
                "UDS needs the folder of a saved run (saves/unlearn/TASK); %r is none. After training: "
                "uds-lens audit --open-unlearning saves/unlearn/TASK",
                checkpoint,
            )
            return {}
        status = subprocess.run(self.command(checkpoint), check=False).returncode
        if status not in (0, 3):  # 3: measured, and the verdict withheld; the files say why
            raise subprocess.CalledProcessError(status, self.command(checkpoint))
        written = os.path.join(checkpoint, "evals", "UDS_EVAL.json")
        logs = self.load_logs_from_file(written)
        if os.path.realpath(written) != os.path.realpath(results):
            self.save_logs(logs, results)
            self.save_logs(self.summarize(logs), self.get_logs_file_path(place, suffix="SUMMARY"))
        return dict(self.summarize(logs))

    def command(self, checkpoint: str) -> list[str]:
        """Return the words of the command: options of the configuration that are set, then `arguments`."""
        words = [*shlex.split(self.eval_cfg.get("command") or "uds-lens"), "audit", "--open-unlearning", checkpoint]
        for option in ("full", "retain", "examples", "control", "protocol"):
            if self.eval_cfg.get(option):
                words += [f"--{option}", str(self.eval_cfg.get(option))]
        return words + shlex.split(self.eval_cfg.get("arguments") or "")
