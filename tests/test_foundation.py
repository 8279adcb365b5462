"""Errors, closed vocabularies and progress bars: what every room stands on."""

import ast
import copy
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import tqdm.auto

from uds_lens import errors
from uds_lens._progress import about, progress, tell
from uds_lens._types import Protocol, Scope, check_choice
from uds_lens.errors import UdsLensError, UdsLensWarning, forget_warnings, warn_once

PACKAGE = Path(errors.__file__).parent


USUAL = {
    ValueError: "ConfigError DataError MissingSplitError ModelError ModelBusyError ResultFormatError "
    "IncompatibleModelsError",
    RuntimeError: "PatchError",
    ImportError: "MissingDependencyError",
    OSError: "StorageError",
}


def test_every_error_is_ours_and_of_a_usual_kind():
    for also, names in USUAL.items():
        for name in names.split():
            assert issubclass(getattr(errors, name), UdsLensError) and issubclass(getattr(errors, name), also), name
    promised = {name for name in errors.__all__ if name.endswith("Error")}
    assert promised == {"UdsLensError", *" ".join(USUAL.values()).split()}
    assert promised == {name for name in vars(errors) if name.endswith("Error")}


def test_a_warning_is_said_once_per_key():
    forget_warnings()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_once("first", key="k")
        warn_once("second", key="k")
        warn_once("third")
        warn_once("third")
    assert [str(w.message) for w in caught] == ["first", "third"]
    forget_warnings()
    with pytest.warns(UdsLensWarning, match="second"):
        warn_once("second", key="k")
    forget_warnings()


def test_a_word_outside_the_vocabulary_is_refused_with_the_vocabulary():
    check_choice("protocol", "chat", Protocol)
    for word in ("", "Entity", None, 3):
        with pytest.raises(errors.ConfigError, match="scope must be one of 'entity', 'boundary', 'answer', 'all'; got"):
            check_choice("scope", word, Scope)


def test_progress_is_quiet_without_a_terminal_and_speaks_when_asked(capsys):
    assert list(progress(range(3), desc="work")) == [0, 1, 2]
    assert capsys.readouterr() == ("", "")
    assert list(progress(iter("ab"), desc="work", total=2, enabled=True)) == ["a", "b"]
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "work" in printed.err


@pytest.mark.parametrize(("shell", "speaks"), [(SimpleNamespace(kernel="a kernel"), True), (None, False)])
def test_progress_speaks_in_notebooks_only(shell, speaks, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "ipykernel", SimpleNamespace())
    monkeypatch.setattr("tqdm.auto.tqdm", tqdm.std.tqdm)
    assert list(progress(range(3), desc="work")) == [0, 1, 2]
    assert ("work" in capsys.readouterr().err) is speaks


def test_nothing_in_the_package_unpickles():
    forbidden = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    safe: set[ast.expr] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert not forbidden & {alias.name.partition(".")[0] for alias in node.names}, path
            imported = [each.name for each in node.names] if isinstance(node, ast.ImportFrom) else []
            # joblib's workers, which exchange what this process made; not its files
            if isinstance(node, ast.ImportFrom) and imported not in (["UnpicklingError"], ["Parallel", "delayed"]):
                assert (node.module or "").partition(".")[0] not in forbidden, path
            if isinstance(node, ast.Call) and any(
                k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in node.keywords
            ):
                safe.add(node.func)  # torch's own reader of tensors, which runs nothing
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node not in safe:
                call = f"{node.value.id}.{node.attr}"
                assert call not in {"torch.save", "torch.load", "np.load", "numpy.load", "pd.read_pickle"}, (path, call)
            if isinstance(node, ast.Name):
                assert node.id not in {"eval", "exec"}, path


def test_messages_in_parts() -> None:
    tau, budget = errors.Setting("tau"), errors.Setting("token_budget", of="RunOptions")
    error = errors.ConfigError(tau, " must be >= 0, or lower ", budget, ".")
    assert str(error) == "tau must be >= 0, or lower RunOptions(token_budget=...)."
    assert error.worded(lambda setting: f"--{setting.name}") == "--tau must be >= 0, or lower --token_budget."
    again = copy.copy(error)
    assert (type(again), str(again)) == (errors.ConfigError, str(error))
    assert str(errors.Setting("layer", 3, of="RMUConfig")) == "RMUConfig(layer=3)"
    assert str(errors.Setting("retain", ...)) == "retain=..."
    with pytest.warns(UdsLensWarning, match=r"^use dtype='float32'\.$"):
        warn_once("use ", errors.Setting("dtype", "float32"), ".", key="tests.parts")


def test_work_is_told_to_whoever_listens(caplog, monkeypatch):
    caplog.set_level("INFO", logger="uds_lens")
    times = iter([0.0, 1.0, 31.0, 31.0, 40.0])
    monkeypatch.setattr("uds_lens._progress.time.monotonic", lambda: next(times))
    with about("npo (2 of 3)"):
        tell("opening npo")
        assert list(progress(range(3), desc="read", unit="batch", enabled=False)) == [0, 1, 2]
    tell("done")
    assert caplog.messages == [
        "npo (2 of 3): opening npo",
        "npo (2 of 3): read: 3 batches",
        "npo (2 of 3): read: 1 of 3",
        "done",
    ]
