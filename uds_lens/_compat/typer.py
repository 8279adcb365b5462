"""What is unstable in typer and click: the class of a command, and the texts of its errors of usage."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand


class PlainCommand(TyperCommand):
    """typer's command; all options that are missing are told at once, and no class of an error."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        for parameter in self.params:
            if isinstance(parameter, TyperArgument):
                # Its metavar says what it takes, its type in Python does not.
                parameter.display_type_rich = lambda ctx: None  # type: ignore[method-assign]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words after the command's name."""
        given = {word.partition("=")[0] for word in args}
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ") or self._also_missing(given, error)
            raise

    def _also_missing(self, given: set[str], error: Any) -> str:
        """More options that have to be there; only an error about one of these comes without a message."""
        required = [
            p for p in self.params if p.required and p.opts[0].startswith("-") and p is not error.param
        ]
        missing = [p.opts[0] for p in required if not given & set(p.opts)]
        return f"Also missing: {', '.join(missing)}." if missing else ""


def parameters_of(app: typer.Typer, words: list[str]) -> dict[str, Any]:
    """Parameters of the command that `words` call, by their names in Python; none where there is no such command."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    command = next((commands[word] for word in words if word in commands), None)
    return {parameter.name: parameter for parameter in command.params} if command else {}


def set_help(command: Any, name: str, text: str) -> None:
    """Change what --help says of one parameter of a command, by its name in Python."""
    (parameter,) = (parameter for parameter in command.params if parameter.name == name)
    parameter.help = text


def flags_of(parameter: Any, *, negative: bool = False) -> list[str]:
    """How a parameter is written on the command line; `negative` asks for its "no" form."""
    return list(parameter.secondary_opts if negative else parameter.opts)
