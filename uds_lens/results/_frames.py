"""An audit as pandas tables, and analyses that run no model. Columns are named after the attributes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from uds_lens.data import SkippedExample
from uds_lens.data._prompts import spaces_added
from uds_lens.errors import ConfigError, warn_once
from uds_lens.results._comparing import contrast
from uds_lens.results._intervals import cluster_codes, column_intervals
from uds_lens.results._scores import ke_mask, mean_uds
from uds_lens.results._stage_1 import of_rows, require_control, uds_against
from uds_lens.results._statistics import Correlation, rank_correlation, spearman

if TYPE_CHECKING:
    from uds_lens.results._depth_audit import DepthAudit


ERASED_AT = 0.5  # LER from which a KE layer counts as erased in `erasure_depth`

NO_KE_LAYER = "no layer where full encodes more than retain (S1 <= tau)"

TAUS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5)
"""Default thresholds of a sweep, in nats per token."""


def long_frame(audit: DepthAudit) -> pd.DataFrame:
    """Return one row per example and layer, example by example; `s2_delta` is NaN where it was not measured."""
    n, layers = audit.s1_delta.shape
    weights = torch.where(audit.ke_mask, audit.s1_delta, torch.nan)
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
            "weight": (weights / weights.nansum(-1, keepdim=True)).flatten().numpy(),
        }
    )


def examples_frame(audit: DepthAudit) -> pd.DataFrame:
    """Return one row per scored example, in input order."""

    def layers(values: Float[Tensor, "example"]) -> pd.Series:
        return pd.Series(values.numpy()).astype("Int64")

    ke, uds = audit.ke_mask, audit.uds_per_example
    spaced = spaces_added(audit.examples, audit.config.entity_space)
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
            "s_unlearned": np.nan if audit.s_unlearned is None else audit.s_unlearned.numpy(),
            "s_retain": np.nan if audit.s_retain is None else audit.s_retain.numpy(),
            "output_depth": audit.output_depth_per_example.numpy(),
            "space_added": [example.id in spaced for example in audit.examples],
            "n_ke": ke.sum(-1).numpy(),
            "first_ke": layers(_first_true(ke)),
            "last_ke": layers(_last_true(ke)),
            "first_erased": layers(_first_true(erased)),
            "last_erased": layers(_last_true(erased)),
            "uds": uds.numpy(),
            "reason": [NO_KE_LAYER if missing else None for missing in uds.isnan().tolist()],
        }
    )


def weight_by_third(audit: DepthAudit) -> tuple[float, float, float]:
    """Return the share of the score's weight (S1 over knowledge-encoding layers) in each third of the layers.

    Mean over the measurable examples; NaN if there are none.
    """
    weights = torch.where(audit.ke_mask, audit.s1_delta, 0.0)
    share = (weights / weights.sum(-1, keepdim=True))[~audit.uds_per_example.isnan()]
    if not len(share):
        return (math.nan, math.nan, math.nan)
    first, middle, last = (float(part.sum()) for part in share.mean(0).tensor_split(3))
    return first, middle, last


def thirds_in_words(audit: DepthAudit) -> str:
    """Return `weight_by_third` as a sentence; empty if no example is measurable."""
    parts = weight_by_third(audit)
    if math.isnan(parts[0]):
        return ""
    ranges = [f"{part[0]}-{part[-1]}" for part in torch.arange(audit.n_layers).tensor_split(3) if len(part)]
    shares = [f"{share:.0%} in layers {layers}" for share, layers in zip(parts, ranges, strict=False)]
    return f"Weight in the score: {', '.join(shares)}."


def _first_true(mask: Bool[Tensor, "example layer"]) -> Float[Tensor, "example"]:
    """Return the index of the first True in each row; NaN if there is none."""
    index = mask.to(torch.uint8).argmax(-1).double()
    return torch.where(mask.any(-1), index, torch.nan)


def _last_true(mask: Bool[Tensor, "example layer"]) -> Float[Tensor, "example"]:
    return mask.shape[-1] - 1 - _first_true(mask.flip(-1))


def layers_frame(audit: DepthAudit) -> pd.DataFrame:
    """Return one row per layer.

    LER statistics are over the examples whose answer is encoded at that layer; NaN if there are none.

    `_low` and `_high` are the ends of the interval of the mean, clustered by subject if examples share subjects. S1 and
    S2 statistics are over all examples; for S2, they are NaN if stage 2 was measured for only some of these (`n_s2`).
    """
    ke, n_layers = audit.ke_mask, audit.n_layers
    n_ke = ke.sum(0)
    columns: dict[str, Any] = {
        "layer": np.arange(n_layers),
        "ke_share": (n_ke.double() / max(len(audit.examples), 1)).numpy(),
        "n_ke": n_ke.numpy(),
        "n_s2": (~audit.s2_delta.isnan()).sum(0).numpy(),
    }
    s2_delta = audit.s2_delta.masked_fill(audit.s2_delta.isnan().any(0), torch.nan)
    kinds = {"s1": audit.s1_delta, "s2": s2_delta, "ler": audit.ler}
    bounds = [None] * (2 * n_layers) + [(0.0, 1.0)] * n_layers
    # a single call draws the same clusters for every column
    all_columns = torch.cat(list(kinds.values()), 1)
    low, high = column_intervals(all_columns, clusters=audit.subjects, bounds=bounds, **audit.config.resampling)
    for place, (name, values) in enumerate(kinds.items()):
        part = slice(place * n_layers, (place + 1) * n_layers)
        columns |= _spread(name, values) | {f"{name}_low": low[part], f"{name}_high": high[part]}
    count = torch.where(n_ke > 0, n_ke.double(), torch.nan)
    columns["over_share"] = ((audit.ler_raw > 1) & ke).sum(0).double().div(count).numpy()
    columns["negative_share"] = ((audit.ler_raw < 0) & ke).sum(0).double().div(count).numpy()
    for name in ("s1_norm_ratio", "s1_cosine", "s2_norm_ratio", "s2_cosine"):
        columns[name] = getattr(audit, name).mean(0).numpy()
    return pd.DataFrame(columns)


def _spread(name: str, values: Float[Tensor, "example layer"]) -> dict[str, Any]:
    layers = [layer[~layer.isnan()] for layer in values.T]

    def of_each(statistic: Callable[[Tensor], Tensor], least: int = 1) -> list[float]:
        return [float(statistic(defined)) if len(defined) >= least else np.nan for defined in layers]

    return {
        f"{name}_mean": of_each(Tensor.mean),
        f"{name}_std": of_each(Tensor.std, least=2),
        f"{name}_q25": of_each(lambda defined: defined.quantile(0.25)),
        f"{name}_q75": of_each(lambda defined: defined.quantile(0.75)),
    }


def types_frame(audit: DepthAudit) -> pd.DataFrame:
    """Score each entity type.

    Returns:
        One row per type, sorted by UDS (types without a measurable example have NaN and come last): `type`, `n`,
        `n_measured`, `n_tokens_mean`, `n_ke_mean`, `uds`, `uds_low`, `uds_high` (bootstrap, clustered by subject if
        examples of a type share subjects).
    """
    frame, subjects = examples_frame(audit), audit.subjects
    if len(frame) and frame["type"].isna().all():
        warn_once(
            "No example has a `type`, so all examples are in one row. ul.annotate(examples, by='answer'), or uds-lens "
            "annotate, fills in the prompt types by a rule and keeps the entities; audit the annotated examples."
        )
    rows: list[dict[str, Any]] = []
    for kind, part in frame.groupby(frame["type"].fillna("(none)"), sort=True):
        scores = torch.tensor(part["uds"].to_numpy(dtype=float))
        interval = audit.interval_of(scores, [subjects[place] for place in part.index])
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


def skipped_frame(skipped: Sequence[SkippedExample]) -> pd.DataFrame:
    """Return one row per skipped example, with its reason."""
    return pd.DataFrame({name: [getattr(s, name) for s in skipped] for name in ("id", "row", "reason", "question")})


def retains_frame(audit: DepthAudit) -> pd.DataFrame:
    """Return one row per retain model, in order."""
    several = [(retain.model, retain.s1_delta) for retain in audit.retains]
    rows = []
    for model, s1_delta in several or [(audit.models["retain"], audit.s1_delta)]:
        scores = uds_against(audit, s1_delta)
        interval = audit.interval_of(scores, audit.subjects)
        rows.append(
            {
                "retain": model.name,
                "fingerprint": model.fingerprint,
                "uds": mean_uds(scores),
                "uds_low": interval.low,
                "uds_high": interval.high,
                "n_measured": int((~scores.isnan()).sum()),
                "s1_mean": float(s1_delta.mean()) if len(scores) else math.nan,
            }
        )
    return pd.DataFrame(rows)


def control_frame(audit: DepthAudit) -> pd.DataFrame:
    """Return one row per retained fact and layer: the columns of `long_frame`, and whether `full` knows the fact."""
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


def control_layers_frame(audit: DepthAudit) -> pd.DataFrame:
    """Compare losses by layer on forget facts and on retained facts, in nats per token.

    Returns: One row per layer: `layer`; `forget_mean`, `forget_low`, `forget_high`, the mean S2 over the measurable
    examples with its interval; `control_mean`, `control_low`, `control_high`, the mean S2 over the retained facts that
    `full` knows; `control_retain_mean`, the cost of retain's states on these. Intervals are clustered by subject if
    examples share subjects. Means are NaN if there is no such example.
    """
    control, s2_delta = require_control(audit)
    known, measured = control.known, ~audit.uds_per_example.isnan()
    columns: dict[str, Any] = {"layer": np.arange(audit.n_layers)}
    for name, values, clusters in (
        ("forget", audit.s2_delta[measured], of_rows(audit.subjects, measured)),
        ("control", s2_delta[known], of_rows(control.subjects, known)),
    ):
        columns[f"{name}_mean"] = values.double().mean(0).tolist()
        ends = column_intervals(values, clusters=clusters, **audit.config.resampling)
        columns[f"{name}_low"], columns[f"{name}_high"] = ends
    columns["control_retain_mean"] = control.s1_delta[known].double().mean(0).tolist()
    return pd.DataFrame(columns)


def tau_sweep(audit: DepthAudit, taus: Sequence[float] | None = None) -> pd.DataFrame:
    """Score the same deltas with other thresholds.

    Args:
        audit: A finished audit.
        taus: Thresholds in nats per token; default `TAUS`.

    Returns:
        One row per tau: `ke_mean`, `ke_std`, `ke_min`, `ke_max`, `ke_median` (KE layers per example),
        `n_measured`, `n_not_measurable`, `uds` (NaN if nothing is measurable, or if stage 2 was not measured at all KE
        layers, as is the case below `stage_2_tau`).
    """
    rows = []
    for tau in TAUS if taus is None else taus:
        sizes = ke_mask(audit.s1_delta, tau).sum(-1).double()
        n_measured = int((sizes > 0).sum())
        n_layers = pd.Series(sizes.numpy())
        layers = {f"ke_{name}": float(getattr(n_layers, name)()) for name in ("mean", "std", "min", "max", "median")}
        layers["ke_std"] = float(sizes.std()) if len(sizes) > 1 else math.nan  # pandas' result differs in the last bit
        counts = {"n_measured": n_measured, "n_not_measurable": len(sizes) - n_measured}
        rows.append({"tau": tau, **layers, **counts, "uds": _uds_at(audit, tau)})
    return pd.DataFrame(rows)


def ke_counts(audit: DepthAudit, taus: Sequence[float] | None = None) -> pd.DataFrame:
    """Count the examples by number of KE layers.

    Args:
        audit: A finished audit, or a baseline.
        taus: Thresholds in nats per token; default `TAUS`.

    Returns:
        One row per number of KE layers, from 0 to all, and one column per tau.
    """
    sizes = {tau: ke_mask(audit.s1_delta, tau).sum(-1) for tau in (TAUS if taus is None else taus)}
    return pd.DataFrame(
        {tau: torch.bincount(n, minlength=audit.n_layers + 1).tolist() for tau, n in sizes.items()},
        index=pd.RangeIndex(audit.n_layers + 1, name="n_ke"),
    )


def _uds_at(audit: DepthAudit, tau: float) -> float:
    """Return the score at another threshold; NaN if stage 2 was not measured at a KE layer of that threshold."""
    unknown = (ke_mask(audit.s1_delta, tau) & audit.s2_delta.isnan()).any()
    return math.nan if unknown else audit.with_tau(tau).uds


def tau_rank_correlation(audits: Mapping[str, DepthAudit], taus: Sequence[float] | None = None) -> pd.DataFrame:
    """Rank-correlate the models' scores at each tau with their scores at their audits' own tau.

    Args:
        audits: Audits of several models by name, all against the same baseline.
        taus: Thresholds; default `TAUS`.

    Returns:
        One row per tau: `tau`, `rho` (Spearman), `n_models` (models with a score at that tau and at their own), and,
        over these models, `uds_mean` and `largest_change` (the largest absolute difference from the score at the
        model's own tau).

    Raises:
        ConfigError: There are fewer than three audits.
    """
    if len(audits) < 3:
        raise ConfigError(f"a rank correlation over models needs at least 3 audits; got {len(audits)}.")
    reference = [audit.uds for audit in audits.values()]
    rows = []
    for tau in TAUS if taus is None else taus:
        scores = np.array([_uds_at(audit, tau) for audit in audits.values()])
        changes = np.abs(scores - reference)
        both = ~np.isnan(changes)
        rows.append(
            {
                "tau": tau,
                "rho": rank_correlation(reference, scores.tolist()),
                "n_models": int(both.sum()),
                "uds_mean": float(scores[both].mean()) if both.any() else math.nan,
                "largest_change": float(changes[both].max()) if both.any() else math.nan,
            }
        )
    return pd.DataFrame(rows)


def length_correlation(audit: DepthAudit) -> Correlation:
    """Rank-correlate each example's number of entity tokens with its UDS.

    If examples share subjects, the p-value is from the sign-flip test of `contrast`, applied to the subjects'
    contributions to the correlation (products of centred ranks). NaN with fewer than two subjects.
    """
    lengths, scores = audit.n_tokens.tolist(), audit.uds_per_example.tolist()
    found = spearman(lengths, scores)
    subjects = [example.subject for example in audit.examples]
    named = [subject for subject in subjects if subject is not None]
    if math.isnan(found.rho) or len(set(named)) == len(named):
        return found
    measured = [i for i, score in enumerate(scores) if not math.isnan(score)]
    from scipy.stats import rankdata

    ranks = rankdata([[lengths[i], scores[i]] for i in measured], axis=0)
    parts = (ranks - ranks.mean(axis=0)).prod(axis=1)
    groups = cluster_codes([subjects[i] for i in measured])
    return found._replace(p_value=contrast(parts, groups, n_resamples=999, n_flips=9999).p)


def clip_shares(audit: DepthAudit) -> dict[str, float]:
    """Return the shares of KE layers and of measurable examples affected by clipping.

    Returns:
        `over_layers`, `negative_layers`: shares of KE layers with raw LER above 1 or below 0. `over_examples`,
        `negative_examples`: shares of measurable examples whose weighted raw ratio is above 1 or below 0. NaN if
        nothing is measurable.
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
