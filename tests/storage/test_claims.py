"""Claims: one holder at a time, given back by the dead, never by the living."""

import errno
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from uds_lens._storage import claims
from uds_lens._storage.claims import Claims


@pytest.fixture(params=["hard links", "no hard links"])
def place(tmp_path, request, monkeypatch):
    if request.param == "no hard links":

        def link(*args, **kwargs):
            raise PermissionError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", link)
    return Claims(tmp_path, beat=0.05, silence=0.5)


def test_one_holder_until_it_is_done(place):
    with place.take("a") as claim:
        assert claim.is_ours
        assert place.take("a") is None
        assert place.take("b") is not None
        assert place.holder("a").pid == os.getpid()
    assert place.holder("a") is None
    with place.take("a"):
        assert place.deaths("a", 0) == 0


def test_of_many_at_once_exactly_one(place):
    for name in map(str, range(20)):
        gate, found = threading.Barrier(8), []

        def grab(name=name, gate=gate, found=found):
            gate.wait()
            found.append(place.take(name))

        threads = [threading.Thread(target=grab) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(claim is not None for claim in found) == 1


def dead_claim(place, name, **change):
    done = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True
    )
    record = {
        "host": claims.this_machine(),
        "pid": int(done.stdout),
        "born": 1.0,
        "since": time.time(),
        **change,
    }
    folder = place.folder / name
    folder.mkdir(exist_ok=True)
    (folder / "1.claim").write_text(json.dumps(record))
    return folder / "1.claim"


def test_a_dead_worker_gives_its_claim_back_at_once(place):
    dead_claim(place, "a")
    assert place.holder("a") is None
    with place.take("a"):
        assert place.take("a") is None
        assert place.deaths("a", 0) == 1
        assert place.deaths("a", time.time() + 9) == 0


def test_a_process_number_used_again_is_no_disguise(place):
    dead_claim(place, "a", pid=os.getpid())
    assert place.take("a") is not None


def test_on_another_machine_the_heartbeat_tells(place):
    file = dead_claim(place, "a", host="elsewhere", pid=os.getpid())
    assert place.take("a") is None
    os.utime(file, (time.time() - 5, time.time() - 5))
    assert place.take("a") is not None


def test_the_heart_beats(place, monkeypatch):
    with place.take("a") as claim:
        os.utime(claim.file, (1, 1))
        deadline = time.time() + 5
        while claim.file.stat().st_mtime < 2 and time.time() < deadline:
            time.sleep(0.02)
        assert claim.file.stat().st_mtime > 2
        monkeypatch.setattr(claims, "this_machine", lambda: "elsewhere")
        assert place.take("a") is None


def test_a_claim_without_words_counts_by_its_age(place):
    file = dead_claim(place, "a")
    file.write_text("")
    assert place.take("a") is None
    os.utime(file, (1, 1))
    assert place.take("a") is not None
