"""Audits of one or several models in a folder; finished ones with the same inputs and settings are reused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from uds_lens._progress import about, tell
from uds_lens._quoting import csv_text
from uds_lens._storage.files import atomic_write_marked, check_writable, refuse_to_replace
from uds_lens.audit._baseline import Baseline
from uds_lens.audit._inputs import AuditInputs, Plan, audit_inputs, make_plan, retain_sources
from uds_lens.audit._kept import states_kept
from uds_lens.audit._memory import settled
from uds_lens.audit._runner import opened
from uds_lens.errors import ConfigError, ResultFormatError, warn_once
from uds_lens.models import read_checkpoint_info
from uds_lens.models._compatibility import check_compatible
from uds_lens.results._comparing import STAGE_1_SETTINGS
from uds_lens.results._conditions import conditions_of, marks
from uds_lens.results._depth_audit import DepthAudit
from uds_lens.results._records import versions
from uds_lens.results._saving import audits_in, is_audit
from uds_lens.results._stage_1 import ControlFacts

if TYPE_CHECKING:
    from uds_lens.data import Encoded, ForgetExample
    from uds_lens.results import AuditConfig, RunOptions


BASELINE = "baseline"  # directory of stage 1, next to the directories of the audits
TABLE = "table.csv"  # name of the table of a folder

OnSaved = Callable[[str, DepthAudit], None]  # called with each model's name and audit as soon as it is saved

Result = TypeVar("Result", DepthAudit, Baseline)  # a result that an earlier run may have saved


@dataclass(frozen=True)
class Question:
    """Models, examples and settings of an audit. Weights are compared by fingerprint, never by name or date."""

    full: str  # the model trained on everything
    retain: str | Sequence[str] | None  # the model (or models) that never saw the forget set; None with counterfactuals
    examples: Sequence[ForgetExample]  # the forget set
    config: AuditConfig  # what is measured
    options: RunOptions  # how models are opened and run
    control: Sequence[ForgetExample] | None = None  # facts that should have been kept, or None
    _fingerprints: dict[str, str] = field(default_factory=dict)

    def audit_at(self, place: Path, unlearned: str) -> DepthAudit | None:
        """Load this model's audit from a directory; None if none matches, or if it is broken (with a warning)."""
        return self._same(_loaded(DepthAudit, place), {"unlearned": unlearned})

    def other_at(self, place: Path, unlearned: str) -> str | None:
        """Describe the finished audit in a directory if its inputs or settings (not just its release) are different."""
        earlier = _loaded(DepthAudit, place)
        if earlier is None or (other := self._difference(earlier, {"unlearned": unlearned})) is None:
            return None
        return f"{earlier.models['unlearned'].name[-80:]!r} with other {other}"

    def baseline_at(self, place: Path) -> Baseline | None:
        """Load stage 1 from a directory, like `audit_at`; settings that are applied afterwards (tau) may differ."""
        return self._same(self._applied(_loaded(Baseline, place)), {})

    def other_baseline_at(self, place: Path) -> str | None:
        """Describe stage 1 in a directory if it has other inputs or settings, like `other_at`."""
        earlier = self._applied(_loaded(Baseline, place))
        other = None if earlier is None else self._difference(earlier, {})
        return None if other is None else f"stage 1 of other {other}"

    def _applied(self, saved: Baseline | None) -> Baseline | None:
        """Return stage 1 with the settings that are applied afterwards taken from this question."""
        if saved is None:
            return None
        stage_1 = {name: getattr(saved.config, name) for name in STAGE_1_SETTINGS}
        return replace(saved, config=replace(self.config, **stage_1), full=self.full)

    @property
    def how(self) -> dict[str, Any]:
        """Control, settings and options, as keyword arguments of `DepthAudit.run` and `Baseline.measure`."""
        return {"control": self.control, "config": self.config, "options": self.options}

    def _same(self, result: Result | None, others: Mapping[str, str]) -> Result | None:
        """Return `result` if its inputs and settings match, else None; cheap comparisons come first."""
        if result is None:
            return None
        origin = result.provenance
        if origin.get("versions", {}).get("uds_lens") != versions()["uds_lens"]:
            return None
        if self.options.engine not in ("auto", origin.get("engine")):
            return None
        if origin.get("stage_2") and self.options.stage_2 != "knowledge":
            return None
        return result if self._difference(result, others) is None else None

    def _difference(self, result: DepthAudit | Baseline, others: Mapping[str, str]) -> str | None:
        """Name the inputs or settings in which a result differs from this question; None if it does not."""
        open_prompts = self.config.protocol == "auto"  # the models decide the protocol; the tokens are compared below
        expected = replace(self.config, protocol=result.config.protocol) if open_prompts else self.config
        if result.config != expected:
            return "settings"
        forget, facts, _ = self._inputs
        sample, ids_hash = (result.provenance.get(name) for name in ("sample", "ids_hash"))
        if _of(sample) != _of(forget.sample) or not _same_rows(result, ids_hash, self._plan.encoded):
            return "examples or prompts"
        control, planned = result.control, self._plan.control
        if control is None or planned is None or facts is None:
            if control is not None or facts is not None:
                return "control facts"
        elif _of(control.sample) != _of(facts.sample) or not _same_rows(control, control.ids_hash, planned):
            return "control facts"
        models = {"full": self.full, **self.retains, **others}
        weights = {role: self._weights(model) for role, model in models.items()}
        if self._plan.counterfactual:
            weights["retain"] = self._plan.counterfactual.fingerprint(weights["full"])
        return None if weights == {role: record.fingerprint for role, record in result.roles.items()} else "models"

    @property
    def retains(self) -> Mapping[str, str]:
        """The retain models by role."""
        return {source.name: str(source.model) for source in retain_sources(self.retain, self.config)}

    @cached_property
    def _inputs(self) -> AuditInputs:
        return audit_inputs(self.examples, self.control, self.config)

    @cached_property
    def _plan(self) -> Plan:
        inputs = self._inputs
        return make_plan(
            {"full": self.full, **self.retains},
            inputs.forget.examples,
            control=inputs.control_examples,
            drawn=inputs.drawn,
            config=self.config,
            options=self.options,
            report=False,  # the measurement logs the prompts
        )

    @cached_property
    def is_streamed(self) -> bool:
        """Decide whether models are streamed, on request or because they do not fit into memory.

        Raises:
            ModelError: The models do not fit even when streamed, or they cannot be streamed.
        """
        count = len(self.retains) + 1
        options = settled(
            self.full, self._plan, n_sources=count, config=self.config, options=self.options, report=False
        )
        return options.stream is True

    def _weights(self, model: str) -> str:
        if model not in self._fingerprints:
            options = replace(self.options, stream=self.is_streamed)
            with opened(model, self.config, options, self._plan.tokenizer) as hooked:
                self._fingerprints[model] = hooked.fingerprint
        return self._fingerprints[model]


def _same_rows(saved: DepthAudit | Baseline | ControlFacts, ids_hash: object, encoded: Encoded) -> bool:
    rows = [row.example for row in encoded.rows]
    same = ids_hash == encoded.ids_hash
    return same and list(saved.examples) == rows and list(saved.skipped) == encoded.skipped


def _of(sample: Mapping[str, Any] | None) -> int | None:
    """Return the number of rows that a sample was taken from; None if all rows were measured."""
    return None if sample is None else sample["of"]


def _loaded(kind: type[Result], place: Path) -> Result | None:
    """Load a result; None if there is none, or if it cannot be read (with a warning)."""
    if not (place / "manifest.json").is_file():
        return None
    try:
        return kind.load(place)
    except ResultFormatError as error:
        warn_once(
            f"{str(place)[-120:]!r} contains a result that cannot be read, so it is measured again: {str(error)[:300]}"
        )
        return None


def audit_places(out: Path, names: Sequence[str]) -> dict[str, Path]:
    """Return the directory of each audit: `out` itself for a single model, subdirectories of `out` for several."""
    if len(names) > 1:
        if is_audit(out):
            raise ConfigError(
                f"{str(out)!r} contains a single audit, but several audits need a new directory: choose another path."
            )
        return {name: out / name for name in names}
    if not is_audit(out) and audits_in(out, depth=1):
        raise ConfigError(
            f"{str(out)!r} contains audits of several models: choose another directory, or a subdirectory of it."
        )
    return {names[0]: out}


def require_places(places: Iterable[Path], *, baseline: Path | None = None) -> None:
    """Check beforehand that the audits (and stage 1, if it is saved) can be written."""
    for place in places:
        check_writable(place, directory=True, format="uds_lens.DepthAudit")
    if baseline is not None:
        check_writable(baseline, directory=True, format="uds_lens.Baseline")


def check_models(question: Question, models: Mapping[str, str]) -> None:
    """Read the configs and tokenizers of all models (no weights), and compare them with those of `full`."""
    run = question.options
    where = {"offline": run.offline, "trust_remote_code": run.trust_remote_code}
    full = read_checkpoint_info(question.full, revision=run.revision, **where)
    for role, model in (*question.retains.items(), *(("unlearned", model) for model in models.values())):
        check_compatible({"full": full, role: read_checkpoint_info(model, revision=run.revision, **where)})


def found_in(question: Question, models: Mapping[str, str], places: Mapping[str, Path]) -> dict[str, DepthAudit]:
    """Load the finished audits that have the same weights, examples and settings, by model name."""
    tried = {name: question.audit_at(places[name], model) for name, model in models.items()}
    for name, model in models.items():
        if tried[name] is None and (other := question.other_at(places[name], model)) is not None:
            refuse_to_replace(places[name], f"an audit of {other}")
    return {name: audit for name, audit in tried.items() if audit is not None}


def audit_alone(
    question: Question, models: Mapping[str, str], place: Path, *, on_saved: OnSaved | None = None
) -> dict[str, DepthAudit]:
    """Measure both stages of one model in one run, and save the audit in `place`; do nothing if `models` is empty."""

    def measured(model: str) -> DepthAudit:
        return DepthAudit.run(question.full, question.retain, model, question.examples, **question.how)

    with states_kept():
        return {name: _saved(name, name, partial(measured, model), place, on_saved) for name, model in models.items()}


def audit_many(
    question: Question,
    models: Mapping[str, str],
    out: Path,
    *,
    redo: bool = False,
    keep_full: bool = False,
    on_saved: OnSaved | None = None,
) -> dict[str, DepthAudit]:
    """Measure stage 1 once, then each model in turn; save each audit in a subdirectory of `out` right away."""
    baseline = None if redo else question.baseline_at(out / BASELINE)
    if baseline is None:
        if not redo and (other := question.other_baseline_at(out / BASELINE)) is not None:
            refuse_to_replace(out / BASELINE, other)
        with about("stage 1"):
            baseline = Baseline.measure(question.full, question.retain, question.examples, **question.how)
        baseline.save(out / BASELINE)
    else:
        tell(f"prompts: {baseline.prompts}")
    if question.is_streamed and not keep_full:  # so that `full` is read once for all of them
        with states_kept():
            audits = baseline.audit_all(list(models.values()), options=question.options)
            done = dict(zip(models, audits, strict=True))
            return {name: _saved(name, name, partial(done.__getitem__, name), out / name, on_saved) for name in models}
    with baseline.recorded(options=question.options) if keep_full else nullcontext() as recorded:

        def measure(model: str) -> DepthAudit:
            return recorded.audit(model) if recorded else baseline.audit(model, options=question.options)

        return {
            name: _saved(name, f"{name} ({number} of {len(models)})", partial(measure, model), out / name, on_saved)
            for number, (name, model) in enumerate(models.items(), start=1)
        }


def _saved(
    name: str, label: str, measure: Callable[[], DepthAudit], place: Path, on_saved: OnSaved | None
) -> DepthAudit:
    with about(label):
        audit = measure()
    audit.save(place)
    if on_saved is not None:
        on_saved(name, audit)
    return audit


def require_table(folder: Path) -> None:
    """Check beforehand that the table of a folder can be written."""
    check_writable(folder / TABLE, directory=False)


def write_folder_table(folder: Path, audits: Mapping[str, DepthAudit]) -> Path:
    """Write the table of `audits` and of all other audits saved in subdirectories of `folder`.

    If the audits were measured under different conditions, a last column `conditions` gives the differences as JSON.
    """
    import pandas as pd

    known = dict(audits)
    for place in audits_in(folder, depth=1):
        if place.name not in audits:
            with suppress(ResultFormatError):  # the warning is given when they are loaded for use
                known[place.name] = DepthAudit.load(place)
    rows = [
        {"model": name, **{k: v for k, v in audit.summary().items() if isinstance(v, int | float)}}
        for name, audit in known.items()
    ]
    table = pd.DataFrame(rows)
    if conditions := marks([conditions_of(audit) for audit in known.values()]):
        table["conditions"] = conditions
    require_table(folder)
    atomic_write_marked(folder / TABLE, csv_text(table))
    return folder / TABLE
