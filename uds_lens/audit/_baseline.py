"""Stage 1, measured once and reused: which layers of `full` hold knowledge that `retain` lacks."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from uds_lens._progress import tell
from uds_lens._settings import as_settings
from uds_lens._storage.records import digest
from uds_lens.audit._counterfactual import mean_of_models, origin_of_draws
from uds_lens.audit._inputs import AuditInputs, Plan, Source, make_plan, sources_of, where_of
from uds_lens.audit._kept import states_kept
from uds_lens.audit._memory import settled
from uds_lens.audit._runner import Target, read_source, read_sources
from uds_lens.data import Encoded
from uds_lens.data._readers import ExamplesLike
from uds_lens.errors import ModelError, warn_once
from uds_lens.models import read_checkpoint_info
from uds_lens.models._compatibility import check_compatible, recorded_protocol
from uds_lens.models._hooked import ModelSource, RetainSource
from uds_lens.results._comparing import STAGE_1_SETTINGS
from uds_lens.results._depth_audit import DepthAudit
from uds_lens.results._records import ModelRecord, provenance
from uds_lens.results._saving import BASELINE, load_stages, save_stages
from uds_lens.results._settings import AuditConfig, RunOptions
from uds_lens.results._stage_1 import S1_TENSORS, ControlFacts, Exchanged, RetainStage1, Stage1

if TYPE_CHECKING:
    from uds_lens.audit._states import SourceStates
    from uds_lens.audit._two_stage import PatchScores


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Baseline(Stage1):
    """Stage 1 of an audit: `full` compared with `retain` on a forget set.

    Stage 1 does not depend on the unlearned model, so one baseline can be reused for any number of unlearned models.
    Create it with `Baseline.measure`, use it with `audit` and `audit_all`, and store it with `save` and `load`.
    """

    full: ModelSource | None = field(default=None, repr=False)
    """Where to open `full` from in stage 2; None (after `load`) means the name in its record."""

    exchanged: Exchanged | None = field(default=None, repr=False)
    """Results for `full` and `retain` with each other's blocks, added by the first `transplant` that uses this baseline
    and reused by later ones."""

    @classmethod
    def measure(
        cls,
        full: ModelSource,
        retain: RetainSource | None,
        examples: ExamplesLike,
        *,
        control: ExamplesLike | None = None,
        config: AuditConfig | None = None,
        options: RunOptions | None = None,
    ) -> Baseline:
        """Measure stage 1.

        Args:
            full: The model that was trained on everything.
            retain: A model that never saw the forget set, or a list of such models with different seeds. With a list,
                S1 is averaged over the models, and every audit has a score against each of them. None with
                `AuditConfig(stand_in="counterfactual")`.
            examples: The forget set: examples, rows, or anything that `uds_lens.load_examples` reads.
            control: Facts that `full` and `retain` both know, in the same formats as `examples`; None for no control.
            config: What to measure; default `AuditConfig()`.
            options: How to run it; default `RunOptions()`.

        Returns:
            The baseline.

        Raises:
            IncompatibleModelsError: The two checkpoints differ in architecture, size or tokenizer.
            ModelError: A checkpoint cannot be opened, or produces NaN.
            DataError: There are no examples.
        """
        from uds_lens.audit._two_stage import measure_stages

        baseline, _ = measure_stages(full, retain, None, examples, control=control, config=config, options=options)
        return baseline

    @property
    def key(self) -> str:
        """Hash of everything that stage 1 depends on: weights, token ids, protocol, dtype, patch site, library version.

        Names, paths and tau (which is applied afterwards) are not part of the hash.
        """
        parts: dict[str, Any] = {
            "full": self.models["full"].fingerprint,
            "retain": self.models["retain"].fingerprint,
            "ids": self.provenance.get("ids_hash"),
            "uds_lens": self.provenance.get("versions", {}).get("uds_lens"),
            **{name: getattr(self.config, name) for name in STAGE_1_SETTINGS},
        }
        if self.retains:
            parts["retain"] = [retain.model.fingerprint for retain in self.retains]
        if self.control is not None:
            parts["control"] = self.control.ids_hash
        return digest(parts)

    def audit(self, unlearned: ModelSource, *, options: RunOptions | None = None) -> DepthAudit:
        """Run stage 2 for one model.

        Args:
            unlearned: `full` after unlearning.
            options: How to run it; default `RunOptions()`.

        Returns:
            The audit.

        Raises:
            ModelError: `full` is no longer the model that was measured, or a model produces NaN.
            IncompatibleModelsError: The model does not match `full`.
        """
        return self.audit_all([unlearned], options=options)[0]

    def audit_all(self, models: Sequence[ModelSource], *, options: RunOptions | None = None) -> list[DepthAudit]:
        """Run stage 2 for several models; `full` is opened and recorded once for all of them.

        One model is in memory at a time. The states of every model (examples x layers x tokens x d_model numbers) are
        kept until `full` is opened; anything beyond `RunOptions.memory_gib` is written to temporary files.

        Returns:
            One audit per model, in the given order.
        """
        from uds_lens.audit._two_stage import measure_stage_2

        if not models:
            return []
        options, full, config = self._stage_2_options(options), self._where_full(), self.config
        sources = sources_of("unlearned", list(models))
        plan = self._stage_2_plan(sources, options)
        options = settled(full, plan, n_sources=len(sources), config=config, options=options)
        with states_kept():
            states = read_sources(sources, plan, config=config, options=options)
            with Target(full, plan, config=config, options=options) as target:
                return measure_stage_2(self, states, target)

    @contextmanager
    def recorded(
        self, *, models: Sequence[ModelSource] = (), options: RunOptions | None = None
    ) -> Iterator[RecordedBaseline]:
        """Keep `full` open and recorded for many audits, which saves work per model but keeps two models in memory.

        Args:
            models: Live models that will be measured; batches are then made to suit them as well.
            options: How to run it; `memory_gib` limits the memory used for recordings.

        Returns:
            A context manager that yields a `RecordedBaseline`; its `audit` measures one model.

        Example:
            >>> import uds_lens as ul
            >>> world = ul.toy.load()
            >>> baseline = ul.Baseline.measure(world.full, world.retain, world.examples)
            >>> with baseline.recorded() as recorded:
            ...     scores = [recorded.audit(model).uds for model in (world.full, world.retain)]
            >>> scores
            [0.0, 1.0]
        """
        options, full, config = self._stage_2_options(options), self._where_full(), self.config
        plan = self._stage_2_plan([Source("unlearned", i, model) for i, model in enumerate(models, 1)], options)
        options = settled(full, plan, n_sources=1, config=config, options=options, keep=True)
        with Target(full, plan, config=config, options=options, keep=True) as target:
            yield RecordedBaseline(self, plan, target, options)

    def subset(
        self, rows: Sequence[int], *, control: Sequence[int] | None = None, options: RunOptions | None = None
    ) -> Baseline:
        """Return stage 1 for a subset of the examples, as measured, without running a model.

        Args:
            rows: Indices of the examples to keep.
            control: Indices of the control facts to keep; None leaves the control out.
            options: How to find the checkpoint of `full` (its tokenizer is read); default `RunOptions()`.

        Raises:
            ModelError: The tokenizer of `full` cannot be read, or no longer gives the tokens of stage 1.
        """
        plan = self._stage_2_plan([], as_settings(RunOptions, options, name="options"))

        def hash_of(encoded: Encoded, kept: Sequence[int]) -> str:
            return dataclasses.replace(encoded, rows=[encoded.rows[i] for i in kept]).ids_hash

        def taken(name: str, of: Any, places: list[int]) -> Any:
            return None if getattr(of, name) is None else getattr(of, name)[places]

        kept, facts, part = list(rows), [], None
        if control is not None and self.control is not None and plan.control is not None:
            facts = list(control)
            part = dataclasses.replace(
                self.control,
                examples=[self.control.examples[i] for i in facts],
                skipped=(),
                ids_hash=hash_of(plan.control, facts),
                **{name: taken(name, self.control, facts) for name in ("n_tokens", "s_full", "s1_delta")},
            )
        retains = tuple(
            dataclasses.replace(
                retain,
                control_s1_delta=None if part is None else taken("control_s1_delta", retain, facts),
                **{name: taken(name, retain, kept) for name in S1_TENSORS},
            )
            for retain in self.retains
        )
        return dataclasses.replace(
            self,
            examples=tuple(self.examples[i] for i in kept),
            skipped=(),
            provenance={**self.provenance, "ids_hash": hash_of(plan.encoded, kept)},
            retains=retains,
            control=part,
            exchanged=None
            if self.exchanged is None
            else dataclasses.replace(
                self.exchanged, **self.exchanged.of_rows([*kept, *(len(self.examples) + i for i in facts)])
            ),
            **{name: taken(name, self, kept) for name in ("n_tokens", "s_full", "s_retain", *S1_TENSORS)},
        )

    def with_full(self, full: ModelSource) -> Baseline:
        """Return a copy that opens `full` from another location; the weights are checked when it is opened."""
        return dataclasses.replace(self, full=full)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the baseline to a directory, atomically."""
        save_stages(self, path, BASELINE, summary=self.key)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Baseline:
        """Read a baseline written by `save`.

        Raises:
            ResultFormatError: A file is missing or altered, or has an unsupported version.
        """
        return cls(**load_stages(path, BASELINE))

    def __repr__(self) -> str:
        n = len(self.retains)
        retain = f"{n} models" if n else repr(self.models["retain"].name)
        return (
            f"Baseline({len(self.examples)} examples, {len(self.skipped)} skipped, {self.s1_delta.shape[1]} layers, "
            f"full={self.models['full'].name!r}, retain={retain})"
        )

    def _where_full(self) -> ModelSource:
        return self.full if self.full is not None else self.models["full"].name

    def _stage_2_options(self, options: RunOptions | None) -> RunOptions:
        """Use the naive engine if stage 1 did, unless `options` names an engine."""
        options = as_settings(RunOptions, options, name="options")
        if options.engine == "auto" and self.provenance.get("engine") == "naive":
            tell("stage 2 uses the naive engine, like stage 1")
            return dataclasses.replace(options, engine="naive")
        return options

    def _stage_2_plan(self, sources: Sequence[Source], options: RunOptions) -> Plan:
        """Tokenise and batch the examples again, and check that the tokens are those of stage 1."""
        full = self._where_full()
        try:
            read_checkpoint_info(full, **where_of(options))
        except ModelError as error:
            if self.full is not None:
                raise
            raise ModelError(
                f"the model {self.models['full'].name!r}, which is the `full` of this baseline, cannot be opened: "
                f"{error} Set its location: baseline.with_full(directory)."
            ) from error
        plan = make_plan(
            {"full": full, **{source.name: source.model for source in sources}},
            self.examples,
            control=None if self.control is None else self.control.examples,
            config=self.config,
            options=options,
        )
        hashes = plan.encoded.ids_hash, None if plan.control is None else plan.control.ids_hash
        control_hash = None if self.control is None else self.control.ids_hash
        if hashes != (self.provenance.get("ids_hash"), control_hash):
            raise ModelError(
                "the tokenizer of `full` no longer gives the tokens that this baseline was measured on: measure the "
                "baseline again."
            )
        return plan


@dataclass(frozen=True, eq=False)
class RecordedBaseline:
    """A baseline that keeps `full` open and recorded; returned by `Baseline.recorded`."""

    baseline: Baseline
    """Stage 1."""

    plan: Plan
    """Rows and batches."""

    target: Target
    """`full`, open."""

    options: RunOptions
    """How it is run."""

    def audit(self, unlearned: ModelSource) -> DepthAudit:
        """Run stage 2 for one model: read its states, and patch them into `full`.

        Raises:
            IncompatibleModelsError: The model does not match `full`.
            ModelError: The model cannot be opened, or produces NaN.
        """
        from uds_lens.audit._two_stage import measure_stage_2

        options = self.options
        info = read_checkpoint_info(unlearned, **where_of(options))
        check_compatible({"full": read_checkpoint_info(self.target.model), "unlearned": info})
        config = self.baseline.config
        source = read_source(unlearned, self.plan, role="unlearned", config=config, options=options, own_logprobs=True)
        return measure_stage_2(self.baseline, [source], self.target)[0]


def baseline_of(
    target: Target,
    s_full: Tensor,
    s_retain: Tensor,
    scores: Sequence[PatchScores],
    retains: Sequence[ModelRecord],
    inputs: AuditInputs,
    *,
    full: ModelSource,
) -> Baseline:
    """Build the baseline from the results of stage 1; `scores` starts with the scores of the retain models."""
    plan, config = target.plan, target.config
    n, rows = len(plan.encoded.rows), plan.encoded.rows
    by_retain = tuple(
        RetainStage1(
            model=record,
            s1_delta=patched.delta[:n],
            s1_norm_ratio=patched.norm_ratio[:n],
            s1_cosine=patched.cosine[:n],
            control_s1_delta=None if plan.control is None else patched.delta[n:],
        )
        for record, patched in zip(retains, scores, strict=False)
    )
    control = None
    if plan.control is not None:
        control = ControlFacts(
            examples=tuple(row.example for row in plan.control.rows),
            skipped=tuple(plan.control.skipped),
            ids_hash=plan.control.ids_hash,
            sample=None if inputs.control is None else inputs.control.sample,
            n_tokens=_n_tokens(plan.control),
            s_full=s_full[n:],
            s1_delta=mean_of_models([r.control_s1_delta for r in by_retain if r.control_s1_delta is not None]),
        )
    origin = provenance(
        engine=target.engine,
        device=str(target.model.device),
        rows=target.rows,
        rendered_prompt=rows[0].rendered.prompt if rows else None,
        ids_hash=plan.encoded.ids_hash,
    )
    stage = Baseline(
        config=config,
        models={"full": target.record, "retain": retains[0]},
        examples=tuple(row.example for row in rows),
        skipped=tuple(plan.encoded.skipped),
        provenance={
            **origin,
            "sample": inputs.forget.sample,
            **origin_of_draws(plan, config),
            **({"answers_opened": list(plan.opened)} if plan.opened else {}),
        },
        n_tokens=_n_tokens(plan.encoded),
        s_full=s_full[:n],
        s_retain=s_retain[:n],
        **{name: mean_of_models([getattr(retain, name) for retain in by_retain]) for name in S1_TENSORS},
        retains=by_retain if len(by_retain) > 1 else (),
        control=control,
        full=full,
        exchanged=None,
    )
    trained = {"full": target.record} if plan.counterfactual else stage.roles
    return dataclasses.replace(stage, provenance={**stage.provenance, **trained_with(trained)})


def trained_with(records: Mapping[str, ModelRecord], before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the prompt formats used in training, as recorded in the checkpoints, for the provenance.

    Args:
        records: Models by role.
        before: Provenance that already contains the formats of other roles.
    """
    words = {role: recorded_protocol(record.name) for role, record in records.items()}
    known = {**(before or {}).get("trained_with", {}), **{role: word for role, word in words.items() if word}}
    return {"trained_with": known} if known else {}


def _n_tokens(encoded: Encoded) -> Tensor:
    return torch.tensor([len(row.targets) for row in encoded.rows], dtype=torch.long)


def join_stages(
    baseline: Baseline, source: SourceStates, scores: PatchScores | None, plan: Plan, origin: Mapping[str, Any]
) -> DepthAudit:
    """Combine the stages; `scores=None` means that the model is a retain model, whose stage 2 equals its stage 1."""
    n, unlearned, s_unlearned = len(plan.encoded.rows), source.record, source.logprobs
    if scores is not None:
        delta, ratio, cosine = scores.delta[:n], scores.norm_ratio[:n], scores.cosine[:n]
        control = None if plan.control is None else scores.delta[n:]
    else:
        same = next((r for r in baseline.retains if r.model.fingerprint == unlearned.fingerprint), None)
        delta, ratio, cosine = (getattr(same or baseline, name) for name in S1_TENSORS)
        control = None if baseline.control is None else baseline.control.s1_delta
        control = same.control_s1_delta if same else control
    # Set the output depth of a reference to exactly 0 or 1, like its score: another pass may round differently.
    known = {baseline.models["full"].fingerprint: baseline.s_full}
    if baseline.s_retain is not None and not baseline.retains:
        known[baseline.models["retain"].fingerprint] = baseline.s_retain
    partly = {"stage_2": {"layers": "knowledge", "tau": baseline.config.tau}} if delta.isnan().any() else {}
    trained = trained_with({"unlearned": unlearned}, before=baseline.provenance)
    stage_1: dict[str, Any] = {part.name: getattr(baseline, part.name) for part in dataclasses.fields(Stage1)}
    stage_1["models"] = {**baseline.models, "unlearned": unlearned}
    stage_1["provenance"] = {**origin, **partly, **trained}
    audit = DepthAudit(
        **stage_1,
        s2_delta=delta,
        s2_norm_ratio=ratio,
        s2_cosine=cosine,
        control_s2_delta=control,
        s_unlearned=known.get(unlearned.fingerprint, None if s_unlearned is None else s_unlearned[:n]),
        control_s_unlearned=None if s_unlearned is None or plan.control is None else s_unlearned[n:],
    )
    _warn_if_unmeasurable(audit, baseline)
    return audit


def origin_of_stage_2(baseline: Baseline, target: Target) -> dict[str, Any]:
    """Return the provenance of audits that reuse stage 1."""
    now = provenance(
        engine=target.engine,
        device=str(target.model.device),
        rows=target.rows,
        rendered_prompt=baseline.provenance.get("first_prompt"),
        ids_hash=baseline.provenance["ids_hash"],
    )
    kept = ("counterfactual", "answers_opened")
    same = {name: baseline.provenance[name] for name in kept if name in baseline.provenance}
    return {**now, "sample": baseline.provenance.get("sample"), **same, "stage_1": dict(baseline.provenance)}


def _warn_if_unmeasurable(audit: DepthAudit, baseline: Baseline) -> None:
    """Warn if no example can be measured (once per baseline and tau)."""
    about = f"{baseline.key} {audit.config.tau}"
    pair = f"full={audit.models['full'].name!r}, retain={audit.models['retain'].name!r}"
    if not audit.examples:
        warn_once(
            f"UDS is NaN: none of the {len(audit.skipped)} rows could be scored, so nothing was measured. `skipped` "
            f"lists the reasons, the first of which is: {audit.skipped[0].reason} ({pair})",
            key=f"no row {about} {[(row.id, row.question, row.reason) for row in audit.skipped]}",
        )
    elif audit.n_measured == 0:
        warn_once(
            "UDS is NaN: no example has a layer where patching in retain's state costs more than tau "
            f"({audit.config.tau:g} nats per token). Check that `full` knows the forget set and that `retain` does "
            f"not. ({pair})",
            key=f"no layer {about}",
        )
