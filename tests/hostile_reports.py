"""Audits full of texts that would run, close or fill something in if any step forgot to escape."""

import random
from dataclasses import replace
from typing import Any

from synthetic_audits import synthetic_audit

from uds_lens.data import SkippedExample
from uds_lens.results import DepthAudit

PIECES = (
    "<script>document.title='run'</script>", "</script>", "<script>", "<!--", "-->", "]]>", "<![CDATA[", "</style>",
    "<img src=x onerror=\"document.title='run'\">", "<svg onload=\"document.title='run'\">", "</title>", "<b>",
    "<a href='javascript:document.title=1'>", "<iframe srcdoc='<script>parent.document.title=1</script>'>", "&#60;",
    "\"", "'", "`", "&", "&amp;", "{{ 7 * 7 }}", "{% raw %}", "${document.title=1}", "%{y}", "$x$", "\\u003c", "\\",
    "\u2028", "\u2029", "\u202e", "\u0000", "\x1b[31m", "\ufeff", "\U0001f389", "\u0627\u0644", "\n", "\t",
    "http://example.com/x.png", "__proto__", "constructor", "x" * 3000,
)  # fmt: skip


def text(rng: random.Random) -> str:
    """A few hostile pieces."""
    return "".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 6)))


def hostile_audit(rng: random.Random, seed: int) -> DepthAudit:
    """An audit in which every text is hostile."""
    audit = synthetic_audit(n=8, layers=3, seed=seed, name=text(rng))
    words = ("question", "answer", "prefix", "entity", "type", "subject")
    examples = [
        replace(example, id=f"{place}{text(rng)}", **{name: text(rng) for name in words})
        for place, example in enumerate(audit.examples)
    ]
    told: dict[str, Any] = {
        **audit.provenance,
        "command": text(rng),
        "first_prompt": text(rng),
        "host": {"x": text(rng)},
    }
    models = {role: replace(record, name=text(rng), architecture=text(rng)) for role, record in audit.models.items()}
    skipped = [SkippedExample(text(rng), 1, text(rng), text(rng))]
    return replace(audit, examples=examples, provenance=told, models=models, skipped=skipped)
