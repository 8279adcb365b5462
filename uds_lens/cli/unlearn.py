"""`uds-lens unlearn`: train a model to forget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from uds_lens.cli import options as opt
from uds_lens.cli import training as train


def unlearn(
    method: Annotated[
        str, typer.Option(help="ga, graddiff, kl, npo, simnpo, idknll, idkdpo, altpo, rmu or undial.")
    ],
    full: Annotated[str, typer.Option(help="Model that knows: directory or Hub id.")],
    forget: Annotated[str, typer.Option(help="Questions with the answers to forget.")],
    out: opt.Out,
    retain: Annotated[
        str | None, typer.Option(help="Questions with the answers to keep (not for ga).")
    ] = None,
    set_: train.Set = None,
    refusals: Annotated[
        Path | None, typer.Option(help="Refusals, one per line, for idknll and idkdpo.")
    ] = None,
    lora: train.Lora = None,
    device: train.TrainDevice = "auto",
    save_dtype: train.SaveDType = "float32",
    mixed_precision: train.Mixed = "no",
    device_batch_size: train.DeviceBatch = None,
    gradient_checkpointing: train.Checkpointing = False,
    revision: opt.Revision = None,
    offline: opt.Offline = False,
    trust_remote_code: opt.TrustRemoteCode = False,
    json: opt.Json = False,
    debug: opt.Debug = False,
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
        options=unlearning.TrainOptions(
            device=device,
            save_dtype=save_dtype,
            mixed_precision=mixed_precision,
            device_batch_size=device_batch_size,
            gradient_checkpointing=gradient_checkpointing,
            revision=revision,
            offline=offline,
            trust_remote_code=trust_remote_code,
        ),
    )
    train.print_record(out, as_json=json)
