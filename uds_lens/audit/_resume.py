"""What an earlier run left: it is kept where it answers the same question, and measured again where not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from uds_lens._progress import about
from uds_lens._storage import atomic_write_text, check_folder, refuse_to_replace, require_fresh
from uds_lens.audit._baseline import Baseline
from uds_lens.errors import ConfigError, ResultFormatError, warn_once
from uds_lens.models import check_compatible, read_checkpoint_info
from uds_lens.results._depth_audit import DepthAudit
from uds_lens.results._saving import audits_in, is_audit
from uds_lens.results._stage_1 import ControlFacts

if TYPE_CHECKING:
    from uds_lens.audit._inputs import Plan
    from uds_lens.data import Encoded, ForgetExample
    from uds_lens.results import AuditConfig, RunOptions


Result = TypeVar("Result", DepthAudit, Baseline)
"""What an earlier run may have left."""


@dataclass(frozen=True)
class Question:
    """What is asked: models, examples, settings. Weights are compared by fingerprint, never by name or date."""

    full: str
    """Model that knows."""

    retain: str | Sequence[str]
    """Model that never did, or several."""

    examples: Sequence[ForgetExample]
    """The forget set."""

    config: AuditConfig
    """What is measured."""

    options: RunOptions
    """How models are opened and run."""

    control: Sequence[ForgetExample] | None = None
    """Facts that were to be kept, or None."""

    _fingerprints: dict[str, str] = field(default_factory=dict)

    def audit_at(self, place: Path, unlearned: str) -> DepthAudit | None:
        """The saved audit of this model in a directory; None where there is none, another, or a broken one (told)."""
        return self._same(_loaded(DepthAudit, place), {"unlearned": unlearned})

    def other_at(self, place: Path, unlearned: str) -> str | None:
        """Name what a finished audit in a directory was asked that is not asked now; None where it is the same."""
        earlier = _loaded(DepthAudit, place)
        if earlier is None:
            return None
        name = repr(earlier.models["unlearned"].name[-80:])
        if earlier.config != self.config:
            return f"{name} with other settings"
        if not self._same_facts(earlier):
            return f"{name} on other examples"
        models = {"full": self.full, **self.retains, "unlearned": unlearned}
        same = earlier.roles.keys() == models.keys() and all(
            earlier.roles[role].fingerprint == self._weights(model) for role, model in models.items()
        )
        return None if same else f"other models ({name})"

    def baseline_at(self, place: Path) -> Baseline | None:
        """The saved stage 1 in a directory, or None, as `audit_at`; settings applied afterwards (tau) may differ."""
        found = _loaded(Baseline, place)
        if found is None:
            return None
        return self._same(replace(found, config=self._after_stage_1(found.config), full=self.full), {})

    def _after_stage_1(self, saved: AuditConfig) -> AuditConfig:
        """The settings asked for, with those that stage 1 depends on as they were saved."""
        from uds_lens.results._comparing import STAGE_1_SETTINGS

        return replace(self.config, **{name: getattr(saved, name) for name in STAGE_1_SETTINGS})

    def _same(self, result: Result | None, others: Mapping[str, str]) -> Result | None:
        """`result`, if everything it depends on is what is asked for; what is cheap to compare comes first."""
        from uds_lens.results._records import versions

        if result is None or result.config != self.config:
            return None
        told = result.provenance
        if told.get("versions", {}).get("uds_lens") != versions()["uds_lens"]:
            return None
        if self.options.engine not in ("auto", told.get("engine")):
            return None
        if told.get("ids_hash") != self._plan.encoded.ids_hash or not self._same_facts(result):
            return None
        models = {"full": self.full, **self.retains, **others}
        same = result.roles.keys() == models.keys() and all(
            result.roles[role].fingerprint == self._weights(model) for role, model in models.items()
        )
        return result if same else None

    @property
    def retains(self) -> Mapping[str, str]:
        """The retain models by role."""
        from uds_lens.audit._inputs import sources_of

        return {source.name: str(source.model) for source in sources_of("retain", self.retain)}

    def _same_facts(self, result: DepthAudit | Baseline) -> bool:
        """Whether forget set and control are what is asked for."""
        if not _same_rows(result, self._plan.encoded):
            return False
        if result.control is None or self._plan.control is None:
            return result.control is None and self._plan.control is None
        return result.control.ids_hash == self._plan.control.ids_hash and _same_rows(
            result.control, self._plan.control
        )

    @cached_property
    def _plan(self) -> Plan:
        from uds_lens.audit._inputs import audit_inputs, make_plan

        inputs = audit_inputs(self.examples, self.control, self.config)
        return make_plan(
            {"full": self.full},
            inputs.forget.examples,
            control=inputs.control_examples,
            config=self.config,
            options=self.options,
        )

    def _weights(self, model: str) -> str:
        from uds_lens.audit._runner import opened

        if model not in self._fingerprints:
            with opened(model, self.config, self.options) as hooked:
                self._fingerprints[model] = hooked.fingerprint
        return self._fingerprints[model]


def _same_rows(found: DepthAudit | Baseline | ControlFacts, encoded: Encoded) -> bool:
    rows = [row.example for row in encoded.rows]
    return list(found.examples) == rows and list(found.skipped) == encoded.skipped


def _loaded(kind: type[Result], place: Path) -> Result | None:
    """A saved result, or None where there is none; one that cannot be read is told, since it is measured again."""
    if not (place / "manifest.json").is_file():
        return None
    try:
        return kind.load(place)
    except ResultFormatError as error:
        warn_once(
            f"{str(place)[-120:]!r} holds a result that cannot be read, and is measured again: {str(error)[:300]}"
        )
        return None


# Audits of one model or of many, each saved as soon as it is measured, and taken up where a run was
# stopped.

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
        check_folder(out)
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
    for name, model in models.items():
        if tried[name] is None and (other := question.other_at(places[name], model)) is not None:
            refuse_to_replace(places[name], f"an audit of {other}")
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


# `table.csv`: one row per audit of a folder.

TABLE = "table.csv"
"""Name of the file."""

BEGINS = b"model,uds,uds_low,uds_high,"
"""How such a table begins."""


def require_table(folder: Path) -> None:
    """Find out before the work that the table can be written.

    Raises:
        ResultFormatError: Another file of its name stands there.
        StorageError: Nothing can be written there.
    """
    require_fresh(folder / TABLE, directory=False, begins=BEGINS)


def write_folder_table(folder: Path, audits: Mapping[str, DepthAudit]) -> Path:
    """Write the table of `audits` and of all others that are saved in directories of `folder`.

    Args:
        folder: Where the audits are saved, each in a directory of its name.
        audits: Audits that are at hand, by name; they come first. The others are read, in the order of their names.

    Returns:
        The file. Each row has the name, the score, its interval, and the counts; an empty cell is undefined.
    """
    import pandas as pd

    rows = [_row(name, audit) for name, audit in {**audits, **_others(folder, audits)}.items()]
    require_table(folder)
    atomic_write_text(folder / TABLE, pd.DataFrame(rows).to_csv(index=False))
    return folder / TABLE


def _others(folder: Path, audits: Mapping[str, DepthAudit]) -> dict[str, DepthAudit]:
    """Audits in the folder that are not at hand; those that cannot be read are told when they are loaded, not here."""
    found: dict[str, DepthAudit] = {}
    for place in audits_in(folder, depth=1):
        if place.name not in audits:
            try:
                found[place.name] = DepthAudit.load(place)
            except ResultFormatError:
                continue
    return found


def _row(name: str, audit: DepthAudit) -> dict[str, object]:
    numbers = {key: value for key, value in audit.summary().items() if isinstance(value, int | float)}
    return {"model": name, **numbers}
