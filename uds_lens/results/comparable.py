"""Several audits together: what makes them comparable, one table of several models, patch sites side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from uds_lens.checked_arguments import arguments_checked
from uds_lens.data.quoting import listed, short

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.results.audit_scores import Audit, AuditScores

STAGE_1_SETTINGS = (
    "site",
    "scope",
    "last_layer",
    "protocol",
    "system_prompt",
    "chat_date",
    "dtype",
    "exact_noop",
)
"""Settings that stage 1 depends on; tau is applied afterwards."""

SCORE_SETTINGS = (
    *("site", "scope", "last_layer", "protocol", "system_prompt", "chat_date", "dtype", "tau", "stand_in"),
)
"""Settings that decide what a score means: where one of them differs, scores are not comparable."""

_COLUMNS = (
    "uds",
    "uds_low",
    "uds_high",
    "n_measured",
    "n_not_measurable",
    "n_skipped",
    "over_erased_share",
    "negative_share",
    "reading",
    "n_warnings",
)


@arguments_checked
def models_frame(audits: Mapping[str, AuditScores]) -> pd.DataFrame:
    """One row per audit, in their order.

    Args:
        audits: Name to audit.

    Returns:
        `model`, `uds`, `uds_low`, `uds_high`, `n_measured`, `n_not_measurable`, `n_skipped`, `over_erased_share`,
        `negative_share`, `reading` (the score in words; "withheld" where a warning is fatal), `n_warnings`; NaN where
        undefined.

    Example:
        >>> models_frame({}).columns[0]
        'model'
    """
    import pandas as pd

    rows = []
    for name, audit in audits.items():
        summary = audit.summary()
        rows.append({"model": name, **{column: summary[column] for column in _COLUMNS}})
    return pd.DataFrame(rows, columns=["model", *_COLUMNS])


def differing_settings(audits: Iterable[AuditScores]) -> list[str]:
    """Names of the settings in which the scores of audits are not comparable; empty where they are.

    >>> differing_settings([])
    []
    """
    configs = [audit.config for audit in audits]
    return [name for name in SCORE_SETTINGS if len({getattr(config, name) for config in configs}) > 1]


def score_settings(audit: AuditScores) -> tuple[object, ...]:
    """The values of `SCORE_SETTINGS`."""
    return tuple(getattr(audit.config, name) for name in SCORE_SETTINGS)


def why_not_comparable(one: AuditScores, other: AuditScores) -> str | None:
    """Why a difference of two scores would mean nothing; None where it means something.

    The settings that decide what a score means must be the same, and `full` and `retain`, which define 0 and 1. Another
    `retain` alone, with the same unlearned model, is a comparison of retain models.
    """
    if differing := differing_settings([one, other]):
        values = [
            f"{name} ({short(getattr(one.config, name), 40)} and {short(getattr(other.config, name), 40)})"
            for name in differing
        ]
        told = listed(values, 300)
        return f"they differ in {told}"
    differing = [role for role in one.models if weights_of(one, role) != weights_of(other, role)]
    if "full" in differing:
        return "they use different full models, so 0 and 1 mean something else in each"
    if {"retain", "unlearned"} <= set(differing):
        return "they use different retain models and different unlearned models, which one difference cannot tell apart"
    return None


def weights_of(audit: AuditScores, role: str) -> tuple[str, ...]:
    """Fingerprints of the models in a role; several retain models in any order are the same ones."""
    if role == "retain" and audit.retains:
        return tuple(sorted(retain.model.fingerprint for retain in audit.retains))
    return (audit.models[role].fingerprint,)


@arguments_checked
def site_groups(audits: Iterable[Audit]) -> list[dict[str, Audit]]:
    """Audits whose stage 1 differs in the patch site only: same `full`, `retain`, tokens, scope, protocol and dtype.

    Args:
        audits: Any audits.

    Returns:
        One mapping of site to audit for each group with two sites or more. Audits of several unlearned models at one
        site share stage 1; the first stands for them.

    Example:
        >>> site_groups([])
        []
    """
    groups: dict[tuple[object, ...], dict[str, Audit]] = {}
    for audit in audits:
        shared = (
            *(weights_of(audit, role) for role in ("full", "retain")),
            audit.provenance.get("ids_hash"),
            *(getattr(audit.config, name) for name in ("scope", "protocol", "dtype")),
        )
        groups.setdefault(shared, {}).setdefault(audit.config.site, audit)
    return [sites for sites in groups.values() if len(sites) > 1]
