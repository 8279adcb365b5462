"""Stage 1, measured once and reused: which layers of `full` hold the knowledge, against `retain`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from uds_lens.data import Encoded, ExamplesLike
from uds_lens.errors import warn_once
from uds_lens.models import ModelSource, RetainSource
from uds_lens.results._comparing import STAGE_1_SETTINGS
from uds_lens.results._depth_audit import DepthAudit
from uds_lens.results._records import ModelRecord, provenance
from uds_lens.results._saving import SavedKind, load_result, save_result
from uds_lens.results._settings import AuditConfig, RunOptions
from uds_lens.results._stage_1 import ControlFacts, RetainStage1, Stage1

if TYPE_CHECKING:
    from uds_lens.audit._inputs import AuditInputs, Plan
    from uds_lens.audit._two_stage import PatchScores, RecordedBaseline, TargetScores


SAVED = SavedKind(
    "Baseline",
    roles=("full", "retain"),
    tensors=("n_tokens", "s_full", "s1_delta", "s1_norm_ratio", "s1_cosine"),
    control=(),
    more="key",
)
"""What a saved baseline holds."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Baseline(Stage1):
    """Stage 1 of an audit: `full` against `retain` on a forget set.

    It depends on nothing else, so one baseline serves every unlearned model. `Baseline.measure` makes it, `audit`
    and `audit_all` use it, `save` and `load` keep it.
    """

    full: ModelSource | None = field(default=None, repr=False)
    """Where `full` is opened again for stage 2; None after `load` means the recorded name."""

    @classmethod
    def measure(
        cls,
        full: ModelSource,
        retain: RetainSource,
        examples: ExamplesLike,
        *,
        control: ExamplesLike | None = None,
        config: AuditConfig | None = None,
        options: RunOptions | None = None,
    ) -> Baseline:
        """Measure stage 1.

        Args:
            full: Trained on everything.
            retain: Never saw the forget set. Several (a list) that differ in their seed: S1 is their mean, and every
                audit has a score against each.
            examples: The forget set: examples or rows, or where `uds_lens.load_examples` reads them.
            control: Facts that `full` and `retain` both know, in the same forms; None measures none.
            config: What to measure; default `AuditConfig()`.
            options: How to run it; default `RunOptions()`.

        Returns:
            The baseline.

        Raises:
            IncompatibleModelsError: The two checkpoints differ in architecture, size or tokenizer.
            ModelError: A checkpoint cannot be opened, or gives NaN.
            DataError: No examples.
        """
        from uds_lens.audit._two_stage import measure_baseline

        return measure_baseline(full, retain, examples, control=control, config=config, options=options)

    @property
    def key(self) -> str:
        """What stage 1 depends on, hashed: weights, token ids, protocol, dtype, patch site, library version.

        Not tau, which is applied afterwards, and neither names nor paths.
        """
        settings = self.config
        parts: dict[str, Any] = {
            "full": self.models["full"].fingerprint,
            "retain": self.models["retain"].fingerprint,
            "ids": self.provenance.get("ids_hash"),
            "uds_lens": self.provenance.get("versions", {}).get("uds_lens"),
            **{name: getattr(settings, name) for name in STAGE_1_SETTINGS},
        }
        if self.retains:
            parts["retain"] = [retain.model.fingerprint for retain in self.retains]
        if self.control is not None:
            parts["control"] = self.control.ids_hash
        return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()

    def audit(self, unlearned: ModelSource, *, options: RunOptions | None = None) -> DepthAudit:
        """Stage 2 of one model.

        Args:
            unlearned: `full` after an unlearning method.
            options: How to run it; default `RunOptions()`.

        Returns:
            The audit.

        Raises:
            ModelError: `full` is no longer the model that was measured, or a model gives NaN.
            IncompatibleModelsError: The model does not fit `full`.
        """
        return self.audit_all([unlearned], options=options)[0]

    def audit_all(
        self, models: Sequence[ModelSource], *, options: RunOptions | None = None
    ) -> list[DepthAudit]:
        """Stage 2 of several models; `full` is opened and recorded once for all of them.

        One model is in memory at a time. The states of all models are kept until `full` is opened (examples x
        layers x tokens x d_model numbers each), beyond `RunOptions.memory_gib` in temporary files.

        Returns:
            One audit per model, in their order.
        """
        from uds_lens.audit._two_stage import audit_models

        return audit_models(self, models, options=options)

    def recorded(self, *, options: RunOptions | None = None) -> AbstractContextManager[RecordedBaseline]:
        """Keep `full` open and recorded, for many stage 2 in a row: two models in memory, the least work per model.

        Args:
            options: How to run it; `memory_gib` bounds the recordings that are kept.

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
        from uds_lens.audit._two_stage import recorded

        return recorded(self, options=options)

    def with_full(self, full: ModelSource) -> Baseline:
        """The same baseline with another place to open `full` from (its weights are checked when it is opened)."""
        return dataclasses.replace(self, full=full)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the baseline to a directory, whole or not at all."""
        save_result(self, path, SAVED, more=self.key)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Baseline:
        """Read a baseline written by `save`.

        Raises:
            ResultFormatError: A file is missing, altered, or of another version.
        """
        return cls(**load_result(path, SAVED))

    def _retain_note(self) -> str:
        n = len(self.retains)
        return f"retain={n} models" if n else f"retain={self.models['retain'].name!r}"

    def __repr__(self) -> str:
        return (
            f"Baseline({len(self.examples)} examples, {len(self.skipped)} skipped, {self.s1_delta.shape[1]} layers, "
            f"full={self.models['full'].name!r}, {self._retain_note()})"
        )


def baseline_of(
    scores: TargetScores,
    retains: Sequence[ModelRecord],
    plan: Plan,
    inputs: AuditInputs,
    *,
    config: AuditConfig,
    full: ModelSource,
) -> Baseline:
    """Stage 1 as a record.

    Args:
        scores: The pass over `full`; the retain models are its first sources.
        retains: Their records.
        plan: What was run.
        inputs: Where samples were drawn from.
        config: What is measured.
        full: Where `full` is opened again.
    """
    n, rows = len(plan.encoded.rows), plan.encoded.rows
    by_retain = tuple(
        RetainStage1(
            model=record,
            s1_delta=patched.delta[:n],
            s1_norm_ratio=patched.norm_ratio[:n],
            s1_cosine=patched.cosine[:n],
            control_s1_delta=None if plan.control is None else patched.delta[n:],
        )
        for record, patched in zip(retains, scores.sources, strict=False)
    )
    origin = provenance(
        engine=scores.engine,
        device=scores.device,
        rows=scores.rows,
        rendered_prompt=rows[0].rendered.prompt if rows else None,
        ids_hash=plan.encoded.ids_hash,
    )
    return Baseline(
        config=config,
        models={"full": scores.record, "retain": retains[0]},
        examples=tuple(row.example for row in rows),
        skipped=tuple(plan.encoded.skipped),
        provenance={**origin, "sample": inputs.forget.sample},
        n_tokens=_n_tokens(plan.encoded),
        s_full=scores.s_full[:n],
        s1_delta=_mean([retain.s1_delta for retain in by_retain]),
        s1_norm_ratio=_mean([retain.s1_norm_ratio for retain in by_retain]),
        s1_cosine=_mean([retain.s1_cosine for retain in by_retain]),
        retains=by_retain if len(by_retain) > 1 else (),
        control=_control(scores, by_retain, plan, inputs),
        full=full,
    )


def _control(
    scores: TargetScores, retains: Sequence[RetainStage1], plan: Plan, inputs: AuditInputs
) -> ControlFacts | None:
    if plan.control is None:
        return None
    n = len(plan.encoded.rows)
    return ControlFacts(
        examples=tuple(row.example for row in plan.control.rows),
        skipped=tuple(plan.control.skipped),
        ids_hash=plan.control.ids_hash,
        sample=None if inputs.control is None else inputs.control.sample,
        n_tokens=_n_tokens(plan.control),
        s_full=scores.s_full[n:],
        s1_delta=_mean([r.control_s1_delta for r in retains if r.control_s1_delta is not None]),
    )


def _n_tokens(encoded: Encoded) -> Tensor:
    return torch.tensor([len(row.targets) for row in encoded.rows], dtype=torch.long)


def _mean(parts: Sequence[Tensor]) -> Tensor:
    """The mean of several tensors; a single one as it is, bit for bit."""
    return parts[0] if len(parts) == 1 else torch.stack(list(parts)).mean(0)


def join_stages(
    baseline: Baseline,
    unlearned: ModelRecord,
    scores: PatchScores | None,
    plan: Plan,
    origin: Mapping[str, Any],
) -> DepthAudit:
    """Join the stages; `scores` None means the model is a retain model itself, whose stage 2 is its stage 1."""
    delta, ratio, cosine, control = (
        _stage_1_of(baseline, unlearned) if scores is None else _split(scores, plan)
    )
    audit = DepthAudit(
        config=baseline.config,
        models={**baseline.models, "unlearned": unlearned},
        examples=baseline.examples,
        skipped=baseline.skipped,
        provenance=origin,
        n_tokens=baseline.n_tokens,
        s_full=baseline.s_full,
        s1_delta=baseline.s1_delta,
        s2_delta=delta,
        s1_norm_ratio=baseline.s1_norm_ratio,
        s1_cosine=baseline.s1_cosine,
        s2_norm_ratio=ratio,
        s2_cosine=cosine,
        retains=baseline.retains,
        control=baseline.control,
        control_s2_delta=control,
    )
    _warn_if_unmeasurable(audit, baseline)
    return audit


_Stage2 = tuple[Tensor, Tensor, Tensor, Tensor | None]
"""Delta, norm ratio and cosine on the forget set; delta on the control facts."""


def _split(scores: PatchScores, plan: Plan) -> _Stage2:
    n = len(plan.encoded.rows)
    control = None if plan.control is None else scores.delta[n:]
    return scores.delta[:n], scores.norm_ratio[:n], scores.cosine[:n], control


def _stage_1_of(baseline: Baseline, record: ModelRecord) -> _Stage2:
    for retain in baseline.retains:
        if retain.model.fingerprint == record.fingerprint:
            return retain.s1_delta, retain.s1_norm_ratio, retain.s1_cosine, retain.control_s1_delta
    control = None if baseline.control is None else baseline.control.s1_delta
    return baseline.s1_delta, baseline.s1_norm_ratio, baseline.s1_cosine, control


def _warn_if_unmeasurable(audit: DepthAudit, baseline: Baseline) -> None:
    """Warn where no example can be measured: once for each baseline and tau, since the reason lies there."""
    about = f"{baseline.key} {audit.config.tau}"
    pair = f"full={audit.models['full'].name!r}, retain={audit.models['retain'].name!r}"
    if not audit.examples:
        warn_once(
            f"UDS is NaN: none of the {len(audit.skipped)} rows could be scored, so that nothing was measured. "
            f"`skipped` names the reasons; the first: {audit.skipped[0].reason} ({pair})",
            key=f"no row {about} {[(row.id, row.question, row.reason) for row in audit.skipped]}",
        )
    elif audit.n_measured == 0:
        warn_once(
            "UDS is NaN: no example has a layer where patching retain's state costs more than tau "
            f"({audit.config.tau:g} nats per token). Does `full` know the forget set, and `retain` not? ({pair})",
            key=f"no layer {about}",
        )
