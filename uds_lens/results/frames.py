"""An audit as pandas tables. Column names are the attribute names; NaN means what it means there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from uds_lens.data import SkippedExample
from uds_lens.results.column_intervals import column_intervals

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.results.audit_scores import AuditScores

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
