"""Saves that fail or die at any step leave the old or the new; altered ones are refused or as they were saved."""

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from altered_results import KINDS, altered, contents, outcome, results, save_all, scratch
from hypothesis import given, settings, strategies as st
from tiny_models import some_now

from uds_lens._storage import files as atomic
from uds_lens._storage.files import settled
from uds_lens.errors import StorageError

STEPS = ("fsync", "replace", "rename", "chmod", "mkdir", "open", "unlink", "rmdir")
"""Calls of a save to the system, beside writing."""


@contextmanager
def watched(step: Callable[[], None]) -> Iterator[None]:
    """Call `step` before every call to the system, and in the middle of every file."""

    def wrapped(true: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            step()
            return true(*args, **kwargs)

        return call

    @contextmanager
    def halting(*args: Any) -> Iterator[Any]:
        """Open a file that is written in two halves."""
        with open(*args) as file:

            def write(content: bytes) -> None:
                file.write(content[: len(content) // 2])
                file.flush()
                step()
                file.write(content[len(content) // 2 :])

            yield SimpleNamespace(write=write, read=file.read, flush=file.flush, fileno=file.fileno)

    with pytest.MonkeyPatch.context() as patch:
        for name in STEPS:
            patch.setattr(os, name, wrapped(getattr(os, name)))
        patch.setattr(atomic, "open", halting, raising=False)
        yield


def files(place: Path) -> dict[str, bytes]:
    """Everything at a place, except what the next save removes."""
    hidden = scratch(place)
    found = sorted(file for file in place.rglob("*") if file.is_file())
    return {str(file.relative_to(place)): file.read_bytes() for file in found if not {*hidden} & {file, *file.parents}}


class Trial:
    """An old result with a foreign note beside it, and a new one that replaces it."""

    def __init__(self, kind: str, folder: Path) -> None:
        old, self.new = (results(seed)[kind] for seed in (0, 1))
        self.kind, self.folder, self.place = kind, folder / "here", folder / "here" / kind
        self.before, after = folder / "before" / kind, folder / "after" / kind
        for place in (self.before, after):
            place.parent.mkdir()
            KINDS[kind].save(old, place)
            (place / "notes.txt").write_text("foreign")
        KINDS[kind].save(self.new, after)
        self.states = files(self.before), files(after)
        assert self.states[0] != self.states[1]

    def reset(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.before.parent, self.folder)

    def save(self) -> None:
        KINDS[self.kind].save(self.new, self.place)

    def some_steps(self) -> range:
        """About 25 of the steps of one save."""
        self.reset()
        calls: list[int] = []
        with watched(lambda: calls.append(1)):
            self.save()
        return range(0, len(calls), 1 + len(calls) // 25)

    def check(self, n: int) -> None:
        """Old or new; the next save cleans up."""
        found = files(settled(self.place))
        assert found in self.states, n
        self.save()
        assert files(self.place) == self.states[1] and scratch(self.folder) == []


def until(n: int, then: Callable[[], None]) -> Callable[[], None]:
    """Return a step that calls `then` from its n-th call on."""
    left = [n]

    def step() -> None:
        left[0] -= 1
        if left[0] < 0:
            then()

    return step


@pytest.mark.parametrize("kind", some_now(["audit"], of=["audit", "study part"]))
def test_a_process_that_dies_at_any_step(kind: str, tmp_path: Path) -> None:
    trial = Trial(kind, tmp_path)
    for n in trial.some_steps():
        trial.reset()
        child = os.fork()
        if not child:
            with watched(until(n, lambda: os._exit(9))):
                trial.save()
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        trial.check(n)


@pytest.mark.parametrize("kind", ["audit", "study part"])
def test_a_system_that_refuses_any_step(kind: str, tmp_path: Path) -> None:
    def refuse() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    trial, refused = Trial(kind, tmp_path), 0
    for n in trial.some_steps():
        trial.reset()
        with watched(until(n, refuse)):
            try:
                trial.save()
            except StorageError as error:
                refused += 1
                assert "No space left on device" in str(error)
        trial.check(n)
    assert refused > 3


@pytest.fixture(scope="module")
def unchecked(monkeypatch_module):
    """The run-time type checker off: it is for tests, and would answer in place of the library."""
    monkeypatch_module.setattr("jaxtyping.config.jaxtyping_disable", True)


@pytest.fixture(scope="module")
def saved(unchecked, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    save_all(folder)
    return folder, {kind: contents(how.load(folder / kind)) for kind, how in KINDS.items()}


@settings(max_examples=60, derandomize=True, database=None)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(sorted(KINDS)))
def test_altered_results_are_refused_or_as_they_were(unchecked, saved, seed, kind):
    folder, original = saved
    place = folder / "copy"
    forged = altered(kind, folder / kind, place, random.Random(seed))
    said = outcome(kind, place, original[kind], forged=forged)
    assert said in ("refused", "same", "forged"), said


def test_contents_are_the_same_every_time(unchecked, saved):
    folder, original = saved
    for kind, how in KINDS.items():
        assert contents(how.load(folder / kind)) == original[kind], kind
