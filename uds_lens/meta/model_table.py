"""What a reader returns: a table of models, why values are missing in it, and what its models are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import DataError, Setting

if TYPE_CHECKING:
    import pandas as pd


@arguments_checked
@dataclass(frozen=True, eq=False, kw_only=True)
class ModelTable:
    """Models with their metrics, as a reader found them."""

    frame: pd.DataFrame
    """One row per model: `model`, metrics by the names of `uds_lens.metrics.METRICS`, and what is known of `method`,
    `config`, `lr`, `epochs`, `utility_rel` and the rest of `uds_lens.meta.MODELS`."""

    reasons: pd.DataFrame
    """Why values are NaN: `model`, `metric`, `reason`."""

    source: str
    """Where it was read."""

    examples: pd.DataFrame | None = None
    """Values per example, where they were asked for: `model`, `metric`, `example_id`, `value`, and `subject` where the
    results say what a row is about. Ids of the holdout set of an attack begin with "holdout/". Those of retain stand
    under "retain", or under "retain BASE SPLIT" where there are several."""

    def __len__(self) -> int:
        return len(self.frame)


@arguments_checked
@dataclass(frozen=True, eq=False, kw_only=True)
class Published(ModelTable):
    """What the UDS paper's repository publishes."""

    metrics: pd.DataFrame
    """The paper's judgement of 22 metrics: columns of `uds_lens.meta.PUBLISHED`."""

    references: pd.DataFrame
    """The models `full` and `retain`; `frame` holds the unlearned ones only."""


SETUP = ("base", "split")
"""Columns that say what a model was made from: the base model, and the split it was to forget."""


def setups(frame: pd.DataFrame) -> list[tuple[str | None, str | None]]:
    """Return the base models and splits of a table, in order of appearance; None where nothing tells.

    >>> import pandas as pd
    >>> setups(pd.DataFrame({"model": ["a", "b"], "base": ["1B", "8B"]}))
    [('1B', None), ('8B', None)]
    """
    columns = [
        [None if value is None or value != value else str(value) for value in frame[name]]
        if name in frame.columns
        else [None] * len(frame)
        for name in SETUP
    ]
    return list(dict.fromkeys(zip(*columns, strict=True)))


def setup_name(setup: Sequence[str | None]) -> str:
    """Return a base model and a split in words.

    >>> setup_name(("Llama-3.2-1B", "forget10")), setup_name((None, None))
    ('Llama-3.2-1B, forget10', 'base model and split not known')
    """
    return ", ".join(each for each in setup if each) or "base model and split not known"


def require_one_setup(frame: pd.DataFrame) -> None:
    """Raise unless all models are of one base model and one split.

    Raises:
        DataError: They are not: scores of several are no configurations of one method.
    """
    found = setups(frame)
    if len(found) > 1:
        more = "; ..." if len(found) > 4 else ""
        raise DataError(
            f"the models are of {len(found)} base models and splits ({'; '.join(map(setup_name, found[:4]))}{more}), "
            "which are no configurations of one method. Choose with ",
            Setting("base"),
            " and ",
            Setting("split"),
            " (uds_lens.meta.select).",
        )


@arguments_checked
def select(table: ModelTable, *, base: str | None = None, split: str | None = None) -> ModelTable:
    """Choose the models of one base model, of one split, or of both.

    Args:
        table: What a reader returned.
        base: Value of the column `base`, in any capitals; None takes all.
        split: Value of the column `split`, in any capitals; None takes all.

    Returns:
        Their rows, reasons and values per example, with those of the retain model that belongs to them.

    Raises:
        DataError: No model is of that base model and split.

    Example:
        >>> import pandas as pd
        >>> none = pd.DataFrame(columns=["model", "metric", "reason"])
        >>> models = pd.DataFrame({"model": ["a", "b"], "base": ["Llama", "Phi"], "split": ["forget10", "forget10"]})
        >>> select(ModelTable(frame=models, reasons=none, source="here"), base="phi").frame["model"].tolist()
        ['b']
    """
    frame = table.frame
    kept = frame["model"].notna()
    for name, wanted in zip(SETUP, (base, split), strict=True):
        if wanted is None:
            continue
        values = frame[name] if name in frame.columns else frame["model"].map(lambda _: None)
        kept &= values.astype(str).str.lower() == wanted.lower()
    if not kept.any():
        there = "; ".join(map(setup_name, setups(frame)[:6])) or "no models"
        raise DataError(f"no model is of {setup_name((base, split))}; there are {there}.")
    return _rows(table, kept)


def of_setup(table: ModelTable, setup: tuple[str | None, str | None]) -> ModelTable:
    """Return the models of exactly one setup, None being a value like others; `retain` is the one of that setup."""
    keys = [setups(table.frame.iloc[[at]])[0] for at in range(len(table.frame))]
    found = _rows(table, [key == setup for key in keys])
    examples = found.examples
    if examples is not None:
        own = examples["model"].replace({retain_name(setup): "retain"})
        found = replace(found, examples=examples.assign(model=own))
    return found


def retain_name(setup: Sequence[str | None]) -> str:
    """Return the name of a retain model among the values per example, where there are several."""
    return " ".join(["retain", *(each for each in setup if each)])


def _rows(table: ModelTable, kept: Sequence[bool] | pd.Series) -> ModelTable:
    frame = table.frame[list(kept)].reset_index(drop=True)
    gone = set(table.frame["model"].astype(str)) - set(frame["model"].astype(str))
    examples = table.examples
    if examples is not None:
        examples = examples[~examples["model"].astype(str).isin(gone)].reset_index(drop=True)
    reasons = table.reasons[~table.reasons["model"].astype(str).isin(gone)].reset_index(drop=True)
    return replace(table, frame=frame, reasons=reasons, examples=examples)
