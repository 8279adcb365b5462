"""`uds-lens unlearn`: train a model to forget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from uds_lens.cli import options as opt
from uds_lens.cli import training as train
from uds_lens.cli.groups import Hub, Printing


def unlearn(
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="ga, graddiff, kl, npo, simnpo, idknll, idkdpo, altpo, rmu or undial."
        ),
    ],
    full: Annotated[str, typer.Option(metavar="MODEL", help="Model that knows: directory or Hub id.")],
    forget: Annotated[str, typer.Option(metavar="DATA", help="Questions with the answers to forget.")],
    out: opt.Out,
    retain: Annotated[
        str | None, typer.Option(metavar="DATA", help="Questions with the answers to keep (not for ga).")
    ] = None,
    set_: train.Set = None,
    refusals: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Refusals, one per line, for idknll and idkdpo.")
    ] = None,
    lora: train.Lora = None,
    *,
    training: train.Training,
    hub: Hub,
    printing: Printing,
) -> None:
    """Train a model to forget, with one of ten methods.

    --out receives a checkpoint and unlearning.json, which says how it was made. Called
    again after it was killed, the command goes on where it was.

    \b
    Example:
      uds-lens unlearn --method npo --full ckpt/full --forget forget10.json \\
          --retain retain90.json --out ckpt/npo --set beta=0.1 --set epochs=5
    """
    from uds_lens import unlearning

    unlearning.unlearn(
        full,
        forget,
        retain,
        config=unlearning.make_config(method, train.read_settings(set_)),
        out=out,
        refusals=refusals,
        lora=train.lora_settings(lora),
        options=training.options(hub),
    )
    train.print_record(out, as_json=printing.json)
