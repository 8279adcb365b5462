"""Options that go together. A command takes a group as one parameter; its user sees the group's options.

`grouped` spreads the groups for typer and puts them together again for the command. There `~` becomes home.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any, get_type_hints


class Group:
    """A frozen dataclass whose fields are options; see `uds_lens.cli.shared_options` for those there are."""


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with each parameter that is a group spread into the options of the group, as typer reads them."""
    groups: dict[str, type[Any]] = {}
    parameters: list[Parameter] = []
    for parameter in signature(command, eval_str=True).parameters.values():
        kind = parameter.annotation
        if isinstance(kind, type) and issubclass(kind, Group):
            groups[parameter.name] = kind
            parameters += _options(kind)
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))

    @wraps(command)
    def run(**given: Any) -> None:
        given = {name: at_home(value) for name, value in given.items()}
        together = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            for name, kind in groups.items()
        }
        command(**given, **together)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def at_home(value: Any) -> Any:
    """A path with `~` as the home directory, where the shell left it (`--out=~/runs`); anything else as it is.

    >>> at_home("~") == "~", at_home([Path("a")]) == [Path("a")], at_home(Path("~/a")) == Path.home() / "a"
    (True, True, True)
    """
    if isinstance(value, list):
        return [at_home(each) for each in value]
    try:
        return value.expanduser() if isinstance(value, Path) else value
    except RuntimeError:  # a user that does not exist
        return value


def _options(kind: type[Any]) -> list[Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name])
        for field in fields(kind)
    ]
