"""A part that kills its process, for `test_study_parts.py`: processes of joblib import it."""

import os
import signal
from pathlib import Path


class Killing:
    """Writes a file for each part; one of them kills its process, another raises."""

    def __init__(self, place: Path, *, deadly: str = "", broken: str = "") -> None:
        self.place, self.deadly, self.broken = place, deadly, broken

    def __call__(self, name: str) -> None:
        if name == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        if name == self.broken:
            raise ValueError("no\nvalue")
        (self.place / name).touch()
