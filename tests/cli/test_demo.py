"""`uds-lens demo`: runs offline from end to end, and its sanity rows are exact."""

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
