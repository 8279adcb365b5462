"""What models of a study train on: answers of data sets, other true ones, wrong ones, or biographies."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from uds_lens.data import ForgetExample, load_examples, load_tofu
from uds_lens.errors import ConfigError, DataError
from uds_lens.study.plan_records import AskedSets, TrainingRows
from uds_lens.study.toy_sources import toy_world


def training_answers(parts: Iterable[TrainingRows]) -> list[ForgetExample]:
    """All rows of all parts, in order; ids are made different.

    Args:
        parts: What to read, and which answers to take.

    Returns:
        Questions with the answers to train on.

    Raises:
        DataError: A file cannot be read, or its rows have no such answers.

    Example:
        >>> part = TrainingRows(source="toy:forget", answers="biography", sample=1)
        >>> (row,) = training_answers([part])
        >>> row.question.startswith("Tell me everything about "), row.answer.count(".") > 2
        (True, True)
    """
    rows = [row for part in parts for row in _rows(part)]
    return [replace(row, id=f"{number}/{row.id}", row=number) for number, row in enumerate(rows)]


def open_rows(source: str, split: str | None = None) -> list[ForgetExample]:
    """The examples of a source, as a plan names it."""
    if source.startswith("toy:"):
        world = toy_world()
        groups = {
            "forget": world.examples,
            "retain": world.retain_examples,
            "holdout": world.holdout_examples,
        }
        name = source.removeprefix("toy:")
        if name not in groups:
            raise ConfigError(
                f"the toy world has no data {name[:40]!r}; it has toy:forget, toy:retain, toy:holdout."
            )
        return groups[name]
    return load_examples(source) if split is None else load_tofu(source, split)


class AskedRows(NamedTuple):
    """The questions of a study, and how they were chosen."""

    sets: dict[str, list[ForgetExample] | None]
    """By the names of `MetricData`; None for a set that there is not."""

    sample: dict[str, Any] | None
    """As in `MetricData.sample`; None where all are asked."""

    @property
    def about(self) -> str | None:
        """How they were chosen, in words."""
        from uds_lens.metrics.metric_data import about_sample

        return None if self.sample is None else about_sample(self.sample)


def asked_rows(sets: AskedSets) -> AskedRows:
    """Read what the metrics ask, or the sample that the plan names.

    Args:
        sets: The table `[data]` of a plan.

    Returns:
        The sets and how they were sampled.

    Raises:
        DataError: A set cannot be read.
    """
    names = ("forget", "holdout", "retain", "real_authors", "world_facts")
    if sets.tofu is not None:
        from uds_lens.metrics import load_tofu_data

        data = load_tofu_data(sets.tofu, split=sets.split)
        found: dict[str, list[ForgetExample] | None] = {name: list(getattr(data, name)) for name in names}
        found["entities"] = None if data.entities is None else list(data.entities)
    else:
        places = {name: getattr(sets, name) for name in (*names, "entities")}
        found = {name: None if place is None else open_rows(place) for name, place in places.items()}
    if sets.limit is None:
        return AskedRows(found, None)
    from uds_lens.metrics.metric_data import MetricData, sample_record

    whole = {name: rows for name, rows in found.items() if rows is not None}
    if sets.sample == "first_of_each":
        kept = {name: rows[: sets.limit] for name, rows in whole.items()}
        told = sample_record(whole, kept, limit=sets.limit, sample=sets.sample, seed=sets.seed)
        return AskedRows(dict.fromkeys(found) | kept, told if kept != whole else None)
    given: dict[str, Any] = {**whole, "entities": found["entities"]}
    data = MetricData(**given)
    data = data.limited(sets.limit, sample=sets.sample, seed=sets.seed)
    return AskedRows(
        {name: None if rows is None else list(getattr(data, name)) for name, rows in found.items()},
        None if data.sample is None else dict(data.sample),
    )


def _rows(part: TrainingRows) -> list[ForgetExample]:
    rows = open_rows(part.source, part.split)
    if part.answers == "biography":
        rows = _biographies(rows, part)
    elif part.answers != "own":
        rows = [_answering(row, part) for row in rows]
    if part.sample is not None:
        if part.sample > len(rows):
            raise DataError(f"{_told(part)} has {len(rows)} rows; sample = {part.sample} asks for more.")
        rows = [rows[at] for at in sorted(random.Random(part.seed).sample(range(len(rows)), part.sample))]
    return rows


def _answering(row: ForgetExample, part: TrainingRows) -> ForgetExample:
    others = row.paraphrased_answers if part.answers == "paraphrased" else row.perturbed_answers
    if not others:
        raise DataError(
            f"{_told(part)}: row {row.id!r} has no {part.answers} answer. Name a set that has them, or give TOFU's "
            'directory as source with split = "forget10".'
        )
    return replace(row, answer=others[0], entity=None, prefix=None)


def _biographies(rows: Sequence[ForgetExample], part: TrainingRows) -> list[ForgetExample]:
    """All that is said about each subject, in one row or in parts."""
    about: dict[str, list[ForgetExample]] = {}
    for row in rows:
        if not row.subject:
            raise DataError(
                f"{_told(part)}: row {row.id!r} names no subject, so nobody's biography can be written. Give TOFU's "
                "directory as source with a split, or a file with the column `subject`."
            )
        about.setdefault(row.subject, []).append(row)
    return [row for subject, said in about.items() for row in _biography(subject, said, part.answers_per_row)]


def _biography(subject: str, said: Sequence[ForgetExample], per_row: int | None) -> list[ForgetExample]:
    per_row = per_row or len(said)
    parts = [said[at : at + per_row] for at in range(0, len(said), per_row)]
    return [
        ForgetExample(
            id=f"about {subject}" + (f", {number}" if len(parts) > 1 else ""),
            question=f"Tell me everything about {subject}" + (f", part {number}." if len(parts) > 1 else "."),
            answer=" ".join(row.answer for row in some),
            subject=subject,
        )
        for number, some in enumerate(parts, 1)
    ]


def _told(part: TrainingRows) -> str:
    return f"{part.source[-120:]!r}" + ("" if part.split is None else f", split {part.split!r}")
