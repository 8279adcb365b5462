"""Python files of a user's own, run on request before a command: they declare methods and metrics."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from uds_lens.cli.option_groups import at_home
from uds_lens.compat.typer import set_help
from uds_lens.errors import ConfigError


def running_files(
    name: str, words: Callable[[], str]
) -> Callable[[Any, list[Path] | None], list[Path] | None]:
    """The callback of a command's --import: it runs the files, and --help tells what they declare.

    Args:
        name: The parameter that takes the names of what is declared.
        words: What --help says of it, from all that is declared by now.
    """

    def run(context: Any, files: list[Path] | None) -> list[Path] | None:
        for file in files or ():
            run_file(at_home(file))
        set_help(context.command, name, words())
        return files

    return run


def run_file(file: Path) -> None:
    """Import a Python file under its own name, as `import` would.

    Raises:
        ConfigError: There is no such file, its name is taken, or running it raised something.
    """
    name = file.stem
    spec = spec_from_file_location(name, file) if file.is_file() and file.suffix == ".py" else None
    if spec is None or spec.loader is None:
        raise ConfigError(f"no Python file {str(file)!r}: expected one that declares a method or a metric.")
    known = sys.modules.get(name)
    if known is not None and Path(getattr(known, "__file__", None) or "") != file:
        raise ConfigError(f"a module is called {name!r} already: give {str(file)!r} another name.")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{str(file)!r} raised {type(error).__name__}: {error}") from error
