"""What all commands share: help, version, one-line errors and warnings, exit codes."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import uds_lens as ul
from uds_lens._cli.app import app
from uds_lens.errors import UdsLensError, forget_warnings, warn_once

PROGRAM = Path(sys.executable).with_name("uds-lens")
COMMANDS = sorted(command.callback.__name__.replace("_", "-") for command in app.registered_commands)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """`demo` warns once, then fails with a message of two lines."""

    def load() -> None:
        warn_once("something\nto know", key="tests.cli")
        raise ul.errors.DataError("no facts:\n  give some.")

    forget_warnings()
    monkeypatch.setattr("uds_lens.toy.load", load, raising=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_and_fits(command: str, uds_lens) -> None:
    assert f"uds-lens {command} --help-all" in uds_lens(command, "--help").out
    code, out, _ = uds_lens(command, "--help-all")
    assert code == 0
    assert re.search(rf"^  Examples?:\n    uds-lens {command} ", out, re.MULTILINE)
    assert max(map(len, out.splitlines())) <= 80
    assert "--json" in out
    assert "--debug" in out
    assert not re.search(r"<(str|int|float|list|path|dir|file)[\[ >]", out)


def test_offline_holds_for_everything_in_the_process(monkeypatch: pytest.MonkeyPatch, uds_lens) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    words = ("unlearn", "--method", "ga", "--full", "f", "--examples", "missing.json", "--out", "o")
    assert uds_lens(*words).code == 1
    assert "HF_HUB_OFFLINE" not in os.environ
    assert uds_lens(*words, "--offline").code == 1
    assert os.environ["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("audit --full x", "Missing option '--retain'. Also missing: --model, --examples, --out.\n"),
        ("quantise --model x", "Missing option '--out'.\n"),
        ("audit --dtype fp16", "'--dtype': 'fp16' is not one of 'float32', 'bfloat16', 'float16'."),
        ("depth", "No such command 'depth'"),
    ],
)
def test_wrong_usage_is_2(words: str, told: str, uds_lens) -> None:
    code, _, err = uds_lens(*words.split())
    assert code == 2 and told in err


def test_errors_and_warnings_are_one_line_each(broken: None, uds_lens) -> None:
    code, out, err = uds_lens("demo", "--json")
    assert (code, out) == (1, "")
    assert err == "warning: something to know\nerror: no facts: give some.\n"


def test_debug_shows_the_traceback(broken: None) -> None:
    from uds_lens._cli import main

    with pytest.raises(UdsLensError, match="no facts"), pytest.warns(ul.errors.UdsLensWarning):
        main(["demo", "--debug"])


def test_python_runs_the_package(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["uds_lens", "--version"])
    with pytest.raises(SystemExit, match="0"):  # by its path: bytecode of the module would keep the checks of this run
        runpy.run_path(str(Path(ul.__file__).with_name("__main__.py")), run_name="__main__")
    assert capsys.readouterr() == (f"uds-lens {ul.__version__}\n", "")


def test_installed_program_fails_in_one_line(tmp_path: Path) -> None:
    words = ("--full", "f", "--retain", "r", "--model", "u", "--examples", "missing.json", "--out", "o")
    done = subprocess.run([PROGRAM, "audit", *words], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: missing.json")
