"""Is one model erased deeper than another? Audits compared on the examples that both measured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from uds_lens.checked_arguments import arguments_checked
from uds_lens.data.quoting import listed, short
from uds_lens.errors import ConfigError, Setting
from uds_lens.results.comparable import why_not_comparable
from uds_lens.results.contrasts import contrast, holm, smallest_p, subject_groups
from uds_lens.results.intervals import Interval
from uds_lens.results.naming import audit_names
from uds_lens.results.references import references_among

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.results.audit_scores import AuditScores

_COLUMNS = (
    *("one", "other", "uds_one", "uds_other", "difference", "low", "high", "p", "p_holm", "p_holm_least"),
    *("n", "n_subjects", "n_left_out", "left_out", "reference", "reason", "fatal"),
)

_FLIPS_PER_PAIR = 400
"""Random sign patterns for each pair of a table: the smallest adjusted p is then below 0.0025, however many pairs."""

_SAME_SCORE = {"float32": 0.01, "bfloat16": 0.1, "float16": 0.1}
"""Nats per token by which log-probabilities of the same tokens under the same model may differ by rounding."""

_Key = tuple[str, str, int]


class AuditDifference(NamedTuple):
    """UDS of one audit minus UDS of another, on the examples that both measured."""

    difference: float
    """In [-1, 1]; above 0: the first is erased deeper. NaN where no example was measured in both."""

    interval: Interval
    """By subjects, in [-1, 1]; NaN with fewer than two."""

    p: float
    """Two-sided, against 0; NaN with fewer than two subjects. Not adjusted for other comparisons."""

    n: int
    """Examples measured in both."""

    n_subjects: int
    """Subjects they are about; an example without one counts as its own."""

    uds_one: float
    """UDS of the first on these examples."""

    uds_other: float
    """UDS of the second on these examples."""

    left_out: Mapping[str, int]
    """Examples that are not among the `n`, by reason."""

    reason: str | None
    """Why something is NaN."""

    fatal: tuple[str, ...] = ()
    """Fatal warnings of either audit: the numbers are there, and do not say which model is erased deeper."""


@arguments_checked
def compare(
    audit_a: AuditScores,
    audit_b: AuditScores,
    *,
    confidence: float = 0.95,
    n_resamples: int = 9999,
    seed: int = 0,
) -> AuditDifference:
    """Is one model erased deeper than the other? Both on the same examples, paired, drawn by subject.

    With d_i = UDS_a(i) - UDS_b(i) over the examples that both measured (the same id, question, answer and entity, read
    as the same tokens), the difference is the mean of d. Its interval is that of `bootstrap_interval` by `subject`,
    too narrow where all but a few subjects have the same difference. Of one model with itself both are 0.
    Its p-value is the share of sign patterns over subjects under which the studentised mean is as large as it is: of
    all patterns with 13 subjects or fewer, of `n_resamples` random ones with more. With k subjects it is never below
    `2 ** (1 - k)`: fewer than six cannot bring it below 0.05.

    The audits must share what a score means: settings, `full` and `retain`. Another `retain` is allowed where `full`
    and the unlearned model are the same: the difference then tells what the choice of retain changes.

    Args:
        audit_a: The first.
        audit_b: What is subtracted.
        confidence: Coverage of the interval.
        n_resamples: Of the bootstrap behind the interval, and random sign patterns.
        seed: Of what is drawn.

    Returns:
        Difference, interval, p-value, counts, and what was left out.

    Raises:
        ConfigError: The audits are not comparable, or `confidence` is outside 0 and 1.

    Example:
        >>> import uds_lens as ul
        >>> world = ul.toy.load()
        >>> audit = ul.DepthAudit.run(world.full, world.retain, world.retain, world.examples[::5])
        >>> found = ul.results.compare(audit, audit)
        >>> found.difference, found.interval, found.p
        (0.0, Interval(low=0.0, high=0.0), 1.0)
    """
    _check(confidence)
    if obstacle := why_not_comparable(audit_a, audit_b):
        raise ConfigError(f"these audits are not comparable: {obstacle}.")
    return _compared(audit_a, audit_b, confidence, n_resamples, n_resamples, seed)


@arguments_checked
def compare_all(
    audits: Mapping[str, AuditScores] | Sequence[AuditScores],
    *,
    references: Collection[str] = (),
    confidence: float = 0.95,
    n_resamples: int = 9999,
    seed: int = 0,
) -> pd.DataFrame:
    """Compare every pair of audits, as `compare` does it, with Holm's adjustment over the pairs of the table.

    References are no part of what is tested: the score of `full` or `retain` itself is known beforehand (0, or 1), and
    pairs with it would only make the adjustment of the others harsher. Their rows keep difference, interval and `p`,
    and have no `p_holm`.

    Args:
        audits: Name to audit; or several, named after their unlearned models.
        references: Names of audits that are there for comparison; those of `full` and `retain` are found by their
            weights and need no name here.
        confidence: Coverage of the intervals, which are not adjusted.
        n_resamples: Of the bootstrap behind the intervals, and random sign patterns (at least 400 for each pair).
        seed: Of what is drawn.

    Returns:
        One row per pair: `one`, `other`, `uds_one`, `uds_other` (on the examples measured in both), `difference`,
        `low`, `high`, `p`, `p_holm`, `p_holm_least` (the smallest adjusted p that could have come out, with so many
        pairs and subjects: where it is 0.05 or more, no difference whatever could have been found at that level), `n`,
        `n_subjects`, `n_left_out`, `left_out` (in words), `reference` (whether either is one), `reason`, `fatal` (fatal
        warnings of either, in words; empty without). A pair that is not comparable has NaN, and the reason.

    Raises:
        ConfigError: Fewer than two audits, `references` names none of them, or `confidence` is outside 0 and 1.

    Example:
        >>> compare_all({})
        Traceback (most recent call last):
            ...
        uds_lens.errors.ConfigError: a comparison needs at least two audits; got 0.
    """
    import pandas as pd

    _check(confidence)
    named = audits if isinstance(audits, Mapping) else dict(zip(audit_names(audits), audits, strict=True))
    if len(named) < 2:
        raise ConfigError(f"a comparison needs at least two audits; got {len(named)}.")
    known = references_of(named, references)
    pairs = list(combinations(named, 2))
    flips = max(n_resamples, _FLIPS_PER_PAIR * len(pairs))
    rows = [
        {"one": one, "other": other, **_row(named[one], named[other], confidence, n_resamples, flips, seed)}
        for one, other in pairs
    ]
    for row in rows:
        inside = [name for name in known if name in (row["one"], row["other"])]
        row["reference"] = bool(inside)
        if inside and row["reason"] is None:
            which = "are references" if len(inside) == 2 else "is a reference"
            row["reason"] = f"{' and '.join(inside)} {which}: the score is known beforehand and not tested"
    family = [math.nan if row["reference"] else row["p"] for row in rows]
    least = [
        math.nan if math.isnan(p) else smallest_p(row["n_subjects"], flips)
        for row, p in zip(rows, family, strict=True)
    ]
    # The smallest p of a family is multiplied by its size, and no adjusted p lies below that one.
    size = sum(not math.isnan(p) for p in family)
    bound = min(1.0, size * min((p for p in least if not math.isnan(p)), default=math.nan))
    for row, p in zip(rows, holm(family), strict=True):
        row["p_holm"] = p
        row["p_holm_least"] = math.nan if math.isnan(p) else bound
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def references_of(audits: Mapping[str, AuditScores], named: Collection[str]) -> list[str]:
    """Return the names of all references, those found by their weights and those named, in the order of the audits.

    Raises:
        ConfigError: A name is none of the audits.
    """
    unknown = [name for name in named if name not in audits]
    if isinstance(named, str) or unknown:
        raise ConfigError(
            f"references are names of audits; expected some of {listed(list(audits), 200)}; got "
            f"{short(named if isinstance(named, str) else unknown[0], 100)}."
        )
    return [name for name in audits if name in {*named, *references_among(audits)}]


def _row(
    a: AuditScores, b: AuditScores, confidence: float, n_resamples: int, n_flips: int, seed: int
) -> dict[str, Any]:
    obstacle = why_not_comparable(a, b)
    if obstacle:
        nan = float("nan")
        found = AuditDifference(
            nan, Interval(nan, nan), nan, 0, 0, nan, nan, {}, f"not comparable: {obstacle}"
        )
    else:
        found = _compared(a, b, confidence, n_resamples, n_flips, seed)
    return {
        **{
            name: getattr(found, name)
            for name in ("uds_one", "uds_other", "difference", "p", "n", "n_subjects")
        },
        "low": found.interval.low,
        "high": found.interval.high,
        "n_left_out": sum(found.left_out.values()),
        "left_out": "; ".join(f"{count} {reason}" for reason, count in found.left_out.items()),
        "reason": found.reason,
        "fatal": " ".join(found.fatal),
    }


def _compared(
    a: AuditScores, b: AuditScores, confidence: float, n_resamples: int, n_flips: int, seed: int
) -> AuditDifference:
    pairs, left_out = _pairs(a, b)
    ours, theirs = (
        audit.uds_per_example.double().numpy()[[pair[side] for pair in pairs]]
        for side, audit in enumerate((a, b))
    )
    subjects = [_subject(a.examples[i].subject, b.examples[j].subject) for i, j in pairs]
    found = contrast(
        ours - theirs,
        subject_groups(subjects),
        confidence=confidence,
        n_resamples=n_resamples,
        n_flips=n_flips,
        seed=seed,
        bounds=(-1.0, 1.0),
    )
    low, high = found.interval
    if a.models["unlearned"].fingerprint == b.models["unlearned"].fingerprint and not (ours - theirs).any():
        low = high = found.value  # the same model on the same scale: no other subject could differ
    return AuditDifference(
        found.value,
        Interval(float(np.clip(low, -1, 1)), float(np.clip(high, -1, 1))),
        found.p,
        found.n,
        found.n_subjects,
        float(ours.mean()) if found.n else float("nan"),
        float(theirs.mean()) if found.n else float("nan"),
        left_out,
        _reason(found.n, found.n_subjects),
        tuple(dict.fromkeys((*a.fatal, *b.fatal))),
    )


def _pairs(a: AuditScores, b: AuditScores) -> tuple[list[tuple[int, int]], dict[str, int]]:
    """Places of the examples measured in both, in an order that does not depend on which audit is first."""
    first, second = ({key: i for i, key in enumerate(_keys(audit))} for audit in (a, b))
    measured_a, measured_b = (~audit.uds_per_example.isnan() for audit in (a, b))
    left_out: Counter[str] = Counter()
    left_out["scored in the first only"] = len(first.keys() - second.keys())
    left_out["scored in the second only"] = len(second.keys() - first.keys())
    pairs = []
    for key in sorted(first.keys() & second.keys()):
        i, j = first[key], second[key]
        if not _same_tokens(a, i, b, j):
            left_out["with another answer, entity or other tokens"] += 1
        elif measured_a[i] and measured_b[j]:
            pairs.append((i, j))
        elif measured_a[i] or measured_b[j]:
            left_out[f"not measurable in the {'second' if measured_a[i] else 'first'}"] += 1
        else:
            left_out["not measurable in either"] += 1
    return pairs, {reason: count for reason, count in left_out.items() if count}


def _keys(audit: AuditScores) -> Iterator[_Key]:
    """Id and question, and how many of the same came before."""
    seen: Counter[tuple[str, str]] = Counter()
    for example in audit.examples:
        seen[example.id, example.question] += 1
        yield (example.id, example.question, seen[example.id, example.question])


def _same_tokens(a: AuditScores, i: int, b: AuditScores, j: int) -> bool:
    """Texts and number of tokens agree; where the token ids of the sets do not, so does what full says of them."""
    one, other = a.examples[i], b.examples[j]
    if (one.answer, one.prefix, one.entity) != (other.answer, other.prefix, other.entity):
        return False
    if int(a.n_tokens[i]) != int(b.n_tokens[j]):
        return False
    if a.provenance.get("ids_hash") == b.provenance.get("ids_hash") is not None:
        return True
    near = _SAME_SCORE[a.config.dtype]
    return abs(float(a.s_full[i]) - float(b.s_full[j])) <= near


def _subject(one: str | None, other: str | None) -> str | None:
    """The subject of both; where they disagree, the two together."""
    known = sorted({name for name in (one, other) if name is not None})
    return "\n".join(known) if known else None


def _reason(n: int, n_subjects: int) -> str | None:
    if n_subjects > 1:
        return None
    if n == 0:
        return "no example was measured in both"
    told = "one example was" if n == 1 else f"{n} examples of one subject were"
    return f"only {told} measured in both: no interval and no p-value"


def _check(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ConfigError(Setting("confidence"), f" must lie between 0 and 1; got {confidence!r}.")
