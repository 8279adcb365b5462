"""Claims: one holder at a time, given back by the dead, never by the living; broken files stop nobody."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from uds_lens._storage import claims, processes
from uds_lens._storage.claims import Claims
from uds_lens._storage.processes import this_process
from uds_lens.errors import StorageError


class Clock:
    """Stands for `time`: nobody waits, and a busy machine changes nothing."""

    now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(claims, "time", found := Clock())
    return found


@pytest.fixture
def place(tmp_path, clock):
    return Claims(tmp_path, run="this", beat=0.05, silence=0.4)


def written(place, name, number=1, **change):
    """A claim of a process that has ended, but for what is changed."""
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    file = place.folder / name / f"{number}.claim"
    file.parent.mkdir(exist_ok=True)
    record = {**this_process()._asdict(), "pid": int(done.stdout), "run": "this", **change}
    file.write_text(json.dumps(record))
    return file


def test_one_holder_until_it_is_done(place):
    with place.take("a"):
        assert place.take("a") is None
        assert place.take("b") is not None
        assert place.holder("a").process == this_process() and place.is_alive("a")
    assert place.holder("a") is None
    with place.take("a"):
        assert place.deaths("a", "this") == 0


def test_of_many_at_once_exactly_one(place):
    for name in map(str, range(10)):
        gate, taken = threading.Barrier(8), []

        def grab(name=name, gate=gate, taken=taken):
            gate.wait()
            taken.append(place.take(name))

        threads = [threading.Thread(target=grab) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(claim is not None for claim in taken) == 1


def test_a_dead_worker_gives_its_claim_back_at_once_and_is_counted(place):
    written(place, "a")
    written(place, "a", 2, run="an earlier one")
    written(place, "a", 3, pid=os.getpid(), born=1)  # a number used again is another process
    assert place.holder("a") is None
    with place.take("a"):
        assert place.take("a") is None
        assert (place.deaths("a", "this"), place.deaths("a", "an earlier one")) == (2, 1)


@pytest.mark.parametrize("change", [{"machine": "another"}, {"machine": "another", "pid": 1}])
def test_of_another_machine_heartbeats_tell_whatever_its_clock_says(place, clock, change):
    file = written(place, "a", **change)
    for stamp in (1, 2_000_000_000):
        os.utime(file, (stamp, stamp))
        assert place.take("a") is None and place.is_alive("a") == (stamp > 1)
    clock.now += 0.5
    assert place.holder("a") is None
    assert place.take("a") is not None


def test_machines_of_one_name_are_two(monkeypatch):
    monkeypatch.setattr(processes, "_text", lambda path: "another boot" if "boot" in path else "the same image")
    processes._machine.cache_clear()
    other = this_process()
    monkeypatch.undo()
    processes._machine.cache_clear()
    assert other.machine != this_process().machine and other.born == this_process().born
    assert not processes.is_gone(other._replace(pid=99_999_999)) and not processes.is_gone(this_process())


def test_the_heart_beats(place):
    with place.take("a") as claim:
        os.utime(claim.file, (1, 1))
        end = time.monotonic() + 60
        while claim.file.stat().st_mtime < 2 and time.monotonic() < end:
            time.sleep(0.02)
        assert claim.file.stat().st_mtime > 2


BROKEN = [b"", b"[" * 100_000, b"3", b'{"machine": []}', b"\xff\xfe", {"pid": -1}, {"born": None}]


@pytest.mark.parametrize("content", BROKEN)
def test_a_broken_claim_counts_by_its_heartbeat(place, clock, content):
    file = written(place, "a", **(content if isinstance(content, dict) else {}))
    if isinstance(content, bytes):
        file.write_bytes(content)
    assert place.take("a") is None and place.holder("a") is None
    clock.now += 0.5
    with place.take("a"):
        assert place.deaths("a", "this") == 0


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_odd_names_and_what_is_no_file_stop_nobody(place, clock, make):
    (place.folder / "a").mkdir()
    for name in ("²", "-1", "x", "01", "9" * 18, "1" * 200):
        (place.folder / "a" / f"{name}.claim").touch()
    make(place.folder / "a" / "1.claim")
    assert place.take("a") is None
    clock.now += 0.5
    assert place.take("a").file.name == "2.claim"


def test_a_file_in_the_way_is_named(place):
    (place.folder / "b").write_text("a file")
    with pytest.raises(StorageError, match=r"cannot write '.*b'"):
        place.take("b")
    assert place.holder("b") is None
