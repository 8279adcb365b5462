"""`uds-lens demo`, `doctor` and `weights`: their tables, JSON, files and exit codes."""

import dataclasses
import json
from pathlib import Path

import pandas as pd

import uds_lens as ul


def test_demo_audits_the_toy_world(tmp_path: Path, monkeypatch, uds_lens) -> None:
    world = ul.toy.load()
    small = dataclasses.replace(world, unlearned={"npo": world.unlearned["npo"]}, examples=world.examples[::12])
    monkeypatch.setattr("uds_lens.toy.load", lambda: small)
    code, out, err = uds_lens("demo", "--out", tmp_path / "demo")
    assert (code, err) == (0, "")
    assert uds_lens.doing[0] == "auditing the models of the toy world ..."
    names = ["full", "half", "npo", "retain"]
    table = pd.read_csv(tmp_path / "demo" / "table.csv").set_index("model")["uds"]
    assert set(table.index) == set(names) and table.is_monotonic_increasing
    assert table["full"] == 0.0 < table["half"] < table["retain"] == 1.0
    for name in names:
        assert f"{ul.DepthAudit.load(tmp_path / 'demo' / name).uds:.3f}" in out
    assert "uds-lens audit --help" in out and (tmp_path / "demo" / "report.html").is_file()
    monkeypatch.setattr(ul.report, "write", lambda audits, path, **_: Path(path))
    again = uds_lens("demo", "--out", tmp_path / "demo", "--json")  # in the place of its own results
    assert again.code == 0
    assert {audit["name"] for audit in json.loads(again.out)["audits"]} == set(names)


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
    assert f"no directory '{tmp_path / 'none'}': pass a checkpoint directory" in found["full"]["found"]


def test_the_change_by_layer(sweep: Path, tmp_path: Path, uds_lens) -> None:
    words = ["weights", "--full", sweep / "full", "--model", sweep / "unlearned", "--retain", sweep / "retain"]
    found = uds_lens(*words, "--audit", sweep / "out" / "unlearned", "--out", tmp_path / "change")
    assert found.code == 0 and "stable rank" in found.out and "cosine" in found.out
    table = pd.read_csv(tmp_path / "change" / "weights.csv")
    assert sorted(set(table["layer"].dropna())) == [0, 1, 2, 3] and "model.embed_tokens" in set(table["component"])
    assert "LER" in (tmp_path / "change" / "weights.html").read_text("utf-8")
    rows = json.loads(uds_lens(*words, "--json").out)["tensors"]
    assert len(rows) == len(table) and all(row["relative_norm"] >= 0 for row in rows)
    assert uds_lens("weights", "--full", sweep / "full", "--model", sweep / "full").out.count("0.00%") >= 4 * 3
