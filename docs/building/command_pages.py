"""The pages of the commands, written from the commands; options that several commands share are explained once."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import typer

from uds_lens._cli.app import app

PROGRAM: Any = typer.main.get_command(app)
_EXAMPLES = re.compile(r"^\x08\nExamples?:\n((?:  .*(?:\n|$))+)", re.MULTILINE)
"""An epilogue of a docstring that keeps its lines."""


def on_config(config: Any) -> Any:
    """Put the pages below that of the command line."""
    for entry in config.nav:
        if entry == {"Command line": "cli.md"}:
            entry["Command line"] = [{"Overview": "cli.md"}, *({name: f"cli/{name}.md"} for name in PROGRAM.commands)]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add a page per command."""
    from mkdocs.structure.files import File

    for name in PROGRAM.commands:
        files.append(File.generated(config, f"cli/{name}.md", content=page_of(name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill the overview."""
    return markdown.replace("<!-- commands -->", overview()) if page.file.src_uri == "cli.md" else markdown


def options_of(name: str) -> Iterator[tuple[str, str, str | None]]:
    """Each option of a command as --help-all has it: its form, what it does, and its group."""
    command = PROGRAM.commands[name]
    above = PROGRAM.make_context("uds-lens", [], resilient_parsing=True)
    context = command.make_context(name, [], parent=above, resilient_parsing=True)
    for parameter in command.params:
        form, text = parameter.get_help_record(context) or ("", "")
        yield form, text, getattr(parameter, "rich_help_panel", None)


def shared() -> dict[str, dict[str, str]]:
    """The options, by group, that only --help-all shows, and that are the same in several commands."""
    every = [option for name in PROGRAM.commands for option in options_of(name) if option[2] is not None]
    group_of = {(form, text): group for form, text, group in reversed(every)}
    count = Counter((form, text) for form, text, _ in every)
    groups: dict[str, dict[str, str]] = {}
    for form, text in dict.fromkeys(option[:2] for option in every):
        if count[form, text] > 1:
            groups.setdefault(str(group_of[form, text]), {})[form] = text
    return groups


def overview() -> str:
    """What each command is for, and the shared options."""
    commands = [
        f"* [`uds-lens {name}`](cli/{name}.md): {command.help.partition(chr(10))[0]}"
        for name, command in PROGRAM.commands.items()
    ]
    parts = [f"### {title}\n\n{_listed(options)}" for title, options in shared().items()]
    return "\n\n".join(["## Commands", "\n".join(commands), "## Shared options", *parts])


def page_of(name: str) -> str:
    """What a command does, its examples, and its options; of the shared ones the names."""
    once = {option for options in shared().values() for option in options.items()}
    own, known = {}, []
    for form, text, group in options_of(name):
        if group is not None and (form, text) in once:
            known.append(_flag(form))
        else:
            own[form] = text
    help = _with_options_as_code(_EXAMPLES.sub(_as_block, PROGRAM.commands[name].help))
    links = f"[Shared options](../cli.md#shared-options): {', '.join(known)}."
    return "\n\n".join([f"# uds-lens {name}", help, "## Options", _listed(own), links]) + "\n"


def _listed(options: dict[str, str]) -> str:
    return "\n".join(f"* `{form}`: {_with_options_as_code(' '.join(text.split()))}" for form, text in options.items())


def _flag(form: str) -> str:
    return f"`{form.split(', ')[-1].split()[0]}`"


def _as_block(found: re.Match[str]) -> str:
    lines = "\n".join(line[2:] for line in found[1].splitlines())
    return f"```bash\n{lines}\n```\n"


def _with_options_as_code(text: str) -> str:
    """Options that sentences name, as code; what is code already stays as it is."""
    parts = re.split(r"(```.*?```|`[^`\n]*`)", text, flags=re.DOTALL)
    parts[::2] = [re.sub(r"(?<![\w-])--[a-z][a-z-]*[a-z]", r"`\g<0>`", part) for part in parts[::2]]
    return "".join(parts)
