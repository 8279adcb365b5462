"""The loss curve of a training run: its points, and as a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLUMNS = ("step", "loss", "forget_loss", "retain_loss", "grad_norm", "learning_rate")
"""What a point holds, as far as the method has it."""

HEAD = ",".join(COLUMNS).encode()
"""How a CSV file of ours begins."""


def loss_curve(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Points of the loss curve: step, loss, its parts, gradient norm, learning rate."""
    return [{name: point[name] for name in COLUMNS if name in point} for point in history if "loss" in point]


def as_csv(curve: Sequence[Mapping[str, Any]]) -> str:
    r"""The points as rows of CSV.

    >>> as_csv([{"step": 1, "loss": 0.5}])
    'step,loss,forget_loss,retain_loss,grad_norm,learning_rate\n1,0.5,,,,\n'
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(curve)
    return text.getvalue()


def curve_file(out: Path) -> Path:
    """The CSV file of a run: beside its result, named after it.

    >>> curve_file(Path("ckpt/npo")).name
    'npo.csv'
    """
    return out.with_name(f"{out.name}.csv")
