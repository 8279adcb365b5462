"""Files are whole or absent, whatever happens in between."""

import hashlib
import os
import stat
import subprocess
import sys

import pytest

from uds_lens._storage import (
    atomic_directory,
    atomic_write_bytes,
    atomic_write_text,
    sha256_file,
)
from uds_lens._storage import (
    files as atomic,
)
from uds_lens._storage import (
    files as whole_file,
)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_text_is_written_as_utf8_over_what_was_there(tmp_path):
    file = tmp_path / "new" / "a.txt"
    atomic_write_text(file, "first, and longer")
    atomic_write_text(file, "é日")
    assert file.read_bytes() == "é日".encode()
    assert names(file.parent) == ["a.txt"]


def test_files_and_directories_have_the_usual_permissions(tmp_path):
    before = os.umask(0o027)
    try:
        atomic_write_bytes(tmp_path / "file", b"")
        with atomic_directory(tmp_path / "folder"):
            pass
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640
        assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o750
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)


def test_a_file_that_cannot_be_put_in_place_leaves_nothing(tmp_path, monkeypatch):
    atomic_write_bytes(tmp_path / "a", b"old")

    def refuse(*_):
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="no space"):
        atomic_write_bytes(tmp_path / "a", b"new")
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


def write(path, text):
    with atomic_directory(path) as folder:
        (folder / "x").write_text(text)


@pytest.mark.parametrize("exchange", [True, False])
def test_a_directory_appears_at_the_end_and_replaces_the_old_one(tmp_path, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
    path = tmp_path / "deep" / "result"
    with atomic_directory(path) as folder:
        (folder / "x").write_text("one")
        assert not path.exists()
    (path / "more").write_text("of the old one")
    write(path, "two")
    assert names(path) == ["x"]
    assert (path / "x").read_text() == "two"
    assert names(path.parent) == ["result"]


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_block_that_raises_changes_nothing(tmp_path, old, error):
    if old:
        write(tmp_path / "result", "old")
    with pytest.raises(error), atomic_directory(tmp_path / "result") as folder:
        (folder / "x").write_text("half")
        raise error
    assert names(tmp_path) == (["result"] if old else [])
    if old:
        assert (tmp_path / "result" / "x").read_text() == "old"


def test_the_old_directory_comes_back_when_the_new_one_cannot_be_put_in_place(tmp_path, monkeypatch):
    write(tmp_path / "result", "old")
    rename = os.rename

    def refuse_the_new(source, target):
        if str(source).endswith(".part"):
            raise OSError("refused")
        rename(source, target)

    monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
    monkeypatch.setattr(os, "rename", refuse_the_new)
    with pytest.raises(OSError, match="refused"):
        write(tmp_path / "result", "new")
    assert names(tmp_path) == ["result"]
    assert (tmp_path / "result" / "x").read_text() == "old"


DIE = """
import os, sys
from uds_lens._storage import atomic_directory
from uds_lens._storage import files as atomic, files as scratch
place, where = sys.argv[1:]
def die(*_, **__):
    os._exit(9)
if where == "before the swap":
    atomic._swap = die
if where == "after the swap":
    scratch.shutil.rmtree = die
with atomic_directory(place) as folder:
    (folder / "x").write_text("new")
    if where == "in the block":
        die()
"""


@pytest.mark.parametrize(
    ("where", "expected"),
    [("in the block", "old"), ("before the swap", "old"), ("after the swap", "new")],
)
def test_a_process_that_dies_leaves_the_old_or_the_new_and_never_half(tmp_path, where, expected):
    write(tmp_path / "result", "old")
    command = [sys.executable, "-c", DIE, str(tmp_path / "result"), where]
    assert subprocess.run(command, check=False).returncode == 9
    assert (tmp_path / "result" / "x").read_text() == expected


@pytest.mark.skipif(sys.platform != "linux", reason="the exchange is Linux's")
def test_linux_exchanges_in_one_step(tmp_path):
    write(tmp_path / "a", "a")
    write(tmp_path / "b", "b")
    assert atomic._exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "x").read_text() == "b"
    assert not atomic._exchange(tmp_path / "a", tmp_path / "nowhere")


def test_a_link_to_a_directory_stays_a_link(tmp_path):
    write(tmp_path / "real", "old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "x").read_text() == "new"
    assert names(tmp_path) == ["link", "real"]


@pytest.mark.parametrize("size", [0, 1, 3 << 20])
def test_sums(tmp_path, size):
    content = b"ab" * (size // 2) + b"c" * (size % 2)
    (tmp_path / "a").write_bytes(content)
    with open(tmp_path / "a", "rb") as file:
        assert sha256_file(tmp_path / "a") == whole_file._sha256(file) == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("exchange", [True, False])
def test_another_process_puts_a_directory_there_first(tmp_path, monkeypatch, exchange):
    """Between the look and the move; the last one to be whole is what stands there."""
    rename, late = os.rename, []

    def after_the_other(source, target):
        if not late and os.path.basename(target) == "place":
            late.append(target)
            os.mkdir(target)
            (tmp_path / "place" / "a").write_text("of the other")
        rename(source, target)

    monkeypatch.setattr(os, "rename", after_the_other)
    if not exchange:
        monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
    with atomic_directory(tmp_path / "place") as folder:
        (folder / "a").write_text("mine")
    assert late
    assert (tmp_path / "place" / "a").read_text() == "mine"
    assert names(tmp_path) == ["place"]
