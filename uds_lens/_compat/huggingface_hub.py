"""Private internals of huggingface_hub and datasets: their switch for offline mode."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Thread
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

_PATIENCE = 5.0  # seconds to wait for a connection to the Hub or its proxy


@cache
def is_reachable() -> bool:
    """Return whether the Hub can be reached, which is tested only once per process."""
    from huggingface_hub import constants

    address = urlsplit(constants.ENDPOINT)
    proxy = getproxies().get(address.scheme)
    if proxy is not None and not proxy_bypass(address.hostname or ""):
        address = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    place = address.hostname or "", address.port or (80 if address.scheme == "http" else 443)
    opened: list[bool] = []

    def attempt() -> None:
        try:
            socket.create_connection(place, timeout=_PATIENCE).close()
        except OSError:
            return
        opened.append(True)

    looking = Thread(target=attempt, daemon=True)  # a DNS lookup has no timeout of its own
    looking.start()
    looking.join(_PATIENCE)
    return bool(opened)


@contextmanager
def asking_the_hub() -> Iterator[None]:
    """Switch to offline mode if the Hub cannot be reached, so that downloaded files are used without waiting for it."""
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
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value  # type: ignore[attr-defined]
