"""Python that measures the audits of a page again: one baseline for all that share it, and a loop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields

from uds_lens.results import AuditConfig, DepthAudit
from uds_lens.results.comparable import weights_of


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
    facts = {
        len(control.examples) + len(control.skipped)
        for audit in audits.values()
        if (control := audit.control) is not None
    }
    if facts:
        kept = " or ".join(map(str, sorted(facts)))
        head += f'\ncontrol = ul.load_examples("kept.json")  # facts that were to be kept: {kept} rows'
    return "\n\n".join([head, *map(_measured, groups.values())]) + "\n"


def _baseline_of(audit: DepthAudit) -> tuple[object, ...]:
    shared = [weights_of(audit, role) for role in ("full", "retain")]
    control = None if audit.control is None else audit.control.ids_hash
    return (*shared, repr(audit.config), audit.provenance.get("ids_hash"), control)


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
            f"    {first.models['full'].name!r},",
            f"    {_retain(first)!r},",
            "    examples,",
            *([] if first.control is None else ["    control=control,"]),
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


def _retain(audit: DepthAudit) -> str | list[str]:
    if audit.retains:
        return [retain.model.name for retain in audit.retains]
    return audit.models["retain"].name


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
