"""Reports full of hostile texts, drawn in Chromium."""

import random
from pathlib import Path
from typing import NamedTuple

from hostile_reports import hostile_audit, text
from report.chromium import Chromium
from report.test_browser import DRAWN, QUESTIONS

from uds_lens.report import write
from uds_lens.results import DepthAudit


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
