"""Messages of the library in the words of the program.

The library names a setting as it is written in Python, `dtype='bfloat16'` or `RunOptions(token_budget=...)`. Where the
setting is an option of the command that ran, the user is told `--dtype bfloat16`, `--token-budget`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_VALUE = r"'[^']*'|\"[^\"]*\"|True|False|\.\.\.|\d+(?:\.\d+)?"
_CALLED = re.compile(rf"\b([A-Z]\w+)\(([a-z_]+)=({_VALUE})\)")
_SETTING = re.compile(rf"\b([a-z_]+)=({_VALUE})")
_SUBJECT = re.compile(r"^([a-z_]+)(?= must )")
_QUOTES = "\"'"


def options_by_name(command: Any) -> dict[str, Any]:
    """A command's parameters by their names in Python."""
    return {parameter.name: parameter for parameter in command.params}


def spoken(message: str, options: Mapping[str, Any]) -> str:
    """A message with the settings that are options written as options.

    Args:
        message: What the library says.
        options: The command's parameters (see `options_by_name`).

    Example:
        >>> from types import SimpleNamespace
        >>> dtype = SimpleNamespace(opts=["--dtype"], secondary_opts=[])
        >>> spoken("Use dtype='float32', or use_fast=True.", {"dtype": dtype})
        'Use --dtype float32, or use_fast=True.'
    """

    def option(text: str, name: str, value: str) -> str:
        """The option that stands for a setting; `text` where the command has none."""
        found = options.get(name)
        flags = [] if found is None else found.secondary_opts if value == "False" else found.opts
        if not flags:
            return text
        return flags[0] if value in ("True", "False", "...") else f"{flags[0]} {value.strip(_QUOTES)}"

    def called(found: re.Match[str]) -> str:
        kind, name, value = found.groups()
        if kind.endswith("Config") and "set_" in options:
            return f"--set {name}={'VALUE' if value == '...' else value.strip(_QUOTES)}"
        return option(found[0], name, value)

    message = _SUBJECT.sub(lambda found: option(found[0], found[1], "..."), message)
    message = _CALLED.sub(called, message)
    return _SETTING.sub(lambda found: option(found[0], found[1], found[2]), message)
