"""Options made from the settings records: names, defaults, help, the record that the command gets, and messages."""

import subprocess
import sys
from dataclasses import dataclass, fields
from typing import Annotated, Literal

import pytest
import typer
from pydantic.json_schema import SkipJsonSchema
from typer.testing import CliRunner

from uds_lens._cli.app import app, as_option, one_line
from uds_lens._cli.options import _PANELS, Offer, with_records
from uds_lens._settings import validated
from uds_lens.elicitation import ElicitOptions
from uds_lens.errors import ConfigError, Setting, UdsLensWarning
from uds_lens.metrics import MetricOptions
from uds_lens.results import AuditConfig, RunOptions
from uds_lens.study import SlurmOptions
from uds_lens.unlearning import MethodConfig, RelearnConfig, TrainOptions

COMMANDS = typer.main.get_command(app).commands


@validated
@dataclass(frozen=True, kw_only=True)
class Base:
    left: int | None = None
    """How far left. And more of it."""

    wide: bool = True
    """Whether it is wider than `left`."""


@validated
@dataclass(frozen=True, kw_only=True)
class Settings(Base):
    names: tuple[str, ...] = ()
    """Names of things; None has none."""

    wide: bool = False

    either: bool | Literal["auto"] = "auto"
    """Whether, or not, or as it comes."""

    hidden: float = 0.5
    """Not offered."""

    of_python: SkipJsonSchema[bool | None] = None
    """For programs."""


def call(command, *words: str):
    program = typer.Typer()
    program.command()(with_records(command))
    return CliRunner().invoke(program, list(words))


def test_a_record_is_spread_and_put_together_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_PANELS, "Settings", "Things")
    got = []
    prompts = ("protocol", "system_prompt", "chat_date", "template_kwargs", "chat_style")

    def command(
        first: str,
        *,
        settings: Annotated[Settings, Offer(("left", "names", "wide", "either"), first=("left",))],
        chat: Annotated[MethodConfig, Offer(prompts)],
        last: Annotated[bool, typer.Option("--last")] = False,
    ) -> None:
        got.append((first, settings, chat, last))

    call(command, "a")
    call(command, "a", *["--left", "2", "--names", "x", "--names", "y", "--wide", "--last", "--system-prompt", "S"])
    call(command, "a", *["--chat-style", "open_unlearning", "--system-prompt", "S", "--no-either"])
    changed = Settings(left=2, names=("x", "y"), wide=True)
    assert got == [
        ("a", Settings(), MethodConfig(), False),
        ("a", changed, MethodConfig(system_prompt="S"), True),
        ("a", Settings(either=False), MethodConfig(system_prompt="S", chat_date="10 Apr 2025"), False),
    ]
    shown = " ".join(call(command, "--help").output.replace("│", "").split())
    assert "How far left." in shown and "And more" not in shown and "--hidden" not in shown and "--of" not in shown
    assert "Names of things; default: has none. Repeatable." in shown
    assert "Whether it is wider than --left." in shown, "the docstring of the class it is derived from"
    wide = call(command, "a", "--no-wide")
    assert wide.exit_code == 2, "a flag that is off by default has no --no-"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_short_and_help_all_is_whole(command: str, uds_lens) -> None:
    options = {flag for parameter in COMMANDS[command].params for flag in parameter.opts if flag.startswith("--")}
    short, whole = (
        {line.split()[0].rstrip(",") for line in uds_lens(command, word).out.splitlines() if line.startswith("  -")}
        for word in ("--help", "--help-all")
    )
    assert len(short) <= 15 and short < whole
    assert whole - {"-h"} == options - {"--help"}


RECORDS = {
    "audit": (AuditConfig, RunOptions),
    "doctor": (AuditConfig,),
    "metrics": (MetricOptions,),
    "elicit": (ElicitOptions,),
    "unlearn": (TrainOptions,),
    "relearn": (TrainOptions, RelearnConfig),
    "sweep": (SlurmOptions,),
}


@pytest.mark.parametrize("command", RECORDS)
def test_every_field_is_an_option(command: str) -> None:
    options = {option.name: option for option in COMMANDS[command].params}
    for field in (field for record in RECORDS[command] for field in fields(record)):
        if field.name not in ("progress", "callbacks"):
            assert options[field.name].help, field.name
            if field.name not in ("chat_date", "log_to", "stream"):
                assert options[field.name].default == field.default, field.name


MISSING = [
    "audit --full ./no --retain r --model u --examples e.json --out o",
    "metrics --model ./no --examples e.json --out o.json",
    "elicit --model ./no --examples e.json --out o",
    "unlearn --method npo --full ./no --examples f.json --out o",
    "relearn --model ./no --examples e.json --out o",
    "quantise --model ./no --out o",
]
GONE = [
    "audit --full f --retain r --model u --examples no.json --out o",
    "metrics --model m --examples no.json --out o.json",
    "annotate --examples no.json --by names --out o.json",
    "unlearn --method npo --full ~/no --examples f.json --out o",
    "relearn --model m --examples no.csv --out o",
    "report no",
    "rank no",
    "meta no.csv",
    "dashboard no",
    "sweep no.toml --out o",
]


def test_a_path_that_does_not_exist_ends_before_torch_is_imported() -> None:
    """Loading torch takes seconds; so does waiting for the name of a typing error."""
    program = (
        "import sys\nfrom uds_lens._cli import main\n"
        f"for words in {MISSING + GONE!r}:\n"
        "    try:\n        main(words.split())\n"
        "    except SystemExit as leaving:\n"
        "        print(leaving.code, 'torch' in sys.modules, words)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"1 False {words}" for words in MISSING + GONE]
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    named = "error: no directory './no': pass a checkpoint directory, or a Hub id 'owner/name'."
    assert said[: len(MISSING)] == [named] * len(MISSING) and len(said) == len(MISSING + GONE)


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
