"""`DepthAudit`: the finished measurement of one unlearned model, with every number behind its score."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uds_lens.checked_arguments import arguments_checked
from uds_lens.data import ExamplesLike
from uds_lens.results.audit_figures import AuditFigures
from uds_lens.results.audit_files import AUDIT, load_audit, save_result
from uds_lens.results.settings import AuditConfig, RunOptions

if TYPE_CHECKING:
    from uds_lens.models import ModelSource, RetainSource


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class DepthAudit(AuditFigures):
    """How deep an unlearned model has erased a forget set.

    Made by `DepthAudit.run`, `Baseline.audit` or `DepthAudit.load`. The example axis holds the scored examples in
    input order (`examples`); rows that could not be scored are in `skipped`. The model itself is not kept.
    """

    @classmethod
    @arguments_checked
    def run(
        cls,
        full: ModelSource,
        retain: RetainSource,
        unlearned: ModelSource,
        examples: ExamplesLike,
        *,
        control: ExamplesLike | None = None,
        config: AuditConfig | None = None,
        options: RunOptions | None = None,
    ) -> DepthAudit:
        """Measure one unlearned model, both stages, with one model in memory at a time.

        Args:
            full: Trained on everything: directory, Hub id, transformers model or `TransformerBridge`.
            retain: Never saw the forget set. Several (a list) that differ in their seed: the layers that count go by
                their mean S1, and `uds_by_retain` has the score against each.
            unlearned: `full` after an unlearning method.
            examples: The forget set, with entity spans: examples or rows, or where `uds_lens.load_examples` reads
                them.
            control: Facts that `full` and `retain` both know, with entity spans, in the same forms: what the unlearned
                states cost there is `damage`. None measures none.
            config: What to measure; default `AuditConfig()`.
            options: How to run it; default `RunOptions()`.

        Returns:
            The audit.

        Raises:
            IncompatibleModelsError: The checkpoints differ in architecture, size or tokenizer.
            ModelError: A checkpoint cannot be opened, or gives NaN.
            DataError: No examples, or the control holds some of them.

        Example:
            >>> import uds_lens as ul
            >>> world = ul.toy.load()
            >>> audit = ul.DepthAudit.run(world.full, world.retain, world.retain, world.examples)
            >>> audit.uds
            1.0
        """
        from uds_lens.audit.stages import audit_from_scratch

        return audit_from_scratch(
            full, retain, unlearned, examples, control=control, config=config, options=options
        )

    @arguments_checked
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the audit to a directory (JSON, safetensors, parquet), whole or not at all."""
        save_result(self, path, AUDIT, more=self.summary())

    @classmethod
    @arguments_checked
    def load(cls, path: str | os.PathLike[str]) -> DepthAudit:
        """Read an audit written by `save`.

        Raises:
            ResultFormatError: A file is missing, altered, or of another version.
        """
        return cls(**load_audit(path))

    @arguments_checked
    def push_to_hub(
        self,
        repo: str,
        *,
        dataset: str = "forget set",
        config: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        token: str | None = None,
    ) -> str:
        """Put the audit on a model's page on the Hub: its files in `uds_lens/`, and a section of the model card.

        One commit. What else the card says is kept; an earlier section about depth is replaced. The files hold the
        models' names and the command as they were given, the questions and the answers.

        Args:
            repo: `owner/name`; made if it is not there.
            dataset: The forget set: its id on the Hub, such as "locuslab/TOFU", or a name.
            config: Its configuration, such as "forget10".
            revision: Branch; default the main one.
            private: Whether a repository that is made is private.
            token: Access token; default the one of `hf auth login`.

        Returns:
            Address of the commit.

        Raises:
            ConfigError: `repo` is no name of a repository.
            ResultFormatError: The card that is there has metadata that cannot be read.
            StorageError: The Hub cannot be reached, or refuses.
        """
        from uds_lens.results.hub_upload import push

        return push(
            self, repo, dataset=dataset, config=config, revision=revision, private=private, token=token
        )

    def __repr__(self) -> str:
        low, high = self.uds_interval
        return (
            f"DepthAudit(uds={self.uds:.3f} [{low:.3f}, {high:.3f}], measured={self.n_measured}, "
            f"not_measurable={self.n_not_measurable}, skipped={len(self.skipped)}, layers={self.n_layers}, "
            f"{self._beside()}warnings={len(self.warnings)}{self._fatal_note()}, "
            f"unlearned={self.models['unlearned'].name!r})"
        )

    def _beside(self) -> str:
        """What only some audits have."""
        low, high, _ = self.retain_spread
        several = f"retains={len(self.retains)} [{low:.3f}, {high:.3f}], " if self.retains else ""
        return several + (f"damage={self.damage:.3f}, " if self.control is not None else "")

    def _fatal_note(self) -> str:
        return f" ({len(self.fatal)} fatal, reading withheld)" if self.fatal else ""

    def _repr_html_(self) -> str:
        from uds_lens.results.audit_card import audit_card

        return audit_card(self)
