"""Checkpoints: whole ones are told from others, the newest whole one is taken, and what is wrong is said."""

import warnings
from pathlib import Path

import pytest

from uds_lens.errors import UdsLensWarning
from uds_lens.unlearning._run_folder import CONTENTS, checkpoints, damage, last_whole, seal


def made(folder: Path, step: int, *, sealed: bool = True) -> Path:
    path = folder / f"checkpoint-{step}"
    (path / "inner").mkdir(parents=True)
    for name in ("model.safetensors", "optimizer.pt", "inner/state.json"):
        (path / name).write_bytes(f"{name} {step}".encode())
    if sealed:
        seal(path)
    return path


def test_sealing_a_checkpoint_removes_those_before(tmp_path: Path) -> None:
    first = made(tmp_path, 9)
    assert damage(first) is None
    second = made(tmp_path, 10, sealed=False)
    assert first.exists()
    seal(second)
    assert checkpoints(tmp_path) == [second]
    assert last_whole(tmp_path) == second


def test_one_that_was_being_written_is_passed_over_in_silence(tmp_path: Path) -> None:
    first = made(tmp_path, 2)
    half = made(tmp_path, 4, sealed=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert last_whole(tmp_path) == first
    assert not half.exists()


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("optimizer.pt", b"", "optimizer.pt has 0 bytes instead of 14"),
        ("optimizer.pt", b"optimizer.pt 5", "optimizer.pt was altered"),
        ("inner/state.json", None, "inner/state.json is missing"),
        (CONTENTS, b"[", "cannot be read"),
        (CONTENTS, b"[]", "cannot be read"),
        (CONTENTS, None, "not written to its end"),
    ],
)
def test_what_is_wrong_is_said(name: str, content: bytes | None, problem: str, tmp_path: Path) -> None:
    path = made(tmp_path, 3)
    if content is None:
        (path / name).unlink()
    else:
        (path / name).write_bytes(content)
    assert problem in damage(path)
    with pytest.warns(UdsLensWarning, match="the run starts again"):
        assert last_whole(tmp_path) is None
    assert checkpoints(tmp_path) == []


def test_a_damaged_newest_gives_way_to_the_last_whole_one(tmp_path: Path) -> None:
    elsewhere, new = made(tmp_path / "elsewhere", 2), made(tmp_path, 4)
    old = elsewhere.rename(tmp_path / elsewhere.name)
    (new / "model.safetensors").write_bytes(b"x")
    with pytest.warns(UdsLensWarning, match=r"checkpoint-4: model\.safetensors .*goes on from checkpoint-2"):
        assert last_whole(tmp_path) == old


def test_nothing_there_is_nothing_to_say(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-x").mkdir()
    assert last_whole(tmp_path) is None
    assert (tmp_path / "checkpoint-x").exists()
