"""The page of scales without a retain model is about one set of models."""

import json
import runpy
from pathlib import Path

import pandas as pd
import pytest

STUDIES = Path(__file__).resolve().parents[2] / "studies"


def test_audits_of_other_models_are_not_joined(tmp_path: Path) -> None:
    """Study (b) was measured on models that were made again since: 47 lines of its page did not come out."""
    study = runpy.run_path(str(STUDIES / "counterfactual" / "verdict.py"))["Study"]
    results = STUDIES / "counterfactual" / "results"
    with pytest.raises(SystemExit, match="are about different models: full gives 34 of 47 facts another"):
        study(results, "b", STUDIES / "smollm2" / "measured")
    asked = json.loads((results / "audit-b.json").read_text(encoding="utf-8"))
    scores = pd.DataFrame({"example_id": asked["ids"], "s_full": asked["s_full"]})
    scores.assign(scale="retain-0", model="full").to_csv(tmp_path / "scores.csv", index=False)
    layers = (STUDIES / "smollm2" / "measured" / "layers.parquet").read_bytes()
    (tmp_path / "layers.parquet").write_bytes(layers)
    assert study(results, "b", tmp_path).n > 0


def test_no_model_is_named_like_a_missing_value() -> None:
    """Names that pandas reads as missing ("null", "NA") drop their rows from every table that groups by model."""
    tables = [file for file in STUDIES.rglob("*.csv") if "model" in pd.read_csv(file, nrows=0)]
    assert STUDIES / "where" / "results" / "maps.csv" in tables
    for file in tables:
        names, written = (pd.read_csv(file, usecols=["model"], keep_default_na=keep)["model"] for keep in (True, False))
        assert names[written != ""].notna().all(), file
