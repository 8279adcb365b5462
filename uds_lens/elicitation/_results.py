"""`ElicitationResults`: what came out of every model under every audit, and what that says beside retain and full."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int

from uds_lens._storage import (
    atomic_directory,
    atomic_write_bytes,
    conform,
    parse_json,
    plain,
    read_file,
    read_sealed,
    require_fresh,
    sealed,
    sha256_bytes,
    sha256_file,
)
from uds_lens._types import Protocol
from uds_lens.data import ForgetExample
from uds_lens.data._readers import as_examples
from uds_lens.elicitation._options import AuditRecord, Decoding, ElicitOptions, Winner
from uds_lens.elicitation._parts import HOLDOUT, Part, Said, part_from_bytes, write_part
from uds_lens.elicitation._prompts import keyed_seed
from uds_lens.elicitation._scoring import (
    NOT_ASKED,
    Scores,
    best_of,
    budgets,
    cut,
    leak_at,
    reference_in_prompt,
    score_texts,
    share,
)
from uds_lens.errors import DataError, ResultFormatError
from uds_lens.results import Contrast, DepthAudit, Interval, ModelRecord, contrast, holm
from uds_lens.results._cautions import about_first_rows
from uds_lens.results._comparing import by_group, subject_groups
from uds_lens.results._intervals import FEW_CLUSTERS, ROUNDING, sample_error, student
from uds_lens.results._statistics import NO_INTERVAL

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from uds_lens.plots import Theme


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
        return summary_frame(self)

    def capacity_frame(self) -> pd.DataFrame:
        """The same table for audits that hand over the answer: what a model can be made to say, not what it knows."""
        return summary_frame(self, capacity=True)

    def control_frame(self) -> pd.DataFrame:
        """What there is to compare with beside `retain`: weaker, and the only control of a run without one.

        `others`: the same texts held against the references of other subjects, of the same type where the rows have
        one. `beyond_others` is above 0 also where a model names the subject, or repeats the question. `holdout`: the
        score on questions of the same kind that no model learnt, if any were asked; `beyond_holdout` is a difference of
        two sets of questions, not of two models. `p` is that of `beyond_others`, adjusted over the table (Holm).
        """
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
        return elicitation_cautions(self)

    def ledger(self) -> pd.DataFrame:
        """What each audit needs, hands over and skipped, and how much of the reference its prompts hold.

        `empty` and `endless` count greedy texts of the unlearned model that say nothing, or had not ended at
        `max_new_tokens`: they are scored like any other.
        """
        return ledger_frame(self)

    def to_frame(self) -> pd.DataFrame:
        """One row per model, audit, decoding and example: mean and best recall, precision, entity recall, words."""
        return examples_frame(self)

    def samples_frame(self) -> pd.DataFrame:
        """One row per text, with its scores."""
        return samples_frame(self)

    def budget_frame(self) -> pd.DataFrame:
        """Expected best of k texts and leak@k for every model and audit that was sampled, by k."""
        return budget_frame(self)

    def with_depth(self, audit: DepthAudit) -> pd.DataFrame:
        """UDS of each example beside what was elicited of it: `example_id`, `uds`, `audit`, `beyond_retain` ...

        Raises:
            DataError: The two share no example, or the audit is of another unlearned model.
        """
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
        save_elicitation(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ElicitationResults:
        """Read a directory written by `save`.

        Raises:
            ResultFormatError: A file is missing, altered, or of another version.
        """
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


# Frames of an elicitation: the summary with controls, the ledger, examples, samples, budgets.

BEST_OVERALL = "any audit"
"""Name of the row that takes each example's highest score over all audits, for every model alike."""


def summary_frame(results: ElicitationResults, *, capacity: bool = False) -> pd.DataFrame:
    """See `ElicitationResults.summary`."""
    import pandas as pd

    groups = subject_groups([example.subject for example in results.examples])
    rows = []
    plain = {key[1:]: values for key, values in _statistics(results).items() if key[0] == "plain"}
    chosen = {audit.name for audit in results.audits if audit.capacity is capacity}
    table = {key: values for key, values in _statistics(results).items() if key[0] in chosen}
    if not capacity and len(chosen) > 1:
        table |= _over_audits(table)
    for (audit, decoding, statistic), scores in table.items():
        rows.append(
            {"audit": audit, "decoding": decoding, "statistic": statistic}
            | _row(scores, plain.get((decoding, statistic)), groups, results.options.seed)
            | {"beyond_sample_error": _sample_error(results, scores)}
        )
    for row, p in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = p
    return pd.DataFrame(rows)


def _row(
    scores: dict[str, np.ndarray], plain: dict[str, np.ndarray] | None, groups: np.ndarray, seed: int
) -> dict[str, Any]:
    n = int((~np.isnan(scores["unlearned"])).sum())
    row: dict[str, Any] = {"n": n}
    row |= {role: _mean(values) for role, values in scores.items()}
    nothing = np.full(len(groups), math.nan)
    control = scores.get("retain", nothing)
    beyond = scores["unlearned"] - control
    row |= _told("beyond_retain", "beyond", found := contrast(beyond, groups, seed=seed, bounds=(-1.0, 1.0)))
    row |= {"p": found.p, "n_subjects": found.n_subjects}
    if plain is None or "retain" not in plain:
        row |= {"added": math.nan, "added_low": math.nan, "added_high": math.nan}
    else:
        added = beyond - (plain["unlearned"] - plain["retain"])
        row |= _told("added", "added", contrast(added, groups, seed=seed, bounds=(-2.0, 2.0)))
    power = scores.get("full", nothing) - control
    row |= _told("power", "power", contrast(power, groups, seed=seed, bounds=(-1.0, 1.0)))
    nan = math.nan
    if not n:
        row |= {"share": nan, "share_low": nan, "share_high": nan, "share_reason": NOT_ASKED}
    elif "retain" in scores and "full" in scores:
        part = share(beyond, power, groups, seed=seed)
        low, high = part.interval
        row |= {"share": part.value, "share_low": low, "share_high": high, "share_reason": part.reason}
    else:
        missing = " and ".join(role for role in ("retain", "full") if role not in scores)
        row |= {"share": nan, "share_low": nan, "share_high": nan, "share_reason": f"no {missing} model"}
    return row


def _sample_error(results: ElicitationResults, scores: dict[str, np.ndarray]) -> float:
    """Standard error of `beyond_retain` as that of all rows, of which a sample was asked; 0 where all were."""
    told = results.provenance.get("sample")
    if told is None:
        return 0.0
    if "retain" not in scores:
        return math.nan
    subjects = [example.subject for example in results.examples]
    values = torch.from_numpy(scores["unlearned"] - scores["retain"])
    random = told["sample"] == "random"
    return sample_error(
        values, of=told["of"], drawn=told["limit"], subjects=subjects, random=random
    ).standard_error


def _told(name: str, short: str, found: Contrast) -> dict[str, float]:
    return {name: found.value, f"{short}_low": found.interval.low, f"{short}_high": found.interval.high}


_Table = dict[tuple[str, str, str], dict[str, np.ndarray]]


def _statistics(results: ElicitationResults) -> _Table:
    """Scores by audit, decoding and statistic, then by role."""
    table: _Table = {}
    for part in results.parts:
        name, decoding = part.audit, part.decoding
        if part.role == HOLDOUT:
            continue
        table.setdefault((name, decoding, "mean"), {})[part.role] = results.mean(part.role, name, decoding)
        if decoding == "sampled":
            table.setdefault((name, decoding, "best"), {})[part.role] = results.best(
                part.role, name, decoding
            )
    return table


def _over_audits(table: _Table) -> _Table:
    """Each example's highest score over all audits: the unlearned model's maximum meets that of retain."""
    found: _Table = {}
    for decoding, statistic in dict.fromkeys(key[1:] for key in table):
        columns = [values for key, values in table.items() if key[1:] == (decoding, statistic)]
        if len(columns) > 1:
            best = {}
            for role in columns[0]:
                stacked = np.stack([values[role] for values in columns])
                known = ~np.isnan(stacked).all(0)
                best[role] = np.full(stacked.shape[1], math.nan)
                best[role][known] = np.nanmax(stacked[:, known], axis=0)
            found[BEST_OVERALL, decoding, statistic] = best
    return found


def ledger_frame(results: ElicitationResults) -> pd.DataFrame:
    """See `ElicitationResults.ledger`."""
    import pandas as pd

    rows = []
    for audit in results.audits:
        part = results.part("unlearned", audit.name)
        held = [reference_in_prompt(said.prompt, said.reference) for said in part.said if said.texts]
        reasons = [why for _, why in audit.skipped]
        reasons += [str(said.told.get("skipped", "no text")) for said in part.said if not said.texts]
        rows.append(
            {
                "audit": audit.name,
                "access": audit.access,
                "injects": audit.injects,
                "asked": len(held),
                "skipped": len(reasons),
                "first_reason": reasons[0] if reasons else None,
                "empty": sum(not text for said in part.said for text in said.texts),
                "endless": sum(int(said.told.get("endless", 0)) for said in part.said),
                "reference_in_prompt": _mean(np.array(held)),
                "prompt_tokens": part.prefilled,
                "seconds": sum(p.seconds for p in results.parts if p.audit == audit.name),
            }
        )
    return pd.DataFrame(rows)


def examples_frame(results: ElicitationResults) -> pd.DataFrame:
    """See `ElicitationResults.to_frame`."""
    frame = samples_frame(results)
    keys = ["model", "audit", "decoding", "example_id", "subject"]
    grouped = frame.groupby(keys, sort=False, dropna=False)
    found = grouped.agg(
        mean=("recall", "mean"),
        best=("recall", "max"),
        precision=("precision", "mean"),
        entity=("entity", "mean"),
        words=("words", "mean"),
        samples=("recall", "size"),
    )
    return found.reset_index()


def samples_frame(results: ElicitationResults) -> pd.DataFrame:
    """See `ElicitationResults.samples_frame`."""
    import pandas as pd

    openings = {audit.name: audit.opening for audit in results.audits}
    rows: list[dict[str, Any]] = []
    for part in results.parts:
        scored = results.scores[part.role, part.audit, part.decoding]
        for said in part.said:
            example = results.rows_of(part.role)[said.row]
            for sample, (text, score) in enumerate(zip(said.texts, scored[said.row], strict=True)):
                rows.append(
                    {
                        "model": part.role,
                        "audit": part.audit,
                        "decoding": part.decoding,
                        "example_id": example.id,
                        "subject": example.subject,
                        "sample": sample,
                        "prompt": said.prompt,
                        "text": text,
                        "scored_text": cut(text, raw=results.protocol == "raw", opening=openings[part.audit]),
                        "reference": said.reference,
                        **score._asdict(),
                    }
                )
    return pd.DataFrame(rows)


def budget_frame(results: ElicitationResults) -> pd.DataFrame:
    """See `ElicitationResults.budget_frame`."""
    import pandas as pd

    rows = []
    for part in results.parts:
        if part.decoding != "sampled" or not part.said:
            continue
        scores = results.recall(part.role, part.audit, "sampled")
        for k in budgets(scores.shape[1]):
            rows.append(
                {
                    "model": part.role,
                    "audit": part.audit,
                    "k": k,
                    "best_of_k": _mean(best_of(scores, k)),
                    "leak_at_k": _mean(leak_at(scores, k, threshold=results.options.leak_threshold)),
                    "n": int((~np.isnan(scores).any(1)).sum()),
                }
            )
    return pd.DataFrame(rows, columns=["model", "audit", "k", "best_of_k", "leak_at_k", "n"])


def _mean(values: np.ndarray | Sequence[float]) -> float:
    known = np.asarray(values, dtype=float)
    known = known[~np.isnan(known)]
    return float(known.mean()) if len(known) else math.nan


# What a careful reader of an elicitation must know, in sentences.

LITTLE = 0.3
"""Score of full below which an audit is called weak: even a model that knows says little of it."""


def elicitation_cautions(results: ElicitationResults) -> tuple[str, ...]:
    """See `ElicitationResults.warnings`."""
    told = []
    if "retain" not in results.models:
        told.append(
            "No retain model: a score may be what any model would say by chance. Nothing here is evidence of knowledge "
            "by itself; control_frame() compares with the references of other subjects"
            + (" and with questions that nobody learnt" if results.holdout else "")
            + ", which is weaker."
        )
    table = summary_frame(results)
    silent = _silent(results)
    for row in table.itertuples():
        where = f"{row.audit} ({row.decoding}, {row.statistic})"
        if str(row.share_reason).startswith("no power"):
            told.append(
                f"{where} has no power here: full scores {row.full:.2f}, retain {row.retain:.2f}. That it brings "
                "nothing out says nothing of the unlearned model."
            )
        elif "full" in results.models and row.full < LITTLE and row.audit != BEST_OVERALL:
            told.append(
                f"{where} has little power here: full, which knows, scores {row.full:.2f} under it"
                + (f", retain {row.retain:.2f}" if "retain" in results.models else "")
                + ". That it brings little out says little of the unlearned model."
            )
    for audit in results.audits:
        if audit.capacity:
            told.append(
                f"{audit.name} hands over the answer: it measures capacity, not knowledge, and is left out."
            )
        if audit.name in silent:
            told.append(
                f"{audit.name}: not asked, since it could ask no row; the first: {silent[audit.name]}."
            )
    if (sample := results.provenance.get("sample")) is not None:
        if sample["sample"] == "random":
            worst = table["beyond_sample_error"].max() if len(table) else math.nan
            known = "" if math.isnan(worst) else f" (standard error at most {worst:.3f})"
            told.append(
                f"A random sample was asked: {sample['limit']} of {sample['of']} rows (seed {sample['seed']}). "
                f"Asking all would move a score beyond retain by the error of the sample alone{known}. The intervals "
                "answer another question: what other subjects than those of the data would give."
            )
        else:
            told.append(
                f"Only the first {sample['limit']} of {sample['of']} rows were asked. "
                f"{about_first_rows(sample.get('sorted_by', 'unknown'))}"
            )
    few = int(table["n_subjects"].max()) if len(table) else 0
    if 0 < few < FEW_CLUSTERS:
        told.append(f"{few} subjects: intervals over fewer than {FEW_CLUSTERS} subjects are rough.")
    return tuple(told)


def _silent(results: ElicitationResults) -> dict[str, str]:
    """Audits that nothing was said under, with the reason of their first row."""
    found = {}
    for audit in results.audits:
        said = results.part("unlearned", audit.name).said
        reasons = [why for _, why in audit.skipped] + [
            str(one.told.get("skipped", "no text")) for one in said
        ]
        if reasons and not any(one.texts for one in said):
            found[audit.name] = reasons[0]
    return found


# What stands in for a retain model that nobody has: references of other subjects, and questions that nobody
# learnt.

_REFERENCES = 8
"""References of other subjects that a text is held against: the same for every text of a row."""


def control_frame(results: ElicitationResults) -> pd.DataFrame:
    """See `ElicitationResults.control_frame`."""
    import pandas as pd

    seed = results.options.seed
    groups = subject_groups([row.subject for row in results.examples])
    kept_out = subject_groups([row.subject for row in results.holdout])
    capacity = {audit.name for audit in results.audits if audit.capacity}
    rows: list[dict[str, Any]] = []
    for part in results.parts:
        if part.role != "unlearned" or part.audit in capacity:
            continue
        strange = _against_others(results, part)
        for statistic, over in _weaker_controls_statistics(part):
            own = over(results, "unlearned", part)
            theirs = np.array([_reduced(strange.get(row), statistic) for row in range(len(own))])
            found = contrast(own - theirs, groups, seed=seed, bounds=(-1.0, 1.0))
            row = {"audit": part.audit, "decoding": part.decoding, "statistic": statistic, "n": found.n}
            row |= (
                {"unlearned": _weaker_controls_mean(own), "others": _weaker_controls_mean(theirs)}
                | _weaker_controls_told("others", found)
                | {"p": found.p}
            )
            if results.holdout:
                away = over(results, HOLDOUT, part)
                row |= {"holdout": _weaker_controls_mean(away)} | _weaker_controls_told(
                    "holdout", unpaired(own, groups, away, kept_out)
                )
            rows.append(row)
    for row, p in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = p
    return pd.DataFrame(rows)


class Difference(NamedTuple):
    """A difference of two means over different questions."""

    value: float
    interval: Interval


def unpaired(
    one: Float[np.ndarray, "question"],
    one_groups: Int[np.ndarray, "question"],
    other: Float[np.ndarray, "other"],
    other_groups: Int[np.ndarray, "other"],
) -> Difference:
    """Difference of two means, with a 95 % interval over the subjects of both (Welch, cluster-robust errors).

    Args:
        one: Scores; NaN are left out.
        one_groups: Subject of each.
        other: Scores of other questions.
        other_groups: Subject of each.

    Returns:
        NaN where a side has no score; no interval where a side has fewer than two subjects, or where no subject
        differs from the others of its side.

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
        return Difference(value, Interval(math.nan, math.nan))
    from scipy.stats import t

    freedom = error**4 / float((errors**4 / (counts - 1)).sum())
    reach = float(t.ppf(0.975, freedom)) * error
    return Difference(value, Interval(value - reach, value + reach))


def _side(scores: np.ndarray, groups: np.ndarray) -> tuple[float, float, int]:
    """Mean, its standard error over subjects, and how many subjects there are."""
    known = ~np.isnan(scores)
    if not known.any():
        return math.nan, math.nan, 0
    sums, counts = by_group(scores[known], groups[known])
    mean, m = float(sums.sum() / counts.sum()), len(sums)
    left = float(((sums - mean * counts) ** 2).sum())
    return mean, math.sqrt(left * m / max(1, m - 1)) / float(counts.sum()), m


def _against_others(results: ElicitationResults, part: Part) -> dict[int, np.ndarray]:
    """Recall `[reference, sample]` of each row's texts, of references that belong to other subjects."""
    openings = {audit.name: audit.opening for audit in results.audits}
    found = {}
    for said in part.said:
        example = results.examples[said.row]
        others = [
            other
            for other in part.said
            if other.row != said.row
            and (example.subject is None or results.examples[other.row].subject != example.subject)
            and other.reference != said.reference
        ]
        alike = [other for other in others if results.examples[other.row].type == example.type]
        pool = alike or others
        if not pool or not said.texts:
            continue
        draw = random.Random(keyed_seed(results.options.seed, example.id, "others"))
        texts = [
            cut(text, raw=results.protocol == "raw", opening=openings[part.audit]) for text in said.texts
        ]
        found[said.row] = np.array(
            [
                [score.recall for score in score_texts(texts, other.reference, None)]
                for other in draw.sample(pool, min(_REFERENCES, len(pool)))
            ]
        )
    return found


def _weaker_controls_statistics(part: Part) -> list[tuple[str, Any]]:
    """Name, and how a role's scores are read."""
    found: list[tuple[str, Any]] = [
        ("mean", lambda results, role, part: results.mean(role, part.audit, part.decoding))
    ]
    if part.decoding == "sampled":
        found.append(("best", lambda results, role, part: results.best(role, part.audit, part.decoding)))
    return found


def _reduced(scores: np.ndarray | None, statistic: str) -> float:
    """Over samples as the row's own score is, then over references."""
    if scores is None:
        return math.nan
    over = scores.mean(1) if statistic == "mean" else scores.max(1)
    known = over[~np.isnan(over)]
    return float(known.mean()) if len(known) else math.nan


def _weaker_controls_told(name: str, found: Contrast | Difference) -> dict[str, float]:
    low, high = found.interval
    return {f"beyond_{name}": found.value, f"{name}_low": low, f"{name}_high": high}


def _weaker_controls_mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


# Depth beside elicitation, example by example: is what lies shallow what comes out?

_CONFIDENCE = 0.95


class RankCorrelation(NamedTuple):
    """Spearman's rho of UDS with what was elicited."""

    rho: float
    """In [-1, 1]; negative: what is shallow is what comes out. NaN where one of the two is constant."""

    interval: Interval
    """95 %, by subjects. NaN where `rho` is, with fewer than three subjects, where `rho` is 1 or -1 or would be without
    one of the subjects, and where without one of them it would be undefined: few subjects say nothing then of others.
    """

    n: int
    """Examples that have both."""


def depth_frame(results: ElicitationResults, audit: DepthAudit) -> pd.DataFrame:
    """See `ElicitationResults.with_depth`."""
    import pandas as pd

    ours, theirs = results.models["unlearned"], audit.models["unlearned"]
    if ours.fingerprint != theirs.fingerprint:
        raise DataError(
            f"the audit is of {theirs.name!r}, these texts of {ours.name!r}: other weights. Audit the model that was "
            "elicited."
        )
    uds = {
        (example.id, example.question): (float(score), example)
        for example, score in zip(audit.examples, audit.uds_per_example.tolist(), strict=True)
    }
    rows = []
    for part in results.parts:
        if part.role != "unlearned":
            continue
        mean = results.mean("unlearned", part.audit, part.decoding)
        control = (
            results.mean("retain", part.audit, part.decoding)
            if "retain" in results.models
            else np.full(len(mean), math.nan)
        )
        for place, example in enumerate(results.examples):
            found = uds.get((example.id, example.question))
            if found is not None and not math.isnan(mean[place]):
                rows.append(
                    {
                        "example_id": example.id,
                        "subject": example.subject,
                        "question": example.question,
                        "audit": part.audit,
                        "decoding": part.decoding,
                        "uds": found[0],
                        "score": mean[place],
                        "retain": control[place],
                        "beyond_retain": mean[place] - control[place],
                    }
                )
    if not rows:
        raise DataError("the audit and the elicitation share no example (ids and questions are compared).")
    return pd.DataFrame(rows)


def depth_correlation(
    frame: pd.DataFrame, *, audit: str, decoding: str = "greedy", value: str = "beyond_retain", seed: int = 0
) -> RankCorrelation:
    """Return the Spearman correlation of UDS with what was elicited, over examples, with an interval over subjects.

    With z_j the inverse hyperbolic tangent of the correlation without subject j of G, and z that of all, the interval
    is tanh(z +- t se), se^2 = (G - 1) / G sum d_j^2 with d_j = z_j - mean z_j (the jackknife), t the quantile of
    Student's t with 2 G / (k - 1) degrees of freedom, at most G - 1, where k = G sum d_j^4 / (sum d_j^2)^2: fewer where
    a few subjects make most of the correlation, as se^2 is then less certain.

    Args:
        frame: From `with_depth`.
        audit: Which audit.
        decoding: Which decoding.
        value: Column to correlate with.
        seed: Without effect: nothing is drawn. Kept for older calls.

    Returns:
        The correlation; examples where one of the two is NaN are left out.

    Raises:
        DataError: The frame holds no such audit.

    References:
        Efron (1982), The Jackknife, the Bootstrap and Other Resampling Plans; Fisher (1921) for the scale; Box (1953),
        Non-Normality and Tests on Variances, for the degrees of freedom.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({
        ...     "audit": "cloze", "decoding": "greedy", "subject": list("aabbcc"),
        ...     "uds": [0.1, 0.2, 0.4, 0.5, 0.8, 0.9], "beyond_retain": [0.9, 0.7, 0.6, 0.3, 0.2, 0.0],
        ... })
        >>> depth_correlation(frame, audit="cloze").rho
        -1.0
    """
    rows = frame[(frame["audit"] == audit) & (frame["decoding"] == decoding)].dropna(subset=["uds", value])
    if not len(frame[frame["audit"] == audit]):
        raise DataError(
            f"the frame holds no audit {audit!r}; it holds {', '.join(sorted(set(frame['audit'])))}."
        )
    one, other = rows["uds"].to_numpy(float), rows[value].to_numpy(float)
    missing = rows["subject"].isna()
    groups = subject_groups(
        [None if gone else str(name) for name, gone in zip(rows["subject"], missing, strict=True)]
    )
    rho = _spearman(one, other)
    return RankCorrelation(rho, _jackknifed(rho, one, other, groups), len(rows))


def _jackknifed(rho: float, one: np.ndarray, other: np.ndarray, groups: np.ndarray) -> Interval:
    n = int(groups.max(initial=-1)) + 1
    without = np.array([_spearman(one[groups != group], other[groups != group]) for group in range(n)])
    if n < 3 or not (np.abs([rho, *without]) < 1 - ROUNDING).all():  # NaN is not below either
        return NO_INTERVAL
    apart = np.arctanh(without)
    squares = (apart - apart.mean()) ** 2
    if squares.sum() < ROUNDING:
        return NO_INTERVAL
    kurtosis = n * float((squares**2).sum()) / float(squares.sum()) ** 2
    freedom = n - 1 if kurtosis <= 1 else min(n - 1, 2 * n / (kurtosis - 1))
    reach = student(_CONFIDENCE, freedom) * math.sqrt((n - 1) / n * float(squares.sum()))
    return Interval(math.tanh(math.atanh(rho) - reach), math.tanh(math.atanh(rho) + reach))


def _spearman(one: np.ndarray, other: np.ndarray) -> float:
    from scipy.stats import rankdata

    if len(one) < 3 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return math.nan
    return float(np.corrcoef(rankdata(one), rankdata(other))[0, 1])


# Saved elicitations: a directory with a sealed manifest, the examples and one file per part; whole or
# absent.

FORMAT = "uds_lens.ElicitationResults"
VERSION = 1
"""Version of the format; raised when older releases could misread a result."""

_MANIFEST, _EXAMPLES = "manifest.json", "examples.json"


def require_place(path: str | os.PathLike[str]) -> Path:
    """The place for a result: where nothing stands, or an empty folder, or an earlier elicitation.

    Raises:
        ResultFormatError: Something else stands there.
        StorageError: Nothing can be written there.
    """
    return require_fresh(path, directory=True, format=FORMAT)


def save_elicitation(results: ElicitationResults, path: str | os.PathLike[str]) -> None:
    """Write `ElicitationResults`; an earlier one at the path is replaced, what else stands there stays."""
    target = require_place(path)
    earlier = {
        file.name for file in target.glob("part-*.parquet") if file.stem.removeprefix("part-").isdecimal()
    }
    with atomic_directory(target, own={_MANIFEST, _EXAMPLES, *earlier}) as folder:
        rows = [plain(asdict(example)) for example in results.examples]
        asked = {"examples": rows}
        if results.holdout:
            asked["holdout"] = [plain(asdict(example)) for example in results.holdout]
        atomic_write_bytes(folder / _EXAMPLES, json.dumps(asked).encode())
        names = [f"part-{number:03}.parquet" for number in range(len(results.parts))]
        for name, part in zip(names, results.parts, strict=True):
            write_part(part, folder / name, key=name)
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "options": results.options.to_dict(),
            "protocol": results.protocol,
            "models": {role: record.to_dict() for role, record in results.models.items()},
            "audits": [{**audit._asdict(), "skipped": plain(audit.skipped)} for audit in results.audits],
            "provenance": plain(results.provenance),
            "files": {name: sha256_file(folder / name) for name in (_EXAMPLES, *names)},
        }
        atomic_write_bytes(folder / _MANIFEST, sealed(manifest))


def load_elicitation(path: str | os.PathLike[str]) -> ElicitationResults:
    """Read `ElicitationResults`.

    Raises:
        ResultFormatError: A file is missing, altered, or of another version.
    """
    folder = Path(path).expanduser()
    told = repr(str(folder))
    record = read_sealed(folder / _MANIFEST, format=FORMAT, versions=(VERSION,))
    members = {name: value for name, value in record.items() if name not in ("format", "version")}
    found = conform(_Manifest, members, where=told)
    content = {name: _checked(folder, name, digest) for name, digest in found.files.items()}
    if _EXAMPLES not in content:
        raise ResultFormatError(f"{told} is no whole elicitation: it names no {_EXAMPLES}.")
    asked = parse_json(content.pop(_EXAMPLES), told=told)
    examples, holdout = _examples(asked.get("examples"), told), _examples(asked.get("holdout", []), told)
    parts = tuple(
        part_from_bytes(data, told=repr(str(folder / name)), key=name, vouched=True)
        for name, data in content.items()
    )
    roles = [*found.models, *([HOLDOUT] if holdout else [])]
    if (
        "unlearned" not in found.models
        or HOLDOUT in found.models
        or {part.role for part in parts} != set(roles)
    ):
        raise ResultFormatError(f"{told}: models and parts do not fit together.")
    lengths = {role: len(holdout if role == HOLDOUT else examples) for role in roles}
    if any(not 0 <= said.row < lengths[part.role] for part in parts for said in part.said):
        raise ResultFormatError(f"{told}: parts speak of rows that are not there.")
    if any(len(pair) != 2 for audit in found.audits for pair in audit.skipped):
        raise ResultFormatError(f"{told}: a skipped row is its id and a reason.")
    if not _complete(parts, found.audits, roles):
        raise ResultFormatError(f"{told}: audits and parts do not fit together.")
    return ElicitationResults(
        options=found.options,
        protocol=found.protocol,
        models=found.models,
        examples=tuple(examples),
        audits=found.audits,
        parts=parts,
        provenance=found.provenance,
        holdout=tuple(holdout),
    )


@dataclass(frozen=True, kw_only=True)
class _Manifest:
    """Members of a manifest, beside format, version and seal."""

    options: ElicitOptions
    protocol: Protocol
    models: Mapping[str, ModelRecord]
    audits: tuple[AuditRecord, ...]
    provenance: Mapping[str, Any]
    files: Mapping[str, str]


def _examples(rows: Any, told: str) -> list[ForgetExample]:
    """Rows as they were; a reader would number them anew."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ResultFormatError(f"{told}: its examples must be a list of rows.")
    places = [row.get("row") for row in rows]
    if not all(type(place) is int for place in places):
        raise ResultFormatError(f"{told}: each row must tell its place, a whole number.")
    try:
        found = as_examples(rows)
    except DataError as error:
        raise ResultFormatError(f"{told}: {str(error)[:300]}") from error
    return [replace(example, row=place) for example, place in zip(found, places, strict=True)]


def _complete(parts: Sequence[Part], audits: Sequence[AuditRecord], roles: Collection[str]) -> bool:
    """Whether each audit has one part of every model in each of its decodings, and nothing else is there."""
    asked = {(part.audit, part.decoding) for part in parts}
    found = sorted((part.audit, part.decoding, part.role) for part in parts)
    whole = found == sorted((*each, role) for each in asked for role in roles)
    return whole and sorted({name for name, _ in asked}) == sorted(audit.name for audit in audits)


def _checked(folder: Path, name: str, digest: str) -> bytes:
    if Path(name).name != name:
        raise ResultFormatError(f"{str(folder)!r} names a file outside itself: {name[:80]!r}.")
    content = read_file(folder / name)
    if sha256_bytes(content) != digest:
        raise ResultFormatError(f"{str(folder / name)!r} was altered after it was saved: ask again.")
    return content
