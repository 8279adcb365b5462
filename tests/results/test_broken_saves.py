"""Saves whose n-th step fails, or during which the process dies, for every n: the old or the new, and nothing half."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from altered_results import KINDS, results
from killed_saves import scratch

from uds_lens._storage import atomic_write_text, settled
from uds_lens._storage import files as atomic
from uds_lens.errors import ResultFormatError, StorageError
from uds_lens.report import render

STEPS = ("fsync", "replace", "rename", "chmod", "mkdir", "open", "unlink", "rmdir")
"""What a save asks of the system, beside writing."""

SAVES: dict[str, Callable[[Any, Path], object]] = {
    **{kind: how.save for kind, how in KINDS.items()},
    "report.html": lambda page, place: atomic_write_text(place, page),
}


@pytest.fixture(scope="module")
def versions() -> tuple[dict[str, Any], dict[str, Any]]:
    """Two results of each kind."""
    return tuple({**made, "report.html": render(made["audit"])} for made in (results(0), results(1)))


@contextmanager
def watched(step: Callable[[], None]) -> Iterator[None]:
    """Call `step` before everything that is asked of the system, and in the middle of every file."""

    def wrapped(true: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*args: Any, **kwargs: Any) -> Any:
            step()
            return true(*args, **kwargs)

        return asked

    class Halting:
        """A file that is written in two halves."""

        def __init__(self, *args: Any) -> None:
            self.file = open(*args)  # noqa: SIM115 - closed by those who opened it

        def __enter__(self) -> "Halting":
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def write(self, content: bytes) -> None:
            self.file.write(content[: len(content) // 2])
            self.file.flush()
            step()
            self.file.write(content[len(content) // 2 :])

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    with pytest.MonkeyPatch.context() as patch:
        for name in STEPS:
            patch.setattr(os, name, wrapped(getattr(os, name)))
        patch.setattr(atomic, "open", Halting, raising=False)
        yield


def files(place: Path) -> dict[str, bytes]:
    """Everything that stands at a place, but for what the next save removes."""
    found = [place] if place.is_file() else sorted(file for file in place.rglob("*") if file.is_file())
    hidden = scratch(place)
    return {str(file.relative_to(place)): file.read_bytes() for file in found if file not in hidden}


class Trial:
    """An old result with a note of somebody's beside it, and a new one that is to take its place."""

    def __init__(self, kind: str, versions: tuple[dict[str, Any], dict[str, Any]], folder: Path) -> None:
        self.kind, (self.old, self.new) = kind, (made[kind] for made in versions)
        self.folder, self.place = folder / "here", folder / "here" / kind
        self.before, after = folder / "before" / kind, folder / "after" / kind
        for place, result in ((self.before, self.old), (after, self.old)):
            place.parent.mkdir()
            SAVES[kind](result, place)
            if place.is_dir():
                (place / "notes.txt").write_text("of somebody else")
        SAVES[kind](self.new, after)
        self.states = files(self.before), files(after)
        assert self.states[0] != self.states[1]

    def reset(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.before.parent, self.folder)

    def save(self) -> None:
        SAVES[self.kind](self.new, self.place)

    def steps(self) -> int:
        """How many there are."""
        self.reset()
        asked: list[int] = []
        with watched(lambda: asked.append(1)):
            self.save()
        return len(asked)

    def is_whole(self) -> bool:
        """Old or new; of a part of a study either file, which together are none: it is measured again."""
        found = files(settled(self.place))
        if found in self.states:
            return True
        assert self.kind == "study part"
        assert all(content in (state[name] for state in self.states) for name, content in found.items())
        with pytest.raises(ResultFormatError, match="was altered"):
            KINDS[self.kind].load(self.place)
        return True

    def require_next_save_cleans(self) -> None:
        self.save()
        assert files(self.place) == self.states[1]
        assert scratch(self.folder) == []


def some(steps: int) -> range:
    """All of them; of a result with many files alike every second or third."""
    return range(0, steps, 1 + steps // 40)


def until(n: int, then: Callable[[], None]) -> Callable[[], None]:
    """A step that does something when it is asked for the n-th time."""
    left = [n]

    def step() -> None:
        left[0] -= 1
        if left[0] < 0:
            then()

    return step


@pytest.mark.parametrize("kind", ["audit", "elicitation", "metrics.json", "study part"])
def test_a_process_that_dies_at_any_step(kind: str, versions, tmp_path: Path) -> None:
    trial = Trial(kind, versions, tmp_path)
    for n in some(trial.steps()):
        trial.reset()
        dies(trial, n)
        assert trial.is_whole(), n
        trial.require_next_save_cleans()


def dies(trial: Trial, n: int) -> None:
    child = os.fork()
    if not child:
        with watched(until(n, lambda: os._exit(9))):
            trial.save()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize("kind", SAVES)
def test_a_system_that_refuses_any_step(kind: str, versions, tmp_path: Path) -> None:
    def refuse() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    trial, refused = Trial(kind, versions, tmp_path), 0
    for n in some(trial.steps()):
        trial.reset()
        with watched(until(n, refuse)):
            try:
                trial.save()
            except StorageError as error:
                refused += 1
                assert "No space left on device" in str(error)
        assert trial.is_whole(), n
        trial.require_next_save_cleans()
    assert refused > 3
