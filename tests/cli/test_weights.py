"""`uds-lens weights`: the table, its JSON, and the files."""

import json
from pathlib import Path

import pandas as pd


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
