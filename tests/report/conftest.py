from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_audits import synthetic_audit

from uds_lens.metrics import LensComparison
from uds_lens.report import write
from uds_lens.results import AuditConfig, DepthAudit

from .chromium import Chromium

NASTY = (
    "<script>document.title = 'run'</script>",
    "</script><script>document.title = 'run'</script>",
    'Who said "it\'s" & <b>when</b>?',
    "line\u2028separator \\u003c <!-- <script> ${1} $x$ {{ 7 * 7 }} %{y}",
    "<img src=x onerror=\"document.title = 'run'\">",
)
"""Questions that would run, close or fill something in if any step forgot to escape."""


@pytest.fixture(scope="session")
def figures() -> None:
    """For tests that look at figures, or that hunt for something anywhere on a page; those in a browser have them."""


@pytest.fixture(autouse=True)
def _words_only(request: pytest.FixtureRequest) -> None:
    """Pages that a test makes itself have no figures; those of the fixtures have them."""
    if not {"figures", "browser"} & set(request.fixturenames):
        request.getfixturevalue("words_only")


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """One browser for all pages."""
    chromium = Chromium(tmp_path_factory.mktemp("profile"))
    yield chromium
    chromium.close()


@pytest.fixture(scope="session")
def audits() -> dict[str, DepthAudit]:
    """Three models on one set of examples, texts and names hostile."""
    named = {"npo": 0.2, "</script>&<b>rmu": 0.7, "ga": 0.9}
    return {
        name: synthetic_audit(seed=seed, erased=erased, questions=NASTY, name=f"ckpt/{name}")
        for seed, (name, erased) in enumerate(named.items())
    }


@pytest.fixture(scope="session")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report about one audit of 70 examples."""
    audit = synthetic_audit(n=70, questions=NASTY)
    return write(audit, tmp_path_factory.mktemp("report") / "one.html")


@pytest.fixture(scope="session")
def several(audits: dict[str, DepthAudit], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report about three audits."""
    return write(audits, tmp_path_factory.mktemp("report") / "several.html")


@pytest.fixture(scope="session")
def sites() -> list[DepthAudit]:
    """One unlearned model, patched at two sites."""
    audit = synthetic_audit(n=12)
    less = {name: getattr(audit, name) / 4 for name in ("s1_delta", "s2_delta")}
    return [audit, replace(audit, config=replace(audit.config, site="mlp_out"), **less)]


@pytest.fixture(scope="session")
def by_site(sites: list[DepthAudit], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report that compares sites."""
    return write(sites, tmp_path_factory.mktemp("report") / "sites.html")


def compared(audit: DepthAudit, place: int) -> LensComparison:
    """Logit Lens of one example, as it could have been measured."""
    s1, s2 = audit.s1_delta[place], audit.s2_delta[place]
    return LensComparison(example=audit.examples[place], tau=0.05, lens_s1=s1 / 2, lens_s2=s2 / 8, uds_s1=s1, uds_s2=s2)


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 examples x 32 layers x 6 models, with room for Logit Lens of all examples."""
    config = AuditConfig(n_bootstrap=100)
    many = {f"m{i}": synthetic_audit(n=400, layers=32, seed=i, erased=i / 6, config=config) for i in range(6)}
    lens = [compared(audit, 7) for audit in many.values()]
    return write(many, tmp_path_factory.mktemp("report") / "large.html", lens=lens)
