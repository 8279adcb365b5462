"""Frames of an elicitation: the summary with controls, the ledger, examples, samples, budgets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from uds_lens.elicitation.estimates import best_of, budgets, leak_at
from uds_lens.elicitation.parts import HOLDOUT
from uds_lens.elicitation.scoring import cut, reference_in_prompt
from uds_lens.elicitation.shares import NOT_ASKED, share
from uds_lens.results import Contrast, contrast, holm
from uds_lens.results.contrasts import subject_groups
from uds_lens.results.sampling_error import sample_error

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.elicitation.results import ElicitationResults

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
