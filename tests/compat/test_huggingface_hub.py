"""Parts of huggingface_hub and datasets that are not public; each test names one."""

import socket

import datasets.config
import pytest
from huggingface_hub import constants, is_offline_mode

from uds_lens._compat.huggingface_hub import asking_the_hub, is_reachable
from uds_lens.errors import ModelError
from uds_lens.models import read_checkpoint_info


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """A process that may ask the Hub, on a machine without a network."""
    asked: list[tuple[str, int]] = []

    def refuse(place: tuple[str, int], timeout: float) -> None:
        asked.append(place)
        raise OSError("no network")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "create_connection", refuse)
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    is_reachable.cache_clear()
    yield asked
    is_reachable.cache_clear()


def test_without_a_network_nothing_is_asked_twice(unreachable: list[tuple[str, int]]) -> None:
    with asking_the_hub():
        assert is_offline_mode() and datasets.config.HF_HUB_OFFLINE, "HF_HUB_OFFLINE is read elsewhere now"
    with pytest.raises(ModelError, match="the Hub cannot be reached"):
        read_checkpoint_info("nobody/nothing")
    assert unreachable == [("huggingface.co", 443)]
    assert not is_offline_mode() and not datasets.config.HF_HUB_OFFLINE


def test_a_proxy_is_what_has_to_answer(unreachable: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    assert not is_reachable()
    assert unreachable == [("proxy.example", 3128)]


def test_with_a_network_it_is_asked(unreachable: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "create_connection", lambda place, timeout: socket.socket())
    with asking_the_hub():
        assert not is_offline_mode()
