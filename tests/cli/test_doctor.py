"""`uds-lens doctor`: its lines, its JSON, its exit code."""

import json
from pathlib import Path

import uds_lens as ul

WORLD = ul.toy.load()


def test_nothing_stands_in_the_way(tmp_path: Path, uds_lens) -> None:
    code, out, _ = uds_lens("doctor", "--full", WORLD.full, "--retain", WORLD.retain, "--out", tmp_path)
    assert code == 0
    assert f"ok uds-lens: {ul.__version__}" in out.splitlines()
    assert out.splitlines()[-1] == "Ready."
    assert max(map(len, out.splitlines())) <= 80 or str(tmp_path) in out


def test_a_problem_is_an_exit_code(tmp_path: Path, uds_lens) -> None:
    code, out, _ = uds_lens("doctor", "--full", tmp_path / "none", "--json")
    assert code == 1
    found = {finding["what"]: finding for finding in json.loads(out)}
    assert found["full"]["verdict"] == "problem"
    assert f"no directory '{tmp_path / 'none'}': give the directory of a checkpoint" in found["full"]["found"]
