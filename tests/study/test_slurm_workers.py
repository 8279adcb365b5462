"""Tasks of an array: what is sent, and that a requeued one resumes."""

import shutil

import pytest

from uds_lens import study
from uds_lens.errors import ConfigError
from uds_lens.study._run import ArrayTask, submit_array


def test_settings_are_checked():
    with pytest.raises(ConfigError, match="minutes"):
        study.SlurmOptions(minutes=0)
    with pytest.raises(ConfigError, match="did you mean 'gpus'"):
        study.SlurmOptions(gpu=1)
    with pytest.raises(ConfigError, match="'slurm', 'local'"):
        study.SlurmOptions(cluster="cloud")


def test_without_slurm_it_says_so(folder, monkeypatch):
    pytest.importorskip("submitit", reason="the extra [slurm] is not installed")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="no `sbatch` on the PATH"):
        submit_array(folder, jobs=1, options=study.SlurmOptions())


def test_a_task_that_is_requeued_is_the_same_task(tmp_path):
    pytest.importorskip("submitit", reason="the extra [slurm] is not installed")
    again = ArrayTask(str(tmp_path), "run").checkpoint()
    assert (again.function.folder, again.function.run) == (str(tmp_path), "run")
