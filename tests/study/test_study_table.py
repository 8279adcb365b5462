"""The long table, and the tables that judge metrics."""

import math

import pandas as pd
import pytest

from uds_lens import meta, study
from uds_lens.errors import ConfigError, DataError, ResultFormatError
from uds_lens.study._tables import with_utility


@pytest.fixture
def done(small, fake, tmp_path):
    study.run(small, tmp_path / "s", runner=fake())
    return tmp_path / "s"


def test_one_row_per_model_state_and_metric(done):
    table = study.table(done)
    assert list(table) == list(study.COLUMNS)
    assert len(table) == 23 * 2 + 5 * 2
    assert not table.duplicated(["model_id", "state", "seed", "metric"]).any()
    quantised = table[(table["state"] == "quantised") & (table["metric"] == "uds")]
    for role in ("full", "retain"):
        (value,) = quantised.loc[quantised["role"] == role, "value"]
        assert quantised[f"of_{role}"].eq(value).all(), "quantised alike, next to every model"
    undefined = table[table["value"].isna()]
    assert set(undefined["reason"]) == {"nothing there"} and set(undefined["role"]) == {"retain"}
    relearned = table[(table["model_id"] == "retain") & (table["state"] == "relearned")]
    assert sorted(relearned["seed"].unique()) == [0, 1, 2]
    found = study.examples_table(done)
    assert set(found["model"]) == {"retain", "given", *(m for m in found["model"] if m.startswith("npo"))}
    assert list(found) == ["model", "metric", "example_id", "value", "subject"]
    four_bit = table[(table["model_id"] == "given") & (table["state"] == "quantised")].iloc[0]
    assert (four_bit["fingerprint"], four_bit["parent"]) == ("weights of given quantised", "weights of given before")


def test_the_tables_fit_the_functions_that_judge(done):
    found = study.frames(done)
    assert found.pools["knows"].tolist().count(True) == 4 and len(found.pools) == 6
    judged = meta.faithfulness(found.pools, metrics=["es"], n_resamples=20)
    assert judged["auc"].between(0, 1).all()
    robust = meta.robustness(found.tables(), metrics=["uds"])
    assert robust["n"].tolist() == [3]
    states = vars(found.tables())
    shared = set(states) & set(vars(found))
    assert len(shared) == 5 and all(states[name] is getattr(found, name) for name in shared)
    assert len(found.retain_relearned) == 3 and len(found.relearned) == 3
    assert set(found.reasons["model"]) == {"retain"}


def test_utility_is_relative_to_full(done):
    found = study.frames(done)
    row = found.before.set_index("model").loc["given"]
    assert row["utility"] == pytest.approx(5 / 50)
    assert row["utility_rel"] == pytest.approx(5 / 4)
    parts = pd.DataFrame({"a": [0.0, 0.5], "b": [1.0, math.nan]})
    zero = with_utility(parts, pd.DataFrame({"a": [1.0], "b": [1.0]}), ("a", "b"))
    assert zero["utility"].tolist() == pytest.approx([0, math.nan], nan_ok=True)


def test_the_table_as_a_file(done, tmp_path):
    table = study.table(done)
    study.write_table(table, tmp_path / "t.parquet")
    assert len(pd.read_parquet(tmp_path / "t.parquet")) == len(table)
    study.write_table(table, tmp_path / "t.csv")
    study.write_table(table, tmp_path / "t.csv")
    with pytest.raises(ConfigError, match="is written as"):
        study.write_table(table, tmp_path / "t.xls")
    (tmp_path / "mine.csv").write_text("a,b")
    with pytest.raises(ResultFormatError, match="was not written by uds_lens"):
        study.write_table(table, tmp_path / "mine.csv")
    study.write_table(table, tmp_path / "t.parquet")
    pd.DataFrame({"question": ["mine"]}).to_parquet(tmp_path / "mine.parquet")
    with pytest.raises(ResultFormatError, match="was not written by uds_lens"):
        study.write_table(table, tmp_path / "mine.parquet")
    with pytest.raises(DataError, match="twice"):
        study.frames(pd.concat([table, table]))
