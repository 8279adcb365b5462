"""Settings in messages of the library become the options of the command that ran, and nothing else changes."""

import pytest
import typer

from uds_lens.cli.app import app
from uds_lens.cli.wording import options_by_name, spoken

COMMANDS = typer.main.get_command(app).commands


def said(command: str, message: str) -> str:
    return spoken(message, options_by_name(COMMANDS[command]))


@pytest.mark.parametrize(
    ("command", "message", "words"),
    [
        ("audit", "use device='cpu'.", "use --device cpu."),
        ("audit", 'Use protocol="raw", or', "Use --protocol raw, or"),
        (
            "audit",
            "a lower RunOptions(token_budget=...), device_map='auto'",
            "a lower --token-budget, --device-map auto",
        ),
        ("audit", "RunOptions(check_memory=False) tries", "--no-check-memory tries"),
        ("audit", "offline=True", "--offline"),
        (
            "audit",
            "confidence must lie between 0 and 1; got 2.0.",
            "--confidence must lie between 0 and 1; got 2.0.",
        ),
        (
            "unlearn",
            "npo needs retain data: pass retain=... (only",
            "npo needs retain data: pass --retain (only",
        ),
        ("unlearn", "Choose by RMUConfig(layer=...).", "Choose by --set layer=VALUE."),
        ("unlearn", "beta must be a number > 0; got 0.", "beta must be a number > 0; got 0."),
        (
            "relearn",
            "learning_rate must be a number > 0; got 0.",
            "--learning-rate must be a number > 0; got 0.",
        ),
        ("metrics", "min_k must lie in (0, 1]; got 2.0.", "--min-k must lie in (0, 1]; got 2.0."),
        ("quantise", "Use engine='naive'.", "Use engine='naive'."),
        (
            "audit",
            "attn_implementation='eager' and use_fast=True",
            "attn_implementation='eager' and use_fast=True",
        ),
        ("audit", "the entity 'dtype' of a=b must stay", "the entity 'dtype' of a=b must stay"),
    ],
)
def test_messages(command: str, message: str, words: str) -> None:
    assert said(command, message) == words


def test_every_part_of_a_message_of_the_library(uds_lens, tmp_path) -> None:
    code, _, err = uds_lens(
        *(
            "audit",
            "--full",
            "f",
            "--retain",
            "r",
            "--unlearned",
            "u",
            "--examples",
            "x.json",
            "--out",
            tmp_path / "o",
        ),
        *("--site", "mlp_out", "--last-layer", "post_norm"),
    )
    assert code == 1
    assert err == "error: --last-layer post_norm belongs to --site resid_post; got --site mlp_out.\n"
