"""What a process leaves when it dies is removed by the next write to the same place, and nothing else is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from uds_lens._storage import (
    SpillFolder,
    atomic_directory,
    atomic_files,
    atomic_write_bytes,
)
from uds_lens._storage import (
    files as atomic,
)

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="without locks nothing is taken for left behind"
)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def dies(text, *arguments, **environment):
    command = [sys.executable, "-c", f"import os, sys\n{text}\nos._exit(9)", *map(str, arguments)]
    assert subprocess.run(command, check=False, env={**os.environ, **environment}).returncode == 9


def test_a_write_removes_what_a_killed_one_left(tmp_path):
    dies(
        "from pathlib import Path\nfrom uds_lens._storage.files import scratch_directory, scratch_file\n"
        "a, b = Path(sys.argv[1]), Path(sys.argv[2])\n"
        "one, two = scratch_directory(a), scratch_file(b)\n"
        "(one.__enter__() / 'x').write_text('half')\n"
        "two.__enter__().write_text('half')",
        tmp_path / "run",
        tmp_path / "a.html",
    )
    foreign = [".run.abcdefgh.part", ".runs.abcdefgh.uds_lens.part", ".run.abcdefgh.more.uds_lens.part"]
    for name in foreign:
        (tmp_path / name).write_text("of somebody else")
    assert len(names(tmp_path)) == 5
    atomic_files(tmp_path / "run", {"x": b""})
    atomic_write_bytes(tmp_path / "a.html", b"")
    assert names(tmp_path) == sorted(["run", "a.html", *foreign])


def test_a_write_that_is_under_way_is_left_alone(tmp_path):
    with atomic_directory(tmp_path / "run") as slow:
        (slow / "x").write_text("slow")
        atomic_files(tmp_path / "run", {"x": b"quick"})
        assert (slow / "x").read_text() == "slow"
    assert (tmp_path / "run" / "x").read_text() == "slow"
    assert names(tmp_path) == ["run"]


def test_temporary_states_of_dead_processes_go(tmp_path, monkeypatch):
    dies(
        "from uds_lens._storage import SpillFolder\nfolder = SpillFolder()\n"
        "(folder.path / 'states').write_text('large')",
        TMPDIR=str(tmp_path),
    )
    assert len(names(tmp_path)) == 1
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ours, more = SpillFolder(), SpillFolder()
    assert names(tmp_path) == sorted([ours.path.name, more.path.name])
    ours.close()
    assert names(tmp_path) == [more.path.name]
    del more
    assert names(tmp_path) == []


def test_without_an_exchange_a_kill_between_two_moves_loses_nothing(tmp_path, monkeypatch):
    """There is a moment with neither old nor new: the next write puts the old one back first."""
    atomic_files(tmp_path / "run", {"x": b"old"})
    (tmp_path / "run" / "notes.txt").write_text("mine")
    dies(
        "from pathlib import Path\nfrom uds_lens._storage import atomic_files\n"
        "from uds_lens._storage import files as atomic\n"
        "atomic._exchange = lambda *_: False\nrename = os.rename\n"
        "def once(a, b):\n    rename(a, b)\n    os._exit(9)\n"
        "os.rename = once\natomic_files(sys.argv[1], {'x': b'new'})",
        tmp_path / "run",
    )
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
    atomic_files(tmp_path / "run", {"x": b"newest"})
    assert (tmp_path / "run" / "x").read_bytes() == b"newest"
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
    assert names(tmp_path) == ["run"]


def test_long_names_have_room(tmp_path):
    name = "n" * 240
    atomic_write_bytes(tmp_path / name, b"x")
    atomic_files(tmp_path / (name + "d"), {"x": b""})
    assert names(tmp_path) == [name, name + "d"]


@pytest.mark.parametrize("exchange", [True, False])
def test_other_things_in_a_directory_are_there_at_every_moment(tmp_path, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
    atomic_files(tmp_path / "run", {"x": b"old", "y": b"old"})
    deep = tmp_path / "run" / "nested" / "deep"
    deep.mkdir(parents=True)
    (deep / "file").write_text("kept")
    (tmp_path / "run" / "link").symlink_to("nested/deep/file")
    seen = []
    swap = atomic._swap

    def looking(new, path):
        assert (Path(new) / "nested" / "deep" / "file").read_text() == "kept"
        (path / "nested" / "late").write_text("came in between")
        (path / "late").write_text("came in between")
        swap(new, path)
        seen.append(names(path))

    monkeypatch.setattr(atomic, "_swap", looking)
    atomic_files(tmp_path / "run", {"x": b"new"}, own=["y"])
    assert seen == [["link", "nested", "x"]]
    assert names(tmp_path / "run") == ["late", "link", "nested", "x"]
    assert (tmp_path / "run" / "link").read_text() == "kept"
    assert names(tmp_path / "run" / "nested") == ["deep", "late"]
