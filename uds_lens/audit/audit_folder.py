"""Audits of one model or of many, each saved as soon as it is measured, and taken up where a run was stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from uds_lens.audit.baseline import Baseline
from uds_lens.audit.resume import Question
from uds_lens.errors import ConfigError
from uds_lens.models import check_compatible, read_checkpoint_info
from uds_lens.progress import about
from uds_lens.results.audit_files import audits_in, is_audit
from uds_lens.results.depth_audit import DepthAudit
from uds_lens.storage import require_fresh

BASELINE = "baseline"
"""Directory of stage 1, beside those of the audits."""

Told = Callable[[str, DepthAudit], None]
"""Is called with the name and the audit of each model, as soon as it is saved."""


def audit_places(out: Path, names: Sequence[str]) -> dict[str, Path]:
    """Where the audits of these models go: one in `out` itself, several in directories of it.

    Raises:
        ConfigError: `out` holds one audit and several are to go there, or the other way round.
    """
    if len(names) > 1:
        if is_audit(out):
            raise ConfigError(
                f"{str(out)!r} holds one audit; several need a directory of their own: choose another place."
            )
        return {name: out / name for name in names}
    if not is_audit(out) and audits_in(out, depth=1):
        raise ConfigError(f"{str(out)!r} holds audits of several models: choose another place, or one in it.")
    return {names[0]: out}


def require_places(places: Iterable[Path], *, baseline: Path | None = None) -> None:
    """Find out before the work, not after it, that results cannot be saved there.

    Args:
        places: Where audits go.
        baseline: Where stage 1 goes, if it is saved.

    Raises:
        ResultFormatError: A place holds something else than what goes there.
        StorageError: A place cannot be written to.
    """
    for place in places:
        require_fresh(place, directory=True, format="uds_lens.DepthAudit")
    if baseline is not None:
        require_fresh(baseline, directory=True, format="uds_lens.Baseline")


def check_models(question: Question, models: Mapping[str, str]) -> None:
    """Read configs and tokenizers of all models, no weights, and compare each with those of `full`.

    Raises:
        ModelError: A model is not there, or its config cannot be read.
        IncompatibleModelsError: A model does not fit `full`.
    """
    run = question.options
    where = {"offline": run.offline, "trust_remote_code": run.trust_remote_code}
    full = read_checkpoint_info(question.full, revision=run.revision, **where)
    for role, model in (*question.retains.items(), *(("unlearned", model) for model in models.values())):
        check_compatible({"full": full, role: read_checkpoint_info(model, revision=run.revision, **where)})


def found_in(
    question: Question, models: Mapping[str, str], places: Mapping[str, Path]
) -> dict[str, DepthAudit]:
    """Finished audits of the same weights, examples and settings, by name."""
    tried = {name: question.audit_at(places[name], model) for name, model in models.items()}
    return {name: audit for name, audit in tried.items() if audit is not None}


def audit_alone(
    question: Question, models: Mapping[str, str], place: Path, *, told: Told | None = None
) -> dict[str, DepthAudit]:
    """Both stages of one model in one run, saved in `place` itself; nothing where `models` has none."""
    found = {}
    for name, model in models.items():
        with about(name):
            found[name] = DepthAudit.run(
                question.full,
                question.retain,
                model,
                question.examples,
                control=question.control,
                config=question.config,
                options=question.options,
            )
        found[name].save(place)
        if told is not None:
            told(name, found[name])
    return found


def audit_many(
    question: Question,
    models: Mapping[str, str],
    out: Path,
    *,
    redo: bool = False,
    keep_full: bool = False,
    told: Told | None = None,
) -> dict[str, DepthAudit]:
    """Stage 1 once, then one model after the other, each saved in a directory of `out` as soon as it is measured.

    Args:
        question: What is measured.
        models: Models by name.
        out: The folder.
        redo: Measure stage 1 again, though a saved one answers the question.
        keep_full: `full` stays open and recorded: faster, with two models in memory.
        told: Is called after each model.

    Returns:
        The audits by name.
    """
    baseline = None if redo else question.baseline_at(out / BASELINE)
    if baseline is None:
        with about("stage 1"):
            baseline = Baseline.measure(
                question.full,
                question.retain,
                question.examples,
                control=question.control,
                config=question.config,
                options=question.options,
            )
        baseline.save(out / BASELINE)
    found = {}
    with _stage_2(baseline, question, keep_full) as measure:
        for number, (name, model) in enumerate(models.items(), start=1):
            with about(f"{name} ({number} of {len(models)})"):
                found[name] = measure(model)
            found[name].save(out / name)
            if told is not None:
                told(name, found[name])
    return found


@contextmanager
def _stage_2(
    baseline: Baseline, question: Question, keep_full: bool
) -> Iterator[Callable[[str], DepthAudit]]:
    """What measures one model: with `full` kept open and recorded, or opened for each."""
    if keep_full:
        with baseline.recorded(options=question.options) as recorded:
            yield recorded.audit
    else:
        yield lambda model: baseline.audit(model, options=question.options)
