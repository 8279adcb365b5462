"""Rows of one pass by length: on a CPU, padding is work like any other, and random batches are nearly half padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

ROWS_TOGETHER = 8
"""Rows of similar length that are run together: of four, products become small; of sixteen, padding comes back."""

Batch = Mapping[str, Mapping[str, Tensor]]
"""Sides by name, each with `input_ids`, `attention_mask` and `labels` [batch pos], and values [batch] beside them."""


def length_groups(batch: Batch, *, rows: int = ROWS_TOGETHER) -> list[dict[str, dict[str, Tensor]]]:
    """The same rows in groups of similar length, each without the padding it has no use for.

    A forget answer and the answer to prefer to it stay side by side; retain answers are grouped for themselves. What is
    summed or averaged over the rows of a batch does not change by more than rounding.

    Args:
        batch: Sides of one pass, padded on the right; each side has as many rows.
        rows: Rows of a group at most.

    Returns:
        Groups of short rows first; the batch itself where it has no more rows than a group.

    Example:
        >>> labels = torch.tensor([[-100, 5, 6, 2], [-100, 7, -100, -100]])
        >>> mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
        >>> short, long = length_groups({"forget": {"attention_mask": mask, "labels": labels}}, rows=1)
        >>> short["forget"]["labels"].tolist(), long["forget"]["labels"].tolist()
        ([[-100, 7]], [[-100, 5, 6, 2]])
    """
    n = len(next(iter(batch.values()))["labels"])
    if n <= rows:
        return [{side: dict(values) for side, values in batch.items()}]
    lengths = {side: values["attention_mask"].sum(1) for side, values in batch.items()}
    together = torch.stack([length for side, length in lengths.items() if side != "retain"]).sum(0)
    order = {
        side: (length if side == "retain" else together).argsort(stable=True)
        for side, length in lengths.items()
    }
    cuts = [slice(start, start + rows) for start in range(0, n, rows)]
    return [{side: _taken(values, order[side][cut]) for side, values in batch.items()} for cut in cuts]


def _taken(values: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """Some rows, up to the end of the longest."""
    width = int(values["attention_mask"][rows].sum(1).max())
    return {name: value[rows, :width] if value.ndim == 2 else value[rows] for name, value in values.items()}


def draws_at_random(model: nn.Module) -> bool:
    """Whether training this model drops activations: then what is drawn depends on which rows run together."""
    config: Any = getattr(model, "config", None)
    settings: Mapping[str, Any] = config.to_dict() if hasattr(config, "to_dict") else {}
    told: Sequence[Any] = [v for k, v in settings.items() if "drop" in k or "noise" in k or "jitter" in k]
    modules = (m.p for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd))
    return any(isinstance(v, int | float) and v > 0 for v in (*told, *modules))
