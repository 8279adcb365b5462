"""`uds-lens doctor` and `weights`: commands that examine checkpoints without running them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import uds_lens as ul
from uds_lens._cli import options as opt
from uds_lens._cli.terminal import echo, print_frame, print_json, print_wrapped, say, table_rows
from uds_lens._quoting import csv_text
from uds_lens._storage.files import atomic_write_marked, check_writable

_MARKS = {"ok": "ok ", "note": "-  ", "problem": "!! "}


def doctor(
    full: Annotated[str | None, opt.value("MODEL", "Model trained on everything: directory or Hub id.")] = None,
    retain: Annotated[
        list[str] | None, opt.value("MODEL", "Model that never saw the forget set (repeatable for several seeds).")
    ] = None,
    unlearned: Annotated[list[str] | None, opt.value("MODEL", "Model to audit (repeatable).", "--model")] = None,
    examples: Annotated[str | None, opt.value("DATA", "Forget set, as in uds-lens audit.")] = None,
    control: Annotated[str | None, opt.value("DATA", "Facts to retain, as in uds-lens audit.")] = None,
    out: Annotated[Path, opt.value("DIR", "Where results would be written.")] = Path(),
    *,
    config: opt.Auditing,
    options: opt.AuditRun,
    printing: opt.Printing,
) -> None:
    """Check whether an audit of these models and data would work.

    It checks versions, devices, memory, disk space and access to the Hub. If models and data are given, it also checks
    whether an audit of them would start. It loads no weights, and for a Hub id it downloads only small files. The exit
    code is 1 if a check fails.

    \b
    Example:
      uds-lens doctor --full ckpt/full --retain ckpt/retain --model ckpt/npo \\
          --examples forget10.json
    """
    say("checking this installation ...")
    models = {} if full is None else {"full": full}
    models |= {f"retain {i}" if len(retain or ()) > 1 else "retain": m for i, m in enumerate(retain or (), start=1)}
    models |= {f"unlearned {i}" if i > 1 else "unlearned": m for i, m in enumerate(unlearned or (), start=1)}
    findings = ul.doctor.examine_environment(place=out)
    if models or examples is not None or control is not None:
        findings += ul.doctor.examine_inputs(models, examples, control=control, config=config, options=options)
    if printing.json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            print_wrapped(f"{_MARKS[finding.verdict]}{finding.what}: {finding.found}")
            if finding.fix is not None:
                print_wrapped(f"   -> {finding.fix}")
        problems = sum(finding.verdict == "problem" for finding in findings)
        echo(f"\n{problems} to fix (!!)." if problems else "\nReady.")
    if any(finding.verdict == "problem" for finding in findings):
        raise typer.Exit(1)


_LEGEND = (
    "Change: norm of the difference from full, divided by the norm of full's weights. Stable rank: the largest stable "
    "rank of the layer's matrices; with an adapter, at most the adapter's rank. Cosine: between this change and the "
    "change from full to retain."
)


def weights(
    full: Annotated[str, opt.model("Model before: directory or Hub id.")],
    model: Annotated[str, opt.model("Model after: directory or Hub id.")],
    retain: Annotated[str | None, opt.model("Model that never saw the forget set, for the cosines.")] = None,
    audit: Annotated[
        Path | None, opt.value("DIR", "Saved audit of the model; its LER is drawn above the figure.")
    ] = None,
    out: Annotated[Path | None, opt.value("DIR", "Directory for weights.csv and weights.html.")] = None,
    *,
    printing: opt.Printing,
) -> None:
    """Compare the weights of two checkpoints, layer by layer.

    Files are read one tensor at a time, and no model is built.

    \b
    Example:
      uds-lens weights --full ckpt/full --model ckpt/npo --retain ckpt/retain
    """
    say(f"comparing {model} with {full} ...")
    if out is not None:
        check_writable(out / "weights.csv", directory=False)
        check_writable(out / "weights.html", directory=False)
    difference = ul.weights.difference(full, model, retain=retain)
    tensors, layers = difference.to_frame(), difference.layers_frame()
    if out is not None:
        first = ["layer", "component"]
        table = tensors[[*first, *(name for name in tensors if name not in first)]]
        atomic_write_marked(out / "weights.csv", csv_text(table))
        ler = None if audit is None else ul.DepthAudit.load(audit).layers_frame()
        ul.plots.save_figure(difference.plot(ler), out / "weights.html")
    if printing.json:
        print_json({"tensors": table_rows(tensors)})
        return
    layers["stable_rank"] = layers["layer"].map(tensors.groupby("layer")["stable_rank"].max())
    shares = {"change": "relative_norm", "attention": "attention_relative_norm", "MLP": "mlp_relative_norm"}
    columns = {title: partial(_share_of, name) for title, name in shares.items()}
    print_frame(
        layers, {"layer": "layer", **columns, "stable rank": "stable_rank:1", "cosine": "cosine"}, optional=("cosine",)
    )
    apart = tensors[tensors["layer"].isna()]
    print_wrapped(", ".join(f"{row.component}: {_share(row.relative_norm)}" for row in apart.itertuples()))
    print_wrapped(_LEGEND)
    if out is not None:
        echo(f"\nSaved in {out}")


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2%}"


def _share_of(name: str, row: Mapping[str, Any]) -> str:
    return _share(row[name])
