"""Facts that `full` and `retain` both know: what a patch costs on them is damage, not forgetting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uds_lens.data import ForgetExample, SkippedExample
from uds_lens.errors import ConfigError, Setting
from uds_lens.results.column_intervals import column_intervals

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.results.audit_scores import AuditScores


LEAST_KNOWN = 0.1
"""Probability per token (geometric mean) that `full` must give a control fact, for the fact to count."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ControlFacts:
    """Retained facts, measured like forget facts: stage 1, with `retain`'s states, on facts that `retain` knows."""

    examples: Sequence[ForgetExample]
    """The scored facts, in input order."""

    skipped: Sequence[SkippedExample]
    """Rows that could not be scored, with reasons."""

    ids_hash: str
    """Hash of the token ids."""

    sample: Mapping[str, Any] | None
    """How they were chosen, where not all were measured."""

    n_tokens: Int[Tensor, "fact"]
    """Entity tokens of each fact."""

    s_full: Float[Tensor, "fact"]
    """Mean log-probability of the entity under `full`, nats per token."""

    s1_delta: Float[Tensor, "fact layer"]
    """Log-probability lost with retain's state patched in, nats per token: what the states of another model cost,
    though it knows the fact."""

    @cached_property
    def known(self) -> Bool[Tensor, "fact"]:
        """Facts to which `full` gives at least `LEAST_KNOWN` per token; what it does not know cannot be lost."""
        return self.s_full >= math.log(LEAST_KNOWN)

    @property
    def subjects(self) -> list[str | None]:
        """Subject of each fact."""
        return [example.subject for example in self.examples]


def require_control(audit: AuditScores) -> tuple[ControlFacts, Float[Tensor, "fact layer"]]:
    """The control of an audit, and what the unlearned model's states cost on it.

    Raises:
        ConfigError: It was measured without.
    """
    if audit.control is None or audit.control_s2_delta is None:
        raise ConfigError(
            "this audit has no control: measure it with ",
            Setting("control", ...),
            ", facts that full and retain both know.",
        )
    return audit.control, audit.control_s2_delta


def control_frame(audit: AuditScores) -> pd.DataFrame:
    """One row per retained fact and layer; columns as in `long_frame`, and whether `full` knows the fact."""
    import pandas as pd

    control, s2_delta = require_control(audit)
    n, layers = control.s1_delta.shape
    return pd.DataFrame(
        {
            "example_id": np.repeat([e.id for e in control.examples], layers),
            "row": np.repeat([e.row for e in control.examples], layers).astype(int),
            "subject": np.repeat(np.array(control.subjects, dtype=object), layers),
            "layer": np.tile(np.arange(layers), n),
            "known": np.repeat(control.known.numpy(), layers),
            "s1_delta": control.s1_delta.flatten().numpy(),
            "s2_delta": s2_delta.flatten().numpy(),
        }
    )


def control_layers_frame(audit: AuditScores) -> pd.DataFrame:
    """What the unlearned model's states cost by layer, on forget facts and on retained ones, nats per token.

    Returns:
        One row per layer: `layer`; `forget_mean`, `forget_low`, `forget_high`, S2 over the measurable examples with its
        interval; `control_mean`, `control_low`, `control_high`, S2 over the retained facts that `full` knows;
        `control_retain_mean`, what retain's states cost there. Intervals by subject where examples share one. NaN where
        there is no example.
    """
    import pandas as pd

    control, s2_delta = require_control(audit)
    known = control.known
    measured = ~audit.uds_per_example.isnan()
    groups = (
        ("forget", audit.s2_delta[measured], of_rows(audit.subjects, measured)),
        ("control", s2_delta[known], of_rows(control.subjects, known)),
    )
    columns: dict[str, Any] = {"layer": np.arange(audit.n_layers)}
    for name, values, clusters in groups:
        columns[f"{name}_mean"] = column_means(values)
        config = audit.config
        columns[f"{name}_low"], columns[f"{name}_high"] = column_intervals(
            values,
            clusters=clusters,
            confidence=config.confidence,
            n_resamples=config.n_bootstrap,
            seed=config.seed,
        )
    columns["control_retain_mean"] = column_means(control.s1_delta[known])
    return pd.DataFrame(columns)


def of_rows(names: Sequence[str | None], kept: Bool[Tensor, "row"]) -> list[str | None]:
    """The names of the rows that are kept."""
    return [name for name, keep in zip(names, kept.tolist(), strict=True) if keep]


def column_means(values: Float[Tensor, "some layer"]) -> list[float]:
    """Mean of each layer; NaN without rows."""
    return values.double().mean(0).tolist()
