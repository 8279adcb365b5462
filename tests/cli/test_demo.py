"""`uds-lens demo`: runs offline from end to end, and its sanity rows are exact."""

import dataclasses
import json
from pathlib import Path

import pandas as pd

import uds_lens as ul


def test_demo_audits_the_toy_world(tmp_path: Path, uds_lens) -> None:
    code, out, err = uds_lens("demo", "--out", tmp_path / "demo")
    assert (code, err) == (0, "")
    assert uds_lens.doing[0] == "auditing the models of the toy world ..."
    names = ["full", "half", *ul.toy.load().unlearned, "retain"]
    table = pd.read_csv(tmp_path / "demo" / "table.csv").set_index("model")
    assert set(table.index) == set(names) and table["uds"].is_monotonic_increasing
    assert table.loc["full", "uds"] == 0.0
    assert table.loc["retain", "uds"] == 1.0
    assert 0.0 < table.loc["half", "uds"] < 1.0
    table_of_scores = out.partition("───")[2].splitlines()
    rows = {line.split()[0]: line for line in reversed(table_of_scores) if line.strip()}
    rows |= {line.split()[0]: line for line in table_of_scores[1 : 1 + len(names)]}
    for name in names:
        saved = ul.DepthAudit.load(tmp_path / "demo" / name)
        assert f"{saved.uds:.3f}" in rows[name]
    assert "uds-lens audit --help" in out and (tmp_path / "demo" / "report.html").is_file()


def test_demo_prints_json_only(tmp_path: Path, monkeypatch, uds_lens) -> None:
    world = ul.toy.load()
    small = dataclasses.replace(world, unlearned={}, examples=world.examples[:4])
    monkeypatch.setattr("uds_lens.toy.load", lambda: small)
    code, out, _ = uds_lens("demo", "--out", tmp_path / "demo", "--json")
    assert code == 0
    assert [audit["name"] for audit in json.loads(out)["audits"]] == ["full", "half", "retain"]
    again = uds_lens("demo", "--out", tmp_path / "demo", "--json")  # in the place of its own results
    assert (again.code, again.out) == (0, out)
