"""A command whose errors of usage are in plain words."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand


class PlainCommand(TyperCommand):
    """typer's command; a wrong value is told without the name of the class that found it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words after the command's name."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise
