"""The words of an audit's sentences: those of unlearning, rewritten for an edit or a refusal."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from uds_lens._types import Words

if TYPE_CHECKING:
    from uds_lens.results._depth_audit import DepthAudit

_CHANGE = (  # the longer phrase first
    ("unlearning depth report", "depth report"),
    ("full, the model before unlearning", "the knowing model"),
    ("retain, a model that never saw (?:it|the forget set)", "the ignorant model"),
    ("the entity that should be forgotten", "the entity"),
    ("what it should retain", "what should stay as it was"),
    ("a model that never saw it", "a model that does not hold it"),
    ("facts to retain", "facts that stay as they are"),
    ("retain (?:never saw it|never had it)", "the ignorant model does not know it"),
    ("retain models", "ignorant models"),
    ("a retain model", "an ignorant model"),
    ("retain model", "ignorant model"),
    ("retains", "ignorant models"),
    ("retain's", "the ignorant model's"),
    ("retain", "the ignorant model"),
    ("(?:model )?full's", "the knowing model's"),
    ("(?:model )?full", "the knowing model"),
    ("retained", "other"),
    ("facts that should be retained", "facts that should stay as they are"),
    ("unlearned", "changed"),
    ("layer erasure ratio", "layer ratio"),
    ("nothing to erase", "nothing to lose"),
    ("over-erased", "overshot"),
    ("over-erasure", "overshoot"),
    ("erasure", "loss"),
    ("erased", "lost"),
    ("intact", "kept"),
    ("damage rather than forgetting", "damage rather than the change alone"),
    ("damage, not forgetting", "damage"),
)
_OWN: dict[Words, tuple[tuple[str, str], ...]] = {
    "unlearning": (),
    "edit": (
        ("(?:forgotten|forget) facts", "edited facts"),
        ("forget set", "edited facts"),
        ("forgotten knowledge", "knowledge"),
        *_CHANGE,
        ("(?:did unlearning go|unlearning went)", "does the edit go"),
        ("unlearning", "the edit"),
    ),
    "refusal": (
        ("(?:forgotten|forget) facts", "refusals"),
        ("forget set", "refusals"),
        ("forgotten knowledge", "refusal"),
        ("knowledge-encoding", "refusal-encoding"),
        ("knowledge", "refusal"),
        *_CHANGE,
        ("(?:did unlearning go|unlearning went)", "does the refusal go"),
        ("unlearning", "the change"),
    ),
}
_ROLES = {"full": "knows", "retain": "ignorant", "unlearned": "changed"}


def worded(text: str, words: Words) -> str:
    """Rewrite a sentence of ours; names in quotes, options and files stay.

    >>> worded("Are full and retain swapped? 'full' and --retain stay.", "edit")
    "Are the knowing model and the ignorant model swapped? 'full' and --retain stay."
    >>> worded("43% over-erased", "refusal"), worded("Full is erased", "unlearning")
    ('43% overshot', 'Full is erased')
    """
    return text if words == "unlearning" else _pattern(words).sub(functools.partial(_replaced, words), text)


def patterns(words: Words) -> list[tuple[str, str]]:
    """Return what `worded` replaces, in lower case, for the scripts of a page."""
    return list(_OWN[words])


@functools.cache
def _pattern(words: Words) -> re.Pattern[str]:
    phrases = "|".join(f"(?:{phrase})" for phrase, _ in _OWN[words])
    # behind a quote, a dash or a dot stands a name, and so it does before one
    return re.compile(rf"(?<!\S)'[^']*'|(?<![\w'`/.=-])(?:{phrases})(?![\w`/=-]|\.\w)", re.IGNORECASE)


def _replaced(words: Words, match: re.Match[str]) -> str:
    new = next((new for phrase, new in _OWN[words] if re.fullmatch(phrase, match[0], re.IGNORECASE)), match[0])
    return new[:1].upper() + new[1:] if match[0][0].isupper() else new


def role(name: str, words: Words) -> str:
    """Return the name of a role: "retain" is "ignorant" in an edit; "retain 2" keeps its number.

    >>> role("retain 2", "edit"), role("full", "unlearning")
    ('ignorant 2', 'full')
    """
    first, _, rest = name.partition(" ")
    return name if words == "unlearning" else " ".join(filter(None, (_ROLES.get(first, first), rest)))


def words_of(audits: Iterable[DepthAudit]) -> Words:
    """Return the words that audits share; those of unlearning where they differ."""
    found = {audit.config.words for audit in audits}
    return found.pop() if len(found) == 1 else "unlearning"


def figure_in_words(figure: Any, words: Words, *, labels: bool = True) -> Any:
    """Rewrite the texts of a figure, and return it.

    Args:
        figure: A plotly figure of ours.
        words: The words.
        labels: Also legends, annotations and hover texts, which name models in a figure of several audits.
    """
    if words == "unlearning":
        return figure
    layout = figure.layout
    axes = [layout[name] for name in layout if name.startswith(("xaxis", "yaxis")) and layout[name].title.text]
    for titled in (layout.title, layout.title.subtitle, *(axis.title for axis in axes)):
        titled.text = titled.text and worded(titled.text, words)
    if labels:
        for note in layout.annotations:
            note.text = note.text and worded(note.text, words)
        for trace in figure.data:
            for name in ("name", "hovertemplate"):
                if trace[name]:
                    trace[name] = worded(trace[name], words)
    return figure
