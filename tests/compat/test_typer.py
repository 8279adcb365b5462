"""Parts of typer that are unstable; each test names one."""

from typing import Annotated

import pytest
import typer

from uds_lens._compat.typer import PlainCommand, missing_options, parameters_of, set_help


@pytest.fixture
def app() -> typer.Typer:
    program = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)

    @program.command(cls=PlainCommand)
    def walk(
        where: Annotated[list[str], typer.Argument(metavar="PLACE")],
        far: Annotated[str, typer.Option()],
        fast: Annotated[str, typer.Option()],
        look: Annotated[bool, typer.Option()] = True,
    ) -> None:
        """Walk."""

    @program.command()
    def rest() -> None:
        """Rest."""

    @program.command()
    def run() -> None:
        raise missing_options(["--far", "--fast"])

    @program.command()
    def stop() -> None:
        raise KeyboardInterrupt

    return program


def test_parameters_and_their_flags(app: typer.Typer) -> None:
    program = typer.main.get_command(app)
    found = parameters_of(program, ["walk", "home", "--far", "x"])
    assert list(found)[:4] == ["where", "far", "fast", "look"], (
        "typer.main.get_command(app).commands[...].params is no longer how a command's parameters are read: "
        "see uds_lens/_compat/typer.py, parameters_of"
    )
    assert (found["look"].opts, found["look"].secondary_opts) == (["--look"], ["--no-look"]), (
        "the opts and secondary_opts of a click parameter have moved: see uds_lens/_cli/app.py, as_option"
    )
    assert parameters_of(program, ["fly"]) == {}


def test_the_help_of_an_option_can_be_changed_before_it_is_shown(
    app: typer.Typer, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(context: typer.Context, value: bool) -> bool:
        set_help(context.command, "far", "How far it is.")
        return value

    @app.command()
    def fly(
        first: Annotated[bool, typer.Option(is_eager=True, callback=change)] = False,
        far: Annotated[str, typer.Option(help="As written.")] = "x",
    ) -> None:
        """Fly."""

    with pytest.raises(SystemExit):
        app(["fly", "--first", "--help"], prog_name="p")
    assert "How far it is." in capsys.readouterr().out, (
        "the help of a click parameter is no longer read when --help prints it: see uds_lens/_compat/typer.py, set_help"
    )


MISSING = "Missing option '--far'. Also missing: --fast."


@pytest.mark.parametrize(
    ("words", "code", "said", "gone"),
    [
        (["walk", "home"], 2, MISSING, "comes from TyperCommand.parse_args with a message to write to"),
        (["run"], 2, MISSING, "is an error of usage with one text"),
        (["stop"], 130, "", "is raised for missing options alone: Ctrl-C has its own exit code"),
    ],
)
def test_missing_options_are_told_together_and_ctrl_c_has_its_code(
    app: typer.Typer, capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: str, gone: str
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        app(words, prog_name="p")
    assert exit_info.value.code == code
    assert said in capsys.readouterr().err, (
        f"typer.BadParameter no longer {gone}: see uds_lens/_compat/typer.py, PlainCommand and missing_options"
    )


def test_an_argument_is_shown_without_its_type(app: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        app(["walk", "--help"], prog_name="p")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  PLACE")]
    assert line.split() == ["PLACE", "[required]"], (
        "TyperArgument.display_type_rich no longer decides what --help says of an argument's type: "
        "see uds_lens/_compat/typer.py, PlainCommand"
    )
