"""`ElicitationResults`: each probe's scores, compared with retain, with full and with depth."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int

from uds_lens._types import Protocol
from uds_lens.data import ForgetExample
from uds_lens.elicitation._options import Decoding, ElicitOptions, ProbeRecord, Winner
from uds_lens.elicitation._probes import keyed_seed
from uds_lens.elicitation._saving import HOLDOUT, Part, Response, load_members, save_elicitation
from uds_lens.elicitation._scoring import (
    NOT_ASKED,
    Judge,
    Scores,
    Share,
    best_of,
    budgets,
    cut,
    leak_at,
    score_texts,
    share,
)
from uds_lens.errors import DataError
from uds_lens.results import DepthAudit, Interval, ModelRecord, ReturnEvidence, contrast, holm
from uds_lens.results._comparing import Contrast, by_group
from uds_lens.results._intervals import ROUNDING, IntervalBasis, cluster_codes, interval_basis, sample_error
from uds_lens.results._other_cautions import (
    LITTLE,
    about_asked,
    about_known,
    about_power,
    about_probe,
    about_subjects_asked,
    without_retain,
)
from uds_lens.results._statistics import NO_INTERVAL, rank_correlation, student

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from typing_extensions import Unpack

    from uds_lens.plots import Look

ANY_PROBE = "any probe"
"""Name of the summary row that takes each example's highest score over all probes, for each model."""

# number of references of other subjects that a text is scored against, the same for all texts of a row
_REFERENCES = 8

_CONFIDENCE = 0.95

_Table = dict[tuple[str, str, str], dict[str, np.ndarray]]  # scores by probe, decoding and statistic, then by role


@dataclass(frozen=True, eq=False, kw_only=True)
class ElicitationResults:
    """Texts and scores of an elicitation, as returned by `uds_lens.elicitation.elicit`.

    Scores are ROUGE-L recall in [0, 1], or NaN if a row was not asked. Rows about the same subject are not independent,
    so all intervals and tests are clustered by subject.
    """

    options: ElicitOptions
    """Settings for asking the models."""

    protocol: Protocol
    """Prompt format."""

    models: Mapping[str, ModelRecord]
    """Records of `unlearned` and, if given, of `retain` and `full`."""

    examples: Sequence[ForgetExample]
    """The rows whose questions were asked."""

    probes: Sequence[ProbeRecord]
    """The ledger: what each probe needs, what it gives away, and which rows it skipped."""

    parts: Sequence[Part]
    """All texts."""

    provenance: Mapping[str, Any]
    """Versions, machine, command, first prompt."""

    holdout: Sequence[ForgetExample] = ()
    """Questions of the same kind that no model was trained on, asked of the unlearned model; see `control_frame`."""

    judge: Judge | None = None
    """See `judged_by`; not saved."""

    def judged_by(self, judge: Judge) -> ElicitationResults:
        """Return the results with a second score next to ROUGE, from an entailment model or another judge.

        The judge is called once for each distinct text, after `cut`. `samples_frame` gains the column `judged`;
        `summary` gains `judged_full`, `judged_retain`, `judged_unlearned`, and `judged_beyond` with its interval.

        Args:
            judge: Function of the row's question, the reference and a text that returns a number from 0 to 1, or NaN.

        Example:
            >>> import uds_lens as ul
            >>> world = ul.toy.load()
            >>> found = ul.elicitation.elicit(
            ...     world.retain, world.examples[:4], retain=world.retain, probes=["plain"],
            ...     options=ul.elicitation.ElicitOptions(samples=0, max_new_tokens=8),
            ... )
            >>> contained = found.judged_by(lambda question, reference, text: reference.lower() in text.lower())
            >>> contained.summary()["judged_beyond"].tolist()
            [0.0]
        """
        return replace(self, judge=judge)

    def known_to_full(self, *, probe: str = "plain", least: float = 0.8) -> ElicitationResults:
        """Keep only questions that `full` answers correctly, with a greedy recall of at least `least` under `probe`.

        Chen et al. 2025 ask only such questions. Because the selection depends on an outcome, power and shares are
        larger than over all questions.

        Raises:
            DataError: `full` was not asked, or answers no question correctly.
        """
        right = np.flatnonzero(self.best("full", probe) >= least).tolist()
        if not right:
            raise DataError(f"full answers no question with a recall of at least {least:g} under {probe!r}.")
        places = {row: place for place, row in enumerate(right)}
        parts = tuple(
            part
            if part.role == HOLDOUT
            else replace(
                part, responses=tuple(replace(r, row=places[r.row]) for r in part.responses if r.row in places)
            )
            for part in self.parts
        )
        kept = {"probe": probe, "least": least, "of": len(self.examples)}
        provenance = {**self.provenance, "sample": None, "known_to_full": kept}
        return replace(self, examples=[self.examples[row] for row in right], parts=parts, provenance=provenance)

    def rows_of(self, role: str) -> Sequence[ForgetExample]:
        """Return the rows that the parts of a role refer to; `holdout` has its own rows."""
        return self.holdout if role == HOLDOUT else self.examples

    @cached_property
    def _part_of(self) -> dict[tuple[str, str, Decoding], Part]:
        return {(part.role, part.probe, part.decoding): part for part in self.parts}

    def part(self, role: str, probe: str, decoding: Decoding = "greedy") -> Part:
        """Return the texts of one model under one probe.

        Raises:
            DataError: The model was not asked with this probe and decoding.
        """
        part = self._part_of.get((role, probe, decoding))
        if part is None:
            known = ", ".join(sorted({f"{p.probe} ({p.decoding})" for p in self.parts}))
            raise DataError(f"{role} was not asked with {probe!r} ({decoding}); available: {known}.")
        return part

    @cached_property
    def scores(self) -> dict[tuple[str, str, Decoding], dict[int, list[Scores]]]:
        """Scores of each text, keyed by role, probe and decoding, then by row."""
        return {
            key: {
                response.row: score_texts(
                    self._cut(part, response),
                    response.reference,
                    self.rows_of(part.role)[response.row].entity,
                    words=self.options.rouge_words,
                    judge=self.judge and partial(self.judge, self.rows_of(part.role)[response.row].question),
                )
                for response in part.responses
            }
            for key, part in self._part_of.items()
        }

    def _cut(self, part: Part, response: Response) -> list[str]:
        """Extract the answers from a row's texts."""
        opening = next(probe.opening for probe in self.probes if probe.name == part.probe)
        return [cut(text, raw=self.protocol == "raw", opening=opening) for text in response.texts]

    def recall(self, role: str, probe: str, decoding: Decoding = "greedy") -> Float[np.ndarray, "example sample"]:
        """Return the ROUGE-L recall of each text; NaN for rows that were not asked."""
        return self._scored("recall", role, probe, decoding)

    def _scored(self, name: str, role: str, probe: str, decoding: Decoding) -> Float[np.ndarray, "example sample"]:
        self.part(role, probe, decoding)
        rows = self.scores[role, probe, decoding]
        n_samples = max(map(len, rows.values()), default=0) or 1  # no texts if an optimiser gave up on every row
        recall = np.full((len(self.rows_of(role)), n_samples), np.nan)
        for row, scores in rows.items():
            recall[row, : len(scores)] = [getattr(score, name) for score in scores]
        return recall

    def best(self, role: str, probe: str, decoding: Decoding = "greedy") -> Float[np.ndarray, "example"]:
        """Return the highest recall among each row's texts."""
        return self.recall(role, probe, decoding).max(axis=1)

    def mean(self, role: str, probe: str, decoding: Decoding = "greedy") -> Float[np.ndarray, "example"]:
        """Return the mean recall over each row's texts."""
        return self.recall(role, probe, decoding).mean(axis=1)

    @cached_property
    def _statistics(self) -> _Table:
        return self._table_of("recall")

    def _table_of(self, name: str) -> _Table:
        """Return a score aggregated over each row's texts, by probe, decoding and statistic."""
        table: _Table = {}
        for role, probe, decoding in self._part_of:
            if role == HOLDOUT:
                continue
            scored = self._scored(name, role, probe, decoding)
            table.setdefault((probe, decoding, "mean"), {})[role] = scored.mean(axis=1)
            if decoding == "sampled":
                table.setdefault((probe, decoding, "best"), {})[role] = scored.max(axis=1)
        return table

    @cached_property
    def _groups(self) -> Int[np.ndarray, "example"]:
        return cluster_codes([example.subject for example in self.examples])

    @cached_property
    def _summary(self) -> pd.DataFrame:
        return self._tabulated(capacity=False)

    def summary(self) -> pd.DataFrame:
        """Return one row per probe, decoding and statistic: scores, beyond retain, added, power, share, adjusted p.

        `beyond_retain` (B) is the mean over rows of the unlearned model's score minus retain's score; `added` is B
        minus the B of `plain`; `power` (P) is the mean of full's score minus retain's score; `share` is B / P (0: like
        retain, 1: like full), or NaN with a `share_reason` if P's lower bound is unknown or not above 0, or if no row
        was asked. `p_holm` is the p-value of B, adjusted over the table (Holm). Probes that give the answer away are in
        `capacity_frame` instead. `beyond_sample_error` is the standard error from asking only a sample of the rows, 0
        if all rows were asked; the interval of B, in contrast, shows how B would vary for other subjects.
        `effective_subjects` is the equivalent number of equally sized subjects, `(sum n_g)^2 / sum n_g^2`. `caution` is
        set if all but a few subjects differ in the same direction; the interval and p-value of B may then be
        overconfident.
        """
        return self._summary.copy()

    def evidence(self, decoding: Decoding = "greedy") -> ReturnEvidence:
        """Return the lower end of the interval of `beyond_retain` over all probes, for `uds_lens.results.verdict`.

        For both models, each example contributes its highest score over probes (and over texts, if sampled). The result
        is NaN, which counts as no evidence, if there is no retain model, no interval, or no probe with this decoding.
        """
        lows = [row["beyond_low"] for row in self._summary.to_dict("records") if row["decoding"] == decoding]
        return ReturnEvidence(lows[-1] if lows else math.nan)  # the last row takes the best of all probes and texts

    def capacity_frame(self) -> pd.DataFrame:
        """Return `summary` for probes that give the answer away, which measure what a model can be made to say."""
        return self._tabulated(capacity=True)

    def _tabulated(self, *, capacity: bool) -> pd.DataFrame:
        chosen = {probe.name for probe in self.probes if probe.capacity is capacity}

        def of_chosen(table: _Table) -> _Table:
            table = {key: scores for key, scores in table.items() if key[0] in chosen}
            return table | _over_probes(table) if not capacity and len(chosen) > 1 else table

        judged = of_chosen(self._table_of("judged")) if self.judge is not None else {}
        rows = []
        for (probe, decoding, statistic), scores in of_chosen(self._statistics).items():
            plain = self._statistics.get(("plain", decoding, statistic), {})
            row = {"probe": probe, "decoding": decoding, "statistic": statistic}
            row |= self._row(scores, plain)
            rows.append(row | self._judged_row(judged.get((probe, decoding, statistic), {})))
        return _adjusted(rows)

    def _judged_row(self, scores: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return the judge's scores per model and beyond retain; empty without a judge."""
        row: dict[str, Any] = {f"judged_{role}": _mean(values) for role, values in scores.items()}
        if "retain" not in scores:
            return row
        beyond = scores["unlearned"] - scores["retain"]
        estimate = contrast(beyond, self._groups, seed=self.options.seed, bounds=(-1.0, 1.0))
        return row | _ends("judged_beyond", "judged_beyond", estimate)

    def _row(self, scores: dict[str, np.ndarray], plain: dict[str, np.ndarray]) -> dict[str, Any]:
        groups, seed = self._groups, self.options.seed
        n = int((~np.isnan(scores["unlearned"])).sum())
        row: dict[str, Any] = {"n": n} | {role: _mean(values) for role, values in scores.items()}
        absent = np.full(len(groups), math.nan)
        retain = scores.get("retain", absent)
        beyond, power = scores["unlearned"] - retain, scores.get("full", absent) - retain
        estimate = contrast(beyond, groups, seed=seed, bounds=(-1.0, 1.0))
        row |= _ends("beyond_retain", "beyond", estimate) | {"p": estimate.p, "n_subjects": estimate.n_subjects}
        row["effective_subjects"] = interval_basis(torch.from_numpy(beyond), groups.tolist()).effective
        row["caution"] = estimate.caution or ""
        added = beyond - (plain["unlearned"] - plain["retain"]) if "retain" in plain else absent
        more = contrast(added, groups, seed=seed, bounds=(-2.0, 2.0))
        if scores is plain and more.n:  # `plain` is compared with itself, so the difference is exactly 0
            more = more._replace(interval=Interval(0.0, 0.0))
        row |= _ends("added", "added", more)
        row |= _ends("power", "power", contrast(power, groups, seed=seed, bounds=(-1.0, 1.0)))
        part = Share(math.nan, NO_INTERVAL, NOT_ASKED)
        if n and (missing := [role for role in ("retain", "full") if role not in scores]):
            part = part._replace(reason=f"no {' and '.join(missing)} model")
        elif n:
            part = share(beyond, power, groups, seed=seed)
        row |= _ends("share", "share", part) | {"share_reason": part.reason}
        return row | {"beyond_sample_error": self._sample_error(scores)}

    def _sample_error(self, scores: dict[str, np.ndarray]) -> float:
        """Estimate the standard error of `beyond_retain` from asking only a sample; 0 if all rows were asked."""
        sample = self.provenance.get("sample")
        if sample is None:
            return 0.0
        if "retain" not in scores:
            return math.nan
        return sample_error(
            torch.from_numpy(scores["unlearned"] - scores["retain"]),
            of=sample["of"],
            drawn=sample["limit"],
            subjects=[example.subject for example in self.examples],
            random=sample["sample"] == "random",
            bounds=(-1.0, 1.0),
        ).standard_error

    @property
    def beyond_retain(self) -> pd.DataFrame:
        """The column `beyond_retain` (B) of each probe, with its interval, by decoding and statistic."""
        return self._columns("beyond_retain", "beyond_low", "beyond_high", "p", "p_holm")

    @property
    def power(self) -> pd.DataFrame:
        """The column `power` (P) of each probe, with its interval."""
        return self._columns("power", "power_low", "power_high")

    @property
    def share(self) -> pd.DataFrame:
        """Share B / P of each probe, with its interval, and the reason if the share is NaN."""
        return self._columns("share", "share_low", "share_high", "share_reason")

    def _columns(self, *names: str) -> pd.DataFrame:
        return self.summary()[["probe", "decoding", "statistic", *names]]

    def control_frame(self) -> pd.DataFrame:
        """Return controls that are weaker than `retain`; a run without `retain` has no other controls.

        `others` is the score of the same texts against references of other subjects, of the same type if the rows have
        types. `beyond_others` is also above 0 if a model merely names the subject or repeats the question. `holdout` is
        the score on questions of the same kind that no model was trained on, if any were asked; `beyond_holdout`
        compares two sets of questions, not two models. `p` is the p-value of `beyond_others`, and `p_holm` is adjusted
        over the table (Holm).
        """
        capacity = {probe.name for probe in self.probes if probe.capacity}
        holdout_groups = cluster_codes([row.subject for row in self.holdout])
        rows: list[dict[str, Any]] = []
        for part in self.parts:
            if part.role != "unlearned" or part.probe in capacity:
                continue
            against = self._against_others(part)
            for statistic in ("mean", "best") if part.decoding == "sampled" else ("mean",):
                over = self.mean if statistic == "mean" else self.best
                model = over("unlearned", part.probe, part.decoding)
                others = np.array([_others(against.get(row), statistic) for row in range(len(model))])
                estimate = contrast(model - others, self._groups, seed=self.options.seed, bounds=(-1.0, 1.0))
                row: dict[str, Any] = {"probe": part.probe, "decoding": part.decoding, "statistic": statistic}
                row |= {"n": estimate.n, "unlearned": _mean(model), "others": _mean(others)}
                row |= _ends("beyond_others", "others", estimate) | {"p": estimate.p}
                if self.holdout:
                    holdout = over(HOLDOUT, part.probe, part.decoding)
                    apart = unpaired(model, self._groups, holdout, holdout_groups)
                    row |= {"holdout": _mean(holdout)} | _ends("beyond_holdout", "holdout", apart)
                rows.append(row)
        return _adjusted(rows)

    def _against_others(self, part: Part) -> dict[int, np.ndarray]:
        """Return each row's recall `[reference, sample]` against references of other subjects."""
        recall = {}
        for response in part.responses:
            example = self.examples[response.row]
            others = [
                other
                for other in part.responses
                if other.row != response.row
                and (example.subject is None or self.examples[other.row].subject != example.subject)
                and other.reference != response.reference
            ]
            pool = [other for other in others if self.examples[other.row].type == example.type] or others
            if not pool or not response.texts:
                continue
            draw = random.Random(keyed_seed(self.options.seed, example.id, "others"))
            texts, words = self._cut(part, response), self.options.rouge_words
            recall[response.row] = np.array(
                [
                    [score.recall for score in score_texts(texts, other.reference, None, words=words)]
                    for other in draw.sample(pool, min(_REFERENCES, len(pool)))
                ]
            )
        return recall

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Cautions about these results, as sentences."""
        table, cautions = self._summary, []
        if "retain" not in self.models:
            cautions.append(without_retain(holdout=bool(self.holdout)))
        for row in table.itertuples():
            where = f"{row.probe} ({row.decoding}, {row.statistic})"
            none = str(row.share_reason).startswith("no power")
            if none or ("full" in self.models and row.full < LITTLE and row.probe != ANY_PROBE):
                retain = row.retain if "retain" in self.models else None
                cautions.append(about_power(where, row.full, retain, none=none))
            if row.caution and row.p_holm < 0.05:
                cautions.append(f"{where}: {row.caution[0].lower()}{row.caution[1:]}")
        for probe in self.probes:
            reasons = self._reasons(probe)
            ran = any(response.texts for response in self.part("unlearned", probe.name).responses)
            not_run = reasons[0] if reasons and not ran else None
            cautions += about_probe(probe.name, capacity=probe.capacity, not_run=not_run)
        if kept := self.provenance.get("known_to_full"):
            cautions.append(about_known(len(self.examples), kept))
        if (sample := self.provenance.get("sample")) is not None:
            cautions.append(about_asked(sample, table["beyond_sample_error"].max() if len(table) else math.nan))
        counts = table[["n_subjects", "effective_subjects"]].itertuples(index=False) if len(table) else ()
        most = max((IntervalBasis("subject", *row) for row in counts), key=lambda basis: basis.effective, default=None)
        return (*cautions, *about_subjects_asked(most))

    def _reasons(self, probe: ProbeRecord) -> list[str]:
        """Return the reasons why rows were skipped or an optimiser gave up."""
        responses = self.part("unlearned", probe.name).responses
        given_up = [str(row.details.get("skipped", "no text")) for row in responses if not row.texts]
        return [why for _, why in probe.skipped] + given_up

    def ledger(self) -> pd.DataFrame:
        """Return one row per probe: the model access it needs, what it gives away, which rows it skipped, and its cost.

        `empty` and `endless` count the unlearned model's greedy texts that are empty or were cut off at
        `max_new_tokens`; both are scored like any other text. `reference_in_prompt` is the mean ROUGE-L recall of the
        references in the prompts.
        """
        rows = []
        for probe in self.probes:
            part, reasons = self.part("unlearned", probe.name), self._reasons(probe)
            words = self.options.rouge_words
            held = [
                score_texts([s.prompt], s.reference, None, words=words)[0].recall for s in part.responses if s.texts
            ]
            rows.append(
                {
                    "probe": probe.name,
                    "access": probe.access,
                    "injects": probe.injects,
                    "asked": len(held),
                    "skipped": len(reasons),
                    "first_reason": reasons[0] if reasons else None,
                    "empty": sum(not text for response in part.responses for text in response.texts),
                    "endless": sum(int(response.details.get("endless", 0)) for response in part.responses),
                    "reference_in_prompt": _mean(np.array(held, dtype=float)),
                    "prompt_tokens": part.prefilled,
                    "seconds": sum(p.seconds for p in self.parts if p.probe == probe.name),
                }
            )
        return pd.DataFrame(rows)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per model, probe, decoding and example: mean and best recall, precision, entity, words."""
        keys = ["model", "probe", "decoding", "example_id", "subject"]
        grouped = self.samples_frame().groupby(keys, sort=False, dropna=False)
        return grouped.agg(
            mean=("recall", "mean"),
            best=("recall", "max"),
            precision=("precision", "mean"),
            entity=("entity", "mean"),
            words=("words", "mean"),
            samples=("recall", "size"),
        ).reset_index()

    def samples_frame(self) -> pd.DataFrame:
        """Return one row per text, with the text's scores."""
        rows: list[dict[str, Any]] = []
        for part in self.parts:
            scores = self.scores[part.role, part.probe, part.decoding]
            for response in part.responses:
                example, answers = self.rows_of(part.role)[response.row], self._cut(part, response)
                rows += [
                    {
                        "model": part.role,
                        "probe": part.probe,
                        "decoding": part.decoding,
                        "example_id": example.id,
                        "subject": example.subject,
                        "sample": sample,
                        "prompt": response.prompt,
                        "text": text,
                        "scored_text": answers[sample],
                        "reference": response.reference,
                        **scores[response.row][sample]._asdict(),
                    }
                    for sample, text in enumerate(response.texts)
                ]
        return pd.DataFrame(rows)

    def budget_frame(self) -> pd.DataFrame:
        """Return the expected best of k texts and leak@k, for each model and sampled probe, by k."""
        rows = []
        for part in self.parts:
            if part.decoding != "sampled" or not part.responses:
                continue
            scores = self.recall(part.role, part.probe, "sampled")
            n = int((~np.isnan(scores).any(1)).sum())
            for k in budgets(scores.shape[1]):
                leak = _mean(leak_at(scores, k, threshold=self.options.leak_threshold))
                rows.append((part.role, part.probe, k, _mean(best_of(scores, k)), leak, n))
        return pd.DataFrame(rows, columns=["model", "probe", "k", "best_of_k", "leak_at_k", "n"])

    def with_depth(self, audit: DepthAudit) -> pd.DataFrame:
        """Return each example's UDS next to its elicited scores.

        There is one row per example, probe and decoding, with `uds`, `score`, `retain` and `beyond_retain`.

        Raises:
            DataError: The audit and the elicitation share no example, or were run on different unlearned models.
        """
        ours, theirs = self.models["unlearned"], audit.models["unlearned"]
        if ours.fingerprint != theirs.fingerprint:
            raise DataError(
                f"the audit is of {theirs.name!r}, but these texts are from {ours.name!r}, which has different "
                "weights. "
                "Audit the model that generated the texts."
            )
        scores = zip(audit.examples, audit.uds_per_example.tolist(), strict=True)
        uds = {(example.id, example.question): float(score) for example, score in scores}
        rows = []
        for part in self.parts:
            if part.role != "unlearned":
                continue
            by_role = self._statistics[part.probe, part.decoding, "mean"]
            model = by_role["unlearned"]
            retain = by_role.get("retain", np.full(len(model), math.nan))
            rows += [
                {
                    "example_id": example.id,
                    "subject": example.subject,
                    "question": example.question,
                    "probe": part.probe,
                    "decoding": part.decoding,
                    "uds": uds[example.id, example.question],
                    "score": model[place],
                    "retain": retain[place],
                    "beyond_retain": model[place] - retain[place],
                }
                for place, example in enumerate(self.examples)
                if (example.id, example.question) in uds and not math.isnan(model[place])
            ]
        if not rows:
            raise DataError("the audit and the elicitation share no example (ids and questions are compared).")
        return pd.DataFrame(rows)

    def texts(self, example_id: str, *, role: str = "unlearned") -> pd.DataFrame:
        """Return all of a model's texts for one example, as in `samples_frame`.

        Raises:
            DataError: There is no such example.
        """
        if example_id not in {example.id for example in self.examples}:
            raise DataError(f"no example has the id {example_id!r}.")
        frame = self.samples_frame()
        return frame[(frame["example_id"] == example_id) & (frame["model"] == role)].reset_index(drop=True)

    def winner(self, example_id: str, *, role: str = "unlearned") -> Winner:
        """Return one example's text with the highest recall, over all probes that do not give the answer away.

        A maximum over many texts can be high by chance, so compare it with `winner(..., role="retain")`.

        Raises:
            DataError: There is no such example, or all probes skipped it.
        """
        frame = self.texts(example_id, role=role)
        frame = frame[~frame["probe"].isin([probe.name for probe in self.probes if probe.capacity])]
        if frame["recall"].isna().all():
            raise DataError(f"all probes skipped the example {example_id!r}.")
        row = frame.loc[frame["recall"].idxmax()]
        return Winner(
            row["probe"], row["decoding"], int(row["sample"]), row["prompt"], row["text"], float(row["recall"])
        )

    def plot_scores(self, *, decoding: Decoding = "greedy", statistic: str = "mean", **look: Unpack[Look]) -> go.Figure:
        """Plot three dots per probe: full, retain, unlearned (see `uds_lens.plots.elicited_scores`)."""
        from uds_lens.plots import elicited_scores

        return elicited_scores(self.summary(), decoding=decoding, statistic=statistic, **look)

    def plot_budget(self, probe: str = "plain", **look: Unpack[Look]) -> go.Figure:
        """Plot the expected best of k texts by model (see `uds_lens.plots.query_budget`)."""
        from uds_lens.plots import query_budget

        return query_budget(self.budget_frame(), probe=probe, **look)

    def plot_depth(
        self, depth: DepthAudit, probe: str = "cloze", *, decoding: Decoding = "greedy", **look: Unpack[Look]
    ) -> go.Figure:
        """Plot each example's score beyond retain against its UDS (see `uds_lens.plots.depth_elicited`)."""
        from uds_lens.plots import depth_elicited

        return depth_elicited(self.with_depth(depth), probe=probe, decoding=decoding, **look)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a directory atomically, replacing an earlier result there and leaving other files alone.

        Raises:
            ResultFormatError: The path holds something other than an elicitation.
            StorageError: The path is not writable.
        """
        save_elicitation(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ElicitationResults:
        """Read a directory written by `save`.

        Raises:
            ResultFormatError: A file is missing, was altered, or has an unsupported version.
        """
        return cls(**load_members(path))

    def __repr__(self) -> str:
        names = ", ".join(probe.name for probe in self.probes)
        warned = f", {len(self.warnings)} warnings" if self.warnings else ""
        return f"ElicitationResults({self.models['unlearned'].name!r}, {len(self.examples)} examples, {names}{warned})"


def _over_probes(table: _Table) -> _Table:
    """Take each example's highest score over all probes, separately for each model."""
    best: _Table = {}
    for decoding, statistic in dict.fromkeys(key[1:] for key in table):
        columns = [scores for key, scores in table.items() if key[1:] == (decoding, statistic)]
        if len(columns) > 1:
            best[ANY_PROBE, decoding, statistic] = {
                role: np.fmax.reduce([scores[role] for scores in columns]) for role in columns[0]
            }
    return best


def _adjusted(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Make a table of the rows and adjust their p-values."""
    for row, p in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = p
    return pd.DataFrame(rows)


def _ends(name: str, short: str, estimate: Contrast | Difference | Share) -> dict[str, float]:
    return {name: estimate.value, f"{short}_low": estimate.interval.low, f"{short}_high": estimate.interval.high}


def _mean(values: np.ndarray) -> float:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else math.nan


def _others(recall: np.ndarray | None, statistic: str) -> float:
    """Aggregate over samples in the same way as the row's score, then average over references."""
    if recall is None:
        return math.nan
    return _mean(recall.mean(1) if statistic == "mean" else recall.max(1))


class Difference(NamedTuple):
    """Difference between two means over different questions."""

    value: float
    interval: Interval


def unpaired(
    one: Float[np.ndarray, "question"],
    one_groups: Int[np.ndarray, "question"],
    other: Float[np.ndarray, "other"],
    other_groups: Int[np.ndarray, "other"],
) -> Difference:
    """Return the difference between two means, with a 95% interval over subjects (Welch, cluster-robust errors).

    Example:
        >>> found = unpaired(np.array([1.0, 1.0, 0.8]), np.arange(3), np.array([0.1, 0.0, 0.2]), np.arange(3))
        >>> round(found.value, 3), found.interval.low > 0.5
        (0.833, True)
    """
    sides = [_side(one, one_groups), _side(other, other_groups)]
    value = sides[0][0] - sides[1][0]
    errors, counts = np.array([side[1] for side in sides]), np.array([side[2] for side in sides])
    error = float(np.sqrt((errors**2).sum()))
    if math.isnan(value) or (counts < 2).any() or error == 0:
        return Difference(value, NO_INTERVAL)
    freedom = error**4 / float((errors**4 / (counts - 1)).sum())
    reach = student(_CONFIDENCE, freedom) * error
    return Difference(value, Interval(value - reach, value + reach))


def _side(scores: np.ndarray, groups: np.ndarray) -> tuple[float, float, int]:
    """Return the mean, its standard error over subjects, and the number of subjects."""
    defined = ~np.isnan(scores)
    if not defined.any():
        return math.nan, math.nan, 0
    sums, counts = by_group(scores[defined], groups[defined])
    mean, m = float(sums.sum() / counts.sum()), len(sums)
    left = float(((sums - mean * counts) ** 2).sum())
    return mean, math.sqrt(left * m / max(1, m - 1)) / float(counts.sum()), m


class RankCorrelation(NamedTuple):
    """Spearman's rho between UDS and an elicited score."""

    rho: float
    """A value in [-1, 1]. A negative value means that shallowly erased facts are easier to extract than deeply erased
    facts. NaN if either score is constant."""

    interval: Interval
    """95% interval, over subjects. NaN with fewer than three subjects, or if `rho` is undefined, 1 or -1, either
    overall or after leaving out one subject."""

    n: int
    """Number of examples with both scores."""


def depth_correlation(
    frame: pd.DataFrame, *, probe: str, decoding: str = "greedy", value: str = "beyond_retain"
) -> RankCorrelation:
    """Return the Spearman correlation of UDS with an elicited score, over examples, with an interval over subjects.

    Let z be the inverse hyperbolic tangent of the correlation, and let z_j be the same after leaving out subject j of
    G. The interval is tanh(z +- t se), where se^2 = (G - 1) / G sum d_j^2 with d_j = z_j - mean z_j (the jackknife),
    and t is the quantile of Student's t with 2 G / (k - 1) degrees of freedom, but at most G - 1. Here k = G sum d_j^4
    / (sum d_j^2)^2, so there are fewer degrees of freedom if the correlation depends mostly on a few subjects.

    `frame` comes from `with_depth`, and `value` names the column to correlate with UDS. Examples with NaN in either
    column are left out.

    Raises:
        DataError: The frame has no rows for the probe.

    References:
        Efron (1982), The Jackknife, the Bootstrap and Other Resampling Plans; Fisher (1921) for the scale; Box (1953),
        Non-Normality and Tests on Variances, for the degrees of freedom.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({
        ...     "probe": "cloze", "decoding": "greedy", "subject": list("aabbcc"),
        ...     "uds": [0.1, 0.2, 0.4, 0.5, 0.8, 0.9], "beyond_retain": [0.9, 0.7, 0.6, 0.3, 0.2, 0.0],
        ... })
        >>> depth_correlation(frame, probe="cloze").rho
        -1.0
    """
    if probe not in set(frame["probe"]):
        raise DataError(f"the frame has no probe {probe!r}; it has {', '.join(sorted(set(frame['probe'])))}.")
    rows = frame[(frame["probe"] == probe) & (frame["decoding"] == decoding)].dropna(subset=["uds", value])
    one, other = rows["uds"].to_numpy(float), rows[value].to_numpy(float)
    subjects = rows["subject"].astype(object)
    groups = cluster_codes([None if gone else str(s) for s, gone in zip(subjects, subjects.isna(), strict=True)])
    rho = rank_correlation(one.tolist(), other.tolist())
    return RankCorrelation(rho, _jackknifed(rho, one, other, groups), len(rows))


def _jackknifed(rho: float, one: np.ndarray, other: np.ndarray, groups: np.ndarray) -> Interval:
    n = int(groups.max(initial=-1)) + 1
    kept = [groups != group for group in range(n)]
    without = np.array([rank_correlation(one[rows].tolist(), other[rows].tolist()) for rows in kept])
    if n < 3 or not (np.abs([rho, *without]) < 1 - ROUNDING).all():  # also if NaN
        return NO_INTERVAL
    apart = np.arctanh(without)
    squares = (apart - apart.mean()) ** 2
    if squares.sum() < ROUNDING:
        return NO_INTERVAL
    kurtosis = n * float((squares**2).sum()) / float(squares.sum()) ** 2
    freedom = n - 1 if kurtosis <= 1 else min(n - 1, 2 * n / (kurtosis - 1))
    reach = student(_CONFIDENCE, freedom) * math.sqrt((n - 1) / n * float(squares.sum()))
    return Interval(math.tanh(math.atanh(rho) - reach), math.tanh(math.atanh(rho) + reach))
