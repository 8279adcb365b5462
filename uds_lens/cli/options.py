"""Options that several commands share, one by one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from uds_lens import types

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
DType: TypeAlias = Annotated[types.DType, typer.Option(help="Dtype of the models.")]
Confidence: TypeAlias = Annotated[
    float, typer.Option(metavar="SHARE", help="Coverage of the bootstrap interval.")
]
Bootstrap: TypeAlias = Annotated[int, typer.Option(metavar="N", help="Resamples of the bootstrap.")]
Seed: TypeAlias = Annotated[int, typer.Option(metavar="N", help="Seed of the bootstrap.")]

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
Debug: TypeAlias = Annotated[bool, typer.Option("--debug", help="Show tracebacks and all warnings.")]
Out: TypeAlias = Annotated[
    Path, typer.Option(metavar="DIR", help="Directory for the results.", file_okay=False)
]
