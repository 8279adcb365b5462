"""From audits to the file."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from uds_lens.checked_arguments import arguments_checked
from uds_lens.data.columns import check_unique
from uds_lens.elicitation import ElicitationResults
from uds_lens.errors import ConfigError
from uds_lens.report import content
from uds_lens.report.difference_rows import difference_words, differences
from uds_lens.report.elicited_values import elicited_beside
from uds_lens.report.filling import fill
from uds_lens.report.lens_values import LensSource, lens_among, lens_deltas
from uds_lens.report.method_picture import ON_PAGE, drawn
from uds_lens.report.notes import notes
from uds_lens.report.payload import payload
from uds_lens.report.recipe import recipe
from uds_lens.report.short_paths import shortened
from uds_lens.report.usefulness import Measured, MetricSources, measured, metrics_table
from uds_lens.results import DepthAudit, audit_names
from uds_lens.results.paired_audits import references_of
from uds_lens.storage import atomic_write_text, located, require_fresh

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


@arguments_checked
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
            by the weights. Adds a table, and depth beside usefulness; Logit Lens among them is drawn as with `lens`.
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


@arguments_checked
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
    confidence = content.percent(next(iter(named.values())).config.confidence)
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

    models = content.headlines(audits, references)
    order = [model["name"] for model in models]
    return {
        "models": models,
        "has_damage": any(model["damage"] for model in models),
        "has_retains": any(model["retains"] for model in models),
        "references": references,
        "sections": content.sections(audits, metrics=found is not None, elicited=elicited),
        "metrics": None if found is None else metrics_table(audits, found, order, references),
        "elicited": elicited,
        "notes": notes(audits),
        "skipped": content.skipped_rows(audits),
        "settings": content.settings(audits),
        "checkpoints": content.checkpoints(audits),
        "provenance": content.provenance(audits),
        "picture": Markup(drawn(ON_PAGE) + drawn(ON_PAGE, narrow=True)),
        "prompts": content.prompts(audits),
        "recipe": recipe(audits),
        "components": content.site_captions(audits),
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
