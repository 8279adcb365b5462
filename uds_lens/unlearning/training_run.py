"""From checkpoint to checkpoint: `unlearn` and `relearn`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from uds_lens.checked_arguments import arguments_checked_but
from uds_lens.checked_settings import as_settings
from uds_lens.data import ForgetExample, load_examples
from uds_lens.errors import ConfigError, Setting
from uds_lens.optional_packages import require_package
from uds_lens.storage import located, require_fresh
from uds_lens.unlearning.job_running import run
from uds_lens.unlearning.lora import LoraSettings
from uds_lens.unlearning.loss_curve import HEAD, curve_file
from uds_lens.unlearning.method_config import MethodConfig
from uds_lens.unlearning.methods import make_config, method_class, objective_named
from uds_lens.unlearning.refusals import load_refusals
from uds_lens.unlearning.relearning import RELEARNING, RelearnConfig
from uds_lens.unlearning.train_options import TrainOptions
from uds_lens.unlearning.training_job import Job
from uds_lens.unlearning.training_record import (
    FORMAT,
    RELEARNING_RECORD,
    UNLEARNING_RECORD,
)

Examples = str | os.PathLike[str] | Sequence[ForgetExample] | Sequence[Mapping[str, Any]]
"""What `load_examples` reads: a file, a Hub data set, examples, or rows."""


@arguments_checked_but("full")
def unlearn(
    full: str | os.PathLike[str],
    forget: Examples,
    retain: Examples | None = None,
    *,
    method: str | None = None,
    config: MethodConfig | None = None,
    out: str | os.PathLike[str],
    refusals: str | os.PathLike[str] | None = None,
    lora: LoraSettings | None = None,
    options: TrainOptions | None = None,
) -> Path:
    """Train a model to forget.

    The result is a plain checkpoint that transformers loads, with `unlearning.json` beside the weights. It appears
    whole or not at all. A run that was killed goes on from its last checkpoint when it is called again in the same way;
    one that is finished is not run again. With one seed on one machine the weights come out the same.

    Args:
        full: The model that knows: a directory, or a Hub id.
        forget: Questions with the answers to forget.
        retain: Questions with the answers to keep; gradient ascent (`ga`) needs none.
        method: The method's word; may be left out where `config` says it.
        config: The method's settings; None takes its defaults.
        out: Directory of the result.
        refusals: File of refusals, one per line, for `idknll` and `idkdpo`; None takes those of this package.
        lora: Train low-rank adapters, merged at the end; None trains the weights themselves.
        options: How to run it; default `TrainOptions()`.

    Returns:
        `out`.

    Raises:
        ConfigError: Method and settings do not fit, retain data is missing, or `out` holds the result of another run.
        ResultFormatError: `out` holds something else.
        ModelError: The model cannot be opened, training diverged, or weights are no numbers any more.
        DataError: Data cannot be read, or an answer is too long for the model.
        MissingDependencyError: Adapters or a log are asked for, and what makes them is not installed.

    Warns:
        UdsLensWarning: The weights are those of `full`.
    """
    config = _settings(method, config)
    if isinstance(config, RelearnConfig):
        raise ConfigError("relearning is no unlearning method: call relearn(model, forget, out=...).")
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
        out=require_fresh(out, directory=True, format=FORMAT),
        record=UNLEARNING_RECORD,
    )
    return run(job)


@arguments_checked_but("model")
def relearn(
    model: str | os.PathLike[str],
    forget: Examples,
    *,
    out: str | os.PathLike[str],
    epochs: int = 1,
    config: RelearnConfig | None = None,
    lora: LoraSettings | None = None,
    options: TrainOptions | None = None,
) -> Path:
    """Fine-tune a model on the forget set again, one of the two perturbations of the robustness test.

    Args:
        model: A directory, or a Hub id.
        forget: Questions with the answers to learn.
        out: Directory of the result, with `relearning.json` beside the weights.
        epochs: How often each example is visited.
        config: Other settings; default AdamW at 2e-5 and 32 examples per step. Its `epochs` give way to `epochs`.
        lora: Train low-rank adapters, merged at the end.
        options: How to run it; default `TrainOptions()`.

    Returns:
        `out`.

    Raises:
        ConfigError: A value is outside its range, or `out` holds the result of another run.
        ResultFormatError: `out` holds something else.
        ModelError: The model cannot be opened, or training diverged.
        DataError: Data cannot be read, or an answer is too long for the model.
        MissingDependencyError: Adapters or a log are asked for, and what makes them is not installed.
    """
    job = Job(
        config=replace(as_settings(RelearnConfig, config, name="config"), epochs=epochs),
        objective=RELEARNING,
        source=model,
        forget=tuple(load_examples(forget)),
        retain=(),
        refusals=(),
        lora=_adapters(lora),
        options=_options(options, out),
        out=require_fresh(out, directory=True, format=FORMAT),
        record=RELEARNING_RECORD,
    )
    return run(job)


def _options(options: TrainOptions | None, out: str | os.PathLike[str]) -> TrainOptions:
    """How to run it, where what follows the run is installed, and its file may be written."""
    options = as_settings(TrainOptions, options, name="options")
    for place in options.log_to:
        if place == "csv":
            require_fresh(curve_file(located(out)), directory=False, begins=HEAD)
        else:
            require_package(place, needed_by=f"logging to {place} needs")
    return options


def _adapters(lora: LoraSettings | None) -> LoraSettings | None:
    """The adapters that were asked for, which need a package of their own."""
    if lora is None:
        return None
    require_package("peft", needed_by="training adapters (LoRA) needs")
    return as_settings(LoraSettings, lora, name="lora")


def _settings(method: str | None, config: MethodConfig | None) -> MethodConfig:
    if config is None:
        if method is None:
            raise ConfigError("say which method: ", Setting("method", "npo"), ", or config=NPOConfig(...).")
        return make_config(method)
    if not isinstance(config, MethodConfig):
        raise ConfigError(
            Setting("config"),
            f" must be settings of a method, as make_config gives; got {type(config).__name__}.",
        )
    if method is not None and not isinstance(config, method_class(method)):
        raise ConfigError(
            f"method={method!r} does not go with {type(config).__name__}, which is {config.method!r}."
        )
    return config
