"""`DepthCallback`: audit the model inside a `Trainer`, in place, at regular intervals."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

from uds_lens._compat.transformers_trainer import is_sharded, log_beside, trainer_of
from uds_lens._progress import quiet, tell
from uds_lens._settings import as_settings, validated
from uds_lens._storage.files import check_writable
from uds_lens._types import NonNegativeInt, PositiveInt
from uds_lens.audit import Baseline
from uds_lens.errors import DataError, ModelError, warn_once
from uds_lens.models import open_model
from uds_lens.results import DepthAudit, RunOptions
from uds_lens.results._records import versions
from uds_lens.training._curve import KIND, LOGGED, RECORD, DepthCurve, DepthPoint, logs_of, points_in


@validated
@dataclass(frozen=True, kw_only=True)
class DepthSettings:
    """Settings of `DepthCallback`, described in its docstring."""

    every: PositiveInt
    rows: PositiveInt | None = None
    control: NonNegativeInt | None = None


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Restore the random states of Python, NumPy and torch on exit."""
    python, arrays = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)


class DepthCallback(TrainerCallback):
    """Measure UDS and damage while a model trains, for any transformers `Trainer`.

    The model is audited in place, without a copy; `full` stays open during training. The trained weights are
    bit-for-bit the same as without the callback. Values are written to the Trainer's loggers (`depth/uds`,
    `depth/damage`, ...), to `curve`, and to a file `depth.json` in the output directory and in each checkpoint.

    When the Trainer evaluates, its metrics include UDS as `eval_depth`, output depth as `eval_output_depth` and damage
    as `eval_depth_damage`. `metric_for_best_model="eval_depth"` with `load_best_model_at_end`, and
    `EarlyStoppingCallback`, can therefore select a model by depth (list this callback before the others). On the
    measured rows, a model selected in this way looks more deeply unlearned than it is, so audit it on facts about other
    subjects.

    Args:
        baseline: Stage 1, with the model before training as `full`; damage is measured only if the baseline has a
            `control`.
        every: Optimiser steps between measurements. The model is also measured before training and after the last step.
        rows: Minimum number of examples to measure, drawn as whole subjects with the baseline's seed; None measures
            all.
        control: Minimum number of the baseline's control facts to measure, drawn like `rows`; 0 measures none.
        options: Device and memory settings for the audits; `device` applies to `full`, and `memory_gib` limits its
            recordings.

    Raises:
        ConfigError: A value is outside its range.
        DataError: No example of the baseline is measurable.

    Example:
        >>> import uds_lens as ul
        >>> world = ul.toy.load()
        >>> baseline = ul.Baseline.measure(world.full, world.retain, world.examples)
        >>> callback = ul.training.DepthCallback(baseline, every=10, rows=24)
        >>> len(callback.measured.examples)
        24
    """

    def __init__(
        self,
        baseline: Baseline,
        *,
        every: int,
        rows: int | None = None,
        control: int | None = None,
        options: RunOptions | None = None,
    ) -> None:
        self.settings = DepthSettings(every=every, rows=rows, control=control)
        options = as_settings(RunOptions, options, name="options")
        stage_2 = "knowledge" if options.stage_2 == "auto" else options.stage_2
        self.options = replace(options, progress=False, stage_2=stage_2)
        usable, seed, facts = baseline.ke_mask.any(1).tolist(), baseline.config.seed, baseline.control
        if not any(usable):
            raise DataError("no example of this baseline is measurable: depth during training would be NaN.")
        kept = _drawn(baseline.subjects, usable, rows, seed)
        kept_facts: list[int] | None = None
        if facts is not None and control != 0:
            kept_facts = _drawn(facts.subjects, facts.known.tolist(), control, seed)
        self.measured: Baseline = baseline.subset(kept, control=kept_facts, options=self.options)
        """Stage 1 of the examples measured during training."""
        self._key, self._points, self._stack = baseline.key, list[DepthPoint](), ExitStack()
        self._audit: Callable[[], DepthAudit] | None = None
        self._trainer: Any = None

    @property
    def curve(self) -> DepthCurve:
        """Return the points measured so far."""
        return DepthCurve(
            points=tuple(self._points),
            settings=asdict(self.settings),
            measured=[{"id": example.id, "subject": example.subject} for example in self.measured.examples],
            baseline=self._key,
            versions=versions(),
        )

    # Trainer events.

    @_undisturbed()
    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Open `full`, and measure the current model."""
        if is_sharded(args, model):
            raise ModelError(
                "depth during training needs the whole model in one process, but this model is sharded (FSDP, ZeRO-3 "
                "or tensor parallel): audit its saved checkpoints with uds-lens audit --watch instead."
            )
        self._close()
        self._trainer = trainer_of(state)
        if self._trainer is None:
            warn_once(
                "this callback does not run in a transformers Trainer: the curve is in callback.curve, but not logged."
            )
        self._points = points_in(state.log_history)
        check_writable(Path(args.output_dir) / RECORD, directory=False, format=KIND.format)
        if state.is_world_process_zero:
            opened = self._stack.enter_context(open_model(model, dtype=self.measured.config.dtype))
            recorded = self._stack.enter_context(self.measured.recorded(models=[opened], options=self.options))
            self._audit = partial(recorded.audit, opened)
        if not any(point.step == state.global_step for point in self._points):
            self._measure(args, state)

    @_undisturbed()
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure at the chosen steps."""
        last = state.global_step >= state.max_steps or control.should_training_stop
        if not state.global_step % self.settings.every or last:
            self._measure(args, state)

    @_undisturbed()
    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        """Add depth to the Trainer's metrics, for early stopping and for choosing a checkpoint by depth."""
        if self._trainer is None or metrics is None:  # an evaluation outside training
            return
        done = self._points and self._points[-1].step == state.global_step
        point = self._points[-1] if done else self._measure(args, state)
        found = {"eval_depth": point.uds, "eval_output_depth": point.output_depth, "eval_depth_damage": point.damage}
        metrics.update({name: value for name, value in found.items() if not math.isnan(value)})

    @_undisturbed()
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save the curve in the checkpoint."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and folder.is_dir():
            self.curve.save(folder)

    @_undisturbed()
    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Close `full` and save the curve."""
        self._close()
        if not state.is_world_process_zero:
            return
        spent = sum(point.seconds for point in self._points)
        tell(f"depth: {len(self._points)} measurements took {spent:.1f} s")
        if Path(args.output_dir).is_dir():
            self.curve.save(args.output_dir)

    def _measure(self, args: Any, state: Any) -> DepthPoint:
        point = DepthPoint(step=state.global_step, **dict.fromkeys(LOGGED, float("nan")))
        if self._audit is not None:
            with quiet():
                started = time.perf_counter()
                audit = self._audit()
                point = DepthPoint.of(audit, step=state.global_step, seconds=time.perf_counter() - started)
        point = _of_first_process(point, args.device)
        self._points.append(point)
        damage = "" if math.isnan(point.damage) else f", damage {point.damage:.3f}"
        output = "" if math.isnan(point.output_depth) else f", output depth {point.output_depth:.3f}"
        tell(f"step {point.step}: UDS {point.uds:.3f}{output}{damage} ({point.seconds:.1f} s)")
        if self._trainer is not None:
            log_beside(self._trainer, logs_of(point))
        return point

    def _close(self) -> None:
        self._audit = None
        self._stack.close()


def _drawn(subjects: Sequence[str | None], usable: Sequence[bool], n: int | None, seed: int) -> list[int]:
    """Draw whole subjects at random until there are at least `n` usable rows (None: all usable rows).

    A row without a subject counts as its own subject.
    """
    by_subject: dict[object, list[int]] = {}
    for row, subject in enumerate(subjects):
        if usable[row]:
            by_subject.setdefault(row if subject is None else subject, []).append(row)
    groups = list(by_subject.values())
    random.Random(seed).shuffle(groups)
    drawn: list[int] = []
    for rows in groups:
        if n is not None and len(drawn) >= n:
            break
        drawn += rows
    return sorted(drawn)


def _of_first_process(point: DepthPoint, device: Any) -> DepthPoint:
    """Return the first process's point in every process, so that all processes make the same decisions."""
    if not torch.distributed.is_initialized():
        return point
    numbers = torch.tensor(astuple(point)[1:], dtype=torch.float64, device=device)
    torch.distributed.broadcast(numbers, src=0)
    return DepthPoint(step=point.step, **dict(zip(LOGGED, numbers.tolist(), strict=True)))
