"""Files and directories are whole or absent, whatever happens in between, and nothing foreign is lost."""

import hashlib
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic_audits import synthetic_audit

import uds_lens as ul
from uds_lens._storage import files
from uds_lens._storage.files import (
    SpillFolder,
    atomic_directory,
    atomic_files,
    atomic_write_bytes,
    atomic_write_text,
    check_writable,
    sha256_file,
    writing,
)
from uds_lens.errors import StorageError


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def write(path, text):
    with atomic_directory(path) as folder:
        (folder / "x").write_text(text)


def dies(program, *arguments, **environment):
    """Run a program that ends by SIGKILL at `die()`."""
    program = f"import os, signal, sys\ndie = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n{program}\ndie()"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    ended = subprocess.run(command, check=False, env={**os.environ, **environment}, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def test_text_is_written_as_utf8_over_what_was_there(tmp_path):
    file = tmp_path / "new" / ("n" * 240)
    atomic_write_text(file, "first, and longer")
    atomic_write_text(file, "é日")
    assert file.read_bytes() == "é日".encode()
    assert names(file.parent) == [file.name]
    assert sha256_file(file) == hashlib.sha256("é日".encode()).hexdigest()


def test_files_and_directories_have_the_usual_permissions(tmp_path):
    before = os.umask(0o027)
    try:
        atomic_write_bytes(tmp_path / "file", b"")
        with atomic_directory(tmp_path / "folder") as folder:
            (folder / "private").touch(mode=0o600)
        modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("file", "folder", "folder/private")]
        assert modes == [0o640, 0o750, 0o640]
    finally:
        os.umask(before)


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_block_that_raises_changes_nothing(tmp_path, old, error):
    if old:
        write(tmp_path / "result", "old")
    with pytest.raises(error), atomic_directory(tmp_path / "result") as folder:
        (folder / "x").write_text("half")
        raise error
    assert names(tmp_path) == (["result"] if old else [])
    assert not old or (tmp_path / "result" / "x").read_text() == "old"


def test_a_directory_appears_at_the_end_and_a_link_to_it_stays_a_link(tmp_path):
    with atomic_directory(tmp_path / "deep" / "real") as folder:
        (folder / "x").write_text("one")
        assert not (tmp_path / "deep" / "real").exists()
    (tmp_path / "link").symlink_to("deep/real")
    write(tmp_path / "link", "two")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "deep" / "real" / "x").read_text() == "two"
    assert names(tmp_path / "deep") == ["real"]


@pytest.mark.parametrize("killed", [False, True])
def test_what_else_is_in_a_directory_stays(tmp_path, monkeypatch, killed):
    """Also what came at the last moment, and where the process dies before it is back: the next to come finishes it."""
    atomic_files(tmp_path / "run", {"x": b"old", "y": b"old"})
    deep = tmp_path / "run" / "nested" / "deep"
    deep.mkdir(parents=True)
    (deep / "file").write_text("kept")
    (tmp_path / "run" / "link").symlink_to("nested/deep/file")
    rename, restore = os.rename, files._restore

    def late(source, target):
        if os.path.basename(target) == "run":
            (next(tmp_path.glob(".*/old*")) / "late").write_text("came in between")
        rename(source, target)

    monkeypatch.setattr(os, "rename", late)
    if killed:
        monkeypatch.setattr(files, "_restore", lambda *_: (_ for _ in ()).throw(OSError("dies here")))
    atomic_files(tmp_path / "run", {"x": b"new"}, own=["y"])
    if killed:
        assert names(tmp_path / "run") == ["x"]
        monkeypatch.setattr(files, "_restore", restore)
        files.settled(tmp_path / "run")
    assert names(tmp_path / "run") == ["late", "link", "nested", "x", *["y"] * killed]
    assert (tmp_path / "run" / "link").read_text() == "kept" and (tmp_path / "run" / "x").read_text() == "new"
    assert names(tmp_path) == ["run"]


def test_another_process_puts_a_directory_there_first(tmp_path, monkeypatch):
    """The last one to be whole is what is there in the end; one under way is left alone."""
    rename, late = os.rename, []

    def after_the_other(source, target):
        if not late and os.path.basename(target) == "place":
            late.append(target)
            os.mkdir(target)
            (tmp_path / "place" / "a").write_text("of the other")
        rename(source, target)

    monkeypatch.setattr(os, "rename", after_the_other)
    with atomic_directory(tmp_path / "place") as slow:
        (slow / "a").write_text("mine")
        atomic_files(tmp_path / "place", {"a": b"quick"})
        assert (slow / "a").read_text() == "mine"
    assert late and (tmp_path / "place" / "a").read_text() == "mine"
    assert names(tmp_path) == ["place"]


def test_a_write_removes_what_a_killed_one_left_and_nothing_else(tmp_path):
    half = "from uds_lens._storage import files\nfiles.os.replace = die\n"
    dies(half + "files.atomic_write_bytes(sys.argv[1], b'half')", tmp_path / "new" / "a.html")
    (part,) = (tmp_path / "new").iterdir()
    check_writable(tmp_path / "new", directory=True)  # it holds nothing but our own
    foreign = [".a.html.part", ".a.html.abcdefgh.uds_lens.part", ".a.html.01234567.uds_lens.part", ".b" + part.name]
    for name in foreign:
        (part.parent / name).write_text("of somebody else")
    with files._scratch(part.parent / "a.html") as alive:
        atomic_write_bytes(part.parent / "a.html", b"")
        assert names(part.parent) == sorted([*foreign, "a.html", alive.name])
    assert names(part.parent) == sorted([*foreign, "a.html"])


def test_temporary_states_of_dead_processes_go(tmp_path, monkeypatch):
    program = (
        "from uds_lens._storage.files import SpillFolder\nfolder = SpillFolder()\n(folder.path / 'states').touch()"
    )
    dies(program, TMPDIR=tmp_path)
    assert len(names(tmp_path)) == 1
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ours, more = SpillFolder(), SpillFolder()
    assert names(tmp_path) == sorted([ours.path.parent.name, more.path.parent.name])
    ours.close()
    assert names(tmp_path) == [more.path.parent.name]
    del more
    assert names(tmp_path) == []


# A disk that is full, once by its word and once for real: one sentence, what was there stays, nothing is left.

SAVES = {
    "text": lambda place, n: atomic_write_text(place / "text.json", "x" * n),
    "audit": lambda place, n: synthetic_audit(n=n, layers=2).save(place / "audit"),
}


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process")
def test_files_that_cannot_grow(tmp_path):
    import resource

    for save in SAVES.values():
        save(tmp_path, 3)
    child = os.fork()
    if not child:
        refused = 0
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            for save in SAVES.values():
                try:
                    save(tmp_path, 2000)
                except StorageError as error:
                    refused += "File too large" in str(error)
        finally:
            os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(SAVES)
    assert (tmp_path / "text.json").read_text() == "xxx"
    assert len(ul.DepthAudit.load(tmp_path / "audit").examples) == 3
    assert not list(tmp_path.rglob(".*"))


def test_what_safetensors_and_torch_say_is_understood(tmp_path):
    said = "Error while serializing: I/O error: No space left on device (os error 28)"
    for error in (RuntimeError(said), RuntimeError("PytorchStreamWriter failed: file write failed")):
        with pytest.raises(StorageError, match=r"cannot write .*place.*Free some space"), writing(tmp_path / "place"):
            raise error
    with pytest.raises(RuntimeError, match="shapes differ"), writing(Path()):
        raise RuntimeError("shapes differ")
