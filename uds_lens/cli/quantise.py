"""`uds-lens quantise`: a 4-bit copy of a model."""

from __future__ import annotations

from typing import Annotated

import typer

from uds_lens.cli import options as opt


def quantise(
    model: Annotated[str, typer.Option(help="Model to quantise: directory or Hub id.")],
    out: opt.Out,
    device: opt.Device = "auto",
    revision: opt.Revision = None,
    offline: opt.Offline = False,
    trust_remote_code: opt.TrustRemoteCode = False,
    json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Quantise a model to 4 bits (bitsandbytes NF4, bfloat16 arithmetic).

    \b
    Example:
      uds-lens quantise --model ckpt/npo --out ckpt/npo-nf4
    """
    from uds_lens import unlearning

    unlearning.quantise(
        model,
        out=out,
        device=device,
        revision=revision,
        offline=offline,
        trust_remote_code=trust_remote_code,
    )
    if json:
        typer.echo((out / "quantisation.json").read_text(encoding="utf-8"))
        return
    typer.echo(f"Saved in {out}")
