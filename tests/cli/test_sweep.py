"""`uds-lens sweep`: run, status and table; the exit code says whether something failed."""

import json
from pathlib import Path

import pytest

TOML = """
name = "tiny"
full = "toy:full"
retain = "toy:retain"
[data]
forget = "toy:forget"
limit = 2
[measure]
metrics = ["em"]
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    (tmp_path / "plan.toml").write_text(TOML, encoding="utf-8")
    return tmp_path / "plan.toml"


def test_run_status_and_table(uds_lens, plan: Path, tmp_path: Path) -> None:
    done = uds_lens("sweep", plan, "--out", tmp_path / "s", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["done"] == 2
    said = "\n".join(uds_lens.doing)
    assert "full, before: 1 values" in said and "retain: 0 left" in said
    assert uds_lens("sweep", "status", tmp_path / "s").out.startswith("2 of 2 done\nRandom sample of")
    told = uds_lens("sweep", "table", tmp_path / "s", "--out", tmp_path / "t.csv")
    assert told.out.strip().endswith(f"2 rows in {tmp_path / 't.csv'}")
    assert (tmp_path / "t.csv").read_text().startswith("model_id,role,")


def test_a_failure_is_told_and_the_exit_code_says_so(uds_lens, plan: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    plan.write_text(TOML + '[[model]]\nname = "none"\npath = "empty"\n', encoding="utf-8")
    done = uds_lens("sweep", plan, "--out", tmp_path / "s")
    assert done.code == 1
    assert "2 of 3 done, 1 failed" in done.out and "ModelError" in done.out


def test_wrong_usage(uds_lens) -> None:
    wrong = {"plan.toml": "--out missing", "status": "expected PLAN", "a b c": "expected PLAN"}
    for words, told in (wrong | {"status nowhere": "no study at"}).items():
        done = uds_lens("sweep", *words.split())
        assert done.code == 1 and told in done.err and "Traceback" not in done.err, words
