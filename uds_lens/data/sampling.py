"""A part of the examples that stands for the whole: a random sample, spread over the subjects."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from uds_lens.checked_arguments import arguments_checked_but
from uds_lens.data.columns import with_rows_read
from uds_lens.data.example import ForgetExample
from uds_lens.data.quoting import short
from uds_lens.errors import ConfigError, Setting
from uds_lens.types import Sampling, check_choice


@arguments_checked_but("limit")
def sample_examples(
    examples: Iterable[ForgetExample | Mapping[str, Any]],
    limit: int,
    *,
    seed: int = 0,
    sample: Sampling = "random",
) -> list[ForgetExample]:
    """Keep `limit` examples.

    Subjects, and the examples of each, are shuffled and laid in one line; every (N / limit)-th is taken, from a random
    start. So each example has the same chance limit / N, and a subject with a share s of the examples gets s limit of
    the sample, rounded up or down. Without subjects it is a simple random sample.

    Args:
        examples: All of them, or rows.
        limit: How many to keep; all, where there are no more.
        seed: The same seed takes the same examples.
        sample: "random", or "first" for the first ones, which in a sorted file stand for themselves only.

    Returns:
        The sample, in the order of `examples`.

    Raises:
        ConfigError: `limit` is not a whole number of at least 1, or `sample` no such word.
        DataError: A row cannot be read.

    Example:
        >>> rows = [ForgetExample(str(i), "Who?", "Ada.", subject=f"author {i // 20}") for i in range(100)]
        >>> kept = sample_examples(rows, 10)
        >>> [sum(e.subject == f"author {a}" for e in kept) for a in range(5)]
        [2, 2, 2, 2, 2]
    """
    check_limit(limit)
    if limit is None:
        raise ConfigError(Setting("limit"), " must be a whole number of at least 1; got None.")
    check_choice("sample", sample, Sampling)
    examples = with_rows_read(examples)
    if limit >= len(examples):
        return examples
    if sample == "first":
        return examples[:limit]
    chance = random.Random(f"uds_lens sample {seed}")
    line = _shuffled_by_subject(examples, chance)
    step = len(line) / limit
    start = chance.random() * step
    taken = {line[min(int(start + number * step), len(line) - 1)] for number in range(limit)}
    return [example for index, example in enumerate(examples) if index in taken]


def check_limit(limit: object) -> None:
    """Raise `ConfigError` unless `limit` is None or a whole number of at least 1."""
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise ConfigError(
            Setting("limit"),
            f" must be a whole number of at least 1, or None for all examples; got {short(limit)}.",
        )


def _shuffled_by_subject(examples: Sequence[ForgetExample], chance: random.Random) -> list[int]:
    """Indices of the examples, those of one subject next to each other; subjects and their examples in random order."""
    by_subject: dict[str | None, list[int]] = defaultdict(list)
    for index, example in enumerate(examples):
        by_subject[example.subject].append(index)
    strata = list(by_subject.values())
    chance.shuffle(strata)
    for stratum in strata:
        chance.shuffle(stratum)
    return [index for stratum in strata for index in stratum]


HARDLY_MIXED = 0.1
"""Of all places where a row could stand apart from the others of its subject, the share that still counts as sorted."""


def sorted_by(examples: Sequence[ForgetExample]) -> str | None:
    """What examples are sorted by: `subject` or `type`, where those of each stand together (but for a few rows).

    Returns:
        None where the subjects are mixed, `unknown` where nothing tells: no two examples share a subject. (Types may
        be mixed in a file that is sorted by subjects it does not name.)

    Example:
        >>> rows = [ForgetExample(str(i), "Who?", "Ada.", subject=name) for i, name in enumerate("aabb")]
        >>> sorted_by(rows), sorted_by(rows[::2] + rows[1::2])
        ('subject', None)
    """
    told = False
    for name in ("subject", "type"):
        values = [getattr(example, name) for example in examples]
        runs, kinds = len(list(groupby(values))), len(set(values))
        if None in values or kinds in (1, len(values)):
            continue
        if runs - kinds <= (len(values) - kinds) * HARDLY_MIXED:
            return name
        told = told or name == "subject"
    return None if told else "unknown"
