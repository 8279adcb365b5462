"""Elicitations handed to a report, beside the audits of the same models: what came out, what it says, what was said."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from uds_lens import plots
from uds_lens.elicitation import ElicitationResults
from uds_lens.errors import ConfigError
from uds_lens.plots.safe_text import number
from uds_lens.report.page_figures import plain_figure
from uds_lens.results import DepthAudit

_LEVEL = 0.05
_LONGEST = 600
"""Letters of a text that the page holds."""

_ROLES = ("unlearned", "retain", "full")


def elicited_beside(
    audits: Mapping[str, DepthAudit], sources: Sequence[ElicitationResults]
) -> dict[str, ElicitationResults]:
    """The elicitation of each audit's unlearned model, by the audit's name.

    Args:
        audits: Name to audit.
        sources: Results for any of them, in any order; of two of one model the later one counts.

    Raises:
        ConfigError: One is of a model that none of the audits is about, or shares no example with its audit.
    """
    found: dict[str, ElicitationResults] = {}
    for source in sources:
        if not isinstance(source, ElicitationResults):
            raise ConfigError(
                "elicitations are ElicitationResults (ElicitationResults.load reads saved ones); got "
                f"{type(source).__name__}."
            )
        model = source.models["unlearned"]
        asked = {(row.id, row.question) for row in source.examples}
        owners = [
            name
            for name, audit in audits.items()
            if audit.models["unlearned"].fingerprint == model.fingerprint
            and asked & {(row.id, row.question) for row in audit.examples}
        ]
        if not owners:
            raise ConfigError(
                f"the elicitation of {model.name[:100]!r} belongs to none of the audits on the page: expected the "
                "weights of an audited model, and examples with the same ids and questions."
            )
        found |= dict.fromkeys(owners, source)
    return found


def elicited_values(audit: DepthAudit, found: ElicitationResults) -> dict[str, Any]:
    """What the page shows of one elicitation, as texts.

    Returns:
        `sentence`, `how`, `rows` (the summary), `ledger`, `warnings`, `said` (by place of the example in the audit).
    """
    table = found.summary()
    return {
        "sentence": _sentence(table),
        "how": _how(found),
        "rows": [_row(row) for row in table.to_dict("records")],
        "ledger": [_line(line) for line in found.ledger().to_dict("records")],
        "warnings": list(found.warnings),
        "said": _said(audit, found),
    }


def elicited_figures(audit: DepthAudit, found: ElicitationResults) -> dict[str, Any]:
    """Scores by audit, and depth beside what one audit brought out."""
    names = [record.name for record in found.audits if not record.capacity]
    chosen = next((name for name in ("cloze", "plain") if name in names), names[0] if names else None)
    deep = None
    if chosen is not None and "retain" in found.models:
        deep = plain_figure(plots.depth_elicited(found.with_depth(audit), audit=chosen, title=None))
    return {
        "elicited": plain_figure(plots.elicited_scores(found.summary(), title=None)),
        "depth_elicited": deep,
    }


def _sentence(table: Any) -> str:
    known = table[table["p_holm"].notna()]
    if not len(known):
        return "There is nothing to compare with: no retain model was asked."
    real = known[(known["p_holm"] < _LEVEL) & (known["beyond_retain"] > 0)]
    if not len(real):
        return f"No audit brings out more than retain says, beyond chance (adjusted p below {_LEVEL:g})."
    best = real.loc[real["beyond_retain"].idxmax()]
    names = ", ".join(dict.fromkeys(real["audit"]))
    return (
        f"{names}: more than retain says, beyond chance (adjusted p below {_LEVEL:g}). Most by {best['audit']}: "
        f"{_signed(best['beyond_retain'])} of the reference."
    )


def _how(found: ElicitationResults) -> str:
    options = found.options
    drawn = ""
    if options.samples:
        among = "all tokens" if options.top_k is None else f"the {options.top_k} likeliest tokens"
        drawn = f" and {options.samples} texts drawn (temperature {options.temperature:g}, {among})"
    return (
        f"{len(found.examples)} questions, greedily{drawn}, up to {options.max_new_tokens} tokens, seed "
        f"{options.seed}, {found.protocol} protocol."
    )


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    share = str(row["share_reason"] or "")
    return {
        "audit": row["audit"],
        "how": _decoding(row["decoding"], row["statistic"]),
        "scores": [_plain(row.get(role, math.nan)) for role in ("full", "retain", "unlearned")],
        "beyond": _with_interval(row["beyond_retain"], row["beyond_low"], row["beyond_high"], signed=True),
        "p": "" if math.isnan(row["p_holm"]) else f"{row['p_holm']:.2g}",
        "real": bool(row["p_holm"] < _LEVEL and row["beyond_retain"] > 0),
        "power": _with_interval(row["power"], row["power_low"], row["power_high"], signed=True),
        "share": _with_interval(row["share"], row["share_low"], row["share_high"], signed=False)
        if not math.isnan(row["share"])
        else next((why for why in ("no power", "not asked") if share.startswith(why)), "none"),
        "n": int(row["n"]),
    }


def _line(line: Mapping[str, Any]) -> list[str]:
    skipped = str(line["skipped"])
    if line["skipped"]:
        skipped += f": {line['first_reason']}"
    return [
        line["audit"],
        line["access"],
        line["injects"],
        str(line["asked"]),
        skipped,
        _plain(line["reference_in_prompt"]),
        str(line["empty"]),
        str(line["endless"]),
    ]


def _said(audit: DepthAudit, found: ElicitationResults) -> dict[str, list[dict[str, Any]]]:
    """Of each example of the audit: by audit, the greedy text, or the best of the drawn ones, of each model."""
    places = {(row.id, row.question): place for place, row in enumerate(audit.examples)}
    of = [places.get((row.id, row.question)) for row in found.examples]
    told: dict[str, list[dict[str, Any]]] = {}
    for record in found.audits:
        for decoding in ("greedy", "sampled"):
            parts = [p for p in found.parts if (p.audit, p.decoding) == (record.name, decoding)]
            by_role = {part.role: {said.row: said for said in part.said} for part in parts}
            for row, place in enumerate(of):
                texts = []
                for role in _ROLES:
                    said = by_role.get(role, {}).get(row)
                    if said is None or not said.texts:
                        continue
                    scores = [score.recall for score in found.scores[role, record.name, decoding][row]]
                    best = max(range(len(scores)), key=lambda n: -1.0 if math.isnan(scores[n]) else scores[n])
                    texts.append([role, _short(said.texts[best]), _plain(scores[best])])
                if texts and place is not None:
                    how = "greedy" if decoding == "greedy" else f"best of {found.options.samples} drawn"
                    name = f"{record.name}, {how}" + (" (given the answer)" if record.capacity else "")
                    told.setdefault(str(place), []).append({"name": name, "texts": texts})
    return told


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _decoding(decoding: str, statistic: str) -> str:
    return decoding if decoding == "greedy" else f"{decoding}, {statistic}"


def _plain(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2f}"


def _signed(value: float) -> str:
    return f"{'+' if value >= 0 else ''}{number(value, 2)}"


def _with_interval(value: float, low: float, high: float, *, signed: bool) -> str:
    if math.isnan(value):
        return ""
    write = _signed if signed else (lambda x: number(x, 2))
    return write(value) if math.isnan(low) else f"{write(value)} ({write(low)} to {write(high)})"
