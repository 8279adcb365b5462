"""Options and output that `unlearn` and `relearn` share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from uds_lens import types
from uds_lens.cli.groups import Group, Hub
from uds_lens.errors import ConfigError

if TYPE_CHECKING:
    from uds_lens.unlearning import LoraSettings, TrainOptions

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
Lora: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, metavar="RANK", help="Train low-rank adapters of this rank instead of all weights."),
]
Set: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Setting of the method; repeat for more."),
]


@dataclass(frozen=True, kw_only=True)
class Training(Group):
    """How a training run is carried out."""

    device: TrainDevice = "auto"
    save_dtype: SaveDType = "float32"
    mixed_precision: Mixed = "no"
    device_batch_size: DeviceBatch = None
    gradient_checkpointing: Checkpointing = False

    def options(self, hub: Hub) -> TrainOptions:
        """The record of the library."""
        from uds_lens.unlearning import TrainOptions

        return TrainOptions(**vars(self), **vars(hub))


def read_settings(words: Sequence[str] | None) -> dict[str, str]:
    """`name=value` words as a dictionary.

    Raises:
        ConfigError: A word without `=`, or a name twice.

    Example:
        >>> read_settings(["beta=0.1", "epochs=5"])
        {'beta': '0.1', 'epochs': '5'}
    """
    settings: dict[str, str] = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name or not value.strip():
            raise ConfigError(f"--set takes name=value, for example --set beta=0.1; got {word!r}.")
        if name in settings:
            raise ConfigError(f"--set {name} is given twice.")
        settings[name] = value.strip()
    return settings


def lora_settings(rank: int | None) -> LoraSettings | None:
    """Adapters of a rank, with twice the rank as scale; None for none."""
    if rank is None:
        return None
    from uds_lens.unlearning import LoraSettings

    return LoraSettings(rank=rank, alpha=2 * rank)


def print_record(directory: Path, *, as_json: bool) -> None:
    """What a finished run says: its whole record as JSON, or a line or two."""
    from uds_lens.unlearning import read_record

    record: dict[str, Any] = read_record(directory)
    if as_json:
        typer.echo(json.dumps({"directory": str(directory), **record}, indent=2, ensure_ascii=False))
        return
    curve = record["loss_curve"]
    if curve:
        typer.echo(f"{record['name']}: loss {curve[0]['loss']:.3f} to {curve[-1]['loss']:.3f}")
    typer.echo(f"{record['steps']} steps in {record['seconds']:.1f} s. Saved in {directory}")
