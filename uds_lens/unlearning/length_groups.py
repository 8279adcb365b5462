"""Rows of one pass by length: on a CPU, padding is work like any other, and random batches are nearly half padding."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor

ROWS_TOGETHER = 8
"""Rows of similar length that are run together: of four, products become small; of sixteen, padding comes back."""

Batch = Mapping[str, Mapping[str, Tensor]]
"""Sides by name, each with `input_ids`, `attention_mask` and `labels` [batch pos], and values [batch] beside them."""


def length_groups(batch: Batch, *, rows: int = ROWS_TOGETHER) -> list[dict[str, dict[str, Tensor]]]:
    """The same rows in groups of similar length, each without the padding it has no use for.

    A forget answer and the answer to prefer to it stay side by side; retain answers are grouped for themselves, so that
    one no longer stands beside the forget answer it stood beside. What is a mean over the rows of a side, as in every
    objective of this package, does not change by more than rounding.

    Args:
        batch: Sides of one pass, padded on the right; each side has as many rows.
        rows: Rows of a group at most.

    Returns:
        Groups of short rows first; the batch itself where that leaves no padding out.

    Example:
        >>> labels = torch.tensor([[-100, 5, 6, 2], [-100, 7, -100, -100]])
        >>> mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
        >>> short, long = length_groups({"forget": {"attention_mask": mask, "labels": labels}}, rows=1)
        >>> short["forget"]["labels"].tolist(), long["forget"]["labels"].tolist()
        ([[-100, 7]], [[-100, 5, 6, 2]])
    """
    lengths = {side: values["attention_mask"].sum(1) for side, values in batch.items()}
    n = len(next(iter(lengths.values())))
    groups = math.ceil(n / rows)
    if groups == 1 or all(bool((length == length[0]).all()) for length in lengths.values()):
        return [{side: dict(values) for side, values in batch.items()}]
    together = torch.stack([length for side, length in lengths.items() if side != "retain"]).sum(0)
    order = {
        side: (length if side == "retain" else together).argsort(stable=True)
        for side, length in lengths.items()
    }
    edges = [round(i * n / groups) for i in range(groups + 1)]
    cuts = [slice(start, stop) for start, stop in pairwise(edges)]
    return [{side: _taken(values, order[side][cut]) for side, values in batch.items()} for cut in cuts]


def _taken(values: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """Some rows, up to the end of the longest."""
    width = int(values["attention_mask"][rows].sum(1).max())
    return {name: value[rows, :width] if value.ndim == 2 else value[rows] for name, value in values.items()}
