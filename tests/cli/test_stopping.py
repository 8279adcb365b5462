"""Ctrl-C and SIGTERM: one line that says what is saved, nothing left behind, and the exit code of the signal."""

import gc
import os
import signal
import sys
from pathlib import Path

import pytest

import uds_lens as ul
import uds_lens.__main__ as program
from uds_lens.audit import _runner
from uds_lens.results._saving import audits_in

from .conftest import audit_words as words


def test_what_is_saved_is_told(sweep: Path, tmp_path: Path, monkeypatch, uds_lens) -> None:
    measure, asked = ul.Baseline.audit, []

    def audit(self, model, **options):
        asked.append(model)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return measure(self, model, **options)

    monkeypatch.setattr(ul.Baseline, "audit", audit)
    code, out, err = uds_lens(*words(sweep, "unlearned", "full", "retain"), "--out", tmp_path / "out")
    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == "Stopped; 1 of 3 audits saved; run the same command to resume."
    assert [path.name for path in audits_in(tmp_path / "out")] == ["unlearned"]


def test_a_cluster_that_ends_the_job(sweep: Path, tmp_path: Path, monkeypatch, uds_lens) -> None:
    scratch, capture_all = tmp_path / "scratch", _runner.capture_all
    scratch.mkdir()

    def captured(model, batches, **options):
        if any(scratch.iterdir()):  # states have been spilled
            os.kill(os.getpid(), signal.SIGTERM)
        return capture_all(model, batches, **options)

    monkeypatch.setattr(_runner, "capture_all", captured)
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    before = signal.getsignal(signal.SIGTERM)
    asked = [*words(sweep, "unlearned"), "--out", tmp_path / "out", "--memory-gib", 0, "--token-budget", 40]
    code, _, err = uds_lens(*asked)
    assert code == 143
    assert err.splitlines()[-1] == "Stopped; 0 of 1 audits saved; run the same command to resume."
    assert signal.getsignal(signal.SIGTERM) is before
    gc.collect()  # what the traceback held
    assert list(scratch.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["scratch"]


def stop(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("early", ["_cli.app.PlainCommand.parse_args", "_cli.main"])
def test_before_the_command_has_started(early: str, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["uds-lens", "doctor"])
    monkeypatch.setattr(f"uds_lens.{early}", stop)
    with pytest.raises(SystemExit) as exit_info:
        program.main()
    assert exit_info.value.code == 130
    assert capsys.readouterr() == ("", "Stopped before anything was done.\n")
