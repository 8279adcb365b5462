"""`uds-lens audit --watch`: whole checkpoints only, resuming, and an end by signal with its table."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

import uds_lens as ul
from uds_lens._cli import audit as command
from uds_lens._cli.audit import whole_files

from .conftest import audit_words


def words(sweep: Path, run: Path, out: Path, *more: object) -> list[object]:
    return [*audit_words(sweep), "--watch", run, "--out", out, "--poll", 0, *more]


def test_a_checkpoint_is_whole_or_not(sweep: Path, tmp_path: Path) -> None:
    place = tmp_path / "checkpoint-1"
    shutil.copytree(sweep / "full", place)
    assert whole_files(place) is not None
    weights = place / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-4])
    assert whole_files(place) is None, "cut"
    weights.write_bytes(content)
    (place / "config.json").write_text('{"model_type": "lla')
    assert whole_files(place) is None, "a config that is being written"
    (place / "config.json").write_text("{}")
    weights.rename(place / "model-00001-of-00002.safetensors")
    assert whole_files(place) is None, "no weights"
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert whole_files(place) is None, "the second file is missing"
    shutil.copy(place / names["a"], place / names["b"])
    assert whole_files(place) is not None


def test_audits_what_appears_until_it_is_told_to_stop(sweep: Path, tmp_path: Path, monkeypatch, uds_lens) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    run.mkdir()
    looks = []

    def meanwhile(seconds: float) -> None:
        """The training goes on between two looks."""
        looks.append(seconds)
        if len(looks) == 1:
            shutil.copytree(sweep / "unlearned", run / "checkpoint-10")
            shutil.copytree(sweep / "unlearned", run / "checkpoint-9")
            (run / "checkpoint-9" / "model.safetensors").write_bytes(b"half")
        elif len(looks) == 2:
            assert not (out / "checkpoint-10").exists(), "it was seen once only"
        elif len(looks) == 3:
            assert (out / "checkpoint-10").is_dir()
            shutil.copy(sweep / "full" / "model.safetensors", run / "checkpoint-9" / "model.safetensors")
        elif len(looks) == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(command.time, "sleep", meanwhile)
    found = uds_lens(*words(sweep, run, out))
    assert found.code == 0 and "Saved in" in found.out
    assert found.out.index("checkpoint-9") < found.out.index("checkpoint-10"), "in the order of the steps"
    table = (out / "table.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in table] == ["model", "checkpoint-9", "checkpoint-10"]
    assert ul.DepthAudit.load(out / "checkpoint-9").uds == 0.0
    baseline = ul.Baseline.load(out / "baseline").with_full(sweep / "full")
    again = baseline.audit(run / "checkpoint-10", options=ul.RunOptions(device="cpu", engine="wavefront"))
    assert ul.DepthAudit.load(out / "checkpoint-10").uds == pytest.approx(again.uds, abs=0)

    monkeypatch.setattr(ul.Baseline, "audit", lambda *_, **__: pytest.fail("measured again"))
    monkeypatch.setattr(command.time, "sleep", lambda _: None)
    shutil.rmtree(run / "checkpoint-9")
    resumed = uds_lens(*words(sweep, run, out, "--once", "--json"))
    assert [row["name"] for row in json.loads(resumed.out)["audits"]] == ["checkpoint-9", "checkpoint-10"]


def test_what_cannot_be_audited_is_said(sweep: Path, tmp_path: Path, monkeypatch, uds_lens) -> None:
    run = tmp_path / "run"
    (run / "checkpoint-1").mkdir(parents=True)
    monkeypatch.setattr(command.time, "sleep", lambda _: None)
    found = uds_lens(*words(sweep, run, tmp_path / "out", "--once"))
    assert found.code == 1 and any("not audited: checkpoint-1" in line for line in uds_lens.doing)
    missing = uds_lens(*words(sweep, run / "nothing", tmp_path / "out"))
    assert missing.code == 1 and "no directory" in missing.err
    both = uds_lens(*words(sweep, run, tmp_path / "out", "--model", sweep / "full"))
    assert both.code == 1 and "leave out --model" in both.err
