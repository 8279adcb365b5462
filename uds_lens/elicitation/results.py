"""`ElicitationResults`: what came out of every model under every audit, and what that says beside retain and full."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from uds_lens.checked_arguments import methods_checked
from uds_lens.data import ForgetExample
from uds_lens.elicitation.options import Decoding, ElicitOptions
from uds_lens.elicitation.parts import HOLDOUT, Part, Said
from uds_lens.elicitation.result_records import AuditRecord, Winner
from uds_lens.elicitation.scoring import Scores, cut, score_texts
from uds_lens.errors import DataError
from uds_lens.results import DepthAudit, ModelRecord
from uds_lens.types import Protocol

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from uds_lens.plots import Theme


@methods_checked
@dataclass(frozen=True, eq=False, kw_only=True)
class ElicitationResults:
    """Texts and scores of an elicitation; made by `uds_lens.elicitation.elicit`.

    Scores are ROUGE-L recall in [0, 1]; NaN where a row was not asked. Rows of one subject are not independent: all
    intervals and tests draw subjects.
    """

    options: ElicitOptions
    """How the models were asked."""

    protocol: Protocol
    """How questions became text."""

    models: Mapping[str, ModelRecord]
    """Records of `full`, `retain` and `unlearned`, as far as they were given."""

    examples: Sequence[ForgetExample]
    """The rows."""

    audits: Sequence[AuditRecord]
    """The ledger: what each audit needs and hands over, and which rows it could not ask."""

    parts: Sequence[Part]
    """Everything that was said."""

    provenance: Mapping[str, Any]
    """Versions, machine, command, first prompt."""

    holdout: Sequence[ForgetExample] = ()
    """Questions of the same kind that no model learnt, asked of the unlearned model; see `control_frame`."""

    def rows_of(self, role: str) -> Sequence[ForgetExample]:
        """What the parts of a role are about: `holdout` has rows of its own."""
        return self.holdout if role == HOLDOUT else self.examples

    @cached_property
    def _said(self) -> dict[tuple[str, str, str], Part]:
        return {(part.role, part.audit, part.decoding): part for part in self.parts}

    def part(self, role: str, audit: str, decoding: Decoding = "greedy") -> Part:
        """What one model said under one audit.

        Raises:
            DataError: It was not asked.
        """
        found = self._said.get((role, audit, decoding))
        if found is None:
            known = ", ".join(sorted({f"{p.audit} ({p.decoding})" for p in self.parts}))
            raise DataError(f"{role} was not asked {audit!r}, {decoding}; there are {known}.")
        return found

    @cached_property
    def scores(self) -> dict[tuple[str, str, str], dict[int, list[Scores]]]:
        """Scores of every text, by role, audit and decoding, then by row."""
        openings = {audit.name: audit.opening for audit in self.audits}
        return {
            key: {said.row: self._scored(said, part.role, openings[part.audit]) for said in part.said}
            for key, part in self._said.items()
        }

    def _scored(self, said: Said, role: str, opening: str) -> list[Scores]:
        texts = [cut(text, raw=self.protocol == "raw", opening=opening) for text in said.texts]
        return score_texts(texts, said.reference, self.rows_of(role)[said.row].entity)

    def recall(
        self, role: str, audit: str, decoding: Decoding = "greedy"
    ) -> Float[np.ndarray, "example sample"]:
        """ROUGE-L recall of every text; NaN in rows that were not asked."""
        self.part(role, audit, decoding)
        rows = self.scores[role, audit, decoding]
        n_samples = (
            max((len(each) for each in rows.values()), default=0) or 1
        )  # none, where all were given up
        found = np.full((len(self.rows_of(role)), n_samples), np.nan)
        for row, each in rows.items():
            found[row, : len(each)] = [score.recall for score in each]
        return found

    def best(self, role: str, audit: str, decoding: Decoding = "greedy") -> Float[np.ndarray, "example"]:
        """Highest recall of each row's texts."""
        return _over_samples(np.max, self.recall(role, audit, decoding))

    def mean(self, role: str, audit: str, decoding: Decoding = "greedy") -> Float[np.ndarray, "example"]:
        """Mean recall of each row's texts."""
        return _over_samples(np.mean, self.recall(role, audit, decoding))

    def summary(self) -> pd.DataFrame:
        """One row per audit, decoding and statistic: scores, beyond retain, added, power, share, adjusted p.

        `beyond_retain` B is the mean over rows of the unlearned model's score minus retain's; `added` is B minus that
        of `plain`; `power` P is full minus retain; `share` B / P (0 as retain, 1 as full), NaN with `share_reason`
        where P's lower bound is not above 0, or no row was asked. `p_holm` is adjusted over the table. Audits that
        hand over the answer are left out; they are in `capacity_frame`. `beyond_sample_error` is the standard error
        that comes of asking a sample of the rows, 0 where all were asked; the interval of B is about other subjects.
        """
        from uds_lens.elicitation.elicitation_frames import summary_frame

        return summary_frame(self)

    def capacity_frame(self) -> pd.DataFrame:
        """The same table for audits that hand over the answer: what a model can be made to say, not what it knows."""
        from uds_lens.elicitation.elicitation_frames import summary_frame

        return summary_frame(self, capacity=True)

    def control_frame(self) -> pd.DataFrame:
        """What there is to compare with beside `retain`: weaker, and the only control of a run without one.

        `others`: the same texts held against the references of other subjects, of the same type where the rows have
        one. `beyond_others` is above 0 also where a model names the subject, or repeats the question. `holdout`: the
        score on questions of the same kind that no model learnt, if any were asked; `beyond_holdout` is a difference of
        two sets of questions, not of two models. `p` is that of `beyond_others`, adjusted over the table (Holm).
        """
        from uds_lens.elicitation.weaker_controls import control_frame

        return control_frame(self)

    @property
    def beyond_retain(self) -> pd.DataFrame:
        """B of each audit, with interval, by decoding and statistic."""
        return self._columns("beyond_retain", "beyond_low", "beyond_high", "p", "p_holm")

    @property
    def power(self) -> pd.DataFrame:
        """P of each audit, with interval."""
        return self._columns("power", "power_low", "power_high")

    @property
    def share(self) -> pd.DataFrame:
        """E of each audit, with interval, and the reason where it is NaN."""
        return self._columns("share", "share_low", "share_high", "share_reason")

    def _columns(self, *names: str) -> pd.DataFrame:
        return self.summary()[["audit", "decoding", "statistic", *names]]

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What a careful reader must know, in sentences."""
        from uds_lens.elicitation.elicitation_cautions import elicitation_cautions

        return elicitation_cautions(self)

    def ledger(self) -> pd.DataFrame:
        """What each audit needs, hands over and skipped, and how much of the reference its prompts hold.

        `empty` and `endless` count greedy texts of the unlearned model that say nothing, or had not ended at
        `max_new_tokens`: they are scored like any other.
        """
        from uds_lens.elicitation.elicitation_frames import ledger_frame

        return ledger_frame(self)

    def to_frame(self) -> pd.DataFrame:
        """One row per model, audit, decoding and example: mean and best recall, precision, entity recall, words."""
        from uds_lens.elicitation.elicitation_frames import examples_frame

        return examples_frame(self)

    def samples_frame(self) -> pd.DataFrame:
        """One row per text, with its scores."""
        from uds_lens.elicitation.elicitation_frames import samples_frame

        return samples_frame(self)

    def budget_frame(self) -> pd.DataFrame:
        """Expected best of k texts and leak@k for every model and audit that was sampled, by k."""
        from uds_lens.elicitation.elicitation_frames import budget_frame

        return budget_frame(self)

    def with_depth(self, audit: DepthAudit) -> pd.DataFrame:
        """UDS of each example beside what was elicited of it: `example_id`, `uds`, `audit`, `beyond_retain` ...

        Raises:
            DataError: The two share no example, or the audit is of another unlearned model.
        """
        from uds_lens.elicitation.depth import depth_frame

        return depth_frame(self, audit)

    def texts(self, example_id: str, *, role: str = "unlearned") -> pd.DataFrame:
        """Everything a model said of one example: audit, decoding, sample, prompt, text, recall.

        Raises:
            DataError: There is no such example.
        """
        if example_id not in {example.id for example in self.examples}:
            raise DataError(f"no example has the id {example_id!r}.")
        frame = self.samples_frame()
        return frame[(frame["example_id"] == example_id) & (frame["model"] == role)].reset_index(drop=True)

    def winner(self, example_id: str, *, role: str = "unlearned") -> Winner:
        """The text with the highest recall of one example, over all audits that do not hand the answer over.

        A maximum over many texts is high by chance too: hold it against `winner(..., role="retain")`.
        """
        frame = self.texts(example_id, role=role)
        frame = frame[~frame["audit"].isin([audit.name for audit in self.audits if audit.capacity])]
        if frame["recall"].isna().all():
            raise DataError(f"no audit could ask the example {example_id!r}.")
        row = frame.loc[frame["recall"].idxmax()]
        return Winner(
            row["audit"],
            row["decoding"],
            int(row["sample"]),
            row["prompt"],
            row["text"],
            float(row["recall"]),
        )

    def plot_scores(
        self, *, decoding: Decoding = "greedy", statistic: str = "mean", theme: Theme = "light"
    ) -> go.Figure:
        """Three dots per audit: full, retain, unlearned (see `uds_lens.plots.elicited_scores`)."""
        from uds_lens.plots import elicited_scores

        return elicited_scores(self.summary(), decoding=decoding, statistic=statistic, theme=theme)

    def plot_budget(self, audit: str = "plain", *, theme: Theme = "light") -> go.Figure:
        """Expected best of k texts by model (see `uds_lens.plots.query_budget`)."""
        from uds_lens.plots import query_budget

        return query_budget(self.budget_frame(), audit=audit, theme=theme)

    def plot_depth(
        self,
        depth: DepthAudit,
        audit: str = "cloze",
        *,
        decoding: Decoding = "greedy",
        theme: Theme = "light",
    ) -> go.Figure:
        """UDS of each example against what was elicited of it (see `uds_lens.plots.depth_elicited`)."""
        from uds_lens.plots import depth_elicited

        return depth_elicited(self.with_depth(depth), audit=audit, decoding=decoding, theme=theme)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a directory, whole or not at all."""
        from uds_lens.elicitation.saved import save_elicitation

        save_elicitation(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ElicitationResults:
        """Read a directory written by `save`.

        Raises:
            ResultFormatError: A file is missing, altered, or of another version.
        """
        from uds_lens.elicitation.saved import load_elicitation

        return load_elicitation(path)

    def __repr__(self) -> str:
        names = ", ".join(audit.name for audit in self.audits)
        told = f", {len(self.warnings)} warnings" if self.warnings else ""
        return f"ElicitationResults({self.models['unlearned'].name!r}, {len(self.examples)} examples, {names}{told})"


def _over_samples(of: Any, scores: np.ndarray) -> np.ndarray:
    known = ~np.isnan(scores).any(axis=1)
    found = np.full(len(scores), math.nan)
    found[known] = of(scores[known], axis=1)
    return found
