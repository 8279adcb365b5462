"""The HTML report on audits: verdicts, warnings, differences and tables; `_payload.py` provides the numbers."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from uds_lens._progress import tell
from uds_lens._storage.files import atomic_write_text, check_writable, located
from uds_lens.data._columns import check_unique
from uds_lens.elicitation import ElicitationResults
from uds_lens.errors import ConfigError
from uds_lens.plots._style import Theme, count, number, palette
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
    transplants_among,
    utility_metric,
)
from uds_lens.results import AuditConfig, DepthAudit, ModelRecord, compare_all
from uds_lens.results._cards import number as score
from uds_lens.results._cautions import LEVELS, Level, cautions_between, damage_signs
from uds_lens.results._comparing import audit_names, references_of, site_groups
from uds_lens.results._frames import thirds_in_words
from uds_lens.results._hub import model_card as model_card
from uds_lens.results._settings import Roles, roles_of
from uds_lens.results._verdict import LEVEL, WITHHELD, pairs_in_words
from uds_lens.transplants import Transplant

if TYPE_CHECKING:
    import pandas as pd

TITLE = "How deep did unlearning go?"


def _interval(low: float, high: float) -> str:
    # adding 0 turns -0 into 0
    return "no interval" if math.isnan(low) else f"{round(low, 3) + 0.0:.3f} to {round(high, 3) + 0.0:.3f}"


def headlines(
    audits: Mapping[str, DepthAudit], references: Collection[str] = (), metrics: Measured | None = None
) -> list[dict[str, Any]]:
    """Return one entry per audit, highest score first; `index` is its position in `audits`."""
    rows, utility = [], utility_metric(metrics)
    for index, (name, audit) in enumerate(audits.items()):
        low, high = audit.uds_interval
        cautions = [caution for caution in audit.cautions if caution.level == "caution"]
        value = None
        if metrics is not None and utility is not None:
            value = metrics.values.get(name, {}).get(utility)
        rows.append(
            {
                "index": index,
                "name": name,
                "uds": None if math.isnan(audit.uds) else audit.uds,
                "score": score(audit.uds),
                "low": None if math.isnan(low) else low,
                "high": None if math.isnan(high) else high,
                "interval": _interval(low, high),
                "basis": str(audit.interval_basis),
                "if_all": None if audit.sample_error is None else audit.sample_error.words,
                "confidence": f"{audit.config.confidence * 100:g}%",
                "output": "" if math.isnan(audit.output_depth) else score(audit.output_depth),
                "reading": audit.reading,
                "why": audit.verdict.why,
                "withheld": audit.verdict.word == WITHHELD,
                "damaged": bool(damage_signs(audit)),
                "fatal": " ".join(audit.fatal),
                "cautions": [caution.mark for caution in cautions],
                "reference": name in references,
                "sentence": f"{audit.verdict.why} {thirds_in_words(audit)}".rstrip(),
                "prompts": audit.prompts,
                "measured": audit.n_measured,
                "not_measurable": audit.n_not_measurable,
                "skipped": len(audit.skipped),
                "utility": "" if value is None or math.isnan(value.value) else f"{value.value:.3f}",
                "retains": _retains(audit),
                "damage": _damage(audit),
                "prob": "" if math.isnan(audit.entity_prob.unlearned) else f"{audit.entity_prob.unlearned:.3f}",
                "prob_full": f"{audit.entity_prob.full:.3f}",
            }
        )
    return sorted(rows, key=lambda row: (row["uds"] is None, -(row["uds"] or 0.0)))


def _transplant(name: str, found: Transplant) -> dict[str, Any]:
    """Return one row of the transplant table."""
    widest = found.localisation[-1]
    return {
        "name": name,
        "output": score(found.output_depth),
        "host": score(found.host_depth),
        "host_interval": _interval(*found.host_depth_interval),
        "hidden": score(found.hidden),
        "hidden_interval": _interval(*found.hidden_interval),
        "hides": found.hides,
        "back": score(widest.value),
        "back_retain": score(widest.retain),
        "blocks": widest.band if widest.reason is None else "",
        "why": "; ".join(dict.fromkeys(filter(None, (found.host_depth_reason, found.hidden_reason, widest.reason)))),
    }


def _retains(audit: DepthAudit) -> dict[str, Any] | None:
    """Return the score against each retain model; None if there is only one."""
    if not audit.retains:
        return None
    low, high, _ = audit.retain_spread
    rows = [
        {
            "name": row.retain,
            "score": score(row.uds),
            "interval": _interval(row.uds_low, row.uds_high),
            "measured": row.n_measured,
        }
        for row in audit.retains_frame().itertuples()
    ]
    return {"spread": f"{score(low)} to {score(high)}", "rows": rows}


def _damage(audit: DepthAudit) -> dict[str, Any] | None:
    """Describe the loss on retained facts and on forget facts; None without a control."""
    if audit.control is None:
        return None
    damage, prob, own, roles = audit.damage_estimate, audit.entity_prob, "", audit.config.roles
    facts = int(audit.control.known.sum())
    if not math.isnan(prob.control_unlearned):
        said = f"{prob.control_unlearned:.3f} under the model itself, {prob.control_full:.3f} under {roles.full}"
        own = f" (probability of the retained entities: {said})"
    losses = (
        f"Loss: {damage.control_loss:.3f} nats/token on {facts} retained facts (with {roles.retain}'s states: "
        f"{damage.retain_loss:.3f}), and {damage.forget_loss:.3f} on the forget facts. The loss is measured only at "
        f"the entities, after the correct beginning of the answer{own}; for whole answers, use uds-lens metrics "
        "--retain-data."
    )
    return {
        "defined": not damage.reason,
        "value": "undefined" if damage.reason else f"{damage.value:.3f}",
        "interval": _interval(*damage.interval),
        "words": f"Undefined: {damage.reason}." if damage.reason else losses,
    }


# The first section: verdicts with reasons, and next steps.


def verdicts(models: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Group the models (except references) with the same verdict and reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for model in models:
        if not model["reference"]:
            groups.setdefault((model["reading"], model["why"]), []).append(model["name"])
    return [{"reading": reading, "why": why, "names": names} for (reading, why), names in groups.items()]


class Step(NamedTuple):
    """A next step."""

    text: str
    command: str


def next_steps(
    audits: Mapping[str, DepthAudit], references: Collection[str], *, utility: bool, elicited: Collection[str]
) -> Iterator[Step]:
    """Yield the steps not yet taken, with commands that use the same files as the audits."""
    own = {name: audit for name, audit in audits.items() if name not in references}
    if not own:
        return
    first = next(iter(own.values()))
    deepest = max(own, key=lambda name: -1.0 if math.isnan(own[name].uds) else own[name].uds)
    full, stand_in = f"--full {_quoted(first.models['full'].name)}", first.config.stand_in
    retain = "" if stand_in == "counterfactual" else f" --retain {_quoted(first.models['retain'].name)}"
    scale = retain if stand_in is None else f"{retain} --stand-in {stand_in}"
    models = " ".join(dict.fromkeys(f"--model {_quoted(audit.models['unlearned'].name)}" for audit in own.values()))
    forget = _quoted(_given(first, "--examples") or "forget.json")
    known = next(filter(None, (_given(audit, "--control") for audit in own.values())), None)
    kept = _quoted(known or "retained.json")
    yours = "" if known else " (your own file retained.json)"
    out = dict.fromkeys(_quoted(_given(audit, "--out") or "audits") for audit in own.values())
    report = f"uds-lens report {' '.join(out)}"
    again = dict.fromkeys(
        f"{_as_recorded(audit) or f'uds-lens audit {full}{scale} {models} --examples {forget}'}{lacking}"
        for audit in own.values()
        if (lacking := _lacking(audit, kept))
    )
    if again:
        yield Step(
            f"Repeat the audit with facts that should be retained{yours}, to rule out damage, and with transplants, "
            "to rule out hidden knowledge.",
            "\n".join(f"{command} --out audits-again" for command in again),
        )
    if not utility:
        yield Step(
            f"Check utility, since a destroyed model also scores high: ask about facts that should be retained{yours}.",
            f"uds-lens metrics {models} --examples {forget} --retain-data {kept} --metric retain_q_prob --out metrics\n"
            f"{report} --metrics metrics",
        )
    if deepest not in elicited:
        model = f"--model {_quoted(own[deepest].models['unlearned'].name)}"
        yield Step(
            f"Try to extract the answers from {deepest}.",
            f"uds-lens elicit {model} {full}{retain} --examples {forget} --out elicited\n"
            f"{report} --elicitation elicited",
        )


def _lacking(audit: DepthAudit, kept: str) -> str:
    """Return the options that add a control or a transplant if an audit lacks it."""
    control = "" if audit.control is not None else f" --control {kept}"
    has_blocks = audit.config.stand_in != "counterfactual"
    return control + (" --transplant" if has_blocks and audit.transplant is None else "")


def _words(audit: DepthAudit) -> list[str]:
    """Return the arguments of the recorded command of an audit; empty if there is none."""
    try:
        return shlex.split(str(audit.provenance.get("command", "")))
    except ValueError:  # an unclosed quote
        return []


def _given(audit: DepthAudit, option: str) -> str | None:
    """Return the value of an option in the recorded command of an audit; None if there is none."""
    words = _words(audit)
    values = (
        after if word == option else word.removeprefix(f"{option}=")
        for word, after in zip(words, [*words[1:], None], strict=False)
        if word == option or word.startswith(f"{option}=")
    )
    return next(values, None)


def _as_recorded(audit: DepthAudit) -> str | None:
    """Return the recorded command of an audit with all options except `--out`; None if there is none."""
    words = _words(audit)[1:]
    if words[:1] != ["audit"]:
        return None
    kept = [
        word
        for before, word in zip(["", *words], words, strict=False)
        if before != "--out" and word != "--out" and not word.startswith("--out=")
    ]
    return f"uds-lens {shlex.join(kept)}"


def _quoted(name: str) -> str:
    return shlex.quote(" ".join(name.split())[:200])


def site_captions(audits: Mapping[str, DepthAudit]) -> list[str]:
    """Return a caption for each figure that compares patch sites."""
    names, groups = {id(audit): name for name, audit in audits.items()}, site_groups(audits.values())
    return [
        "S1, the log-probability lost when retain's state is patched in at different points in the block. S1 depends "
        "only on full and retain."
        + (f" Audits: {'; '.join(names[id(a)] for a in sites.values())}." if len(groups) > 1 else "")
        for sites in groups
    ]


def sections(
    audits: Mapping[str, DepthAudit], *, metrics: bool = False, elicited: bool = False, transplants: bool = False
) -> list[tuple[str, str]]:
    """Return the anchors and titles of the page's sections, for the links at the top."""
    several = len(audits) > 1
    return [
        ("score", "Scores" if several else "Score"),
        ("notes", "Warnings"),
        *([("compare", "Comparison")] if several else []),
        *([("utility", "Utility")] if metrics else []),
        *([("transplants", "Transplants")] if transplants else []),
        ("layers", "Layers"),
        *([("kept", "Damage")] if any(audit.control is not None for audit in audits.values()) else []),
        ("map", "Map"),
        *([("elicited", "Elicitation")] if elicited else []),
        ("examples", "Examples"),
        ("closer", "Details"),
        *([("skipped", "Skipped")] if any(audit.skipped for audit in audits.values()) else []),
        *([("retains", "Retain models")] if any(audit.retains for audit in audits.values()) else []),
        ("method", "Method"),
        ("provenance", "Provenance"),
    ]


# Tables: skipped rows, settings, checkpoints, provenance.


def skipped_rows(audits: Mapping[str, DepthAudit]) -> list[dict[str, Any]]:
    """Return the distinct rows that could not be scored, with the names of their audits."""
    rows: dict[tuple[Any, ...], list[str]] = {}
    for name, audit in audits.items():
        for row in audit.skipped:
            rows.setdefault((row.row, row.question, row.reason, row.id), []).append(name)
    return [
        {"row": row, "question": question, "reason": reason, "names": names}
        for (row, question, reason, _), names in sorted(rows.items(), key=lambda item: item[0][0])
    ]


def settings(audits: Mapping[str, DepthAudit]) -> list[dict[str, str]]:
    """Return one row per setting of the configuration, with the distinct values over all audits."""
    rows = []
    for name in AuditConfig().to_dict():
        values = dict.fromkeys(str(getattr(audit.config, name)) for audit in audits.values())
        rows.append({"name": name, "value": ", ".join(values)})
    return rows


def checkpoints(audits: Mapping[str, DepthAudit]) -> list[dict[str, Any]]:
    """Return the models with their roles; models shared by several audits appear once."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for name, audit in audits.items():
        for role, record in audit.roles.items():
            audit_name = name if role == "unlearned" else ""
            row = {"role": role, "audit": audit_name, **record.to_dict()}
            rows.setdefault((role, record.fingerprint, audit_name), row)
    order = {"full": 0, "retain": 1}
    return [row for (role, *_), row in sorted(rows.items(), key=lambda item: order.get(item[0][0].split()[0], 2))]


def provenance(audits: Mapping[str, DepthAudit]) -> list[dict[str, Any]]:
    """Return the provenance of the numbers, with one row for audits that share it."""
    entries: dict[str, dict[str, Any]] = {}
    for name, audit in audits.items():
        answers = _answers(audit.provenance)
        key = repr(sorted(answers.items(), key=lambda item: item[0]))
        entries.setdefault(key, {"names": [], "answers": answers})["names"].append(name)
    return list(entries.values())


def _answers(record: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Flatten a record, joining versions and training prompts and leaving out the prompt, which is shown elsewhere.

    >>> _answers({"created": "today", "stage_1": {"created": "before", "versions": {"torch": "2"}}})
    {'created': 'today', 'stage_1, created': 'before', 'stage_1, versions': 'torch 2'}
    """
    answers: dict[str, Any] = {}
    for key, value in record.items():
        if key == "versions" and isinstance(value, Mapping):
            answers[before + key] = ", ".join(f"{package} {version}" for package, version in value.items())
        elif key == "trained_with" and isinstance(value, Mapping):
            answers[before + key] = ", ".join(f"{role}: {word}" for role, word in value.items())
        elif isinstance(value, Mapping):
            answers |= _answers(value, f"{before}{key}, ")
        elif key != "first_prompt":
            answers[before + key] = value
    return answers


# Shortening local paths before a page is shared.

_PATH = re.compile(r"(?<![\w.:/\\])(?:~|\.{1,2})?(?:[A-Za-z]:)?(?:[/\\]+[^\s/\\'\",;:]+){2,}[/\\]?")


def short_path(text: str) -> str:
    """Shorten paths that begin with `/`, `~`, `.` or `..` to their last two parts, which removes user names.

    >>> short_path("uds-lens audit --full /home/ada/models/ckpt/full --out ../../home/ada/runs/npo")
    'uds-lens audit --full .../ckpt/full --out .../runs/npo'
    >>> short_path("/home/ada/full, /Users/ada, ~/ckpt/full")
    '.../full, ..., .../ckpt/full'
    >>> short_path("open-unlearning/tofu_full"), short_path("https://host/a/b/c")
    ('open-unlearning/tofu_full', 'https://host/a/b/c')
    """
    return _PATH.sub(lambda match: _path_ending(match[0]), text)


def _path_ending(path: str) -> str:
    parts = [part for part in re.split(r"[/\\]+", path) if part]
    inside = parts[1:] if parts[0].endswith(":") else parts
    if inside[0] in ("home", "Users"):
        return "/".join(["...", *inside[2:][-2:]])
    return "/".join(["...", *parts[-2:]]) if len(parts) > 2 else path


def shortened(audits: Mapping[str, DepthAudit]) -> dict[str, DepthAudit]:
    """Return the audits with shortened paths in model names and provenance; examples are unchanged."""

    def record(model: ModelRecord) -> ModelRecord:
        return replace(model, name=short_path(model.name))

    short = [
        replace(
            audit,
            models={role: record(model) for role, model in audit.models.items()},
            retains=tuple(replace(one, model=record(one.model)) for one in audit.retains),
            provenance=_without_paths(audit.provenance),
        )
        for audit in audits.values()
    ]
    names = [short_path(name) for name in audits]
    return dict(zip(names if len(set(names)) == len(names) else audits, short, strict=True))


def _without_paths(value: Any) -> Any:
    if isinstance(value, str):
        return short_path(value)
    if isinstance(value, Mapping):  # the first prompt is model input, so it is left unchanged
        return {key: part if key == "first_prompt" else _without_paths(part) for key, part in value.items()}
    return [_without_paths(part) for part in value] if isinstance(value, list | tuple) else value


# Warnings about single audits and about combinations of audits.

_PERCENT = re.compile(r"(-?\d+)%")


class Note(NamedTuple):
    """One warning."""

    names: tuple[str, ...]  # audits concerned; empty if the warning is about all of them together
    text: str
    level: Level = "caution"


def notes(audits: Mapping[str, DepthAudit]) -> list[Note]:
    """Return all warnings, most serious first; within a level, warnings about several audits come first.

    Sentences that differ only in their percentages are merged.
    """
    alike: dict[tuple[str, Level], dict[str, str]] = {}
    for name, audit in audits.items():
        for caution in audit.cautions:
            alike.setdefault((_PERCENT.sub("%", caution.text), caution.level), {})[name] = caution.text
    own = [Note(tuple(named), _merged(list(named.values())), level) for (_, level), named in alike.items()]
    between = (Note(*found) for found in cautions_between(audits))
    return sorted([*between, *own], key=lambda note: LEVELS.index(note.level))


def _merged(sentences: list[str]) -> str:
    """Merge sentences that differ only in their percentages.

    >>> _merged(["on 35% of the layers, -2% of the loss", "on 20% of the layers, -12% of the loss"])
    'on 20% to 35% of the layers, -12% to -2% of the loss'
    """
    slots = zip(*(map(int, _PERCENT.findall(sentence)) for sentence in sentences), strict=True)
    spans = iter([f"{min(s)}%" if len(set(s)) == 1 else f"{min(s)}% to {max(s)}%" for s in slots])
    return _PERCENT.sub(lambda _: next(spans), sentences[0])


# Pairwise differences.


def differences(audits: Mapping[str, DepthAudit], references: Sequence[str] = ()) -> pd.DataFrame | None:
    """Compare every pair of audits with the first audit's resamples, seed and confidence; None for a single audit."""
    if len(audits) < 2:
        return None
    config = next(iter(audits.values())).config
    tell(f"comparing {count(len(audits) * (len(audits) - 1) // 2, 'pair')} of models")
    return compare_all(
        audits, references=references, confidence=config.confidence, n_resamples=config.n_bootstrap, seed=config.seed
    )


def difference_words(pairs: pd.DataFrame | None, confidence: str) -> dict[str, Any] | None:
    """Return the comparison table and the sentence above it; None if there is nothing to compare."""
    if pairs is None:
        return None
    rows = [_difference_row(row) for row in pairs.itertuples()]
    rank = {"significant": 0, "not tested": 2}
    return {
        "sentence": pairs_in_words(pairs),
        "confidence": confidence,
        "rows": sorted(rows, key=lambda row: (rank.get(row["verdict"], 1), -row["size"])),
    }


def _difference_row(row: Any) -> dict[str, Any]:
    """Return a pair's row in the table, with the more deeply erased model first."""
    defined, tested = not math.isnan(row.difference), not math.isnan(row.p_holm)
    one, other, low, high = row.one, row.other, row.low, row.high
    if defined and row.difference < 0:
        one, other, low, high = other, one, -high, -low
    if row.fatal:
        verdict = "withheld"
    elif row.reference or not tested:
        verdict = "not tested"
    else:
        verdict = "significant" if row.p_holm < LEVEL else "not significant"
    why = (row.fatal, row.reason, row.caution, f"left out: {row.left_out}" if row.left_out else "")
    return {
        "one": one,
        "other": other,
        "size": abs(row.difference) if defined else -1.0,
        "difference": f"{abs(row.difference):.3f}" if defined else "undefined",
        "interval": f"{number(low + 0.0, 3)} to {number(high + 0.0, 3)}" if low == low else "no interval",
        "p": f"{row.p_holm:.2g}" if tested else None,
        "verdict": verdict,
        "n": row.n,
        "n_subjects": row.n_subjects,
        # pandas stores a missing text as NaN
        "why": "; ".join(part for part in why if isinstance(part, str) and part),
    }


# Diagram of the method: one layer's state is patched from a source into `full`.

_COLOURS = ("ink", "text", "faint", "line", "grid", "card", "wash", "retain", "unlearned", "erased", "known", "mixed")
_LIGHT = {"card": "#ffffff", "wash": "#f4f5f7", "line": "#c9cdd5", "known": "#8fbde0", "mixed": "#b8a9a0"}
_DARK = {"card": "#1b1f26", "wash": "#1d2229", "line": "#434a56", "known": "#2f6d9c", "mixed": "#7d6a5c"}


def method_picture(theme: Theme = "light", *, narrow: bool = False) -> str:
    """Draw the method as an SVG diagram with a background.

    Example:
        >>> method_picture("dark").startswith("<svg")
        True
    """
    named = vars(palette(theme)) | (_LIGHT if theme == "light" else _DARK)
    return _drawn(named, paper=True, narrow=narrow)


def _drawn(colours: Mapping[str, Any], *, paper: bool = False, narrow: bool = False) -> str:
    return template("method.svg.j2").render(c=colours, paper=paper, narrow=narrow).strip() + "\n"


_SCRIPTS = ("elements.js", "data.js", "drawing.js", "figures.js", "detail.js", "elicited.js", "examples.js", "main.js")


def write(
    audits: DepthAudit | Mapping[str, DepthAudit] | Sequence[DepthAudit],
    path: str | os.PathLike[str],
    *,
    title: str = TITLE,
    lens: Sequence[LensSource] = (),
    metrics: MetricSources = (),
    references: Collection[str] = (),
    elicitations: Sequence[ElicitationResults] = (),
    short_paths: bool = False,
) -> Path:
    """Write an HTML report on one or several audits that opens offline and makes no network requests.

    If audits of the same models differ in the patch site, the sites are compared.

    Args:
        audits: One audit, a mapping from names to audits, or several audits, which are then named after their unlearned
            models.
        path: HTML file to write, atomically.
        title: Heading of the page.
        lens: Logit Lens results to draw next to UDS for single examples, from `metrics.compare_logit_lens(audit,
            example)`, or from `metrics.evaluate(...)` with `logit_lens`; each is matched to its audit automatically.
        metrics: Other metrics (`metrics.evaluate`) and transplants (`uds_lens.transplant`) of one or several models, in
            any order; each result is matched to its audit by the model's weights. Metrics add a table and a figure of
            depth against utility; Logit Lens values among these are drawn like those in `lens`.
        references: Names of audits that serve as references, which are drawn in grey and not selected when the page
            opens. Audits of `full` and `retain` are recognised by their weights and need not be named.
        elicitations: Results of `elicitation.elicit` on audited models, matched to audits by the models' weights. They
            add to the page how much more each probe extracted from the model than from retain.
        short_paths: Shorten local paths to their last two parts, for a page that is to be shared.

    Returns:
        The path.

    Raises:
        ConfigError: There are no audits, the path does not end in `.html`, a Logit Lens result, a metric result or an
            elicitation belongs to none of the audits, or a reference is not the name of an audit.
        DataError: An id occurs twice in an audit, so that an example could be shown with the curve of another.
        ResultFormatError: `path` exists and is not a report by this package.
        StorageError: The file cannot be written.
    """
    path = located(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"a report is an HTML file, for example report.html; got {str(path)!r}.")
    check_writable(path, directory=False)
    atomic_write_text(
        path,
        render(
            audits,
            title=title,
            lens=lens,
            metrics=metrics,
            references=references,
            elicitations=elicitations,
            short_paths=short_paths,
        ),
    )
    return path


def render(
    audits: DepthAudit | Mapping[str, DepthAudit] | Sequence[DepthAudit],
    *,
    title: str = TITLE,
    lens: Sequence[LensSource] = (),
    metrics: MetricSources = (),
    references: Collection[str] = (),
    elicitations: Sequence[ElicitationResults] = (),
    short_paths: bool = False,
) -> str:
    """Return the page that `write` writes, with the same arguments and errors."""
    from markupsafe import Markup

    named = _named(audits)
    grey = references_of(named, references)
    if short_paths:
        short = shortened(named)
        names = dict(zip(named, short, strict=True))
        named, grey = short, [names[name] for name in grey]
    results, elicited = measured(named, metrics), elicited_beside(named, elicitations)
    deltas = lens_deltas(named, [*lens, *lens_among(named, metrics)])
    transplants = transplants_among(named, metrics)
    named |= {
        name: found.beside(named[name])
        for name, found in transplants.items()
        if found.differs_from(named[name]) is None
    }
    pairs = differences(named, grey)
    models = headlines(named, grey, results)
    utility = utility_metric(results) is not None
    prompts = (audit.provenance.get("first_prompt") for audit in named.values())
    data = payload(named, deltas, pairs, references=grey, metrics=results, elicited=elicited)
    context = {
        "title": title,
        "roles": roles_of(named.values()),
        "renamed": roles_of(named.values()) != Roles(),
        "models": models,
        "verdicts": verdicts(models),
        "steps": list(next_steps(named, grey, utility=utility, elicited=elicited)),
        "differences": difference_words(pairs, f"{next(iter(named.values())).config.confidence * 100:g}%"),
        "matrix": data["figures"].get("differences") is not None,
        "has_prob": any(model["prob"] for model in models),
        "has_damage": any(model["damage"] for model in models),
        "has_retains": any(model["retains"] for model in models),
        "references": grey,
        "sections": sections(
            named, metrics=results is not None, elicited=bool(elicited), transplants=bool(transplants)
        ),
        "transplants": [_transplant(name, found) for name, found in transplants.items()],
        "metrics": None
        if results is None
        else metrics_table(named, results, [model["name"] for model in models], grey),
        "elicited": bool(elicited),
        "notes": notes(named),
        "skipped": skipped_rows(named),
        "settings": settings(named),
        "checkpoints": checkpoints(named),
        "provenance": provenance(named),
        "picture": Markup("".join(_drawn(_ON_PAGE, narrow=narrow) for narrow in (False, True))),
        "prompts": list(dict.fromkeys(prompt for prompt in prompts if prompt)),
        "components": site_captions(named),
    }
    return fill("report.html.j2", scripts=_SCRIPTS, styles=("report.css",), data=data, context=context)


_ON_PAGE = {name: f"var(--{name})" for name in _COLOURS}
"""Colours of the page's own theme."""


def _named(audits: DepthAudit | Sequence[DepthAudit] | Mapping[str, DepthAudit]) -> dict[str, DepthAudit]:
    if isinstance(audits, DepthAudit):
        audits = [audits]
    if not isinstance(audits, Mapping):
        if not all(isinstance(audit, DepthAudit) for audit in audits):
            raise ConfigError("a report is made from audits (DepthAudit.load reads saved audits); got something else.")
        audits = dict(zip(audit_names(audits), audits, strict=True))
    if not audits:
        raise ConfigError("a report needs at least one audit; got none.")
    for name, audit in audits.items():  # curves are looked up by example id
        check_unique(audit.examples, where=f"the audit {str(name)[:80]!r}")
    return dict(audits)
