from pathlib import Path

import pytest
from synthetic_audits import synthetic_audit

from uds_lens.audit import AuditConfig, DepthAudit
from uds_lens.report import write_report

NASTY = (
    "<script>document.title = 'run'</script>",
    "</script><script>document.title = 'run'</script>",
    'Who said "it\'s" & <b>when</b>?',
    "line\u2028separator \\u003c <!-- <script> ${1} $x$ {{ 7 * 7 }} %{y}",
    "<img src=x onerror=\"document.title = 'run'\">",
)
"""Questions that would run, close or fill something in if any step forgot to escape."""


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
    return write_report(audit, tmp_path_factory.mktemp("report") / "one.html")


@pytest.fixture(scope="session")
def several(audits: dict[str, DepthAudit], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report about three audits."""
    return write_report(audits, tmp_path_factory.mktemp("report") / "several.html")


@pytest.fixture(scope="session")
def largest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 examples x 32 layers x 20 models."""
    config = AuditConfig(n_bootstrap=100)
    many = {
        f"m{i}": synthetic_audit(n=400, layers=32, seed=i, erased=i / 20, config=config) for i in range(20)
    }
    return write_report(many, tmp_path_factory.mktemp("report") / "largest.html")
