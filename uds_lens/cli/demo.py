"""`uds-lens demo`: the toy world, audited from end to end."""

from __future__ import annotations

from pathlib import Path

import typer

from uds_lens.cli import options as opt
from uds_lens.cli.results import BASELINE, as_json, prepare, write_table
from uds_lens.cli.table import print_audits


def demo(
    out: opt.Out = Path("runs/demo"),
    json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Audit the models of the embedded toy world: offline, on the CPU, in under a minute.

    \b
    Example:
      uds-lens demo --out runs/demo
    """
    import uds_lens as ul

    world = ul.toy.load()
    config, run = ul.AuditConfig(), ul.RunOptions(device="cpu")
    models = {"full": world.full, "half": world.half, **world.unlearned, "retain": world.retain}
    prepare(out / name for name in (BASELINE, *models))
    if not json:
        typer.echo(INTRODUCTION.format(examples=len(world.examples), unlearned=len(world.unlearned)))
    baseline = ul.Baseline.measure(world.full, world.retain, world.examples, config=config, options=run)
    audits = dict(zip(models, baseline.audit_all(list(models.values()), options=run), strict=True))
    baseline.save(out / BASELINE)
    for name, audit in audits.items():
        audit.save(out / name)
    write_table(audits, out / "table.csv")
    if json:
        typer.echo(as_json(audits, {name: out / name for name in audits}))
        return
    print_audits(audits, cautions_of=list(world.unlearned))
    typer.echo("\n" + NEXT.format(out=out))


INTRODUCTION = """\
The toy world: invented people, and small models trained on facts about them.
  full    learned all facts        half    learned half of those to forget
  retain  never saw those to forget
The others are full after {unlearned} unlearning methods. {examples} facts to forget.
"""

NEXT = """\
full is 0 and retain is 1 by definition.

Saved in {out}, one directory per model and table.csv. To look closer:
  import uds_lens as ul
  audit = ul.DepthAudit.load("{out}/retain")
  audit.layers_frame()
For your own checkpoints: uds-lens audit --help"""
