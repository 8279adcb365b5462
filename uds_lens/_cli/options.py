"""Options that several commands share: one by one, then the groups of those that go together.

A group builds the record of the library that its options stand for, so that names and defaults stand in one place.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from importlib.util import module_from_spec, spec_from_file_location
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import FrameType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeAlias,
    get_type_hints,
)

import typer

from uds_lens import _types as types
from uds_lens._compat.typer import set_help
from uds_lens.errors import ConfigError

if TYPE_CHECKING:
    from uds_lens.results import AuditConfig, RunOptions
    from uds_lens.unlearning import LoraSettings, TrainOptions


# Options that go together. A command takes a group as one parameter; its user sees the group's options.
#
# `grouped` spreads the groups for typer and puts them together again for the command. There `~` becomes
# home.


class Group:
    """A frozen dataclass whose fields are options; see `uds_lens._cli.options` for those there are."""


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


Tau: TypeAlias = Annotated[
    float,
    typer.Option(
        min=0, metavar="NATS", help="A layer counts where retain's state costs more than this, per token."
    ),
]
Site: TypeAlias = Annotated[types.Site, typer.Option(help="Point of each block that is patched.")]
Scope: TypeAlias = Annotated[types.Scope, typer.Option(help="Positions that are patched.")]
LastLayer: TypeAlias = Annotated[
    types.LastLayer, typer.Option(help="post_norm reproduces the last layer of the paper's released script.")
]
Protocol: TypeAlias = Annotated[
    types.Protocol, typer.Option(help="Plain question and answer, or the chat template.")
]
AnswerProtocol: TypeAlias = Annotated[
    types.AnswerProtocol,
    typer.Option(help="How answers are asked for; auto is the chat template where there is one."),
]
ChatStyle: TypeAlias = Annotated[
    types.ChatStyleName | None,
    typer.Option(
        metavar="STYLE", help="System turn and date of chat prompts, as these published numbers had them."
    ),
]
SystemPrompt: TypeAlias = Annotated[
    str | None, typer.Option(metavar="TEXT", help="System turn of chat prompts. Default: none.")
]
ChatDate: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="DATE", help="Date given to chat templates that print one. Default: 26 Jul 2024."),
]
StandIn: TypeAlias = Annotated[
    types.StandIn | None,
    typer.Option(help="No retain model: what --retain is instead, the model before fine-tuning."),
]
DType: TypeAlias = Annotated[types.DType, typer.Option(help="Dtype of the models.")]
Confidence: TypeAlias = Annotated[
    float, typer.Option(metavar="SHARE", help="Coverage of the bootstrap interval.")
]
Bootstrap: TypeAlias = Annotated[int, typer.Option(metavar="N", help="Resamples of the bootstrap.")]
Seed: TypeAlias = Annotated[
    int, typer.Option(metavar="N", help="Seed of the bootstrap, and of the sample with --limit.")
]
Limit: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Measure a sample of the examples, spread over their subjects."),
]
Sampling: TypeAlias = Annotated[
    types.Sampling,
    typer.Option(
        help="With --limit: a random sample, or the first rows (of a sorted file: of a few subjects)."
    ),
]

Device: TypeAlias = Annotated[
    str, typer.Option(metavar="DEVICE", help="auto (CUDA if there is one), cpu, cuda:1 ...")
]
DeviceMap: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="MAP", help="Spread each model over several devices, for example auto; replaces --device."
    ),
]
Engine: TypeAlias = Annotated[
    types.Engine, typer.Option(help="auto checks the fast engine against the naive one.")
]
TokenBudget: TypeAlias = Annotated[
    int, typer.Option(metavar="N", help="Tokens per batch; lower it when memory runs out.")
]
MemoryGib: TypeAlias = Annotated[
    float, typer.Option(min=0.0, metavar="GIB", help="For states; beyond it they go to temporary files.")
]
CheckMemory: TypeAlias = Annotated[bool, typer.Option(help="Refuse to start where memory cannot suffice.")]


def _whole_process(offline: bool) -> bool:
    """Data sets and classifiers stay offline too: the Hub's client reads this when it is first imported."""
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"
    return offline


Revision: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="Branch, tag or commit of checkpoints on the Hub.")
]
Offline: TypeAlias = Annotated[
    bool,
    typer.Option("--offline", callback=_whole_process, help="Use only files that are already here."),
]
TrustRemoteCode: TypeAlias = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run Python code that comes with a checkpoint.")
]

Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Verbose: TypeAlias = Annotated[
    bool, typer.Option("--verbose", help="Say more of what is being done, that of other packages too.")
]
Debug: TypeAlias = Annotated[bool, typer.Option("--debug", help="Show tracebacks and all warnings.")]


Out: TypeAlias = Annotated[
    Path,
    typer.Option(metavar="DIR", help="Directory for the results.", file_okay=False),
]


TrainDevice: TypeAlias = Annotated[
    Literal["auto", "cpu", "cuda"], typer.Option(help="auto takes a GPU if there is one.")
]
SaveDType: TypeAlias = Annotated[types.DType, typer.Option(help="Dtype of the saved weights.")]
Mixed: TypeAlias = Annotated[
    Literal["no", "bfloat16", "float16"],
    typer.Option(help="Dtype of the arithmetic; weights stay in float32."),
]
DeviceBatch: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Forget examples per pass; lower it when memory runs out."),
]
Checkpointing: TypeAlias = Annotated[
    bool, typer.Option("--gradient-checkpointing", help="Less memory, more time.")
]
LogTo: TypeAlias = Annotated[
    list[str],
    typer.Option(
        metavar="PLACE",
        help="Follow the training: csv (a file beside --out), wandb, trackio; repeat for more.",
    ),
]
Lora: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, metavar="RANK", help="Train low-rank adapters of this rank instead of all weights."),
]


@dataclass(frozen=True, kw_only=True)
class Hub(Group):
    """How checkpoints are had from the Hub."""

    revision: Revision = None
    offline: Offline = False
    trust_remote_code: TrustRemoteCode = False


@dataclass(frozen=True, kw_only=True)
class Printing(Group):
    """What is printed."""

    json: Json = False
    verbose: Verbose = False
    debug: Debug = False


@dataclass(frozen=True, kw_only=True)
class Chat(Group):
    """What chat prompts hold beside the question."""

    chat_style: ChatStyle = None
    system_prompt: SystemPrompt = None
    chat_date: ChatDate = None

    def settings(self) -> dict[str, Any]:
        """`system_prompt` and `chat_date`, as far as they were given or belong to the style named."""
        from dataclasses import asdict

        from uds_lens.data import chat_style_named

        named = {} if self.chat_style is None else asdict(chat_style_named(self.chat_style))
        given = {"system_prompt": self.system_prompt, "chat_date": self.chat_date}
        return {**named, **{name: value for name, value in given.items() if value is not None}}


@dataclass(frozen=True, kw_only=True)
class Measuring(Group):
    """What an audit measures."""

    tau: Tau = 0.05
    site: Site = "resid_post"
    scope: Scope = "entity"
    last_layer: LastLayer = "resid_post"
    protocol: Protocol = "raw"
    stand_in: StandIn = None
    dtype: DType = "float32"
    confidence: Confidence = 0.95
    n_bootstrap: Bootstrap = 9999
    seed: Seed = 0
    limit: Limit = None
    sample: Sampling = "random"

    def config(self, chat: Chat) -> AuditConfig:
        """The record of the library."""
        import uds_lens as ul

        return ul.AuditConfig(**vars(self), **chat.settings())


@dataclass(frozen=True, kw_only=True)
class Running(Group):
    """How models are run."""

    device: Device = "auto"
    device_map: DeviceMap = None
    token_budget: TokenBudget = 4096

    def options(self, hub: Hub) -> RunOptions:
        """The record of the library."""
        import uds_lens as ul

        return ul.RunOptions(**vars(self), **vars(hub))


@dataclass(frozen=True, kw_only=True)
class AuditRunning(Running):
    """How an audit is run."""

    engine: Engine = "auto"
    memory_gib: MemoryGib = 4.0
    check_memory: CheckMemory = True


@dataclass(frozen=True, kw_only=True)
class Training(Group):
    """How a training run is carried out."""

    device: TrainDevice = "auto"
    save_dtype: SaveDType = "float32"
    mixed_precision: Mixed = "no"
    device_batch_size: DeviceBatch = None
    gradient_checkpointing: Checkpointing = False
    log_to: LogTo = ()  # type: ignore[assignment]

    def options(self, hub: Hub) -> TrainOptions:
        """The record of the library."""
        from uds_lens.unlearning import TrainOptions

        given: dict[str, Any] = {**vars(self), "log_to": tuple(self.log_to or ())}
        return TrainOptions(**given, **vars(hub))


@dataclass(frozen=True, kw_only=True)
class Adapters(Group):
    """Whether low-rank adapters are trained."""

    lora: Lora = None

    def settings(self) -> LoraSettings | None:
        """Adapters of the rank that was asked for, with twice the rank as scale; None for none."""
        from uds_lens.unlearning import LoraSettings

        return None if self.lora is None else LoraSettings(rank=self.lora, alpha=2 * self.lora)


# Python files of a user's own, run on request before a command: they declare methods and metrics.


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


# Ctrl-C, and the signal that ends a job on a cluster: clean up, say what is saved, and leave.


class Stopped(KeyboardInterrupt):
    """The program was asked to stop; carries what has been saved."""

    def __init__(self, saved: str = "", *, code: int = 130) -> None:
        super().__init__(saved)
        self.saved, self.code = saved, code


@contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that temporary files go; the program leaves with 130 or 143."""
    in_main = threading.current_thread() is threading.main_thread()
    before: Any = signal.signal(signal.SIGTERM, _terminate) if in_main else None
    try:
        yield
    except KeyboardInterrupt as stop:
        _let_go(stop)
        saved = f"; {stop.saved}" if isinstance(stop, Stopped) and stop.saved else ""
        typer.echo(f"Stopped{saved}.", err=True)
        raise SystemExit(stop.code if isinstance(stop, Stopped) else 130) from None
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def saying_what_is_saved(saved: Callable[[], str]) -> Iterator[None]:
    """Where the block is stopped, tell what is saved and how to go on.

    Args:
        saved: Gives these words at that moment.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        raise Stopped(saved(), code=getattr(stop, "code", 130)) from None


def _let_go(error: BaseException | None) -> None:
    """Drop what the interrupted functions held, so that their temporary files go now."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__
    gc.collect()


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Stopped(code=128 + number)
