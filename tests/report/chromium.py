"""A headless Chromium, driven over its debugging pipe: nothing to install but the browser."""

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-extensions",
    "--hide-scrollbars",
    "about:blank",
)


def find_browser() -> str:
    """Path of a Chromium or Chrome (UDS_LENS_CHROMIUM names one); skips the test without one."""
    asked = os.environ.get("UDS_LENS_CHROMIUM")
    found = asked or next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        pytest.skip("no Chromium or Chrome on the PATH (UDS_LENS_CHROMIUM names one)")
    return found


class Chromium:
    """The browser process and one page in it."""

    def __init__(self, profile: Path) -> None:
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        # The browser reads commands from descriptor 3 and answers on 4; sh puts ours there.
        line = f'exec "$0" "$@" 3<&{commands} 4>&{answers}'
        self.process = subprocess.Popen(
            ["bash", "-c", line, find_browser(), f"--user-data-dir={profile}", *FLAGS],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._buffer, self._number, self._session, self._shown = b"", 0, None, ()
        self.problems: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send("Performance.enable", timeDomain="threadTicks")

    def send(self, method: str, *, seconds: float = 120.0, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol and wait for its result."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + seconds
        while True:
            answer = self._read(deadline)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def open(
        self,
        path: Path,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        ready: str = "document.documentElement?.dataset.ready === 'yes'",
    ) -> float:
        """Load a local file and wait until it is `ready`, a JavaScript condition; returns the seconds it took.

        `work` are the seconds of the page's own thread, however busy the machine is.
        """
        self._shown = (path, width, dark)
        self.problems.clear()
        self.requests.clear()
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url="about:blank")
        begun, before = time.monotonic(), self._worked()
        self.send("Page.navigate", url=path.as_uri())
        self.wait_for(ready)
        took, after = time.monotonic() - begun, self._worked()
        self.work = after - before if after >= before else after  # where a new process has the page
        return took

    def _worked(self) -> float:
        found = self.send("Performance.getMetrics")["metrics"]
        return next(float(each["value"]) for each in found if each["name"] == "TaskDuration")

    def show(self, path: Path, *, width: int = 1280, dark: bool = False) -> None:
        """Open a file unless it is open like that already."""
        if self._shown != (path, width, dark):
            self.open(path, width=width, dark=dark)

    def resize(self, width: int, height: int = 900) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def run(self, script: str) -> Any:
        """Value of a JavaScript expression."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(json.dumps(answer["exceptionDetails"])[:800])
        return answer["result"].get("value")

    def wait_for(self, condition: str, *, seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            if time.monotonic() > deadline:
                raise AssertionError(f"never true: {condition}; problems: {self.problems}")
            time.sleep(0.05)

    def close(self) -> None:
        self._session = None
        try:
            self.send("Browser.close", seconds=5)
        except (OSError, RuntimeError, AssertionError):
            self.process.kill()
        self.process.wait(timeout=10)
        os.close(self._commands)
        os.close(self._answers)

    def _read(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise AssertionError("the browser does not answer")
            part = os.read(self._answers, 1 << 20)
            if not part:
                raise AssertionError("the browser has died")
            self._buffer += part
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        """Keep what must not happen: errors, warnings of the console, requests."""
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(parameters["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(parameters["args"])[:500])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
