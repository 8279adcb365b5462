"""`uds-lens weights`: by how much training changed the weights, layer by layer."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from uds_lens._cli.options import Printing, model_option
from uds_lens._cli.terminal import number, print_json, print_table, print_wrapped, say

_LEGEND = (
    "Change: norm of the difference from full over the norm of full's weights. Stable rank: the largest of the layer's "
    "matrices; at most the rank of an adapter. Cosine: with the change from full to retain."
)


def weights(
    full: Annotated[str, model_option("Model before: directory or Hub id.")],
    model: Annotated[str, model_option("Model after: directory or Hub id.")],
    retain: Annotated[str | None, model_option("Model that never saw the forget set, for the cosines.")] = None,
    audit: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Saved audit of the model, whose LER is drawn above the figure.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Directory for weights.csv and weights.html.")] = None,
    *,
    printing: Printing,
) -> None:
    """Compare the weights of two checkpoints, layer by layer.

    Files are read one tensor at a time; no model is built.

    \b
    Example:
      uds-lens weights --full ckpt/full --model ckpt/npo --retain ckpt/retain
    """
    say(f"comparing {model} with {full} ...")
    import uds_lens as ul
    from uds_lens._storage import atomic_write_marked, check_folder, check_writable

    if out is not None:
        check_folder(out)
        check_writable(out / "weights.csv", directory=False)
        check_writable(out / "weights.html", directory=False)
    difference = ul.weights.difference(full, model, retain=retain)
    tensors, layers = difference.to_frame(), difference.layers_frame()
    if out is not None:
        first = ["layer", "component"]
        table = tensors[[*first, *(name for name in tensors if name not in first)]]
        atomic_write_marked(out / "weights.csv", table.to_csv(index=False))
        ler = None if audit is None else ul.DepthAudit.load(audit).layers_frame()
        ul.plots.save_figure(difference.plot(ler), out / "weights.html")
    if printing.json:
        rows = tensors.astype(object).where(tensors.notna(), None).to_dict("records")
        print_json({"tensors": rows})
        return
    ranks = tensors.groupby("layer")["stable_rank"].max()
    titles = ["layer", "change", "attention", "MLP", "stable rank", *(["cosine"] if retain else [])]
    rows = [
        [
            str(row.layer),
            *(_share(x) for x in (row.relative_norm, row.attention_relative_norm, row.mlp_relative_norm)),
            number(ranks[row.layer], 1),
            *([number(row.cosine)] if retain else []),
        ]
        for row in layers.itertuples()
    ]
    print_table(titles, rows, right=titles[1:])
    apart = tensors[tensors["layer"].isna()]
    print_wrapped(", ".join(f"{row.component}: {_share(row.relative_norm)}" for row in apart.itertuples()))
    print_wrapped(_LEGEND)
    if out is not None:
        typer.echo(f"\nSaved in {out}")


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2%}"
