"""Options that several commands share. Their defaults are those of `AuditConfig` and `RunOptions`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from uds_lens import types

Tau: TypeAlias = Annotated[
    float,
    typer.Option(min=0, help="A layer counts where retain's state costs more than this, in nats per token."),
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
Confidence: TypeAlias = Annotated[float, typer.Option(help="Coverage of the bootstrap interval.")]
Bootstrap: TypeAlias = Annotated[int, typer.Option(help="Resamples of the bootstrap.")]
Seed: TypeAlias = Annotated[int, typer.Option(help="Seed of the bootstrap.")]

Device: TypeAlias = Annotated[str, typer.Option(help="auto (CUDA if there is one), cpu, cuda:1 ...")]
DeviceMap: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Spread each model over several devices, for example auto; replaces --device."),
]
Engine: TypeAlias = Annotated[
    types.Engine, typer.Option(help="auto checks the fast engine against the naive one.")
]
TokenBudget: TypeAlias = Annotated[int, typer.Option(help="Tokens per batch; lower it when memory runs out.")]
MemoryGib: TypeAlias = Annotated[
    float, typer.Option(min=0.0, help="GiB for states; beyond it they go to temporary files.")
]
CheckMemory: TypeAlias = Annotated[bool, typer.Option(help="Refuse to start where memory cannot suffice.")]
Revision: TypeAlias = Annotated[
    str | None, typer.Option(help="Branch, tag or commit of checkpoints on the Hub.")
]
Offline: TypeAlias = Annotated[bool, typer.Option("--offline", help="Use only files that are already here.")]
TrustRemoteCode: TypeAlias = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run Python code that comes with a checkpoint.")
]

Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Debug: TypeAlias = Annotated[bool, typer.Option("--debug", help="Show tracebacks and all warnings.")]
Out: TypeAlias = Annotated[Path, typer.Option(help="Directory for the results.", file_okay=False)]
