"""Paired differences on the same questions: their mean, its interval over subjects, its p-value, adjusted p-values.

Facts about one subject are not independent, so everything is drawn by subject.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, count
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int

from uds_lens.data._examples import listed, short
from uds_lens.errors import ConfigError, Setting
from uds_lens.results._intervals import ROUNDING, bootstrap_interval
from uds_lens.results._records import references_among
from uds_lens.results._statistics import NO_INTERVAL, Interval, holm

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.results._depth_audit import Audit, AuditScores


_ALL_PATTERNS = 13
"""Groups up to which all sign patterns are tried."""


class Contrast(NamedTuple):
    """A mean over questions with what is known of it."""

    value: float
    """Mean; NaN where no question has a value."""

    interval: Interval
    """By subjects; NaN with fewer than two, and for equal differences without bounds."""

    p: float
    """Two-sided, against 0; NaN with fewer than two subjects."""

    n: int
    """Questions."""

    n_subjects: int
    """Subjects they are about; questions without one count as their own."""


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
    """Mean of paired differences, with an interval over subjects and a test that flips subjects' signs.

    The interval is that of `uds_lens.results.bootstrap_interval`; the p-value is the share of sign patterns over
    subjects whose studentised mean is as large, which is exact where differences are symmetric around 0. All
    `2 ** n_subjects` patterns are tried with 13 subjects or fewer, `n_flips` random ones with more. `smallest_p` is the
    smallest p-value that can come out.

    Args:
        differences: Per question; NaN is left out.
        groups: Subject of each question, as numbers.
        confidence: Coverage of the interval.
        n_resamples: Of the bootstrap behind the interval.
        n_flips: Random sign patterns; None takes `n_resamples`.
        seed: Of what is drawn.
        bounds: Smallest and largest possible difference. Where all differences are equal, the interval allows for
            subjects that differ otherwise and were missed; without bounds it is NaN there.

    Returns:
        The mean and what is known of it. Where all but a few subjects have the same difference, the interval is too
        narrow, as a bootstrap knows only the subjects it is given; the p-value holds there too.

    Raises:
        ConfigError: `confidence` is outside 0 and 1.

    Example:
        >>> found = contrast(np.linspace(0.1, 0.3, 12), np.arange(12) // 2)
        >>> round(found.value, 3), found.n, found.n_subjects, found.interval.low > 0
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
    error = _error(sums, counts, mean)
    interval = bootstrap_interval(
        torch.from_numpy(differences),
        clusters=groups.tolist(),
        confidence=confidence,
        n_resamples=n_resamples,
        seed=seed,
        bounds=bounds if np.ptp(differences) < ROUNDING else None,
    )
    if error <= 1e-12 * max(1.0, abs(mean)):  # subjects are all alike: no sign pattern is less extreme
        p = 1.0 if abs(mean) <= 1e-12 else smallest_p(m, n_flips)
        return Contrast(mean, interval, p, n, m)
    random = np.random.default_rng(seed)
    return Contrast(mean, interval, _flipped(sums, counts, n_flips, random), n, m)


def smallest_p(n_subjects: int, n_flips: int = 9999) -> float:
    """Return the smallest p-value that flipping the signs of some subjects can give.

    No pattern but the observed one and its opposite is then as extreme: 2 of `2 ** n_subjects`, where all are tried (13
    subjects or fewer), and 1 of `n_flips + 1` where they are drawn. NaN with fewer than two subjects.

    >>> smallest_p(6), smallest_p(20)
    (0.03125, 0.0001)
    """
    if n_subjects < 2:
        return math.nan
    return 2.0 ** (1 - n_subjects) if n_subjects <= _ALL_PATTERNS else 1 / (1 + n_flips)


def subject_groups(subjects: Sequence[str | None]) -> Int[np.ndarray, "question"]:
    """Subjects as numbers; a question without one is a group of its own.

    >>> subject_groups(["Ada", None, "Ada", None]).tolist()
    [0, 1, 0, 2]
    """
    seen: dict[object, int] = {}
    keys = [place if name is None else name for place, name in enumerate(subjects)]
    return np.array([seen.setdefault(key, len(seen)) for key in keys], dtype=np.int64)


def by_group(values: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sum and number of the values of each group."""
    _, place = np.unique(groups, return_inverse=True)
    return np.bincount(place, weights=values), np.bincount(place).astype(float)


def _error(sums: np.ndarray, counts: np.ndarray, mean: float | np.ndarray) -> float | np.ndarray:
    """Cluster-robust standard error of the mean (CR1), over the last axis."""
    m = sums.shape[-1]
    left = sums - np.asarray(mean)[..., None] * counts
    return np.sqrt((left**2).sum(-1) * m / (m - 1)) / counts.sum(-1)


def _flipped(sums: np.ndarray, counts: np.ndarray, draws: int, random: np.random.Generator) -> float:
    """Share of sign patterns over groups whose studentised mean is as far from 0: all patterns of few groups."""
    m, n = len(sums), counts.sum()
    mean = float(sums.sum() / n)
    seen = abs(mean) / float(_error(sums, counts, mean))
    if m <= _ALL_PATTERNS:
        flipped = (1.0 - 2.0 * ((np.arange(1 << m)[:, None] >> np.arange(m)) & 1)) * sums
        means = flipped.sum(-1) / n
        errors = np.asarray(_error(flipped, np.broadcast_to(counts, flipped.shape), means))
        return float((_far(means, errors) >= seen * (1 - 1e-12)).mean())
    signs = random.choice([-1.0, 1.0], (draws, m))
    means = signs @ sums / n
    squares = (sums**2).sum() - 2 * means * (signs @ (sums * counts)) + means**2 * (counts**2).sum()
    errors = np.sqrt(np.maximum(squares, 0.0) * m / (m - 1)) / n  # as in `_error`, the square written out
    return float((1 + (_far(means, errors) >= seen * (1 - 1e-9)).sum()) / (1 + draws))


def _far(means: np.ndarray, errors: np.ndarray) -> np.ndarray:
    return np.asarray(np.abs(means) / np.maximum(errors, np.finfo(float).tiny))


# Several audits together: what makes them comparable, one table of several models, patch sites side by
# side.

STAGE_1_SETTINGS = (
    "site",
    "scope",
    "last_layer",
    "protocol",
    "system_prompt",
    "chat_date",
    "dtype",
    "exact_noop",
)
"""Settings that stage 1 depends on; tau is applied afterwards."""

SCORE_SETTINGS = (
    *("site", "scope", "last_layer", "protocol", "system_prompt", "chat_date", "dtype", "tau", "stand_in"),
)
"""Settings that decide what a score means: where one of them differs, scores are not comparable."""

_COMPARABLE_COLUMNS = (
    "uds",
    "uds_low",
    "uds_high",
    "n_measured",
    "n_not_measurable",
    "n_skipped",
    "over_erased_share",
    "negative_share",
    "reading",
    "n_warnings",
)


def models_frame(audits: Mapping[str, AuditScores]) -> pd.DataFrame:
    """One row per audit, in their order.

    Args:
        audits: Name to audit.

    Returns:
        `model`, `uds`, `uds_low`, `uds_high`, `n_measured`, `n_not_measurable`, `n_skipped`, `over_erased_share`,
        `negative_share`, `reading` (the score in words; "withheld" where a warning is fatal), `n_warnings`; NaN where
        undefined.

    Example:
        >>> models_frame({}).columns[0]
        'model'
    """
    import pandas as pd

    rows = []
    for name, audit in audits.items():
        summary = audit.summary()
        rows.append({"model": name, **{column: summary[column] for column in _COMPARABLE_COLUMNS}})
    return pd.DataFrame(rows, columns=["model", *_COMPARABLE_COLUMNS])


def differing_settings(audits: Iterable[AuditScores]) -> list[str]:
    """Names of the settings in which the scores of audits are not comparable; empty where they are.

    >>> differing_settings([])
    []
    """
    configs = [audit.config for audit in audits]
    return [name for name in SCORE_SETTINGS if len({getattr(config, name) for config in configs}) > 1]


def score_settings(audit: AuditScores) -> tuple[object, ...]:
    """The values of `SCORE_SETTINGS`."""
    return tuple(getattr(audit.config, name) for name in SCORE_SETTINGS)


def why_not_comparable(one: AuditScores, other: AuditScores) -> str | None:
    """Why a difference of two scores would mean nothing; None where it means something.

    The settings that decide what a score means must be the same, and `full` and `retain`, which define 0 and 1. Another
    `retain` alone, with the same unlearned model, is a comparison of retain models.
    """
    if differing := differing_settings([one, other]):
        values = [
            f"{name} ({short(getattr(one.config, name), 40)} and {short(getattr(other.config, name), 40)})"
            for name in differing
        ]
        told = listed(values, 300)
        return f"they differ in {told}"
    differing = [role for role in one.models if weights_of(one, role) != weights_of(other, role)]
    if "full" in differing:
        return "they use different full models, so 0 and 1 mean something else in each"
    if {"retain", "unlearned"} <= set(differing):
        return "they use different retain models and different unlearned models, which one difference cannot tell apart"
    return None


def weights_of(audit: AuditScores, role: str) -> tuple[str, ...]:
    """Fingerprints of the models in a role; several retain models in any order are the same ones."""
    if role == "retain" and audit.retains:
        return tuple(sorted(retain.model.fingerprint for retain in audit.retains))
    return (audit.models[role].fingerprint,)


def site_groups(audits: Iterable[Audit]) -> list[dict[str, Audit]]:
    """Audits whose stage 1 differs in the patch site only: same `full`, `retain`, tokens, scope, protocol and dtype.

    Args:
        audits: Any audits.

    Returns:
        One mapping of site to audit for each group with two sites or more. Audits of several unlearned models at one
        site share stage 1; the first stands for them.

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


# Short names for audits that stand side by side: the unlearned model, and more only where that is not
# enough.

_VAGUE = re.compile(
    r"(checkpoint|ckpt|step|epoch)?[-_]?\d*|final|last|best|model|weights|output", re.IGNORECASE
)


def audit_names(
    audits: Sequence[AuditScores], *, places: Sequence[str | os.PathLike[str]] | None = None
) -> list[str]:
    """Names that tell audits apart, in their order.

    The last part of the unlearned model's path or Hub id, with the part before it where it says little (`final`,
    `checkpoint-500`). Where two audits share that name: more of the path; else the settings that differ; else where
    the audits were saved; else a number.

    Args:
        audits: Any number of them.
        places: Directories they were saved in.

    Returns:
        One name per audit, all different.
    """
    names = [_ending(audit, 1) for audit in audits]
    for group in _alike(names):
        members = [audits[i] for i in group]
        saved = None if places is None else [str(places[i]) for i in group]
        for i, name in zip(group, _apart(members, saved), strict=True):
            names[i] = name
    for group in list(_alike(names)):
        for i in group[1:]:
            numbered = (f"{names[i]} ({number})" for number in count(2))
            names[i] = next(name for name in numbered if name not in names)
    return names


def _apart(audits: Sequence[AuditScores], places: Sequence[str] | None) -> list[str]:
    """The first of the ways of naming that tell most of a group apart."""
    longest = max(len(_parts(audit.models["unlearned"].name)) for audit in audits)
    ways = [[_ending(audit, depth) for audit in audits] for depth in range(1, longest + 1)]
    ways.append([_with_settings(audit, audits) for audit in audits])
    if places is not None:
        parts = [PurePath(place).parts for place in places]
        ways += [["/".join(path[-depth:]) for path in parts] for depth in range(1, max(map(len, parts)) + 1)]
    return max(ways, key=lambda names: len(set(names)))


def _ending(audit: AuditScores, depth: int) -> str:
    parts = _parts(audit.models["unlearned"].name)
    if depth == 1 and len(parts) > 1 and _VAGUE.fullmatch(parts[-1]):
        depth = 2
    return "/".join(parts[-depth:]) or "unlearned"


def _parts(name: str) -> tuple[str, ...]:
    path = PurePath(name)
    return path.relative_to(path.anchor).parts


def _with_settings(audit: AuditScores, others: Sequence[AuditScores]) -> str:
    differing = differing_settings(others)
    values = [f"tau {audit.config.tau:g}" if s == "tau" else str(getattr(audit.config, s)) for s in differing]
    return ", ".join([_ending(audit, 1), *values])


def _alike(names: Sequence[str]) -> Iterator[list[int]]:
    """Places of names that occur more than once."""
    for name in dict.fromkeys(names):
        places = [i for i, other in enumerate(names) if other == name]
        if len(places) > 1:
            yield places


# Is one model erased deeper than another? Audits compared on the examples that both measured.

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
