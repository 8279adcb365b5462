"""Workers as processes of this machine: started, replaced when they die, ended with who started them."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from uds_lens.study.study_folder import StudyFolder
from uds_lens.study.study_worker import DEATHS, work

_LOG = logging.getLogger("uds_lens.study")


def work_with_processes(folder: StudyFolder, *, jobs: int, since: float) -> None:
    """Let several workers do everything that is left.

    Args:
        folder: The study.
        jobs: Workers.
        since: When this run began.
    """
    # Not by `-m`: the package has imported this file by then, and Python would warn of it.
    program = "from uds_lens.study.local_workers import main; main()"
    words = [sys.executable, "-c", program, str(folder.path), "--since", repr(since)]
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    environment = {"OMP_NUM_THREADS": threads, **os.environ, "UDS_LENS_PARENT": str(os.getpid())}
    workers = [subprocess.Popen(words, env=environment) for _ in range(jobs)]
    replaced = 0
    try:
        while workers:
            time.sleep(0.2)
            for worker in [each for each in workers if each.poll() is not None]:
                workers.remove(worker)
                if worker.returncode != 0 and replaced < DEATHS * (len(folder.models) + jobs):
                    replaced += 1
                    _LOG.warning("a worker died (%s); another goes on", _died_of(worker.returncode))
                    workers.append(subprocess.Popen(words, env=environment))
    finally:
        for worker in workers:
            with suppress(ProcessLookupError):
                worker.terminate()
        for worker in workers:
            worker.wait()


def _died_of(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


def main() -> None:
    """One worker process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--since", type=float, required=True)
    asked = parser.parse_args()
    parent = int(os.environ.get("UDS_LENS_PARENT", "0"))
    if parent:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    _LOG.addHandler(handler)
    _LOG.setLevel(logging.INFO)
    _LOG.propagate = False  # some package puts a handler on the root logger, which would say it again
    work(StudyFolder(asked.folder), since=asked.since)


def _end_with(parent: int) -> None:
    """End when who started us is gone: nobody would see what comes after."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    main()
