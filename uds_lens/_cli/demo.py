"""`uds-lens demo`: the toy world, audited from end to end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from uds_lens._cli import options as opt
from uds_lens._cli.options import Printing
from uds_lens._cli.terminal import audits_as_json, print_audits, say

if TYPE_CHECKING:
    from uds_lens.toy import World


def demo(out: opt.Out = Path("runs/demo"), *, printing: Printing) -> None:
    """Audit the models of the embedded toy world.

    Offline, on the CPU, in about a minute. The audits are saved in --out, one directory per model, with a report.

    \b
    Example:
      uds-lens demo --out runs/demo
    """
    say("auditing the models of the toy world ...")
    import uds_lens as ul
    from uds_lens.audit._resume import BASELINE, require_places, require_table, write_folder_table

    world = ul.toy.load()
    models = {"full": world.full, "half": world.half, **world.unlearned, "retain": world.retain}
    require_places([out / name for name in models], baseline=out / BASELINE)
    require_table(out)
    if not printing.json:
        typer.echo(_introduction(world))
    options = ul.RunOptions(device="cpu")
    baseline = ul.Baseline.measure(world.full, world.retain, world.examples, options=options)
    measured = dict(zip(models, baseline.audit_all(list(models.values()), options=options), strict=True))
    audits = dict(sorted(measured.items(), key=lambda item: item[1].uds))
    baseline.save(out / BASELINE)
    for name, audit in audits.items():
        audit.save(out / name)
    write_folder_table(out, audits)
    ul.report.write(audits, out / "report.html", title="The toy world", references=["half"])
    if printing.json:
        typer.echo(audits_as_json(audits, {name: out / name for name in audits}))
        return
    print_audits(audits, cautions_of=list(world.unlearned))
    typer.echo(_NEXT.format(out=out))


def _introduction(world: World) -> str:
    made = {
        "full": "trained on everything",
        "half": "never saw half of the forget set",
        "retain": "never saw the forget set",
    }
    recall = [
        f"  {name:<10} {made.get(name, 'full after unlearning'):<43} {world.recall[name]['forget']:>4.0%}"
        for name in ("full", "half", *world.unlearned, "retain")
    ]
    return "\n".join(
        [
            f"The toy world: small models trained on invented people, {len(world.examples)} examples to forget.",
            "Probability of the correct answer when asked:",
            *recall,
            "\nKnowledge left in their layers, by UDS:",
        ]
    )


_NEXT = """
Saved in {out}, one directory per model. To look closer, in Python:
  import uds_lens as ul
  ul.DepthAudit.load("{out}/half").layers_frame()
The report: {out}/report.html
For your own checkpoints: uds-lens audit --help"""
