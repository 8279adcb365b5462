"""Settings in messages of the library become the options of the command that ran, and nothing else changes."""

import pytest
import typer

from uds_lens._cli.app import app, as_option, one_line
from uds_lens.errors import ConfigError, Setting, UdsLensWarning

COMMANDS = typer.main.get_command(app).commands


def options(command: str) -> dict:
    return {parameter.name: parameter for parameter in COMMANDS[command].params}


@pytest.mark.parametrize(
    ("command", "setting", "words"),
    [
        ("audit", Setting("device", "cpu"), "--device cpu"),
        ("audit", Setting("token_budget", of="RunOptions"), "--token-budget"),
        ("audit", Setting("check_memory", False, of="RunOptions"), "--no-check-memory"),
        ("audit", Setting("offline", True), "--offline"),
        ("audit", Setting("confidence"), "--confidence"),
        ("unlearn", Setting("retain", ...), "--retain-data"),
        ("unlearn", Setting("layer", of="RMUConfig"), "--set layer=VALUE"),
        ("unlearn", Setting("layer", 3, of="RMUConfig"), "--set layer=3"),
        ("unlearn", Setting("beta"), "beta"),
        ("relearn", Setting("learning_rate"), "--learning-rate"),
        ("metrics", Setting("min_k"), "--min-k"),
        ("quantise", Setting("engine", "naive"), "engine='naive'"),
        ("quantise", Setting("token_budget", of="RunOptions"), "RunOptions(token_budget=...)"),
    ],
)
def test_a_setting_is_named_as_the_option(command: str, setting: Setting, words: str) -> None:
    assert as_option(setting, options(command)) == words


def test_text_that_looks_like_a_setting_stays() -> None:
    error = ConfigError("the entity 'dtype' of\n dtype='x' must stay; use ", Setting("dtype", "float32"), ".")
    assert one_line("error", error, options("audit")) == (
        "error: the entity 'dtype' of dtype='x' must stay; use --dtype float32."
    )
    assert one_line("warning", UdsLensWarning(Setting("tau")), options("audit")) == "warning: --tau"


def test_every_part_of_a_message_of_the_library(uds_lens, tmp_path) -> None:
    (examples := tmp_path / "x.json").write_text("[]")
    code, _, err = uds_lens(
        *("audit", "--full", "f", "--retain", "r", "--model", "u", "--examples", examples),
        *("--out", tmp_path / "o", "--site", "mlp_out", "--last-layer", "post_norm"),
    )
    assert code == 1
    assert err == "error: --last-layer post_norm belongs to --site resid_post; got --site mlp_out.\n"
