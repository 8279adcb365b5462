"""From audits to the file."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from uds_lens._storage import atomic_write_text, located, require_fresh
from uds_lens.data._columns import check_unique
from uds_lens.elicitation import ElicitationResults
from uds_lens.errors import ConfigError
from uds_lens.plots import Theme
from uds_lens.plots._style import number, palette
from uds_lens.report._page import fill, template
from uds_lens.report._payload import (
    LensSource,
    Measured,
    MetricSources,
    elicited_beside,
    lens_among,
    lens_deltas,
    measured,
    metrics_table,
    payload,
)
from uds_lens.results import (
    AuditConfig,
    DepthAudit,
    ModelRecord,
    audit_names,
    compare_all,
    site_groups,
)
from uds_lens.results._cautions import LEVELS, Level
from uds_lens.results._comparing import (
    differing_settings,
    references_of,
    score_settings,
    weights_of,
)
from uds_lens.results._hub import model_card as model_card
from uds_lens.results._scores import WITHHELD

if TYPE_CHECKING:
    import pandas as pd


# The words and tables of the page that need no script: score, counts, protocol, provenance, reproduction.

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
        *([("useful", "Utility")] if metrics else []),
        ("layers", "Layers"),
        *([("kept", "Kept")] if any(audit.control is not None for audit in audits.values()) else []),
        ("map", "Map"),
        *([("elicited", "Elicitation")] if elicited else []),
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


# Python that measures the audits of a page again: one baseline for all that share it, and a loop.


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


# Paths of the machine, cut to their ends before a page is shared.

KEPT = 2
"""Parts of a path that stay."""

_PATH = re.compile(r"(?<![\w.:/\\])(?:~|\.{1,2})?(?:[A-Za-z]:)?(?:[/\\]+[^\s/\\'\",;:]+){2,}[/\\]?")


def short_path(text: str) -> str:
    """Absolute paths, and those that begin with `~`, `.` or `..`, cut to their last two parts; no user's name is left.

    >>> short_path("uds-lens audit --full /home/ada/models/ckpt/full --out ../../home/ada/runs/npo")
    'uds-lens audit --full .../ckpt/full --out .../runs/npo'
    >>> short_path("/home/ada/full, /Users/ada, ~/ckpt/full")
    '.../full, ..., .../ckpt/full'
    >>> short_path("open-unlearning/tofu_full"), short_path("https://host/a/b/c")
    ('open-unlearning/tofu_full', 'https://host/a/b/c')
    """
    return _PATH.sub(lambda found: _ending(found[0]), text)


def _ending(path: str) -> str:
    parts = [part for part in re.split(r"[/\\]+", path) if part]
    inside = parts[1:] if parts[0].endswith(":") else parts
    if inside[0] in ("home", "Users"):
        return "/".join(["...", *inside[2:][-KEPT:]])
    return "/".join(["...", *parts[-KEPT:]]) if len(parts) > KEPT else path


def shortened(audits: Mapping[str, DepthAudit]) -> dict[str, DepthAudit]:
    """The audits with short paths in the names of models and in what was recorded; examples stay as they are."""
    found = {
        name: replace(
            audit,
            models=_records(audit.models),
            retains=tuple(replace(one, model=_records({"": one.model})[""]) for one in audit.retains),
            provenance=_plain(audit.provenance),
        )
        for name, audit in audits.items()
    }
    names = [short_path(name) for name in found]
    return dict(zip(names if len(set(names)) == len(names) else list(found), found.values(), strict=True))


def _records(models: Mapping[str, ModelRecord]) -> dict[str, ModelRecord]:
    return {role: replace(record, name=short_path(record.name)) for role, record in models.items()}


def _plain(value: Any) -> Any:
    """Every text in a record; its first prompt is what the models read and stays."""
    if isinstance(value, str):
        return short_path(value)
    if isinstance(value, Mapping):
        return {key: part if key == "first_prompt" else _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


# What a reader must know before quoting the scores: each audit's warnings, and what stands between audits.

_PERCENT = re.compile(r"(\d+)%")


class Note(NamedTuple):
    """One warning."""

    names: tuple[str, ...]
    """Audits it is about; empty when it is about all of them together."""
    text: str
    """The sentence."""
    level: Level = "caution"
    """How much it weighs."""


def notes(audits: Mapping[str, DepthAudit]) -> list[Note]:
    """Fatal warnings first, then those between audits and those of single audits; alike ones once.

    Args:
        audits: Name to audit.
    """
    found: dict[tuple[str, Level], dict[str, str]] = {}
    for name, audit in audits.items():
        for level, sentence, _ in audit.cautions:
            found.setdefault((_PERCENT.sub("%", sentence), level), {})[name] = sentence
    own = [Note(tuple(named), _merged(list(named.values())), level) for (_, level), named in found.items()]
    return sorted([*_between(audits), *own], key=lambda note: LEVELS.index(note.level))


def _merged(sentences: list[str]) -> str:
    """One sentence for several that differ in their percentages only.

    >>> _merged(["on 20% of the layers", "on 35% of the layers"])
    'on 20% to 35% of the layers'
    """
    slots = zip(*(map(int, _PERCENT.findall(sentence)) for sentence in sentences), strict=True)
    spans = iter(
        [f"{min(slot)}%" if len(set(slot)) == 1 else f"{min(slot)}% to {max(slot)}%" for slot in slots]
    )
    return _PERCENT.sub(lambda _: next(spans), sentences[0])


def _between(audits: Mapping[str, DepthAudit]) -> list[Note]:
    if len(audits) < 2:
        return []
    every = list(audits.values())
    between = [
        Note(tuple(names), "These audits are of models with identical weights.")
        for names in _same_model(audits)
    ]
    for role in ("full", "retain"):
        if len({weights_of(audit, role) for audit in every}) > 1:
            between.append(
                Note((), f"The audits use different {role} models: their scores have different meanings.")
            )
    differing = differing_settings(every)
    if differing:
        between.append(
            Note((), f"The audits differ in {', '.join(differing)}: their scores are not comparable.")
        )
    if len({audit.provenance.get("ids_hash") for audit in every}) > 1:
        between.append(
            Note((), "The audits were measured on different examples, or read them as different tokens.")
        )
    return between


def _same_model(audits: Mapping[str, DepthAudit]) -> list[list[str]]:
    """Names that share weights and settings; one model measured in several ways is no surprise."""
    by_weights: dict[tuple[object, ...], list[str]] = {}
    for name, audit in audits.items():
        one = (audit.models["unlearned"].fingerprint, *score_settings(audit))
        by_weights.setdefault(one, []).append(name)
    return [names for names in by_weights.values() if len(names) > 1]


# Which differences between the audits of a page are real: every pair, in words.

LEVEL = 0.05
"""Adjusted p-value below which a difference is called real."""


def differences(audits: Mapping[str, DepthAudit], references: Sequence[str] = ()) -> pd.DataFrame | None:
    """Compare every pair of audits; None for a single audit.

    Resamples and seed are those of the first audit, and all audits are asked for the same confidence.
    """
    if len(audits) < 2:
        return None
    config = next(iter(audits.values())).config
    return compare_all(
        audits,
        references=references,
        confidence=config.confidence,
        n_resamples=config.n_bootstrap,
        seed=config.seed,
    )


def difference_words(pairs: pd.DataFrame | None, confidence: str) -> dict[str, Any] | None:
    """The table and the sentence above it; None where there is nothing to compare.

    Args:
        pairs: From `differences`.
        confidence: Of their intervals, in words.

    Returns:
        `sentence`, `confidence`, `compared` (whether any pair was), and `rows`: real differences first, then by size.
    """
    if pairs is None:
        return None
    rows = [_words(row) for row in pairs.itertuples()]
    tested = [row for row in rows if row["p"] is not None and row["verdict"] != "withheld"]
    real = sum(row["real"] for row in tested)
    if tested:
        count = f"{real} of {len(tested)} " + ("pair differs" if len(tested) == 1 else "pairs differ")
        sentence = f"{count} by more than chance (adjusted p below {LEVEL:g}). {_findable(pairs)}"
    else:
        sentence = "No pair could be tested; the table says why."
    return {
        "sentence": sentence,
        "confidence": confidence,
        "compared": bool(pairs["difference"].notna().any()),
        "rows": sorted(rows, key=lambda row: (not row["real"], row["verdict"] == "reference", -row["size"])),
    }


def _findable(pairs: pd.DataFrame) -> str:
    """Say which p-values could have come out at all, with so many pairs and subjects."""
    tested = pairs[pairs["p_holm"].notna()]
    subjects, size = int(tested["n_subjects"].max()), len(tested)
    least = float(tested["p_holm_least"].iloc[0])
    over = f"with {subjects} subjects" + ("" if size == 1 else f", adjusted over {size} pairs")
    if least < LEVEL:
        return f"The smallest p that could have come out is {least:.2g} ({over})."
    enough = 2
    while size * 2.0 ** (1 - enough) >= LEVEL:  # of all sign patterns, the observed one and its opposite
        enough += 1
    return (
        f"Nothing could have been found: the smallest p that could have come out is {least:.2g} ({over}). It takes "
        f"{enough} subjects or more{'' if size == 1 else ', or fewer models'}."
    )


def _words(row: Any) -> dict[str, Any]:
    """A pair as the table shows it, the deeper model first."""
    defined, tested = not math.isnan(row.difference), not math.isnan(row.p_holm)
    turn = defined and row.difference < 0
    one, other = (row.other, row.one) if turn else (row.one, row.other)
    low, high = (-row.high, -row.low) if turn else (row.low, row.high)
    real = tested and row.p_holm < LEVEL and not row.fatal
    interval = defined and not math.isnan(low)
    return {
        "one": one,
        "other": other,
        "size": abs(row.difference) if defined else -1.0,
        "difference": f"{abs(row.difference):.3f}" if defined else "undefined",
        "interval": f"{number(low + 0.0, 3)} to {number(high + 0.0, 3)}" if interval else "no interval",
        "p": f"{row.p_holm:.2g}" if tested else None,
        "real": real,
        "verdict": "withheld"
        if row.fatal
        else "reference"
        if row.reference
        else "real"
        if real
        else "open"
        if tested
        else "not tested",
        "n": row.n,
        "n_subjects": row.n_subjects,
        "why": "; ".join(
            part
            for part in (row.fatal, row.reason, f"left out: {row.left_out}" if row.left_out else "")
            if isinstance(part, str) and part  # a column of texts holds NaN where there is none
        ),
    }


# The method as a picture: one layer's state carried from a source into `full`, and what is read off.

ON_PAGE: Mapping[str, str] = {
    name: f"var(--{name})"
    for name in (
        "ink",
        "text",
        "faint",
        "line",
        "grid",
        "card",
        "wash",
        "retain",
        "unlearned",
        "erased",
        "known",
        "mixed",
    )
}
"""Colours of the page it stands on, light or dark."""

_MORE = {
    "light": {
        "card": "#ffffff",
        "wash": "#f4f5f7",
        "line": "#c9cdd5",
        "known": "#8fbde0",
        "mixed": "#b8a9a0",
    },
    "dark": {"card": "#1b1f26", "wash": "#1d2229", "line": "#434a56", "known": "#2f6d9c", "mixed": "#7d6a5c"},
}


def method_picture(theme: Theme = "light", *, narrow: bool = False) -> str:
    """The picture as an SVG file of its own, with its background.

    Args:
        theme: Light or dark.
        narrow: For phones: what is read off stands below the models, not beside them.

    Example:
        >>> method_picture("dark").startswith("<svg")
        True
    """
    own = palette(theme)
    names = ("paper", "ink", "text", "faint", "grid", "retain", "unlearned", "erased")
    return drawn({**{name: getattr(own, name) for name in names}, **_MORE[theme]}, paper=True, narrow=narrow)


def drawn(colours: Mapping[str, str], *, paper: bool = False, narrow: bool = False) -> str:
    """The picture in given colours, as markup for a page.

    Args:
        colours: By name, as in `ON_PAGE`; with `paper` also that of the background.
        paper: Whether there is a background.
        narrow: As for `method_picture`.
    """
    return template("method.svg.j2").render(c=colours, paper=paper, narrow=narrow).strip() + "\n"


_SCRIPTS = (
    "elements.js",
    "data.js",
    "drawing.js",
    "figures.js",
    "detail.js",
    "elicited.js",
    "examples.js",
    "main.js",
)


def write(
    audits: DepthAudit | Mapping[str, DepthAudit] | Sequence[DepthAudit],
    path: str | os.PathLike[str],
    *,
    title: str = "How deep did unlearning go?",
    lens: Sequence[LensSource] = (),
    metrics: MetricSources = (),
    references: Collection[str] = (),
    elicitations: Sequence[ElicitationResults] = (),
    short_paths: bool = False,
) -> Path:
    """Write one HTML file with everything about one audit or several: it opens offline and asks no network.

    Audits of the same models at several patch sites are compared by site.

    Args:
        audits: An audit; several by name; or several, named after their unlearned models.
        path: File to write (`.html`), whole or not at all.
        title: Heading of the page.
        lens: Logit Lens results to draw beside UDS in the view of an example: of
            `metrics.compare_logit_lens(audit, example)`, or of `metrics.evaluate(...)` with `logit_lens`; each finds
            its audit by itself.
        metrics: Other metrics of the models (`metrics.evaluate`), of one or several, in any order; each finds its audit
            by the weights. Adds a table, and depth against utility; Logit Lens among them is drawn as with `lens`.
        references: Names of audits that are there for comparison: drawn grey, and not what the page opens on. Audits
            of `full` and `retain` themselves are found by their weights and need no name here.
        elicitations: Results of `elicitation.elicit` on audited models: what came out of them beyond retain, and what
            was said, beside their depth. Each finds its audit by the model's weights.
        short_paths: Cut paths of this machine to their last two parts, wherever the page shows one: for a page that
            is shared.

    Returns:
        The path.

    Raises:
        ConfigError: No audits, the path does not end in `.html`, a Logit Lens result, other metrics or an elicitation
            belong to none of the audits, or a reference is none of them.
        DataError: An id stands twice in an audit, so that an example's curve could be another's.
        ResultFormatError: Something that is no report stands at `path`.
        StorageError: The system refuses to write.
    """
    path = located(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"a report is an HTML file, for example report.html; got {str(path)!r}.")
    require_fresh(path, directory=False)
    page = render(
        audits,
        title=title,
        lens=lens,
        metrics=metrics,
        references=references,
        elicitations=elicitations,
        short_paths=short_paths,
    )
    atomic_write_text(path, page)
    return path


def render(
    audits: DepthAudit | Mapping[str, DepthAudit] | Sequence[DepthAudit],
    *,
    title: str = "How deep did unlearning go?",
    lens: Sequence[LensSource] = (),
    metrics: MetricSources = (),
    references: Collection[str] = (),
    elicitations: Sequence[ElicitationResults] = (),
    short_paths: bool = False,
) -> str:
    """The page of `write` as text; arguments and errors as there."""
    named = _named(audits)
    grey = references_of(named, references)
    if short_paths:
        names = dict(zip(named, shortened(named), strict=True))
        named, grey = shortened(named), [names[name] for name in grey]
    found, asked = measured(named, metrics), elicited_beside(named, elicitations)
    lens = [*lens, *lens_among(named, metrics)]
    pairs = differences(named, grey)
    confidence = percent(next(iter(named.values())).config.confidence)
    return fill(
        "report.html.j2",
        scripts=_SCRIPTS,
        styles=("report.css",),
        data=payload(named, lens_deltas(named, lens), pairs, references=grey, metrics=found, elicited=asked),
        context={
            "title": title,
            "differences": difference_words(pairs, confidence),
            **_context(named, grey, found, elicited=bool(asked)),
        },
    )


def _context(
    audits: Mapping[str, DepthAudit], references: Sequence[str], found: Measured | None, *, elicited: bool
) -> dict[str, Any]:
    from markupsafe import Markup

    models = headlines(audits, references)
    order = [model["name"] for model in models]
    return {
        "models": models,
        "has_damage": any(model["damage"] for model in models),
        "has_retains": any(model["retains"] for model in models),
        "references": references,
        "sections": sections(audits, metrics=found is not None, elicited=elicited),
        "metrics": None if found is None else metrics_table(audits, found, order, references),
        "elicited": elicited,
        "notes": notes(audits),
        "skipped": skipped_rows(audits),
        "settings": settings(audits),
        "checkpoints": checkpoints(audits),
        "provenance": provenance(audits),
        "picture": Markup(drawn(ON_PAGE) + drawn(ON_PAGE, narrow=True)),
        "prompts": prompts(audits),
        "recipe": recipe(audits),
        "components": site_captions(audits),
    }


def _named(audits: DepthAudit | Sequence[DepthAudit] | Mapping[str, DepthAudit]) -> dict[str, DepthAudit]:
    if isinstance(audits, DepthAudit):
        audits = [audits]
    if not isinstance(audits, Mapping):
        if not all(isinstance(audit, DepthAudit) for audit in audits):
            raise ConfigError("a report takes audits (DepthAudit.load reads saved ones); got something else.")
        audits = dict(zip(audit_names(audits), audits, strict=True))
    if not audits:
        raise ConfigError("a report needs at least one audit; got none.")
    for name, audit in audits.items():  # curves are found by id
        check_unique(audit.examples, where=f"the audit {str(name)[:80]!r}")
    return dict(audits)
