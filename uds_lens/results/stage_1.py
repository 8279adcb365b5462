"""What a baseline and an audit both hold: the forget set, who was measured with what, and stage 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor

from uds_lens.data import ForgetExample, SkippedExample
from uds_lens.results.control_facts import ControlFacts
from uds_lens.results.records import ModelRecord
from uds_lens.results.retain_models import RetainStage1
from uds_lens.results.scores import ke_mask
from uds_lens.results.settings import AuditConfig


@dataclass(frozen=True, eq=False, kw_only=True)
class Stage1:
    """`full` against `retain` on a forget set."""

    config: AuditConfig
    """What was measured."""

    models: Mapping[str, ModelRecord]
    """Records of `full` and `retain` (the first, where there are several), and of `unlearned` in an audit."""

    examples: Sequence[ForgetExample]
    """The scored examples, in input order."""

    skipped: Sequence[SkippedExample]
    """Rows that could not be scored, with reasons."""

    provenance: Mapping[str, Any]
    """Versions, machine, command, engine, first rendered prompt, hash of the token ids."""

    n_tokens: Int[Tensor, "example"]
    """Entity tokens of each example."""

    s_full: Float[Tensor, "example"]
    """Mean log-probability of the entity under `full`, nats per token."""

    s1_delta: Float[Tensor, "example layer"]
    """Stage 1: log-probability lost with retain's state patched in, nats per token; of several retain models the
    mean."""

    s1_norm_ratio: Float[Tensor, "example layer"]
    """Norm of retain's state over that of the state it replaces; 1 = equal."""

    s1_cosine: Float[Tensor, "example layer"]
    """Cosine between retain's state and the state it replaces."""

    retains: tuple[RetainStage1, ...] = ()
    """Stage 1 of each retain model, where there are several; empty with one."""

    control: ControlFacts | None = None
    """Facts that `full` and `retain` both know, measured in the same way; None without."""

    @property
    def roles(self) -> dict[str, ModelRecord]:
        """All models by role; several retain models are numbered."""
        if not self.retains:
            return dict(self.models)
        numbered = {f"retain {i}": retain.model for i, retain in enumerate(self.retains, start=1)}
        return {
            role: record
            for name, found in self.models.items()
            for role, record in (numbered if name == "retain" else {name: found}).items()
        }

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return self.s1_delta.shape[1]

    @cached_property
    def ke_mask(self) -> Bool[Tensor, "example layer"]:
        """Knowledge-encoding layers: `s1_delta > tau`."""
        return ke_mask(self.s1_delta, self.config.tau)
