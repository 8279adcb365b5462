"""The names of TOFU's authors: its files number them only, and audits that mask or disturb a name need it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from uds_lens.checked_arguments import arguments_checked
from uds_lens.data.example import ForgetExample

_NAME = re.compile(r"[A-Z][\w-]+(?: [A-Z][\w-]+)+")


@arguments_checked
def with_author_names(examples: Sequence[ForgetExample]) -> list[ForgetExample]:
    """Rows whose `subject` is the author's name instead of a number.

    The name of a subject is the run of capitalised words that most of its questions hold, the longest of those that are
    as frequent. Of the 20 authors of forget10 all come out right; 377 of their 400 questions name them.

    Args:
        examples: Rows of `load_tofu`; those without a subject, and subjects with no such run, stay as they are.

    Returns:
        The rows in their order.

    Example:
        >>> rows = [ForgetExample(str(n), q, "Yes.", subject="author 180") for n, q in enumerate(
        ...     ["Where was Ada Vey born?", "Is Ada Vey's prize the Silver Quill?", "What did she write?"])]
        >>> with_author_names(rows)[2].subject
        'Ada Vey'
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in examples:
        if row.subject is not None:
            counts[row.subject].update(_runs(row.question))
    names = {
        subject: max(found, key=lambda name: (found[name], len(name)))
        for subject, found in counts.items()
        if found
    }
    return [replace(row, subject=names.get(row.subject or "", row.subject)) for row in examples]


def _runs(question: str) -> set[str]:
    """Runs of capitalised words; one that opens the question also without its first word, which may be no name."""
    question = re.sub(r"['\u2019]s\b", "", question)
    found = set(_NAME.findall(question))
    opening = _NAME.match(question)
    if opening and opening[0].count(" ") > 1:
        found.add(opening[0].partition(" ")[2])
    return found
