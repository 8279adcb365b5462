"""A disk that is full, once by its word and once for real: one sentence, what stood there stays, nothing is left."""

import errno
import os
import signal
import sys

import pytest
from synthetic_audits import synthetic_audit

import uds_lens as ul
from uds_lens._storage import atomic_write_text, writing
from uds_lens._storage import files as atomic
from uds_lens.errors import StorageError


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def names(folder):
    return sorted(path.name for path in folder.rglob("*"))


SAVES = {
    "text": lambda place, n: atomic_write_text(place / "text.json", "x" * n),
    "audit": lambda place, n: synthetic_audit(n=n, layers=2).save(place / "audit"),
    "report": lambda place, n: ul.report.write(synthetic_audit(n=n, layers=2), place / "report.html"),
}


@pytest.mark.parametrize("call", ["fsync", "replace", "rename", "chmod", "mkdir"])
@pytest.mark.parametrize("kind", ["text", "audit"])
def test_wherever_the_system_says_so(kind, call, tmp_path, monkeypatch):
    place = tmp_path / "place"
    SAVES[kind](place, 3)
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        if call in ("rename", "replace"):
            patch.setattr(atomic, "_exchange", lambda *_: full())
        try:
            SAVES[kind](place, 4)
        except StorageError as error:
            assert str(error).startswith(f"cannot write '{place}")
            assert "No space left on device" in str(error)
            assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
        else:
            assert call not in ("fsync", "chmod"), "the call was made, and what it said was not heard"
    assert [name for name in names(tmp_path) if name.startswith(".")] == []


def fills_up(place):
    """A process whose files may not grow, on what each save says."""
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    for kind, save in SAVES.items():
        try:
            save(place, 2000)
        except StorageError as error:
            yield f"{kind} told {'File too large' in str(error)}"


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process")
def test_files_that_cannot_grow(tmp_path):
    for save in SAVES.values():
        save(tmp_path, 3)
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(tell, "\n".join(fills_up(tmp_path)).encode())
        finally:
            os._exit(0)
    os.close(tell)
    os.waitpid(child, 0)
    with open(told, encoding="utf-8") as said:
        assert said.read().split("\n") == [f"{kind} told True" for kind in SAVES]
    assert (tmp_path / "text.json").read_text() == "xxx"
    assert len(ul.DepthAudit.load(tmp_path / "audit").examples) == 3
    assert [name for name in names(tmp_path) if name.startswith(".")] == []


def test_what_safetensors_and_torch_say_is_understood(tmp_path):
    said = "Error while serializing: I/O error: No space left on device (os error 28)"
    for error in (RuntimeError(said), RuntimeError("PytorchStreamWriter failed: file write failed")):
        with (
            pytest.raises(StorageError, match=r"cannot write .*place.*free space"),
            writing(tmp_path / "place"),
        ):
            raise error
    with pytest.raises(RuntimeError, match="shapes differ"), writing(tmp_path):
        raise RuntimeError("shapes differ")
