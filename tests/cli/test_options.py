"""Groups of options: spread for typer, put together again, with the defaults of the library."""

import inspect
from dataclasses import dataclass, fields

import pytest

from uds_lens._cli.options import (
    Adapters,
    AuditRunning,
    Chat,
    Group,
    Hub,
    Measuring,
    Running,
    Training,
    grouped,
)
from uds_lens.results import AuditConfig, RunOptions
from uds_lens.unlearning import LoraSettings, TrainOptions


@pytest.mark.parametrize(
    ("group", "record"),
    [
        (Measuring, AuditConfig),
        (Running, RunOptions),
        (AuditRunning, RunOptions),
        (Hub, RunOptions),
        (Hub, TrainOptions),
        (Training, TrainOptions),
    ],
)
def test_defaults_are_those_of_the_library(group: type, record: type) -> None:
    defaults = {field.name: field.default for field in fields(record)}
    assert {field.name: field.default for field in fields(group)}.items() <= defaults.items()


def test_a_group_is_spread_and_put_together_again() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Pair(Group):
        left: int = 1
        right: str = "r"

    got = []

    def command(first: str, *, pair: Pair, last: bool = False) -> None:
        got.append((first, pair, last))

    command.__annotations__["pair"] = Pair
    spread = grouped(command)
    assert list(inspect.signature(spread).parameters) == ["first", "left", "right", "last"]
    spread(first="a", left=2, right="x", last=True)
    assert got == [("a", Pair(left=2, right="x"), True)]


def test_options_are_records_of_the_library() -> None:
    hub = Hub(offline=True)
    assert AuditRunning(engine="naive").options(hub) == RunOptions(engine="naive", offline=True)
    assert Training(device="cpu").options(hub) == TrainOptions(device="cpu", offline=True)
    assert Adapters().settings() is None
    assert Adapters(lora=4).settings() == LoraSettings(rank=4, alpha=8)
    assert Measuring(tau=0.1).config(Chat()) == AuditConfig(tau=0.1)


def test_chat_prompts_of_a_publication_with_one_thing_else() -> None:
    style = Chat(chat_style="open_unlearning", chat_date="1 Jan 2026")
    assert style.settings() == {"system_prompt": "You are a helpful assistant.", "chat_date": "1 Jan 2026"}
    assert Measuring(protocol="chat").config(style).chat_date == "1 Jan 2026"
    assert Chat(chat_style="paper_scores").settings() == {"system_prompt": None, "chat_date": "10 Apr 2025"}
