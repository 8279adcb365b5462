"""Compare several audits: comparability, short names, and paired differences with tests.

Facts about one subject are not independent, so the bootstrap resamples whole subjects, and the test flips the signs of
whole subjects.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int

from uds_lens.data._examples import listed, short
from uds_lens.errors import ConfigError
from uds_lens.results._conditions import PROMPT_SETTINGS, SCORE_SETTINGS, conditions_of, differing, marks, weights_of
from uds_lens.results._intervals import (
    AT_ONCE,
    ROUNDING,
    bootstrap_interval,
    check_confidence,
    cluster_codes,
    share_interval,
)
from uds_lens.results._records import endings, numbered, references_among, short_names
from uds_lens.results._statistics import NO_INTERVAL, Interval, holm

if TYPE_CHECKING:
    from uds_lens.results._depth_audit import Audit, DepthAudit


# Which audits are comparable.

STAGE_1_SETTINGS = ("site", "scope", "last_layer", *PROMPT_SETTINGS, "dtype", "attention", "exact_noop")
"""Settings that affect stage 1; tau is applied afterwards."""


def differing_settings(audits: Iterable[DepthAudit]) -> list[str]:
    """Return the settings that make audits incomparable.

    >>> differing_settings([])
    []
    """
    names = differing(("", conditions_of(audit)) for audit in audits)
    return [name for name in SCORE_SETTINGS if name in names]


def score_settings(audit: DepthAudit) -> tuple[object, ...]:
    """Return the values of `SCORE_SETTINGS`."""
    return tuple(getattr(audit.config, name) for name in SCORE_SETTINGS)


def why_not_comparable(one: DepthAudit, other: DepthAudit) -> str | None:
    """Return why the difference between two scores would be meaningless; None if it is meaningful.

    The settings that determine what a score means must be equal, as must `full` and `retain`, which define 0 and 1. If
    the unlearned model is the same and only `retain` differs, the comparison is between retain models.
    """
    names = differing([("", conditions_of(one)), ("", conditions_of(other))])
    values = [
        f"{name} ({short(getattr(one.config, name), 40)} and {short(getattr(other.config, name), 40)})"
        for name in SCORE_SETTINGS
        if name in names
    ]
    if values:
        return f"they differ in {listed(values, 300)}"
    if "full" in names:
        return "they use different full models, so 0 and 1 have different meanings"
    if "retain" in names and weights_of(one, "unlearned") != weights_of(other, "unlearned"):
        return "they differ in both the retain and the unlearned model, whose effects cannot be separated"
    return None


def references_of(audits: Mapping[str, DepthAudit], named: Collection[str]) -> list[str]:
    """Return the names of all references (recognised by their weights or listed) in the order of the audits."""
    unknown = [named] if isinstance(named, str) else [name for name in named if name not in audits]
    if unknown:
        raise ConfigError(
            f"references must be names of audits; expected some of {listed(list(audits), 200)}; got "
            f"{short(unknown[0], 100)}."
        )
    return [name for name in audits if name in {*named, *references_among(audits)}]


def site_groups(audits: Iterable[Audit]) -> list[dict[str, Audit]]:
    """Group audits whose stage 1 differs only in the patch site (same models, tokens, scope, protocol and dtype).

    Args:
        audits: Any audits.

    Returns:
        One mapping from site to audit for each group with two or more sites. Audits of several unlearned models at one
        site share stage 1, so the first audit represents all of them.

    Example:
        >>> site_groups([])
        []
    """
    groups: dict[tuple[object, ...], dict[str, Audit]] = {}
    for audit in audits:
        shared = (
            *(weights_of(audit, role) for role in ("full", "retain")),
            audit.provenance.get("ids_hash"),
            *(getattr(audit.config, name) for name in ("scope", "protocol", "dtype")),
        )
        groups.setdefault(shared, {}).setdefault(audit.config.site, audit)
    return [sites for sites in groups.values() if len(sites) > 1]


_MODEL_COLUMNS = (
    "uds",
    "uds_low",
    "uds_high",
    "output_depth",
    "output_depth_low",
    "output_depth_high",
    "host_depth",
    "hidden",
    "prob_full",
    "prob_unlearned",
    "n_measured",
    "n_not_measurable",
    "n_skipped",
    "over_erased_share",
    "negative_share",
    "reading",
    "n_warnings",
    "prompts",
)


def models_frame(audits: Mapping[str, DepthAudit]) -> pd.DataFrame:
    """Return one row per audit, in the given order.

    Args:
        audits: Name to audit.

    Returns:
        `model`, `uds`, `uds_low`, `uds_high`, `output_depth` with its interval (the depth in unpatched answers, see
        `DepthAudit.output_depth`), `host_depth` and `hidden` (if the audit has a transplant, see `Transplant.beside`),
        `prob_full` and `prob_unlearned` (the entity's probability under the unpatched models, see
        `DepthAudit.entity_prob`), `n_measured`, `n_not_measurable`, `n_skipped`, `over_erased_share`, `negative_share`,
        `reading` (the verdict; "withheld" if a warning is fatal), `n_warnings`, `prompts` ("raw" or "chat
        template"), `marks` (cautions and fatal warnings in a few words each, such as "off-distribution"); NaN where
        undefined. If the audits were not measured in the same way, a final column `conditions` gives the differences as
        JSON.

    Example:
        >>> models_frame({}).columns[0]
        'model'
    """
    rows = []
    for name, audit in audits.items():
        summary = audit.summary()
        words = "; ".join(caution.mark for caution in audit.cautions if caution.level != "note")
        rows.append({"model": name, **{column: summary[column] for column in _MODEL_COLUMNS}, "marks": words})
    frame = pd.DataFrame(rows, columns=["model", *_MODEL_COLUMNS, "marks"])
    conditions = marks([conditions_of(audit) for audit in audits.values()])
    return frame.assign(conditions=conditions) if conditions else frame


# Short names for audits: the unlearned model's name, and more only if names would clash.


def audit_names(audits: Sequence[DepthAudit], *, places: Sequence[str | os.PathLike[str]] | None = None) -> list[str]:
    """Give audits short names that distinguish them.

    Each name is the one that `short_names` gives to the unlearned model. Audits of one model also get the settings that
    differ, the directories of the saved audits, or a number.

    Args:
        audits: Any number of audits.
        places: Directories in which the audits were saved.

    Returns:
        One unique name per audit.
    """
    names = short_names([audit.models["unlearned"].name for audit in audits])
    alike: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        alike.setdefault(name, []).append(i)
    for name, group in alike.items():
        if len(group) > 1:
            ways = [_with_settings(name, [audits[i] for i in group])]
            if places is not None:
                ways.append(endings([PurePath(places[i]).parts for i in group], [1] * len(group)))
            best = max(ways, key=lambda way: len(set(way)))
            for i, new in zip(group, best, strict=True):
                names[i] = new
    return numbered(names)


def _with_settings(name: str, audits: Sequence[DepthAudit]) -> list[str]:
    """Append to each audit's name, which several audits share, the settings in which these audits differ."""
    differing, named = differing_settings(audits), []
    for config in (audit.config for audit in audits):
        values = [f"tau {config.tau:g}" if key == "tau" else str(getattr(config, key)) for key in differing]
        named.append(", ".join([name, *values]))
    return named


# The mean of paired differences, with an interval over subjects and a sign-flip test.

_ALL_PATTERNS = 13  # maximum number of subjects for which all sign patterns are enumerated

_ALIKE_WITHIN = 0.02
"""Subjects' differences (at most 1) count as alike if their spread is below this, whatever their mean. This catches
cases with one different subject in 50 that a criterion relative to the mean misses (`benchmarks/sign_flips.py`)."""

_ALIKE = (
    "All but a few subjects have nearly the same difference. With so few subjects, a kind of subject missing from the "
    "data may be common enough to reverse the sign, so the interval may be too narrow and p too small."
)


class Contrast(NamedTuple):
    """The mean of paired differences, with its interval and p-value."""

    value: float
    """The mean; NaN if no question has a value."""

    interval: Interval
    """Interval over subjects; NaN with fewer than two subjects, and for equal differences if there are no `bounds`."""

    p: float
    """Two-sided p-value against 0; NaN with fewer than two subjects."""

    n: int
    """Number of questions."""

    n_subjects: int
    """Number of subjects; a question without a subject counts as a subject of its own."""

    caution: str | None = None
    """Why the interval may be too narrow and p too small: all but a few subjects have nearly the same difference."""


def contrast(
    differences: Float[np.ndarray, "question"],
    groups: Int[np.ndarray, "question"],
    *,
    confidence: float = 0.95,
    n_resamples: int = 9999,
    n_flips: int | None = None,
    seed: int = 0,
    bounds: tuple[float, float] | None = None,
) -> Contrast:
    """Average paired differences, with an interval over subjects and a sign-flip test over subjects.

    The interval is that of `uds_lens.results.bootstrap_interval`; the p-value is the share of sign patterns over
    subjects whose studentised mean is at least as large in absolute value, which is exact if differences are symmetric
    around 0. With up to 13 subjects, all `2 ** n_subjects` patterns are used; with more, `n_flips` random patterns.

    Args:
        differences: One difference per question; NaN values are left out.
        groups: Subject of each question, as a number.
        confidence: Coverage of the interval.
        n_resamples: Number of bootstrap resamples for the interval.
        n_flips: Number of random sign patterns; None means `n_resamples`.
        seed: Seed of the interval and of the random patterns.
        bounds: Smallest and largest possible difference. If all differences are equal, the interval allows for missed
            subjects that differ, or is NaN without bounds. The caution uses the bound farther from 0 (without bounds,
            1) as the largest possible difference in either direction.

    Returns:
        The mean with its interval and p-value. Interval and p-value are based only on the subjects in the data: if all
        but a few of these have nearly the same difference, the interval may be too narrow and p too small
        (`benchmarks/sign_flips.py`), and `caution` says so.

    Raises:
        ConfigError: `confidence` is not between 0 and 1.

    Example:
        >>> mean = contrast(np.linspace(0.1, 0.3, 12), np.arange(12) // 2)
        >>> round(mean.value, 3), mean.n, mean.n_subjects, mean.interval.low > 0
        (0.2, 12, 6, True)
    """
    defined = ~np.isnan(differences)
    differences, groups = differences[defined], groups[defined]
    n = len(differences)
    if not n:
        return Contrast(math.nan, NO_INTERVAL, math.nan, 0, 0)
    sums, counts = by_group(differences, groups)
    mean, m = float(sums.sum() / n), len(sums)
    if m < 2:
        return Contrast(mean, NO_INTERVAL, math.nan, n, m)
    n_flips = n_resamples if n_flips is None else n_flips
    interval = bootstrap_interval(
        torch.from_numpy(differences),
        clusters=groups.tolist(),
        confidence=confidence,
        n_resamples=n_resamples,
        seed=seed,
        bounds=bounds if np.ptp(differences) < ROUNDING else None,
    )
    if _error(sums, counts, mean) > 1e-12 * max(1.0, abs(mean)):
        p = _flipped(sums, counts, n_flips, seed)
    else:  # all subjects are alike, so only the all-positive and all-negative patterns are as extreme
        p = 1.0 if abs(mean) <= 1e-12 else smallest_p(m, n_flips)
    alike = differences.any() and differ_alike(differences / (max(map(abs, bounds)) if bounds else 1.0), groups)
    return Contrast(mean, interval, p, n, m, _ALIKE if alike else None)


def smallest_p(n_subjects: int, n_flips: int = 9999) -> float:
    """Return the smallest p-value possible when flipping the signs of this many subjects.

    At best, only the observed pattern and its opposite are as extreme, which is 2 of `2 ** n_subjects` patterns. If
    patterns are drawn at random (14 subjects or more), p is at least `1 / (n_flips + 1)`. NaN with fewer than two
    subjects.

    >>> smallest_p(6), smallest_p(20)
    (0.03125, 0.0001)
    """
    if n_subjects < 2:
        return math.nan
    exact = 2.0 ** (1 - n_subjects)
    return exact if n_subjects <= _ALL_PATTERNS else max(exact, 1 / (1 + n_flips))


def by_group(values: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum and the number of values in each group."""
    _, place = np.unique(groups, return_inverse=True)
    return np.bincount(place, weights=values), np.bincount(place).astype(float)


def _error(sums: np.ndarray, counts: np.ndarray, mean: float | np.ndarray) -> float | np.ndarray:
    """Return the cluster-robust standard error of the mean (CR1), over the last axis."""
    m = sums.shape[-1]
    left = sums - np.asarray(mean)[..., None] * counts
    return np.sqrt((left**2).sum(-1) * m / (m - 1)) / counts.sum(-1)


def _flipped(sums: np.ndarray, counts: np.ndarray, draws: int, seed: int) -> float:
    """Return the share of sign patterns whose studentised mean is at least as far from 0 as the observed one."""

    def far(means: np.ndarray, errors: np.ndarray) -> np.ndarray:
        return np.abs(means) / np.maximum(errors, np.finfo(float).tiny)

    m, n = len(sums), counts.sum()
    mean = float(sums.sum() / n)
    observed = abs(mean) / float(_error(sums, counts, mean))
    if m <= _ALL_PATTERNS:
        flipped = (1.0 - 2.0 * ((np.arange(1 << m)[:, None] >> np.arange(m)) & 1)) * sums
        means = flipped.sum(-1) / n
        errors = np.asarray(_error(flipped, np.broadcast_to(counts, flipped.shape), means))
        return float((far(means, errors) >= observed * (1 - 1e-12)).mean())
    chance, extreme, step = np.random.default_rng(seed), 0, max(1, AT_ONCE // m)
    for start in range(0, draws, step):
        signs = chance.choice([-1.0, 1.0], (min(step, draws - start), m))
        means = signs @ sums / n
        squares = (sums**2).sum() - 2 * means * (signs @ (sums * counts)) + means**2 * (counts**2).sum()
        errors = np.sqrt(np.maximum(squares, 0.0) * m / (m - 1)) / n  # as in `_error`, with the square expanded
        extreme += int((far(means, errors) >= observed * (1 - 1e-9)).sum())
    return max((1 + extreme) / (1 + draws), smallest_p(m, draws))  # the draws may miss the observed pattern


def differ_alike(differences: Float[np.ndarray, "question"], groups: Int[np.ndarray, "question"]) -> bool:
    """Return whether subjects are so alike that a kind of subject missing from the data could reverse the sign.

    With more than four subjects, the two subjects (or 10%, if that is more) whose mean differences are farthest from
    the median are set aside. The remaining subjects count as alike if the root mean square of their distances from the
    median is at most half the median, a tenth of the largest distance overall, or 0.02.

    Interval and p-value are based only on the subjects in the data. Even if none of these n subjects is of another
    kind, that kind may make up as large a share of all subjects as the upper end of `share_interval`. The result is
    True if the mean would be 0 or reversed with such a share of subjects that differ by 1 in the other direction.
    """
    sums, counts = by_group(differences, groups)
    means, n = sums / counts, len(sums)
    if n < 2:
        return False
    apart = np.sort(np.abs(means - np.median(means)))
    rest = apart[: n - max(2, n // 10)] if n > 4 else apart
    spread = math.sqrt(float((rest**2).mean()))
    if spread > max(abs(float(np.median(means))) / 2, apart[-1] / 10, _ALIKE_WITHIN):
        return False
    missed = share_interval(np.zeros(n), np.ones(n, dtype=np.int64), 0.95)[1]
    return abs(float(sums.sum() / counts.sum())) * (1 - missed) <= missed


# Is one model erased more deeply than another? Audits are compared on the examples that both measured.

_PAIR_COLUMNS = (
    "one",
    "other",
    "uds_one",
    "uds_other",
    "difference",
    "low",
    "high",
    "p",
    "p_holm",
    "p_holm_least",
    "n",
    "n_subjects",
    "n_left_out",
    "left_out",
    "reference",
    "reason",
    "fatal",
    "caution",
)

_FLIPS_PER_PAIR = 400
"""Number of random sign patterns for each pair in a table, which keeps the smallest possible adjusted p below 0.0025
for any number of pairs."""

_SAME_SCORE = {"float32": 0.01, "bfloat16": 0.1, "float16": 0.1}
"""Rounding differences allowed between log-probabilities of the same tokens under the same model, in nats per token."""


class AuditDifference(NamedTuple):
    """UDS of one audit minus UDS of another, over the examples measured in both."""

    difference: float
    """In [-1, 1]; above 0, the first model is erased more deeply. NaN if no example was measured in both audits."""

    interval: Interval
    """Interval over subjects, in [-1, 1]; NaN with fewer than two subjects."""

    p: float
    """Two-sided p-value against 0; NaN with fewer than two subjects. Not adjusted for multiple comparisons."""

    n: int
    """Number of examples measured in both audits."""

    n_subjects: int
    """Number of subjects; an example without a subject counts as a subject of its own."""

    uds_one: float
    """UDS of the first audit on these examples."""

    uds_other: float
    """UDS of the second audit on these examples."""

    left_out: Mapping[str, int]
    """Number of examples left out, by reason."""

    reason: str | None
    """Why the difference, its interval or its p-value is NaN; None if all are defined."""

    fatal: tuple[str, ...] = ()
    """Fatal warnings of either audit. If there are any fatal warnings, the numbers do not show which model is erased
    more deeply."""

    caution: str | None = None
    """Why the interval may be too narrow and p too small: all but a few subjects have nearly the same difference."""


def compare(
    audit_a: DepthAudit, audit_b: DepthAudit, *, confidence: float = 0.95, n_resamples: int = 9999, seed: int = 0
) -> AuditDifference:
    """Test whether one model is erased more deeply than another: paired on the same examples, clustered by subject.

    With d_i = UDS_a(i) - UDS_b(i) over the examples measured in both (same id, question, answer, entity and tokens),
    the difference is the mean of d; interval and p-value are those of `contrast`. With k subjects, p is never below `2
    ** (1 - k)`, so with fewer than six subjects, p cannot be below 0.05. Interval and p-value are based only on the
    subjects in the data; `caution` says whether all but a few of these subjects have nearly the same difference.

    Scores must have the same meaning in both audits: same settings, `full` and `retain`. A different `retain` is
    allowed if `full` and the unlearned model are the same; the difference is then the effect of the choice of retain.

    Args:
        audit_a: The first.
        audit_b: The audit whose scores are subtracted.
        confidence: Coverage of the interval.
        n_resamples: Number of bootstrap resamples for the interval, and of random sign patterns.
        seed: Seed of the interval and of the random patterns.

    Returns:
        Difference, interval, p-value, counts, and the examples left out.

    Raises:
        ConfigError: The audits are not comparable, or `confidence` is not between 0 and 1.

    Example:
        >>> import uds_lens as ul
        >>> world = ul.toy.load()
        >>> audit = ul.DepthAudit.run(world.full, world.retain, world.retain, world.examples[::5])
        >>> same = ul.results.compare(audit, audit)
        >>> same.difference, same.interval, same.p
        (0.0, Interval(low=0.0, high=0.0), 1.0)
    """
    check_confidence(confidence)
    if obstacle := why_not_comparable(audit_a, audit_b):
        raise ConfigError(f"these audits are not comparable: {obstacle}.")
    return _compared(audit_a, audit_b, confidence=confidence, n_resamples=n_resamples, seed=seed)


def compare_all(
    audits: Mapping[str, DepthAudit] | Sequence[DepthAudit],
    *,
    references: Collection[str] = (),
    confidence: float = 0.95,
    n_resamples: int = 9999,
    seed: int = 0,
) -> pd.DataFrame:
    """Compare every pair of audits with `compare`, and adjust the p-values in the table by Holm's method.

    Pairs with a reference model are not tested: their rows have no `p_holm`.

    Args:
        audits: A mapping from names to audits, or several audits, which are then named after their unlearned models.
        references: Names of audits that serve only as references, in addition to audits of `full` and `retain`, which
            are recognised by their weights.
        confidence: Coverage of the intervals, which are not adjusted.
        n_resamples: Number of bootstrap resamples for the intervals, and of random sign patterns (at least 400 for each
            pair).
        seed: Seed of the intervals and of the random patterns.

    Returns:
        One row per pair: `one`, `other`, `uds_one`, `uds_other` (on the examples measured in both), `difference`,
        `low`, `high`, `p`, `p_holm`, `p_holm_least` (the smallest possible adjusted p with this number of pairs and
        subjects; if it is 0.05 or more, no difference could have been significant at that level), `n`, `n_subjects`,
        `n_left_out`, `left_out` (in words), `reference` (whether either audit is a reference), `reason`, `fatal` (fatal
        warnings of either audit, in words; empty if there are none), `caution` (empty if there is none). A pair that is
        not comparable has NaN and a reason.

    Raises:
        ConfigError: There are fewer than two audits, a name in `references` is not an audit's, or `confidence` is not
            between 0 and 1.

    Example:
        >>> compare_all({})
        Traceback (most recent call last):
            ...
        uds_lens.errors.ConfigError: a comparison needs at least two audits; got 0.
    """
    check_confidence(confidence)
    named = audits if isinstance(audits, Mapping) else dict(zip(audit_names(audits), audits, strict=True))
    if len(named) < 2:
        raise ConfigError(f"a comparison needs at least two audits; got {len(named)}.")
    known = references_of(named, references)
    pairs = list(combinations(named, 2))
    n_flips = max(n_resamples, _FLIPS_PER_PAIR * len(pairs))
    how = {"confidence": confidence, "n_resamples": n_resamples, "n_flips": n_flips, "seed": seed}
    rows = []
    for one, other in pairs:
        row = {"one": one, "other": other, **_row(named[one], named[other], **how)}
        inside = [name for name in known if name in (one, other)]
        row["reference"] = bool(inside)
        if inside and row["reason"] is None:
            which = "are reference models" if len(inside) == 2 else "is a reference model"
            row["reason"] = f"{' and '.join(inside)} {which}, so the difference is not tested"
        rows.append(row)
    family = [math.nan if row["reference"] else row["p"] for row in rows]
    tested = [not math.isnan(p) for p in family]
    least = [smallest_p(row["n_subjects"], n_flips) for row, kept in zip(rows, tested, strict=True) if kept]
    # Holm multiplies the smallest p by the number of tests, and no adjusted p is below this product.
    bound = min(1.0, len(least) * min(least, default=math.nan))
    for row, p, kept in zip(rows, holm(family), tested, strict=True):
        row["p_holm"], row["p_holm_least"] = p, bound if kept else math.nan
    return pd.DataFrame(rows, columns=list(_PAIR_COLUMNS))


def _row(a: DepthAudit, b: DepthAudit, **how: Any) -> dict[str, Any]:
    if obstacle := why_not_comparable(a, b):
        nan, reason = math.nan, f"not comparable: {obstacle}"
        pair = AuditDifference(nan, NO_INTERVAL, nan, 0, 0, nan, nan, {}, reason)
    else:
        pair = _compared(a, b, **how)
    return {
        **pair._asdict(),
        "low": pair.interval.low,
        "high": pair.interval.high,
        "n_left_out": sum(pair.left_out.values()),
        "left_out": "; ".join(f"{n} {reason}" for reason, n in pair.left_out.items()),
        "fatal": " ".join(pair.fatal),
        "caution": pair.caution or "",
    }


def _compared(a: DepthAudit, b: DepthAudit, **how: Any) -> AuditDifference:
    pairs, left_out = _pairs(a, b)
    ones, others = (
        audit.uds_per_example.double().numpy()[[pair[side] for pair in pairs]] for side, audit in enumerate((a, b))
    )
    subjects = [_subject(a.examples[i].subject, b.examples[j].subject) for i, j in pairs]
    mean = contrast(ones - others, cluster_codes(subjects), bounds=(-1.0, 1.0), **how)
    low, high = mean.interval
    if a.models["unlearned"].fingerprint == b.models["unlearned"].fingerprint and not (ones - others).any():
        low = high = mean.value  # same model and same scale, so no subject can differ
    reason = None
    if mean.n == 0:
        reason = "no example was measured in both audits"
    elif mean.n_subjects < 2:
        which = "one example was" if mean.n == 1 else f"{mean.n} examples of one subject were"
        reason = f"only {which} measured in both audits, so there is no interval and no p-value"
    return AuditDifference(
        difference=mean.value,
        interval=Interval(float(np.clip(low, -1, 1)), float(np.clip(high, -1, 1))),
        p=mean.p,
        n=mean.n,
        n_subjects=mean.n_subjects,
        uds_one=float(ones.mean()) if mean.n else math.nan,
        uds_other=float(others.mean()) if mean.n else math.nan,
        left_out=left_out,
        reason=reason,
        fatal=tuple(dict.fromkeys((*a.fatal, *b.fatal))),
        caution=mean.caution,
    )


def _pairs(a: DepthAudit, b: DepthAudit) -> tuple[list[tuple[int, int]], dict[str, int]]:
    """Return the indices of the examples measured in both, in an order that does not depend on which audit is first."""
    first, second = ({key: i for i, key in enumerate(_keys(audit))} for audit in (a, b))
    measured_a, measured_b = ((~audit.uds_per_example.isnan()).tolist() for audit in (a, b))
    left_out: Counter[str] = Counter()
    left_out["scored in the first only"] = len(first.keys() - second.keys())
    left_out["scored in the second only"] = len(second.keys() - first.keys())
    pairs = []
    for key in sorted(first.keys() & second.keys()):
        i, j = first[key], second[key]
        if not _same_tokens(a, i, b, j):
            left_out["with a different answer, entity or tokens"] += 1
        elif measured_a[i] and measured_b[j]:
            pairs.append((i, j))
        elif measured_a[i] or measured_b[j]:
            left_out[f"not measurable in the {'second' if measured_a[i] else 'first'}"] += 1
        else:
            left_out["not measurable in either"] += 1
    return pairs, {reason: n for reason, n in left_out.items() if n}


def _keys(audit: DepthAudit) -> Iterator[tuple[str, str, int]]:
    """Yield each example's id and question, with a number that distinguishes examples that share both."""
    before: Counter[tuple[str, str]] = Counter()
    for example in audit.examples:
        before[example.id, example.question] += 1
        yield (example.id, example.question, before[example.id, example.question])


def _same_tokens(a: DepthAudit, i: int, b: DepthAudit, j: int) -> bool:
    """Compare texts, token counts and, if the token ids of the two sets may differ, scores under `full`."""
    one, other = a.examples[i], b.examples[j]
    if (one.answer, one.prefix, one.entity) != (other.answer, other.prefix, other.entity):
        return False
    if int(a.n_tokens[i]) != int(b.n_tokens[j]):
        return False
    if a.provenance.get("ids_hash") == b.provenance.get("ids_hash") is not None:
        return True
    return abs(float(a.s_full[i]) - float(b.s_full[j])) <= _SAME_SCORE[a.config.dtype]


def _subject(one: str | None, other: str | None) -> str | None:
    """Return the common subject, or both subjects if they differ."""
    subjects = sorted({name for name in (one, other) if name is not None})
    return "\n".join(subjects) if subjects else None
