"""An audit as pandas tables. Column names are the attribute names; NaN means what it means there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from uds_lens.data import SkippedExample
from uds_lens.errors import ConfigError
from uds_lens.results._intervals import column_intervals

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.results._depth_audit import AuditScores


ERASED_AT = 0.5
"""A KE layer counts as erased from this LER on, where erasure depth is reported."""

NO_KE_LAYER = "no layer holds the knowledge (stage 1 delta <= tau everywhere)"


def long_frame(audit: AuditScores) -> pd.DataFrame:
    """One row per example and layer, example by example."""
    import pandas as pd

    n, layers = audit.s1_delta.shape
    return pd.DataFrame(
        {
            "example_id": np.repeat([e.id for e in audit.examples], layers),
            "row": np.repeat([e.row for e in audit.examples], layers).astype(int),
            "layer": np.tile(np.arange(layers), n),
            "s1_delta": audit.s1_delta.flatten().numpy(),
            "s2_delta": audit.s2_delta.flatten().numpy(),
            "ke": audit.ke_mask.flatten().numpy(),
            "ler": audit.ler.flatten().numpy(),
            "ler_raw": audit.ler_raw.flatten().numpy(),
            "weight": _weights(audit).flatten().numpy(),
        }
    )


def examples_frame(audit: AuditScores) -> pd.DataFrame:
    """One row per scored example, in input order."""
    import pandas as pd

    ke, uds = audit.ke_mask, audit.uds_per_example
    erased = audit.ler.nan_to_num(-1.0) >= ERASED_AT
    texts: dict[str, list[Any]] = {
        name: [getattr(example, name) for example in audit.examples]
        for name in ("row", "type", "subject", "question", "answer", "prefix", "entity")
    }
    return pd.DataFrame(
        {
            "example_id": [example.id for example in audit.examples],
            **texts,
            "n_tokens": audit.n_tokens.numpy(),
            "s_full": audit.s_full.numpy(),
            "n_ke": ke.sum(-1).numpy(),
            "first_ke": _nullable(first_true(ke)),
            "last_ke": _nullable(last_true(ke)),
            "first_erased": _nullable(first_true(erased)),
            "last_erased": _nullable(last_true(erased)),
            "uds": uds.numpy(),
            "reason": [NO_KE_LAYER if missing else None for missing in uds.isnan().tolist()],
        }
    )


def layers_frame(audit: AuditScores) -> pd.DataFrame:
    """One row per layer. LER statistics are over the examples that have KE there; NaN where none has.

    `_low` and `_high` are the interval of the mean, by subject where examples share one (`column_intervals`).
    """
    import pandas as pd

    ke = audit.ke_mask
    n_ke = ke.sum(0)
    columns: dict[str, Any] = {
        "layer": np.arange(audit.n_layers),
        "ke_share": (n_ke.double() / max(len(audit.examples), 1)).numpy(),
        "n_ke": n_ke.numpy(),
    }
    for name, values in (("s1", audit.s1_delta), ("s2", audit.s2_delta), ("ler", audit.ler)):
        columns |= _spread(name, values) | _interval(audit, name, values)
    count = torch.where(n_ke > 0, n_ke.double(), torch.nan)
    columns["over_share"] = ((audit.ler_raw > 1) & ke).sum(0).double().div(count).numpy()
    columns["negative_share"] = ((audit.ler_raw < 0) & ke).sum(0).double().div(count).numpy()
    for name in ("s1_norm_ratio", "s1_cosine", "s2_norm_ratio", "s2_cosine"):
        values = getattr(audit, name)
        columns[name] = (
            values.mean(0) if len(values) else values.new_full((audit.n_layers,), torch.nan)
        ).numpy()
    return pd.DataFrame(columns)


def _interval(audit: AuditScores, name: str, values: Float[Tensor, "example layer"]) -> dict[str, Any]:
    config = audit.config
    found = column_intervals(
        values,
        clusters=audit.subjects,
        confidence=config.confidence,
        n_resamples=config.n_bootstrap,
        seed=config.seed,
        bounds=(0.0, 1.0) if name == "ler" else None,
    )
    return {f"{name}_low": found.low, f"{name}_high": found.high}


def skipped_frame(skipped: Sequence[SkippedExample]) -> pd.DataFrame:
    """One row per skipped example, with its reason."""
    import pandas as pd

    names = ("id", "row", "reason", "question")
    return pd.DataFrame({name: [getattr(s, name) for s in skipped] for name in names})


def first_true(mask: Bool[Tensor, "example layer"]) -> Float[Tensor, "example"]:
    """Index of the first True of each row; NaN where there is none."""
    index = mask.to(torch.uint8).argmax(-1).double()
    return torch.where(mask.any(-1), index, torch.nan)


def last_true(mask: Bool[Tensor, "example layer"]) -> Float[Tensor, "example"]:
    """Index of the last True of each row; NaN where there is none."""
    return mask.shape[-1] - 1 - first_true(mask.flip(-1))


def _weights(audit: AuditScores) -> Float[Tensor, "example layer"]:
    """Share of each KE layer in its example's score; NaN off the KE layers."""
    weights = torch.where(audit.ke_mask, audit.s1_delta, torch.nan)
    return weights / weights.nansum(-1, keepdim=True)


def _spread(name: str, values: Float[Tensor, "example layer"]) -> dict[str, Any]:
    columns = {"mean": [], "std": [], "q25": [], "q75": []}  # type: dict[str, list[float]]
    for layer in values.T:
        kept = layer[~layer.isnan()]
        some = len(kept) > 0
        columns["mean"].append(float(kept.mean()) if some else np.nan)
        columns["std"].append(float(kept.std()) if len(kept) > 1 else np.nan)
        columns["q25"].append(float(kept.quantile(0.25)) if some else np.nan)
        columns["q75"].append(float(kept.quantile(0.75)) if some else np.nan)
    return {f"{name}_{statistic}": values for statistic, values in columns.items()}


def _nullable(values: Float[Tensor, "example"]) -> pd.Series:
    import pandas as pd

    return pd.Series(values.numpy()).astype("Int64")


# What a finished audit tells without running a model again.

TAUS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Thresholds a sweep tries by default, nats per token."""


class Correlation(NamedTuple):
    """Spearman rank correlation; NaN where it is undefined."""

    rho: float
    """Between -1 and 1."""
    p_value: float
    """Two-sided."""
    n: int
    """Pairs used."""


def tau_sweep(audit: AuditScores, taus: Sequence[float] | None = None) -> pd.DataFrame:
    """Score the same deltas with other thresholds.

    Args:
        audit: A finished audit.
        taus: Thresholds in nats per token; default `TAUS`.

    Returns:
        One row per tau: `ke_mean`, `ke_std`, `ke_min`, `ke_max`, `ke_median` (KE layers per example),
        `n_measured`, `n_not_measurable`, `uds` (NaN where nothing is measurable).
    """
    import pandas as pd

    rows = []
    for tau in TAUS if taus is None else taus:
        at = audit.with_tau(tau)
        sizes = at.ke_mask.sum(-1).double()
        some = len(sizes) > 0
        rows.append(
            {
                "tau": tau,
                "ke_mean": float(sizes.mean()) if some else math.nan,
                "ke_std": float(sizes.std()) if len(sizes) > 1 else math.nan,
                "ke_min": float(sizes.min()) if some else math.nan,
                "ke_max": float(sizes.max()) if some else math.nan,
                "ke_median": float(np.median(sizes.numpy())) if some else math.nan,
                "n_measured": at.n_measured,
                "n_not_measurable": at.n_not_measurable,
                "uds": at.uds,
            }
        )
    return pd.DataFrame(rows)


def tau_rank_correlation(
    audits: Mapping[str, AuditScores], taus: Sequence[float] | None = None
) -> pd.DataFrame:
    """Does the ranking of models depend on tau? Spearman correlation with the ranking at each audit's own tau.

    Args:
        audits: Audits of several models by name, all against one baseline.
        taus: Thresholds; default `TAUS`.

    Returns:
        One row per tau: `tau`, `rho`, `n_models` (models with a score at that tau).

    Raises:
        ConfigError: Fewer than three audits.
    """
    import pandas as pd

    if len(audits) < 3:
        raise ConfigError(f"a rank correlation over models needs at least 3 audits; got {len(audits)}.")
    reference = [audit.uds for audit in audits.values()]
    rows = []
    for tau in TAUS if taus is None else taus:
        correlation = spearman(reference, [audit.with_tau(tau).uds for audit in audits.values()])
        rows.append({"tau": tau, "rho": correlation.rho, "n_models": correlation.n})
    return pd.DataFrame(rows)


def types_frame(audit: AuditScores) -> pd.DataFrame:
    """Depth by entity type.

    Returns:
        One row per type, sorted by UDS (types without a measurable example last, `uds` NaN): `type`, `n`,
        `n_measured`, `n_tokens_mean`, `n_ke_mean`, `uds`, `uds_low`, `uds_high` (bootstrap, by subject where
        examples of a type share one).
    """
    import pandas as pd

    frame = examples_frame(audit)
    rows: list[dict[str, Any]] = []
    for kind, part in frame.groupby(frame["type"].fillna("(none)"), sort=True):
        scores = torch.tensor(part["uds"].to_numpy(dtype=float))
        interval = audit.interval_of(scores, [audit.subjects[place] for place in part.index])
        rows.append(
            {
                "type": kind,
                "n": len(part),
                "n_measured": int(part["uds"].notna().sum()),
                "n_tokens_mean": float(part["n_tokens"].mean()),
                "n_ke_mean": float(part["n_ke"].mean()),
                "uds": float(part["uds"].mean()),
                "uds_low": interval.low,
                "uds_high": interval.high,
            }
        )
    columns = ["type", "n", "n_measured", "n_tokens_mean", "n_ke_mean", "uds", "uds_low", "uds_high"]
    return pd.DataFrame(rows, columns=columns).sort_values("uds", ignore_index=True)


def length_correlation(audit: AuditScores) -> Correlation:
    """Spearman correlation between the number of entity tokens and the example's UDS."""
    return spearman(audit.n_tokens.tolist(), audit.uds_per_example.tolist())


def spearman(left: Sequence[float | int], right: Sequence[float | int]) -> Correlation:
    """Rank correlation over the pairs where both values exist; NaN with fewer than three, or without variation.

    >>> spearman([1, 2, 3, 4], [10, 20, 30, float("nan")])
    Correlation(rho=1.0, p_value=0.0, n=3)
    """
    pairs = np.array([p for p in zip(left, right, strict=True) if not any(map(math.isnan, p))], dtype=float)
    if len(pairs) < 3 or np.ptp(pairs, axis=0).min() == 0:
        return Correlation(math.nan, math.nan, len(pairs))
    from scipy.stats import spearmanr

    result = spearmanr(pairs[:, 0], pairs[:, 1])
    return Correlation(float(result.statistic), float(result.pvalue), len(pairs))


def clip_shares(audit: AuditScores) -> dict[str, float]:
    """What the clip hides: shares of KE layers, and of measurable examples by their raw score.

    Returns:
        `over_layers`, `negative_layers`: shares of KE layers with raw LER above 1 or below 0. `over_examples`,
        `negative_examples`: the same for each example's weighted raw ratio. NaN where nothing is measurable.
    """
    weights = torch.where(audit.ke_mask, audit.s1_delta, 0.0)
    raw = torch.where(audit.ke_mask, audit.s2_delta, 0.0).sum(-1) / weights.sum(-1)
    measured = raw[~audit.uds_per_example.isnan()]
    some = len(measured) > 0
    return {
        "over_layers": audit.over_erased_share,
        "negative_layers": audit.negative_share,
        "over_examples": float((measured > 1).double().mean()) if some else math.nan,
        "negative_examples": float((measured < 0).double().mean()) if some else math.nan,
    }
