"""Audits made by hand: four examples, two layers, a score known in advance; and the program as a function."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from synthetic_audits import synthetic_audit

from uds_lens._cli import main
from uds_lens.results import AuditConfig, DepthAudit


def audit_words(sweep: Path, *unlearned: str) -> list[object]:
    """The command that audits models of the `sweep`, without its place."""
    words: list[object] = ["audit", "--full", sweep / "full", "--retain", sweep / "retain"]
    for model in unlearned:
        words += ["--model", sweep / model]
    return [*words, "--examples", sweep / "forget.json", "--device", "cpu", "--engine", "wavefront"]


_TIMED = re.compile(r"\[\d[\d:]*\] ")
"""How a line starts that says what is being done."""


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def _quick(trusted, words_only):
    return


@pytest.fixture
def uds_lens(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """`uds_lens("demo", "--json")` runs the program in this process; `uds_lens.doing` is what it said of its work."""

    def run(*words: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        lines = err.splitlines(keepends=True)
        run.doing = [line.partition("] ")[2].rstrip() for line in lines if _TIMED.match(line)]
        err = "".join(line for line in lines if not _TIMED.match(line))
        return Outcome(int(exit_info.value.code or 0), out, err)

    return run


@pytest.fixture
def make_audit() -> Callable[[float], DepthAudit]:
    """`make_audit(uds)`: three measurable examples that all score `uds`, one without a KE layer."""

    def make(uds: float) -> DepthAudit:
        s1 = torch.tensor([[1.0, 2.0]] * 3 + [[0.0, 0.0]], dtype=torch.float64)
        audit = synthetic_audit(n=4, layers=2, skipped=0, name="unlearned", config=AuditConfig())
        return replace(audit, s1_delta=s1, s2_delta=s1 * uds)

    return make
