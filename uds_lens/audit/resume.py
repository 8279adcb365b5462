"""What an earlier run left: it is kept where it answers the same question, and measured again where not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from uds_lens.audit.baseline import Baseline
from uds_lens.errors import ResultFormatError, warn_once
from uds_lens.results.control_facts import ControlFacts
from uds_lens.results.depth_audit import DepthAudit

if TYPE_CHECKING:
    from uds_lens.audit.plan import Plan
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

    def baseline_at(self, place: Path) -> Baseline | None:
        """The saved stage 1 in a directory, or None, as `audit_at`; settings applied afterwards (tau) may differ."""
        found = _loaded(Baseline, place)
        if found is None:
            return None
        return self._same(replace(found, config=self._after_stage_1(found.config), full=self.full), {})

    def _after_stage_1(self, saved: AuditConfig) -> AuditConfig:
        """The settings asked for, with those that stage 1 depends on as they were saved."""
        from uds_lens.results.comparable import STAGE_1_SETTINGS

        return replace(self.config, **{name: getattr(saved, name) for name in STAGE_1_SETTINGS})

    def _same(self, result: Result | None, others: Mapping[str, str]) -> Result | None:
        """`result`, if everything it depends on is what is asked for; what is cheap to compare comes first."""
        from uds_lens.results.records import versions

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
        from uds_lens.audit.asked_facts import retain_roles

        return retain_roles(self.retain)

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
        from uds_lens.audit.asked_facts import asked_facts
        from uds_lens.audit.plan import make_plan

        asked = asked_facts(self.examples, self.control, self.config)
        return make_plan(
            {"full": self.full},
            asked.forget.examples,
            control=asked.control_examples,
            config=self.config,
            options=self.options,
        )

    def _weights(self, model: str) -> str:
        from uds_lens.audit.source_states import opened

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
