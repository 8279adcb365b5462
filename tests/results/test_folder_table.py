"""`table.csv`: a row per audit of the folder, those at hand first."""

from pathlib import Path

import pandas as pd
import pytest

from results.made import made
from uds_lens.audit._resume import write_folder_table


def test_a_row_per_audit_and_empty_cells_for_nan(tmp_path: Path) -> None:
    npo = made([[1.0, 2.0]] * 3 + [[0.0, 0.0]], [[0.25, 0.5]] * 3 + [[0.0, 0.0]])
    made([[1.0, 1.0]], [[1.0, 1.0]]).save(tmp_path / "earlier")
    (tmp_path / "notes").mkdir()
    file = write_folder_table(tmp_path, {"npo": npo, "high tau": npo.with_tau(10.0)})
    table = pd.read_csv(file).set_index("model")
    assert (file.name, table.index.tolist()) == ("table.csv", ["npo", "high tau", "earlier"])
    assert table["uds"].tolist()[::2] == pytest.approx([0.25, 1.0])
    assert table["n_measured"].tolist() == [3, 0, 1]
    assert table["n_not_measurable"].tolist() == [1, 4, 0]
    assert pd.isna(table.loc["high tau", "uds"])
