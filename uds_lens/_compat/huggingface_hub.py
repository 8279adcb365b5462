"""What is private in huggingface_hub and datasets: the switch that keeps a process off the network."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Thread
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

_PATIENCE = 5.0
"""Seconds within which a connection to the Hub, or to the proxy before it, has to open."""


@cache
def is_reachable() -> bool:
    """Whether a connection to the Hub can be opened. Asked once per process."""
    from huggingface_hub import constants

    asked = urlsplit(constants.ENDPOINT)
    proxy = getproxies().get(asked.scheme)
    if proxy is not None and not proxy_bypass(asked.hostname or ""):
        asked = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    place = asked.hostname or "", asked.port or (80 if asked.scheme == "http" else 443)
    opened: list[bool] = []

    def attempt() -> None:
        try:
            socket.create_connection(place, timeout=_PATIENCE).close()
        except OSError:
            return
        opened.append(True)

    looking = Thread(target=attempt, daemon=True)  # looking up a name has no time limit of its own
    looking.start()
    looking.join(_PATIENCE)
    return bool(opened)


@contextmanager
def asking_the_hub() -> Iterator[None]:
    """Go on as if offline where the Hub cannot be reached: what was downloaded is used, nothing is tried six times."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or is_reachable():
        yield
        return
    places = [constants, *([sys.modules["datasets.config"]] if "datasets.config" in sys.modules else [])]
    before = [place.HF_HUB_OFFLINE for place in places]
    for place in places:
        place.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for place, own in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = own  # type: ignore[attr-defined]
