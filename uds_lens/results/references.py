"""Audits that are there for comparison: of `full` or `retain` itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uds_lens.results.audit_scores import AuditScores


def reference_role(audit: AuditScores) -> str | None:
    """Which reference the audited model is by its weights: "full", "retain" ("retain 2" of several), or None.

    A model that is a reference has a score that is known beforehand: 0, or 1 on the scale of that retain model.
    """
    own = audit.models["unlearned"].fingerprint
    return next(
        (role for role, record in audit.roles.items() if role != "unlearned" and record.fingerprint == own),
        None,
    )


def references_among(audits: Mapping[str, AuditScores]) -> list[str]:
    """Names of the audits of a reference.

    Example:
        >>> references_among({})
        []
    """
    return [name for name, audit in audits.items() if reference_role(audit) is not None]
