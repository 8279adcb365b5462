"""`uds-lens audit` stopped by Ctrl-C or SIGTERM, and called again: what is there is kept, the rest is measured."""

import gc
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

import uds_lens as ul
import uds_lens.__main__ as program
from uds_lens.audit import _runner, _two_stage as stages
from uds_lens.results._saving import audits_in

from .conftest import audit_words as words


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is measured from now on: "stage 1", and the models of stage 2."""
    noted: list[str] = []
    finish, measure = stages.measure_stage_2, ul.Baseline.measure.__func__

    def finishing(baseline, sources, target):
        noted.extend(Path(source.record.name).name for source in sources)
        return finish(baseline, sources, target)

    def measuring(cls, *models, **options):
        noted.append("stage 1")
        return measure(cls, *models, **options)

    monkeypatch.setattr(stages, "measure_stage_2", finishing)
    monkeypatch.setattr(ul.Baseline, "measure", classmethod(measuring))
    return noted


def test_a_sweep_goes_on_where_it_was_stopped(sweep: Path, tmp_path: Path, measured: list, uds_lens) -> None:
    out = shutil.copytree(sweep / "out", tmp_path / "out")
    before = (out / "unlearned" / "manifest.json").read_bytes()
    both = (*words(sweep, "unlearned", "full"), "--out", out)
    code, printed, _ = uds_lens(*both, "--json")
    assert code == 0
    assert measured == ["full"]
    assert "Already measured, with the same weights, examples and settings: unlearned. --redo" in str(uds_lens.doing)
    assert [audit["name"] for audit in json.loads(printed)["audits"]] == ["unlearned", "full"]
    assert (out / "unlearned" / "manifest.json").read_bytes() == before

    measured.clear()
    code, printed, _ = uds_lens(*both)
    assert (code, measured) == (0, [])
    assert "settings: unlearned, full. --redo" in str(uds_lens.doing)
    assert [line.split()[0] for line in printed.splitlines()[2:4]] == ["unlearned", "full"]

    assert uds_lens(*both, "--redo").code == 0
    assert measured == ["stage 1", "unlearned", "full"]


def test_the_audit_of_another_question_stays(sweep: Path, tmp_path: Path, measured: list, uds_lens) -> None:
    """It was replaced without a word."""
    out = shutil.copytree(sweep / "out" / "unlearned", tmp_path / "out")
    before = (out / "manifest.json").read_bytes()
    for asked, words_of in (
        ((*words(sweep, "full"), "--out", out), "with other models: choose"),
        ((*words(sweep, "unlearned"), "--tau", 0.2, "--out", out), "with other settings: choose"),
    ):
        code, _, err = uds_lens(*asked)
        assert code == 1 and words_of in err and "choose another --out, or replace it with --redo" in err
    assert measured == [] and (out / "manifest.json").read_bytes() == before


@pytest.mark.long
def test_full_can_be_kept_open(sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uds_lens) -> None:
    kept = []
    made = stages.Target.__init__

    def noted(self, *arguments, keep=False, **options):
        kept.append(keep)
        made(self, *arguments, keep=keep, **options)

    monkeypatch.setattr(stages.Target, "__init__", noted)
    both = (*words(sweep, "unlearned", "full"), "--json")
    plainly = json.loads(uds_lens(*both, "--out", tmp_path / "a").out)["audits"]
    assert kept == [False, False, False], "stage 1, and stage 2 of both"
    kept.clear()
    code, printed, _ = uds_lens(*both, "--out", tmp_path / "b", "--keep-full")
    assert (code, kept) == (0, [False, True])
    assert [audit["uds"] for audit in json.loads(printed)["audits"]] == [audit["uds"] for audit in plainly]
    assert sum("memory: the audit needs about" in line for line in uds_lens.doing) == 2


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
