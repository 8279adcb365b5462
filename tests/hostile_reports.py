"""Reports full of texts that would run, close or fill something in if any step forgot to escape; drawn in Chromium."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from report.chromium import Chromium
from report.test_browser import DRAWN, QUESTIONS
from synthetic_audits import synthetic_audit

from uds_lens.data import SkippedExample
from uds_lens.report import write
from uds_lens.results import DepthAudit

PIECES = (
    "<script>document.title='run'</script>", "</script>", "<script>", "<!--", "-->", "]]>", "<![CDATA[", "</style>",
    "<img src=x onerror=\"document.title='run'\">", "<svg onload=\"document.title='run'\">", "</title>", "<b>",
    "<a href='javascript:document.title=1'>", "<iframe srcdoc='<script>parent.document.title=1</script>'>", "&#60;",
    "\"", "'", "`", "&", "&amp;", "{{ 7 * 7 }}", "{% raw %}", "${document.title=1}", "%{y}", "$x$", "\\u003c", "\\",
    "\u2028", "\u2029", "\u202e", "\u0000", "\x1b[31m", "\ufeff", "\U0001f389", "\u0627\u0644", "\n", "\t",
    "http://example.com/x.png", "__proto__", "constructor", "x" * 3000,
)  # fmt: skip


class Told(NamedTuple):
    """What became of the pages."""

    pages: int
    """Pages that were drawn."""
    texts: int
    """Hostile texts in them."""
    problems: list[str]
    """Scripts that ran, requests, errors of the console, texts that are missing."""


def hostile_reports(folder: Path, count: int, rng: random.Random) -> Told:
    """Draw `count` reports, each with other texts."""
    browser, problems, texts = Chromium(folder / "profile"), [], 0
    try:
        for number in range(count):
            audits = {text(rng) or "a": hostile_audit(rng, seed) for seed in range(rng.choice((1, 3)))}
            page = write(audits, folder / "page.html", title=text(rng))
            texts += 60 * len(audits)
            problems += [f"{number}: {problem}" for problem in drawn(browser, page, audits)]
    finally:
        browser.close()
    return Told(count, texts, problems)


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


def drawn(browser: Chromium, page: Path, audits: dict[str, DepthAudit]) -> list[str]:
    """Open a page, draw every figure, open an example; what went wrong."""
    try:
        browser.open(page)
        title = browser.run("document.title")
        browser.run("dispatchEvent(new Event('beforeprint'))")
        browser.wait_for(DRAWN)
        browser.run("dispatchEvent(new Event('afterprint'))")
        browser.run("document.querySelector('#table .open').click()")
        browser.wait_for("document.querySelector('.detail .main-svg')")
        found = list(browser.problems)
        found += [
            f"asked for {url[:100]}"
            for url in browser.requests
            if not url.startswith(("data:", "blob:", "about:", "file:"))
        ]
        if browser.run("document.title") != title or title in ("run", "1"):
            found.append("a script ran")
        shown = {flat(words) for words in browser.run(QUESTIONS)}
        expected = [{flat(example.question) for example in audit.examples} for audit in audits.values()]
        if shown not in expected:
            missing = min((own - shown for own in expected), key=len)
            found.append(f"not shown: {ascii(sorted(missing))[:300]}")
    except (AssertionError, RuntimeError) as error:
        return [f"{type(error).__name__}: {str(error)[:300]}"]
    return found


def flat(words: str) -> str:
    """Text as a browser reads it: no NUL, no space around; the beginning tells texts apart."""
    return words.replace("\x00", "\ufffd").strip()[:500]
