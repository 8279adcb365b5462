"""Unstable parts of typer and click: the command class, its help, and its usage errors."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand

HELP_ALL = "--help-all"
_HYPHEN, _UNBROKEN = "-", "\u2011"  # keeps options such as --stand-in on one line when help text is wrapped


class PlainCommand(TyperCommand):
    """A command that reports all missing options at once and lists its options in groups."""

    everything = False
    """Whether the help shows all groups."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        for parameter in self.params:
            if isinstance(parameter, TyperArgument):
                # The metavar says which values an argument takes; the Python type would add nothing.
                parameter.display_type_rich = lambda ctx: None  # type: ignore[method-assign]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words that follow the command's name."""
        given = {word.partition("=")[0] for word in args}
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ") or self._also_missing(given, error)
            raise

    def get_help(self, ctx: Any) -> str:
        """Return the help text, with no option broken at a hyphen."""
        return super().get_help(ctx).replace(_UNBROKEN, _HYPHEN)

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the description of the command."""
        text = self.help
        self.help = text and text.replace(_HYPHEN, _UNBROKEN)
        super().format_help_text(ctx, formatter)
        self.help = text

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options; groups (`typer.Option(rich_help_panel=...)`) are shown only with `--help-all`."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            name, text = parameter.get_help_record(ctx) or ("", "")
            title = getattr(parameter, "rich_help_panel", None) or (
                "Arguments" if isinstance(parameter, TyperArgument) else "Options"
            )
            groups.setdefault(title, []).append((name, text.replace(_HYPHEN, _UNBROKEN)))
        more = {title: groups.pop(title) for title in [*groups][2:] if not PlainCommand.everything}
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if more:
            count, names = sum(map(len, more.values())), ", ".join(more)
            formatter.write_paragraph()
            formatter.write_text(f"{count} more with {ctx.command_path} {HELP_ALL}: {names}.".replace("-", _UNBROKEN))

    def _also_missing(self, given: set[str], error: Any) -> str:
        """List the other missing options, for an error without a message, which is always about a missing option."""
        required = [p for p in self.params if p.required and p.opts[0].startswith("-") and p is not error.param]
        missing = [p.opts[0] for p in required if not given & set(p.opts)]
        return f"Also missing: {', '.join(missing)}." if missing else ""


def missing_options(flags: list[str]) -> Exception:
    """Return the usage error for missing options that only one form of a command requires."""
    usage_error = typer.BadParameter.__mro__[1]
    also = f" Also missing: {', '.join(flags[1:])}." if len(flags) > 1 else ""
    return usage_error(f"Missing option '{flags[0]}'.{also}")


def parameters_of(program: Any, words: list[str]) -> dict[str, Any]:
    """Return the parameters of the command named in `words`, keyed by Python name; empty if no command is named."""
    command = next((program.commands[word] for word in words if word in program.commands), None)
    return {parameter.name: parameter for parameter in command.params} if command else {}


def set_help(command: Any, name: str, text: str) -> None:
    """Change the help text of a command's parameter, given its Python name."""
    (parameter,) = (parameter for parameter in command.params if parameter.name == name)
    parameter.help = text
