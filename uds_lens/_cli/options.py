"""Command-line options: generated from the library's settings records, plus a few shared ones.

If a parameter of a command is a dataclass, each of its fields becomes an option, and the command receives an instance.
pydantic, which validates the records, supplies each field's type, default and docstring, so an option is defined once,
where it is validated. typer does the parsing, because huggingface-hub already depends on it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache, partial, wraps
from importlib.util import module_from_spec, spec_from_file_location
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_type_hints

import typer

import uds_lens as ul
from uds_lens._compat.typer import set_help
from uds_lens._settings import described
from uds_lens._storage.files import did_you_mean, located
from uds_lens._types import ChatStyleName, DType as _DType, Sampling as _Sampling
from uds_lens.data._prompts import ChatStyle
from uds_lens.data._readers import SUFFIXES
from uds_lens.errors import ConfigError, DataError, ModelError
from uds_lens.results._settings import AuditConfig, RunOptions
from uds_lens.unlearning._settings import Save as _Save, TrainOptions


@dataclass(frozen=True)
class Offer:
    """Select the fields of a record that a command offers, as in `Annotated[Record, Offer(first=("device",))]`."""

    only: Sequence[str] | None = None
    """None: all."""

    first: Sequence[str] = ()
    """Fields shown by --help; --help-all also shows the others, in the record's group."""


def with_records(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command` in the form that typer reads: each dataclass parameter becomes a set of options.

    When the command is called, `~` is expanded in paths, and each record is built from its options.
    """
    records: dict[str, tuple[type[Any], list[str]]] = {}
    parameters: list[Parameter] = []
    for parameter in signature(command, eval_str=True).parameters.values():
        kind, *more = get_args(parameter.annotation) or (parameter.annotation,)
        if is_dataclass(kind) and isinstance(kind, type):
            options = _options(kind, next((mark for mark in more if isinstance(mark, Offer)), Offer()))
            records[parameter.name] = kind, [option.name for option in options]
            parameters += options
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))

    @wraps(command)
    def run(**given: Any) -> None:
        given = {name: at_home(value) for name, value in given.items()}
        made = {
            name: _record(kind, {option: given.pop(option) for option in options})
            for name, (kind, options) in records.items()
        }
        command(**given, **made)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


LATER = "More"
"""Group of a command's own options that only --help-all shows."""

_PANELS = {
    **dict.fromkeys(("AuditConfig", "MetricOptions", "ElicitOptions"), "Measurement"),
    **dict.fromkeys(("MethodConfig", "AnnotateOptions"), "Prompts"),
    **dict.fromkeys(("RelearnConfig", "FinetuneConfig", "TrainOptions"), "Training"),
    "RunOptions": "Running models",
    "Watching": "Watching",
    "_Adapters": "Adapters",
    "Depth": "Depth during training",
    "SlurmOptions": "Slurm",
    "Score": "Score",
    "References": "Runs and references",
    "Perturbed": "Robustness",
    "Printing": "Output",
}
"""The groups of options in --help-all, by the record they fill."""


@cache
def _declared(record: Any) -> list[Parameter]:
    """Return the options of a record, as its annotations declare them or as pydantic describes its fields."""
    if not hasattr(record, "__pydantic_config__"):
        hints = get_type_hints(record, include_extras=True)
        return [_keyword(field.name, field.default, *get_args(hints[field.name])) for field in fields(record)]
    told = described(record)
    flags = {name: f"--{name.replace('_', '-')}" for name in told}
    options = [_option(name, what, _help(what["description"], flags)) for name, what in told.items()]
    if set(ChatStyle.__dataclass_fields__) <= set(told):
        help = (
            f"Chat prompts behind published numbers: {', '.join(get_args(ChatStyleName))}. Other prompt "
            "options, if set, override these prompts."
        )
        options.append(_keyword("chat_style", None, ChatStyleName | None, value("NAME", help)))
    return options


def _options(record: Any, offer: Offer) -> list[Parameter]:
    """Return the options of a record that a command offers."""
    offered = []
    for parameter in _declared(record):
        if offer.only is None or parameter.name in offer.only:
            kind, declared = get_args(parameter.annotation)
            option = copy(declared)
            option.rich_help_panel = None if parameter.name in offer.first else _PANELS[record.__name__]
            offered.append(parameter.replace(annotation=Annotated[kind, option]))
    return offered


def _keyword(name: str, default: Any, kind: Any, option: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


def _option(name: str, what: Mapping[str, Any], help: str) -> Parameter:
    """Return the option for a field that pydantic describes; if it has several types, the first is used."""
    kinds = [kind for kind in what.get("anyOf", [what]) if kind.get("type") not in ("null", "object")]
    form, default = kinds[0].get("type"), what["default"]
    flags: list[str] = []
    metavar: str | None = name.rpartition("_")[2].upper()
    kind: Any = {"integer": int, "number": float, "array": list[str]}.get(form, str)
    if "enum" in kinds[0]:
        kind, metavar = Literal[tuple(kinds[0]["enum"])], None
    elif form == "boolean":  # --x, --no-x and neither are the three states
        kind, metavar, default = bool, None, default if isinstance(default, bool) else None
        flags = [f"--{name.replace('_', '-')}"] if default is False else []
    elif form in ("integer", "array"):  # typer does not support lists of choices; the record checks the values
        metavar, help = ("N", help) if form == "integer" else ("NAME", f"{help} Repeatable.")
    return _keyword(name, default, kind if default is not None else kind | None, value(metavar, help, *flags))


def _help(doc: str, flags: dict[str, str]) -> str:
    """Return the first sentence of a field's docstring, reworded for the command line."""
    first = re.split(r"(?<=\.)\s+(?=[A-Z`])", " ".join(doc.split()))[0]
    first = re.sub(r"`([^`]*)`", lambda word: flags.get(word[1], word[1]), first)
    return re.sub(r"; None (is |means )?", "; default: ", first)


def _record(record: type[Any], given: dict[str, Any]) -> Any:
    """Build a record from options; fields whose options were not given keep their defaults."""
    style = given.pop("chat_style", None)
    if style is not None:
        from uds_lens.data._prompts import chat_style_named

        plain = asdict(ChatStyle())
        given |= {k: v for k, v in asdict(chat_style_named(style)).items() if given[k] == plain[k]}
    tuples = {field.name for field in fields(record) if isinstance(field.default, tuple)}
    return record(**{k: tuple(v) if k in tuples else v for k, v in given.items() if v is not None})


def at_home(value: Any) -> Any:
    """Expand `~` in a path if the shell did not (`--out=~/runs`); return anything else unchanged.

    >>> at_home("~") == "~", at_home([Path("a")]) == [Path("a")], at_home(Path("~/a")) == Path.home() / "a"
    (True, True, True)
    """
    if isinstance(value, list):
        return [at_home(item) for item in value]
    return located(value) if isinstance(value, Path) else value


# Options that several commands share. A mistyped path to a model or to data is reported while the options are parsed,
# seconds before torch is loaded; the library checks everything else (names on the Hub, files inside).


def argument(metavar: str, help: str) -> Any:
    """Return a positional argument."""
    return typer.Argument(metavar=metavar, help=help, show_default=False)


def flag(name: str, help: str, **more: Any) -> Any:
    """Return an option that takes no value and has no `--no-` counterpart."""
    return typer.Option(name, help=help, **more)


def value(metavar: str | None, help: str, *flags: str, **checks: Any) -> Any:
    """Return an option that takes a value, shown as `metavar` in --help."""
    return typer.Option(*flags, metavar=metavar, help=help, **checks)


def require_options(given: Mapping[str, Any], example: str) -> None:
    """Raise `ConfigError` naming the missing options, with an example of the command."""
    if missing := [flag for flag, value in given.items() if not value]:
        raise ConfigError(f"{', '.join(missing)} missing. For example: {example}")


def asked_for(words: Sequence[str], places: Mapping[str, int], form: str, example: str) -> tuple[str, str]:
    """Return the sub-command and its path ("" if it takes none); `places` has each sub-command's number of paths."""
    todo, *rest = words
    if len(rest) != places.get(todo, -1):
        raise ConfigError(f"expected {form}; got {' '.join(words)[:100]!r}. For example: {example}")
    return todo, rest[0] if rest else ""


def _split_at_commas(given: list[str] | None) -> list[str] | None:
    return given and [name.strip() for each in given for name in each.split(",") if name.strip()]


def _listed(given: Any) -> list[str]:
    return given if isinstance(given, list) else [given] if given else []


def _existing_models(given: Any) -> Any:
    for name in _listed(given):
        if name.startswith("package:"):
            continue
        path = located(name)
        looks_local = path.is_absolute() or name.startswith((".", "~")) or len(path.parts) > 2
        if not path.exists() and (looks_local or (len(path.parts) == 2 and path.parent.is_dir())):
            raise ModelError(
                f"no directory {name!r}: pass a checkpoint directory, or a Hub id 'owner/name'.{did_you_mean(path)}"
            )
    return given


def _existing_data(given: Any) -> Any:
    for name in _listed(given):
        place = located(name.removeprefix("tofu:"))
        if place.suffix.lower() in SUFFIXES and not name.startswith("hf:") and not place.exists():
            raise DataError(
                f'{name}: no such file. Check the path; a Hub data set is written "hf:user/name:config:split".'
                f"{did_you_mean(place)}"
            )
    return given


folder = partial(value, "DIR", file_okay=False)  # for `folder` and `file`, the path need not exist
file = partial(value, "FILE", dir_okay=False)
count = partial(value, "N", min=1)
names = partial(value, "NAME", callback=_split_at_commas)  # repeated or comma-separated
model = partial(value, "MODEL", callback=_existing_models)  # one or several directories or Hub ids
data = partial(value, "DATA", callback=_existing_data)  # a file, or anything else that `uds_lens.load_examples` reads

FULL = model("Model trained on everything: directory or Hub id.")
RETAIN = model("Model that never saw the forget set.")
RETAINS = model("Model that never saw the forget set (repeatable for several seeds).")
FORGET_SET = data("Forget set: JSON, JSON lines, CSV, Parquet, or a Hub data set.")
CONTROL = data("Facts to retain, known to both full and retain; loss on these facts is damage.")
Out: TypeAlias = Annotated[Path, folder("Directory for the results.")]
DType: TypeAlias = Annotated[_DType, typer.Option(help="Dtype of the models.")]
Limit: TypeAlias = Annotated[int | None, count("Measure a sample of the examples, spread over their subjects.")]
Sampling: TypeAlias = Annotated[
    _Sampling,
    typer.Option(
        help="With --limit: a random sample, or the first rows (in a sorted file, a few subjects only).",
        rich_help_panel=LATER,
    ),
]


@dataclass(frozen=True, kw_only=True)
class _Adapters:
    """Low-rank adapters, as options of the training commands."""

    lora: Annotated[
        int | None, value("RANK", "Train low-rank adapters of this rank instead of all weights.", min=1)
    ] = None
    lora_alpha: Annotated[int | None, count("Scale of the adapters. Default: twice the rank.")] = None
    save: Annotated[
        _Save | None,
        typer.Option(
            help="With --lora: save only the adapter (a few MB; it needs the model it was trained on), or a merged "
            "copy of the whole model. Default: adapter for finetune, else merged."
        ),
    ] = None

    @property
    def settings(self) -> ul.unlearning.LoraSettings | None:
        """The settings, or None if all weights are trained."""
        if self.lora is None:
            if self.lora_alpha is not None or self.save is not None:
                raise ConfigError("--lora-alpha and --save apply to low-rank adapters: set the rank with --lora.")
            return None
        return ul.unlearning.LoraSettings(rank=self.lora, alpha=self.lora_alpha or 2 * self.lora, save=self.save)


Adapters: TypeAlias = Annotated[_Adapters, Offer(first=("lora",))]
Training: TypeAlias = Annotated[TrainOptions, Offer(first=("device", "redo"))]
Auditing: TypeAlias = Annotated[AuditConfig, Offer(first=("protocol", "stand_in", "limit"))]
AuditRun: TypeAlias = Annotated[RunOptions, Offer(first=("device",))]
_HUB = ("revision", "offline", "trust_remote_code")
ModelRun: TypeAlias = Annotated[RunOptions, Offer(("device", "device_map", "token_budget", *_HUB), ("device",))]
"""How models are run without patching."""
MetricRun: TypeAlias = Annotated[
    RunOptions, Offer(("device", "device_map", "stream", "token_budget", *_HUB), ("device",))
]
"""How models are run for metrics; metrics that need no generated text can be streamed."""
Quantising: TypeAlias = Annotated[RunOptions, Offer(("device", *_HUB), ("device",))]


@dataclass(frozen=True, kw_only=True)
class Printing:
    """How much is printed, and in what form."""

    json: Annotated[bool, flag("--json", "Print JSON instead of a table.")] = False
    verbose: Annotated[bool, flag("--verbose", "Show more log output, including that of other packages.")] = False
    debug: Annotated[bool, flag("--debug", "Show tracebacks and all warnings.")] = False


def own_files(name: str, words: Callable[[], str]) -> Any:
    """Return the option --import, which runs Python files and adds what they declare to the help of option `name`."""

    def run(context: Any, files: list[Path] | None) -> list[Path] | None:
        for file in files or ():
            run_file(at_home(file))
        set_help(context.command, name, words())
        return files

    help = f"Python file that declares a {name} of your own; the file is run first."
    return value("FILE", help, "--import", callback=run, is_eager=True, rich_help_panel=LATER)


def run_file(file: Path) -> None:
    """Import a Python file under its own name, as `import` would."""
    name = file.stem
    spec = spec_from_file_location(name, file) if file.is_file() and file.suffix == ".py" else None
    if spec is None or spec.loader is None:
        raise ConfigError(f"no Python file {str(file)!r}: expected a file that declares a method or a metric.")
    loaded = sys.modules.get(name)
    if loaded is not None and Path(getattr(loaded, "__file__", None) or "") != file:
        raise ConfigError(f"a module named {name!r} is already loaded: rename {str(file)!r}.")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{str(file)!r} raised {type(error).__name__}: {error}") from error
