"""`DepthCallback`: audit the model that a `Trainer` holds, in place, every so many steps."""

from __future__ import annotations

import json
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
from torch import nn
from transformers import TrainerCallback

from uds_lens._compat.transformers_trainer import is_sharded, log_beside, trainer_of
from uds_lens._progress import quiet, tell
from uds_lens._settings import as_settings, validated
from uds_lens._storage import atomic_directory, check_writable, conform, parse_json, plain
from uds_lens._types import NonNegativeFloat, NonNegativeInt, PositiveInt, Share
from uds_lens.audit import Baseline
from uds_lens.data import ForgetExample
from uds_lens.errors import ConfigError, DataError, ModelError, Setting, warn_once
from uds_lens.models import open_model
from uds_lens.results import DepthAudit, RunOptions
from uds_lens.results._records import versions
from uds_lens.results._steering import BEST, FORMAT, RECORD, declare, row_record
from uds_lens.training._curve import LOGGED, DepthCurve, DepthPoint, best_of, logs_of, points_in

_WEIGHTS = "weights.safetensors"
"""File in the folder `BEST`."""


@validated
@dataclass(frozen=True, kw_only=True)
class DepthSettings:
    """Settings of `DepthCallback`, which describes them."""

    every: PositiveInt
    rows: PositiveInt | None = None
    control: NonNegativeInt | None = None
    stop: Share | None = None
    keep_best: bool = False
    max_damage: NonNegativeFloat | None = None

    @property
    def steers(self) -> bool:
        """Whether the measurements decide anything."""
        return self.stop is not None or self.keep_best


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Give Python, NumPy and torch their random states back at the end."""
    python, arrays = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)


class DepthCallback(TrainerCallback):
    """Measure UDS and damage while a model trains, for any transformers `Trainer`.

    The model is audited in place, without a second copy; `full` stays open beside it. Training is the same, bit for
    bit, as without the callback. Values go to the Trainer's loggers (`depth/uds`, `depth/damage`, ...), to `curve`, and
    to a file `depth.json` in the output directory and each checkpoint.

    With `stop` or `keep_best` the measured examples steer the training, so that they cannot score it: half of the
    subjects are measured, and the final model is scored on the others (`score`). The model's configuration names, as
    hashes (`uds_lens_steering`), the examples that steered it: an audit of it on these has its reading withheld, in
    memory, from a copy and from the Hub.

    Args:
        baseline: Stage 1, measured with a `control` where damage is wanted; its `full` is the model before training.
        every: Optimiser steps between two measurements; the model before training and the last step are measured, too.
        rows: Measure at least this many examples, whole subjects at a time, drawn with the baseline's seed. None: all,
            or those of half of the subjects where they steer.
        control: As `rows`, for the baseline's control facts; 0 measures none.
        stop: Stop training at the first measured step with this UDS, in (0, 1].
        keep_best: At the end, give the model the weights of the step with the highest UDS. They are kept in a file
            meanwhile, `depth-best` in the output directory.
        max_damage: With `keep_best`, only steps whose damage is at most this.
        options: How to run the audits; `device` says where `full` is opened, `memory_gib` bounds its recordings.

    Raises:
        ConfigError: A value is outside its range, or no subject is left to score.
        DataError: No example of the baseline is measurable.

    Example:
        >>> import uds_lens as ul
        >>> world = ul.toy.load()
        >>> baseline = ul.Baseline.measure(world.full, world.retain, world.examples)
        >>> callback = ul.training.DepthCallback(baseline, every=10, stop=0.9)
        >>> len(callback.measured.examples), len(callback.held_out.examples)
        (24, 24)
    """

    def __init__(
        self,
        baseline: Baseline,
        *,
        every: int,
        rows: int | None = None,
        control: int | None = None,
        stop: float | None = None,
        keep_best: bool = False,
        max_damage: float | None = None,
        options: RunOptions | None = None,
    ) -> None:
        self.settings = settings = DepthSettings(
            every=every, rows=rows, control=control, stop=stop, keep_best=keep_best, max_damage=max_damage
        )
        options = as_settings(RunOptions, options, name="options")
        stage_2 = "knowledge" if options.stage_2 == "auto" else options.stage_2
        self.options = replace(options, progress=False, stage_2=stage_2)
        facts = baseline.control
        if max_damage is not None and (not keep_best or facts is None or control == 0):
            raise ConfigError(
                Setting("max_damage", max_damage),
                " needs ",
                Setting("keep_best", True),
                " and a baseline that was measured with a control.",
            )
        usable, seed, hold_out = baseline.ke_mask.any(1).tolist(), baseline.config.seed, settings.steers
        if not any(usable):
            raise DataError("no example of this baseline is measurable: depth while training would be NaN.")
        kept, rest = _split("rows", baseline.subjects, usable, rows, seed=seed, hold_out=hold_out)
        kept_facts: list[int] | None = None
        rest_facts: list[int] | None = None
        if facts is not None and control != 0:
            is_known = facts.known.tolist()
            kept_facts, rest_facts = _split("control", facts.subjects, is_known, control, seed=seed, hold_out=hold_out)
        self.measured: Baseline = baseline.subset(kept, control=kept_facts, options=self.options)
        """Stage 1 of the examples that are measured while training."""
        self.held_out: Baseline | None = None
        """Stage 1 of those that score the final model; None where nothing steers."""
        if hold_out:
            self.held_out = baseline.subset(rest, control=rest_facts, options=self.options)
        self.score: DepthAudit | None = None
        """Audit of the final model on the examples that did not steer; None before the end and where nothing steers."""
        self.seconds_estimated = float("nan")
        """Estimate of the time of all measurements, made before the first step."""
        self._key, self._points, self._stack = baseline.key, list[DepthPoint](), ExitStack()
        self._stopped: int | None = None
        self._best: DepthPoint | None = None
        self._audit: Callable[[], DepthAudit] | None = None
        self._seconds: Callable[[], float] | None = None
        self._trainer: Any = None

    @property
    def depends_on(self) -> dict[str, Any]:
        """Return the settings that the trained weights depend on; empty where the measurements decide nothing."""
        if not self.settings.steers:
            return {}
        return {**asdict(self.settings), "baseline": self._key, "measured": self.measured.key}

    @property
    def curve(self) -> DepthCurve:
        """Return the points measured so far."""
        rest = self.held_out.examples if self.held_out else ()
        return DepthCurve(
            points=tuple(self._points),
            settings=asdict(self.settings),
            steers=self.settings.steers,
            measured=[row_record(example) for example in self.measured.examples],
            held_out=[row_record(example) for example in rest],
            baseline=self._key,
            control=[row_record(fact) for fact in self._limiting],
            stopped=self._stopped,
            kept=self._best.step if self._best else None,
            score=None if self.score is None else self.score.summary(),
            seconds_estimated=self.seconds_estimated,
            versions=versions(),
        )

    @property
    def _limiting(self) -> Sequence[ForgetExample]:
        """Retained facts whose damage limits what is kept."""
        facts = self.measured.control if self.settings.max_damage is not None else None
        return facts.examples if facts else ()

    # Events of the Trainer.

    @_undisturbed()
    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Open `full`, measure the model as it is, and say what the rest will cost."""
        if is_sharded(args, model):
            raise ModelError(
                "depth while training needs the whole model in one process, and this one is sharded (FSDP, ZeRO-3 or "
                "tensor parallel): audit its saved checkpoints instead, with uds-lens watch."
            )
        self._close()
        self._trainer, self._stopped, self.score = trainer_of(state), None, None
        if self._trainer is None:
            warn_once("no transformers Trainer runs this callback: the curve is in callback.curve, and is not logged.")
        self._points = points_in(state.log_history)
        first = state.is_world_process_zero
        kept = first and self.settings.keep_best and self._points
        self._best = _saved_point(Path(args.output_dir) / BEST) if kept else None
        check_writable(Path(args.output_dir) / RECORD, directory=False, format=FORMAT)
        if self.settings.steers and hasattr(model, "config"):
            declare(model.config, self.measured.examples, self._limiting)
        if first:
            opened = self._stack.enter_context(open_model(model, dtype=self.measured.config.dtype))
            recorded = self._stack.enter_context(self.measured.recorded(models=[opened], options=self.options))
            self._audit, self._seconds = partial(recorded.audit, opened), partial(recorded.seconds, opened)
        if not any(point.step == state.global_step for point in self._points):
            self._measure(args, state, model)
        if self._seconds is not None:
            with quiet():
                each = self._seconds()
            every = self.settings.every
            steps = range(every * (state.global_step // every + 1), state.max_steps, every)
            self.seconds_estimated = sum(point.seconds for point in self._points) + each * (len(steps) + 1)
            rest = "" if self.held_out is None else f", then {len(self.held_out.examples)} that score"
            tell(
                f"depth every {every} steps on {len(self.measured.examples)} examples{rest}: {len(steps) + 1} "
                f"measurements of about {each:.1f} s"
            )

    @_undisturbed()
    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Measure where it is time to, and stop where that is deep enough."""
        last = state.global_step >= state.max_steps or control.should_training_stop
        if state.global_step % self.settings.every and not last:
            return
        point = self._measure(args, state, model)
        if self.settings.stop is not None and point.uds >= self.settings.stop:
            self._stopped = state.global_step
            control.should_training_stop = True

    @_undisturbed()
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Put the record into the checkpoint."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and folder.is_dir():
            self.curve.save(folder)

    @_undisturbed()
    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Give the model its best weights, score it on the examples that did not steer, and close `full`."""
        self._close()
        if self._best is not None and state.is_world_process_zero:
            _load(model, Path(args.output_dir) / BEST / _WEIGHTS)
        if self.settings.keep_best and torch.distributed.is_initialized():
            for tensor in _state(model).values():
                torch.distributed.broadcast(tensor, src=0)
        if not state.is_world_process_zero:
            return
        if self.held_out is not None:
            with self.held_out.recorded(models=[model], options=self.options) as recorded:
                self.score = recorded.audit(model)
        spent = sum(point.seconds for point in self._points)
        tell(f"depth: {len(self._points)} measurements took {spent:.1f} s (estimate: {self.seconds_estimated:.1f} s)")
        if Path(args.output_dir).is_dir():
            self.curve.save(args.output_dir)

    def _measure(self, args: Any, state: Any, model: Any) -> DepthPoint:
        point = DepthPoint(step=state.global_step, **dict.fromkeys(LOGGED, float("nan")))
        if self._audit is not None:
            with quiet():
                started = time.perf_counter()
                audit = self._audit()
                point = DepthPoint.of(audit, step=state.global_step, seconds=time.perf_counter() - started)
        point = _of_first_process(point, args.device)
        self._points.append(point)
        damage = "" if math.isnan(point.damage) else f", damage {point.damage:.3f}"
        tell(f"step {point.step}: UDS {point.uds:.3f}{damage}")
        if self._trainer is not None:
            log_beside(self._trainer, logs_of(point))
        best = best_of([*([self._best] if self._best else []), point], self.settings.max_damage)
        if self.settings.keep_best and best is point:
            self._best = point
            if state.is_world_process_zero:
                _save(model, point, Path(args.output_dir) / BEST)
        return point

    def _close(self) -> None:
        self._audit = self._seconds = None
        self._stack.close()


def _split(
    name: str, subjects: Sequence[str | None], usable: Sequence[bool], n: int | None, *, seed: int, hold_out: bool
) -> tuple[list[int], list[int]]:
    """Draw rows, whole subjects at a time, until there are `n` usable ones; return them, and those of other subjects.

    A row without a subject is one of its own. None for `n`, which messages call `name`, takes half of the subjects
    where some must be left (`hold_out`), else all.
    """
    by_subject: dict[object, list[int]] = {}
    for row, subject in enumerate(subjects):
        by_subject.setdefault(row if subject is None else subject, []).append(row)
    groups = [rows for rows in by_subject.values() if any(usable[row] for row in rows)]
    random.Random(seed).shuffle(groups)
    kept: list[int] = []
    n_groups = 0
    for rows in groups:
        if (len(kept) >= n) if n is not None else (hold_out and n_groups >= len(groups) / 2):
            break
        kept += [row for row in rows if usable[row]]
        n_groups += 1
    if hold_out and n_groups == len(groups):
        raise ConfigError(
            f"examples that steer the training cannot score it, and all {len(groups)} subjects would steer: lower ",
            Setting(name, ...),
            ", or measure the baseline on more subjects.",
        )
    return sorted(kept), sorted(row for rows in groups[n_groups:] for row in rows)


def _of_first_process(point: DepthPoint, device: Any) -> DepthPoint:
    """Return the point that the first of the processes measured, so that all decide alike."""
    if not torch.distributed.is_initialized():
        return point
    numbers = torch.tensor(astuple(point)[1:], dtype=torch.float64, device=device)
    torch.distributed.broadcast(numbers, src=0)
    return DepthPoint(step=point.step, **dict(zip(LOGGED, numbers.tolist(), strict=True)))


# The best weights: what trains, and buffers. Tied weights are there once, and so are adapters without their base.


def _state(model: nn.Module) -> dict[str, torch.Tensor]:
    saved = model.state_dict().keys()
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in saved}
    return {name: tensor.detach() for name, tensor in (trained | buffers).items()}


def _save(model: nn.Module, point: DepthPoint, folder: Path) -> None:
    from safetensors.torch import save_file

    tensors = {name: tensor.contiguous() for name, tensor in _state(model).items()}
    with atomic_directory(folder) as place:
        save_file(tensors, place / _WEIGHTS, metadata={"point": json.dumps(plain(asdict(point)))})


def _saved_point(folder: Path) -> DepthPoint | None:
    """Return the point whose weights an interrupted run has kept; it may lie after the checkpoint that is resumed."""
    from safetensors import safe_open

    if not (folder / _WEIGHTS).is_file():
        warn_once(
            f"the best weights of the run that is resumed are not in {str(folder)[-120:]!r}: the search for them "
            "starts again."
        )
        return None
    with safe_open(folder / _WEIGHTS, framework="pt") as saved:
        return conform(
            DepthPoint,
            parse_json((saved.metadata() or {}).get("point", "").encode(), where=str(folder)),
            where=str(folder),
        )


@torch.no_grad()
def _load(model: nn.Module, file: Path) -> None:
    from safetensors import safe_open

    with safe_open(file, framework="pt") as saved:
        for name, tensor in _state(model).items():
            tensor.copy_(saved.get_tensor(name))
