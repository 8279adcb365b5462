"""`uds-lens audit`: one or several unlearned models against one full and one retain model."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uds_lens.cli import options as opt
from uds_lens.cli.results import BASELINE, as_json, directory_names, prepare, write_table
from uds_lens.cli.table import print_audits

if TYPE_CHECKING:
    from uds_lens.audit import AuditConfig, DepthAudit, RunOptions
    from uds_lens.data import ForgetExample


def audit(
    full: Annotated[str, typer.Option(help="Model trained on everything: directory or Hub id.")],
    retain: Annotated[str, typer.Option(help="Model that never saw the forget set.")],
    unlearned: Annotated[list[str], typer.Option(help="Model to audit; repeat for more.")],
    examples: Annotated[
        str, typer.Option(help="Forget set: JSON, JSON lines, CSV, Parquet, or a Hub data set.")
    ],
    out: opt.Out,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first examples.")] = None,
    tau: opt.Tau = 0.05,
    site: opt.Site = "resid_post",
    scope: opt.Scope = "entity",
    last_layer: opt.LastLayer = "resid_post",
    protocol: opt.Protocol = "raw",
    dtype: opt.DType = "float32",
    confidence: opt.Confidence = 0.95,
    n_bootstrap: opt.Bootstrap = 9999,
    seed: opt.Seed = 0,
    device: opt.Device = "auto",
    device_map: opt.DeviceMap = None,
    engine: opt.Engine = "auto",
    token_budget: opt.TokenBudget = 4096,
    memory_gib: opt.MemoryGib = 4.0,
    check_memory: opt.CheckMemory = True,
    revision: opt.Revision = None,
    offline: opt.Offline = False,
    trust_remote_code: opt.TrustRemoteCode = False,
    json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Measure how deep models have unlearned a forget set.

    One model: the audit is saved in --out. Several: each in a directory of --out named after it, with table.csv and the
    baseline they share.

    \b
    Example:
      uds-lens audit --full ckpt/full --retain ckpt/retain --unlearned ckpt/npo \\
          --unlearned ckpt/rmu --examples forget10.json --out runs/forget10
    """
    import uds_lens as ul
    from uds_lens.audit.files import is_audit
    from uds_lens.errors import ConfigError

    config = ul.AuditConfig(
        tau=tau,
        site=site,
        scope=scope,
        last_layer=last_layer,
        protocol=protocol,
        dtype=dtype,
        confidence=confidence,
        n_bootstrap=n_bootstrap,
        seed=seed,
    )
    run = ul.RunOptions(
        device=device,
        device_map=device_map,
        engine=engine,
        token_budget=token_budget,
        memory_gib=memory_gib,
        check_memory=check_memory,
        revision=revision,
        offline=offline,
        trust_remote_code=trust_remote_code,
    )
    names = directory_names(unlearned)
    places = {name: out / name for name in names} if len(names) > 1 else {names[0]: out}
    if len(names) > 1 and is_audit(out):
        raise ConfigError(
            f"{str(out)!r} holds one audit; several need a directory of their own: choose another --out."
        )
    prepare(places.values())
    forget = ul.load_examples(examples, limit=limit)
    with _memory_told():
        if len(names) == 1:
            found = {
                names[0]: ul.DepthAudit.run(full, retain, unlearned[0], forget, config=config, options=run)
            }
            found[names[0]].save(out)
        else:
            models = dict(zip(names, unlearned, strict=True))
            found = _audit_several(full, retain, models, forget, config, run, out)
    if json:
        typer.echo(as_json(found, places))
        return
    print_audits(found)
    typer.echo(f"\nSaved in {out}")


@contextmanager
def _memory_told() -> Iterator[None]:
    """Print what the library logs about memory (its estimate before a run) on standard error."""
    logger, handler = logging.getLogger("uds_lens.audit.memory"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("memory: %(message)s"))
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _audit_several(
    full: str,
    retain: str,
    unlearned: dict[str, str],
    examples: list[ForgetExample],
    config: AuditConfig,
    run: RunOptions,
    out: Path,
) -> dict[str, DepthAudit]:
    """Stage 1 once, then one model after the other, each saved as soon as it is measured."""
    import uds_lens as ul

    baseline = ul.Baseline.measure(full, retain, examples, config=config, options=run)
    baseline.save(out / BASELINE)
    found = {}
    for name, model in unlearned.items():
        found[name] = baseline.audit(model, options=run)
        found[name].save(out / name)
    write_table(found, out / "table.csv")
    return found
