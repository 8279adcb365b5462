"""Names of the directories of several results."""

from pathlib import Path

import pytest

from uds_lens.errors import ConfigError
from uds_lens.results._saving import directory_names


@pytest.mark.parametrize(
    ("models", "names"),
    [
        (["ckpt/npo"], ["npo"]),
        (["user/npo", "/a/rmu/"], ["npo", "rmu"]),
        (["npo/final", "rmu/final"], ["npo-final", "rmu-final"]),
        (["final", "/x/final"], ["final", "x-final"]),
        (["npo/final", "rmu/final", "ckpt/ga"], ["npo-final", "rmu-final", "ga"]),
        (["x/baseline", "npo"], ["x-baseline", "npo"]),
    ],
)
def test_directory_names_tell_models_apart(models: list[str], names: list[str]) -> None:
    assert directory_names(models, reserved=["baseline"]) == names


def test_the_directory_one_stands_in_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rmu").mkdir()
    monkeypatch.chdir(tmp_path / "rmu")
    assert directory_names([".", "../npo"]) == ["rmu", "npo"]


@pytest.mark.parametrize("models", [["npo", "npo"], ["baseline", "npo"]])
def test_names_that_would_collide_are_refused(models: list[str]) -> None:
    with pytest.raises(ConfigError, match=f"must have different names.*got {', '.join(models)}"):
        directory_names(models, reserved=["baseline"])


def test_a_link_keeps_the_name_that_was_typed(tmp_path: Path) -> None:
    (tmp_path / "step-300").mkdir()
    (tmp_path / "npo").symlink_to(tmp_path / "step-300")
    assert directory_names([str(tmp_path / "npo"), str(tmp_path / "step-300")]) == ["npo", "step-300"]


def test_given_names() -> None:
    assert directory_names(["a/x", "b/x"], given=["one", "two"]) == ["one", "two"]
    for given, said in (
        (["one"], "name must be given once for each model, in their order: 2 models, 1 names"),
        (["one", "one"], "'one' is given twice"),
        (["one", "a/b"], "'a/b' cannot name the directory"),
        (["one", ".."], "'..' cannot name"),
        (["one", "baseline"], "'baseline' cannot name"),
    ):
        with pytest.raises(ConfigError, match=said):
            directory_names(["a/x", "b/x"], given=given, reserved=["baseline"])
