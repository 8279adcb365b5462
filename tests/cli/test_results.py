"""Names of directories, the table of all audits, the JSON for machines."""

import json
from pathlib import Path

import pandas as pd
import pytest

from uds_lens.cli.results import as_json, directory_names, write_table
from uds_lens.errors import ConfigError


@pytest.mark.parametrize(
    ("models", "names"),
    [
        (["ckpt/npo"], ["npo"]),
        (["user/npo", "/a/rmu/"], ["npo", "rmu"]),
        (["npo/final", "rmu/final"], ["npo-final", "rmu-final"]),
        (["final", "/x/final"], ["final", "x-final"]),
        (["x/baseline", "npo"], ["x-baseline", "npo"]),
    ],
)
def test_directory_names_tell_models_apart(models: list[str], names: list[str]) -> None:
    assert directory_names(models) == names


def test_the_directory_one_stands_in_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rmu").mkdir()
    monkeypatch.chdir(tmp_path / "rmu")
    assert directory_names([".", "../npo"]) == ["rmu", "npo"]


@pytest.mark.parametrize("models", [["npo", "npo"], ["baseline", "npo"]])
def test_names_that_would_collide_are_refused(models: list[str]) -> None:
    with pytest.raises(ConfigError, match=f"must differ.*got {', '.join(models)}"):
        directory_names(models)


def test_table_has_a_row_per_model_and_empty_cells_for_nan(make_audit, tmp_path: Path) -> None:
    write_table({"npo": make_audit(0.25), "rmu": make_audit(0.25).with_tau(10.0)}, tmp_path / "table.csv")
    table = pd.read_csv(tmp_path / "table.csv").set_index("model")
    assert table.loc["npo", "uds"] == pytest.approx(0.25)
    assert table["n_measured"].tolist() == [3, 0]
    assert table["n_not_measurable"].tolist() == [1, 4]
    assert pd.isna(table.loc["rmu", "uds"])


def test_json_is_strict_and_names_the_directory(make_audit) -> None:
    text = as_json({"npo": make_audit(0.25).with_tau(10.0)}, {"npo": Path("runs/npo")})
    (audit,) = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))["audits"]
    assert audit["uds"] is None
    assert (audit["name"], audit["directory"]) == ("npo", str(Path("runs/npo")))
    assert audit["config"]["tau"] == 10.0
