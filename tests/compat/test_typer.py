"""Parts of typer that are unstable; each test names one."""

from typing import Annotated

import pytest
import typer

from uds_lens._compat.typer import PlainCommand, flags_of, missing_options, parameters_of, program_of, set_help


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

    return program


def test_parameters_and_their_flags(app: typer.Typer) -> None:
    program = program_of(app)
    found = parameters_of(program, ["walk", "home", "--far", "x"])
    assert list(found)[:4] == ["where", "far", "fast", "look"], (
        "typer.main.get_command(app).commands[...].params is no longer how a command's parameters are read: "
        "see uds_lens/_compat/typer.py, parameters_of"
    )
    assert flags_of(found["look"]) == ["--look"]
    assert flags_of(found["look"], negative=True) == ["--no-look"], (
        "the opts and secondary_opts of a click parameter have moved: see uds_lens/_compat/typer.py, flags_of"
    )
    assert parameters_of(program, ["run"]) == {}


def test_the_help_of_an_option_can_be_changed_before_it_is_shown(
    app: typer.Typer, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(context: typer.Context, value: bool) -> bool:
        set_help(context.command, "far", "How far it is.")
        return value

    @app.command()
    def run(
        first: Annotated[bool, typer.Option(is_eager=True, callback=change)] = False,
        far: Annotated[str, typer.Option(help="As written.")] = "x",
    ) -> None:
        """Run."""

    with pytest.raises(SystemExit):
        app(["run", "--first", "--help"], prog_name="p")
    assert "How far it is." in capsys.readouterr().out, (
        "the help of a click parameter is no longer read when --help prints it: see uds_lens/_compat/typer.py, set_help"
    )


def test_missing_options_are_told_together(app: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        app(["walk", "home"], prog_name="p")
    assert exit_info.value.code == 2
    assert "Missing option '--far'. Also missing: --fast." in capsys.readouterr().err, (
        "typer.BadParameter no longer comes from TyperCommand.parse_args with a message to write to: "
        "see uds_lens/_compat/typer.py, PlainCommand"
    )


def test_options_can_be_missed_by_a_command_itself(app: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    @app.command()
    def run() -> None:
        raise missing_options(["--far", "--fast"])

    with pytest.raises(SystemExit) as exit_info:
        app(["run"], prog_name="p")
    assert exit_info.value.code == 2
    assert "Missing option '--far'. Also missing: --fast." in capsys.readouterr().err, (
        "typer.BadParameter is no longer an error of usage with one text: see uds_lens/_compat/typer.py, "
        "missing_options"
    )


def test_an_argument_is_shown_without_its_type(app: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        app(["walk", "--help"], prog_name="p")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  PLACE")]
    assert line.split() == ["PLACE", "[required]"], (
        "TyperArgument.display_type_rich no longer decides what --help says of an argument's type: "
        "see uds_lens/_compat/typer.py, PlainCommand"
    )


def test_ctrl_c_reaches_the_program_as_an_exit_code(app: typer.Typer) -> None:
    @app.command()
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as exit_info:
        app(["stop"], prog_name="p")
    assert exit_info.value.code == 130
