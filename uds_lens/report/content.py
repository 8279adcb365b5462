"""The words and tables of the page that need no script: score, counts, protocol, provenance, reproduction."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from uds_lens.results import AuditConfig, DepthAudit, site_groups
from uds_lens.results.reading import WITHHELD

NOT_MEASURABLE = "not measurable"


def score(value: float, digits: int = 3) -> str:
    """A score as text; NaN in words.

    >>> score(0.5), score(float("nan"))
    ('0.500', 'not measurable')
    """
    return NOT_MEASURABLE if math.isnan(value) else f"{value:.{digits}f}"


def percent(value: float) -> str:
    """A share as text.

    >>> percent(0.256), percent(float("nan"))
    ('26 %', 'undefined')
    """
    return "undefined" if math.isnan(value) else f"{value:.0%}".replace("%", " %")


def headlines(audits: Mapping[str, DepthAudit], references: Collection[str] = ()) -> list[dict[str, Any]]:
    """One entry per audit, highest score first and those without a score last; `index` is its place in `audits`."""
    rows = [
        _headline(place, name, audit, name in references)
        for place, (name, audit) in enumerate(audits.items())
    ]
    return sorted(rows, key=lambda row: (row["uds"] is None, -(row["uds"] or 0.0)))


def _headline(index: int, name: str, audit: DepthAudit, reference: bool) -> dict[str, Any]:
    low, high = audit.uds_interval
    defined = not math.isnan(audit.uds)
    return {
        "index": index,
        "name": name,
        "uds": audit.uds if defined else None,
        "score": score(audit.uds),
        "low": None if math.isnan(low) else low,
        "high": None if math.isnan(high) else high,
        "interval": "no interval" if math.isnan(low) else f"{low:.3f} to {high:.3f}",
        "basis": str(audit.interval_basis),
        "if_all": None if audit.sample_error is None else audit.sample_error.words,
        "confidence": f"{audit.config.confidence:.0%}".replace("%", " %"),
        "reading": audit.reading,
        "withheld": audit.reading == WITHHELD,
        "fatal": " ".join(audit.fatal),
        "reference": reference,
        "sentence": _sentence(audit),
        "measured": audit.n_measured,
        "not_measurable": audit.n_not_measurable,
        "skipped": len(audit.skipped),
        "over": percent(audit.over_erased_share),
        "negative": percent(audit.negative_share),
        "retains": _retains(audit),
        "damage": _damage(audit),
    }


def _retains(audit: DepthAudit) -> dict[str, Any] | None:
    """The scores against single retain models; None with one."""
    if not audit.retains:
        return None
    low, high, _ = audit.retain_spread
    rows = [
        {
            "name": row.retain,
            "score": score(row.uds),
            "interval": "no interval"
            if math.isnan(row.uds_low)
            else f"{row.uds_low:.3f} to {row.uds_high:.3f}",
            "measured": row.n_measured,
        }
        for row in audit.retains_frame().itertuples()
    ]
    return {"spread": f"{score(low)} to {score(high)}", "rows": rows}


def _damage(audit: DepthAudit) -> dict[str, str] | None:
    """Loss on retained facts beside loss on forget facts, in words; None without a control."""
    if audit.control is None:
        return None
    found = audit.damage_estimate
    low, high = found.interval
    facts, kept = int(audit.control.known.sum()), found.reason is None
    yardstick = f"(retain's states: {found.retain_loss:.3f})"
    losses = f"{found.control_loss:.3f} nats per token on {facts} retained facts {yardstick}"
    return {
        "value": f"{found.value:.3f}" if kept else "undefined",
        "interval": "no interval" if math.isnan(low) else f"{low:.3f} to {high:.3f}",
        "words": f"{losses}, {found.forget_loss:.3f} on the forget facts."
        if kept
        else f"Undefined: {found.reason}.",
    }


def _sentence(audit: DepthAudit) -> str:
    if math.isnan(audit.uds):
        return "Nothing could be measured: on no example do full and retain differ enough, at any layer."
    if audit.fatal:
        return f"The number does not mean what a score means. {audit.fatal[0]}"
    count = "one example" if audit.n_measured == 1 else f"{audit.n_measured} examples"
    return (
        f"Averaged over {count}, {percent(audit.uds)} of what full knows and retain does not "
        "is gone from the unlearned model's layers."
    )


def site_captions(audits: Mapping[str, DepthAudit]) -> list[str]:
    """One caption for each figure of several patch sites."""
    names = {id(audit): name for name, audit in audits.items()}
    groups = site_groups(audits.values())
    return [
        "S1, the log-probability lost with retain's state put in at other points of the block. It depends on full and "
        "retain only."
        + (f" Audits: {'; '.join(names[id(a)] for a in sites.values())}." if len(groups) > 1 else "")
        for sites in groups
    ]


def sections(
    audits: Mapping[str, DepthAudit], *, metrics: bool = False, elicited: bool = False
) -> list[tuple[str, str]]:
    """The sections of the page, for the links above it: place and words."""
    several, skipped = len(audits) > 1, any(audit.skipped for audit in audits.values())
    return [
        ("score", "Scores" if several else "Score"),
        ("notes", "Warnings"),
        *([("compare", "Side by side")] if several else []),
        *([("useful", "Usefulness")] if metrics else []),
        ("layers", "Layers"),
        *([("kept", "Kept")] if any(audit.control is not None for audit in audits.values()) else []),
        ("map", "Map"),
        *([("elicited", "What comes out")] if elicited else []),
        ("examples", "Examples"),
        ("closer", "Closer look"),
        *([("skipped", "Skipped")] if skipped else []),
        *([("retains", "Retains")] if any(audit.retains for audit in audits.values()) else []),
        ("method", "Method"),
        ("provenance", "Provenance"),
        ("reproduce", "Measure again"),
    ]


def skipped_rows(audits: Mapping[str, DepthAudit]) -> list[dict[str, Any]]:
    """Rows that could not be scored, each once, with the names of the audits."""
    found: dict[tuple[Any, ...], list[str]] = {}
    for name, audit in audits.items():
        for row in audit.skipped:
            found.setdefault((row.row, row.id, row.question, row.reason), []).append(name)
    return [
        {"row": row, "id": ident, "question": question, "reason": reason, "names": names}
        for (row, ident, question, reason), names in sorted(found.items(), key=lambda item: item[0][0])
    ]


def settings(audits: Mapping[str, DepthAudit]) -> list[dict[str, str]]:
    """The configuration: one row per setting, the values of all audits, equal ones once."""
    rows = []
    for name in AuditConfig().to_dict():
        values = list(dict.fromkeys(str(getattr(audit.config, name)) for audit in audits.values()))
        rows.append({"name": name, "value": ", ".join(values)})
    return rows


def checkpoints(audits: Mapping[str, DepthAudit]) -> list[dict[str, Any]]:
    """The models: those that several audits share once, with their role."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for name, audit in audits.items():
        for role, record in audit.roles.items():
            shown = name if role == "unlearned" else ""
            found.setdefault(
                (role, record.fingerprint, shown), {"role": role, "audit": shown, **record.to_dict()}
            )
    order = {"full": 0, "retain": 1}
    return sorted(found.values(), key=lambda row: order.get(row["role"].split()[0], 2))


def provenance(audits: Mapping[str, DepthAudit]) -> list[dict[str, Any]]:
    """Where and with what the numbers were made; audits with the same answer share a row."""
    found: dict[str, dict[str, Any]] = {}
    for name, audit in audits.items():
        answers = _answers(audit.provenance)
        entry = found.setdefault(
            repr(sorted(answers.items(), key=lambda item: item[0])), {"names": [], "answers": answers}
        )
        entry["names"].append(name)
    return list(found.values())


def _answers(record: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """A record as one level of questions and answers; versions as one answer, the prompt left to its own place.

    >>> _answers({"created": "today", "stage_1": {"created": "before", "versions": {"torch": "2"}}})
    {'created': 'today', 'stage_1, created': 'before', 'stage_1, versions': 'torch 2'}
    """
    answers: dict[str, Any] = {}
    for key, value in record.items():
        if key == "versions" and isinstance(value, Mapping):
            answers[before + key] = ", ".join(f"{package} {number}" for package, number in value.items())
        elif isinstance(value, Mapping):
            answers |= _answers(value, f"{before}{key}, ")
        elif key != "first_prompt":
            answers[before + key] = value
    return answers


def prompts(audits: Mapping[str, DepthAudit]) -> list[str]:
    """The first rendered prompt of each protocol."""
    found = (audit.provenance.get("first_prompt") for audit in audits.values())
    return list(dict.fromkeys(prompt for prompt in found if prompt))
