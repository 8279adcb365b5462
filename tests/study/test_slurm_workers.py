"""Tasks of an array: what is sent, and that a requeued one resumes."""

import shutil

import pytest
from study.killing import Killing

from uds_lens import study
from uds_lens.errors import ConfigError
from uds_lens.study._parts import Task, submit


def test_settings_are_checked():
    with pytest.raises(ConfigError, match="minutes"):
        study.SlurmOptions(minutes=0)
    with pytest.raises(ConfigError, match="did you mean 'gpus'"):
        study.SlurmOptions(gpu=1)


def test_without_slurm_it_says_so(tmp_path, monkeypatch):
    pytest.importorskip("submitit", reason="the extra [slurm] is not installed")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="no `sbatch` on the PATH"):
        submit(Killing(tmp_path), ["a"], place=tmp_path, jobs=1, options=study.SlurmOptions())


def test_a_task_that_is_requeued_is_the_same_task_and_skips_what_is_done(tmp_path):
    pytest.importorskip("submitit", reason="the extra [slurm] is not installed")
    task = Task(Killing(tmp_path, broken="b"), ["a", "b", "c"], tmp_path)
    task()
    assert task.checkpoint().function is task and {"a", "c"} <= {path.name for path in tmp_path.iterdir()}
