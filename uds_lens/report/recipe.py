"""Python that measures the audits of a page again: one baseline for all that share it, and a loop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields

from uds_lens.results import AuditConfig, DepthAudit


def recipe(audits: Mapping[str, DepthAudit]) -> str:
    """Python that measures each audit again and prints the old score beside the new one.

    Audits that share `full`, `retain`, settings and tokens share a baseline.
    """
    groups: dict[tuple[object, ...], dict[str, DepthAudit]] = {}
    for name, audit in audits.items():
        groups.setdefault(_baseline_of(audit), {})[name] = audit
    rows = {len(audit.examples) + len(audit.skipped) for audit in audits.values()}
    told = " or ".join(map(str, sorted(rows)))
    head = (
        f'import uds_lens as ul\n\nexamples = ul.load_examples("forget.json")  # your forget set: {told} rows'
    )
    return "\n\n".join([head, *map(_measured, groups.values())]) + "\n"


def _baseline_of(audit: DepthAudit) -> tuple[object, ...]:
    shared = [audit.models[role].fingerprint for role in ("full", "retain")]
    return (*shared, repr(audit.config), audit.provenance.get("ids_hash"))


def _measured(audits: Mapping[str, DepthAudit]) -> str:
    """One baseline, and a loop over the models it serves."""
    first = next(iter(audits.values()))
    tokens = first.provenance.get("ids_hash")
    models = [
        f"    {name!r}: ({audit.models['unlearned'].name!r}, {_number(audit.uds)}),"
        for name, audit in audits.items()
    ]
    return "\n".join(
        [
            "baseline = ul.Baseline.measure(",
            *(f"    {first.models[role].name!r}," for role in ("full", "retain")),
            "    examples,",
            f"    config=ul.AuditConfig({_changed(first.config)}),",
            ")",
            *([f'assert baseline.provenance["ids_hash"] == {tokens!r}  # the same tokens'] if tokens else []),
            "measured = {  # name: (model, UDS on this page)",
            *models,
            "}",
            "for name, (model, before) in measured.items():",
            '    print(f"{name}: {before:.4f} before, {baseline.audit(model).uds:.4f} now")',
        ]
    )


def _changed(config: AuditConfig) -> str:
    """The settings that are not the default, as arguments."""
    default = AuditConfig()
    return ", ".join(
        f"{field.name}={getattr(config, field.name)!r}"
        for field in fields(AuditConfig)
        if getattr(config, field.name) != getattr(default, field.name)
    )


def _number(uds: float) -> str:
    return 'float("nan")' if math.isnan(uds) else f"{uds:.4f}"
