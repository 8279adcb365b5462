"""Stage 1 with `full` kept open and recorded: each further unlearned model costs one pass and its variants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from uds_lens.audit.baseline import Baseline
from uds_lens.audit.memory import require_memory
from uds_lens.audit.plan import Plan
from uds_lens.audit.source_states import read_source
from uds_lens.audit.stages import full_of, stage_2, stage_2_options, stage_2_plan
from uds_lens.audit.target import Target
from uds_lens.checked_arguments import arguments_checked
from uds_lens.models import CheckpointInfo, ModelSource, check_compatible, read_checkpoint_info
from uds_lens.results.depth_audit import DepthAudit
from uds_lens.results.settings import RunOptions


@dataclass(frozen=True, eq=False)
class RecordedBaseline:
    """A baseline whose `full` is open and recorded; made by `Baseline.recorded`."""

    baseline: Baseline
    """Stage 1."""

    plan: Plan
    """Rows and batches."""

    target: Target
    """`full`, open."""

    options: RunOptions
    """How it is run."""

    @arguments_checked
    def audit(self, unlearned: ModelSource) -> DepthAudit:
        """Stage 2 of one model: one pass over it, and its patched variants.

        Raises:
            IncompatibleModelsError: The model does not fit `full`.
            ModelError: The model cannot be opened, or gives NaN.
        """
        where = {"offline": self.options.offline, "trust_remote_code": self.options.trust_remote_code}
        info = read_checkpoint_info(unlearned, revision=self.options.revision, **where)
        check_compatible({"full": self._full, "unlearned": info})
        source = read_source(
            unlearned, self.plan, role="unlearned", config=self.baseline.config, options=self.options
        )
        return stage_2(self.baseline, [source], self.target)[0]

    @cached_property
    def _full(self) -> CheckpointInfo:
        return read_checkpoint_info(self.target.model)


@contextmanager
def recorded(baseline: Baseline, *, options: RunOptions | None = None) -> Iterator[RecordedBaseline]:
    """Open and record `full`; see `Baseline.recorded`."""
    config, options, full = (
        baseline.config,
        stage_2_options(baseline, options),
        full_of(baseline),
    )
    plan = stage_2_plan(baseline, {}, options)
    require_memory(full, plan, n_sources=1, config=config, options=options, keep=True)
    with Target(full, plan, config=config, options=options, keep=True) as target:
        yield RecordedBaseline(baseline, plan, target, options)
