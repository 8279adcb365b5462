"""Read metrics and audits saved by this library as a table of models."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import pandas as pd

from uds_lens.errors import DataError, ResultFormatError
from uds_lens.meta._columns import BESIDE
from uds_lens.meta._tables import ModelTable, conditions_in, conditions_note, origin, reasons_frame
from uds_lens.results._conditions import conditions_of


def read_metrics(
    results: Sequence[Any] | str | os.PathLike[str],
    *,
    names: Sequence[str] | None = None,
    examples: bool = False,
    intervals: bool = False,
) -> ModelTable:
    """Read metrics that `uds_lens.metrics.evaluate` measured on several models.

    Args:
        results: `MetricResults` and files written by `MetricResults.save`, in any combination; or one folder of such
            files.
        names: Names of the models; by default, the shortest distinct endings of their paths.
        examples: Keep the values per example, for `stability`.
        intervals: Add the 95% interval of each metric that has one, as `NAME_low` and `NAME_high`.

    Returns:
        One row per result: `model`, its metrics, and `method`, `config`, `lr` and `epochs` if they can be read from the
        record next to the model, or from a name of the checkpoint or file that `uds_lens.unlearning.config_name` or
        Open-Unlearning made. Otherwise these columns are empty (see `join_methods`). `conditions` contains everything
        the numbers depend on apart from the model itself; if it differs between models, `notes` says so, and the models
        are neither ranked nor judged together.

    Raises:
        ResultFormatError: A file or the record next to a model is broken, or the folder holds no results.
        DataError: Nothing was given, or `names` does not match.

    Example:
        >>> read_metrics([])
        Traceback (most recent call last):
            ...
        uds_lens.errors.DataError: expected at least one result; got none.
    """
    from uds_lens.metrics import MetricResults
    from uds_lens.results._records import numbered, short_names

    source = "results in memory"
    if isinstance(results, str | os.PathLike):
        source, folder = str(results), Path(results)
        results = sorted(folder.glob("**/*.json")) if folder.is_dir() else [folder]
        if not results:
            raise ResultFormatError(f"no .json file in {source!r}: expected files written by MetricResults.save.")
    loaded = [given if isinstance(given, MetricResults) else MetricResults.load(given) for given in results]
    unique = _unique_names(names, numbered(short_names([result.models["model"].name for result in loaded])))
    rows, reasons, tables = [], {}, []
    for result, given, name in zip(loaded, results, unique, strict=True):
        model = result.models["model"]
        files = () if isinstance(given, MetricResults) else (Path(given).stem,)
        about = origin(model.name, model.fingerprint, names=files)
        rows.append({"model": name, **about, "conditions": as_text(result.conditions), **result.values})
        for metric in result if intervals else ():
            ends = dict(zip(("low", "high"), metric.interval, strict=True))
            rows[-1] |= {f"{metric.name}_{end}": value for end, value in ends.items() if value == value}
        reasons[name] = result.reasons
        if examples:
            subjects = [s for metric in result for s in metric.subjects or [None] * len(metric.ids)]
            tables.append(result.examples_frame().assign(model=name, subject=subjects))
    columns = ["model", "metric", "example_id", "value", "subject"]
    frame = pd.DataFrame(rows)
    return ModelTable(
        frame=frame,
        reasons=reasons_frame(reasons),
        source=source,
        examples=pd.concat(tables)[columns] if examples else None,
        notes=conditions_note(frame),
    )


def read_audits(
    audits: Sequence[Any] | str | os.PathLike[str], *, names: Sequence[str] | None = None, examples: bool = False
) -> ModelTable:
    """Read the UDS of several models from audits.

    Args:
        audits: `DepthAudit`s and directories written by `DepthAudit.save`, in any combination; or one folder of such
            directories.
        names: Names of the models; by default, the shortest distinct endings of their paths.
        examples: Keep the values per example, for `stability`.

    Returns:
        One row per audit: `model`, `checkpoint` (the unlearned model's path or Hub id), `uds`, `uds_low`, `uds_high`,
        `output_depth` and, with control facts, `damage`, each with its interval, `n_measured`, `conditions` (as in
        `read_metrics`), and `host_depth` and `hidden` if a transplant belongs to the audit or is saved next to it.

    Raises:
        ResultFormatError: A directory is not a complete audit, or the folder holds no audits.
        DataError: Nothing was given, or `names` does not match.

    Example:
        >>> read_audits([])
        Traceback (most recent call last):
            ...
        uds_lens.errors.DataError: expected at least one result; got none.
    """
    from uds_lens.results import DepthAudit
    from uds_lens.results._comparing import audit_names
    from uds_lens.results._saving import audits_in, is_audit
    from uds_lens.transplants._results import with_saved

    source = "audits in memory"
    if isinstance(audits, str | os.PathLike):
        source = str(audits)
        audits = [Path(audits)] if is_audit(audits) else audits_in(audits)
        if not audits:
            raise ResultFormatError(f"no saved audit in {source!r}: expected directories written by DepthAudit.save.")
    loaded = [
        given if isinstance(given, DepthAudit) else with_saved(DepthAudit.load(given), given)[0] for given in audits
    ]
    rows: list[dict[str, Any]] = []
    tables = []
    withheld: dict[str, dict[str, str]] = {}
    for name, audit in zip(_unique_names(names, audit_names(loaded)), loaded, strict=True):
        if not audit.n_measured:
            withheld[name] = {"uds": "no example is measurable"}
        summary = audit.summary()
        row: dict[str, Any] = {"model": name, "checkpoint": audit.models["unlearned"].name}
        for score in ("uds", "output_depth", *(["damage"] if audit.control is not None else [])):
            row |= {column: summary[column] for column in (score, f"{score}_low", f"{score}_high")}
        row["n_measured"] = audit.n_measured
        if audit.transplant is not None:
            row |= {"host_depth": audit.transplant.host_depth, "hidden": audit.transplant.hidden}
        rows.append(row | {"conditions": as_text({f"audit's {k}": v for k, v in conditions_of(audit).items()})})
        values = {
            "example_id": [example.id for example in audit.examples],
            "value": audit.uds_per_example.tolist(),
            "subject": [example.subject for example in audit.examples],
        }
        tables.append(pd.DataFrame({"model": name, "metric": "uds", **values}))
    frame = pd.DataFrame(rows)
    return ModelTable(
        frame=frame,
        reasons=reasons_frame(withheld),
        source=source,
        examples=pd.concat(tables, ignore_index=True) if examples else None,
        notes=conditions_note(frame),
    )


def join_audits(table: ModelTable, audits: ModelTable, *, pairs: Mapping[str, str] | None = None) -> ModelTable:
    """Add the UDS of audits to the metrics of the same models.

    A model and an audit match if they have the same name, or if the last part of the audited checkpoint's path (without
    the leading "unlearn_" of Open-Unlearning's Hub ids) is the last part of the model's name. Models without an audit
    keep NaN, with the reason.

    Args:
        table: Models, for example from `read_open_unlearning`.
        audits: From `read_audits`.
        pairs: Names of models mapped to the names of their audits, for models that this rule does not match.

    Returns:
        `table` with the audits' columns: `uds`, `output_depth` and `damage` with their intervals, `host_depth` and
        `hidden`, as far as the audits have them. Their values per example are added if both tables have values per
        example.

    Raises:
        DataError: A name in `pairs` does not exist, two audits match one model, or no audit matches any model.

    Example:
        >>> import pandas as pd
        >>> none = pd.DataFrame(columns=["model", "metric", "reason"])
        >>> runs = ModelTable(frame=pd.DataFrame({"model": ["x/npo"]}), reasons=none, source="runs")
        >>> depth = pd.DataFrame({"model": ["a"], "checkpoint": ["ckpt/npo"], "uds": [0.4], "uds_low": [0.3],
        ...                       "uds_high": [0.5]})
        >>> join_audits(runs, ModelTable(frame=depth, reasons=none, source="audits")).frame["uds"].tolist()
        [0.4]
    """
    partners = _partners(table, audits.frame, pairs or {})
    frame, saved = table.frame.copy(), audits.frame.set_index("model")
    audit = frame["model"].astype(str).map(partners)
    ends = [f"{score}_{end}" for score in ("uds", "output_depth", "damage") for end in ("low", "high")]
    for column in ("uds", "damage", *BESIDE, *ends):
        if column not in audits.frame:
            continue
        before = frame[column] if column in frame.columns else math.nan
        frame[column] = audit.map(saved[column]).where(audit.notna(), before)
    why = dict(zip(audits.reasons["model"], audits.reasons["reason"], strict=True))
    none = f"no audit of this model in {audits.source}"
    if "conditions" in saved.columns:
        added = dict(zip(audits.frame["model"], conditions_in(audits.frame), strict=True))
        own = zip(conditions_in(frame), audit, strict=True)
        frame["conditions"] = [as_text(each | added.get(name, {})) for each, name in own]
    reasons = {
        name: {"uds": none if pd.isna(own) else why.get(own, "the audit has no score")}
        for name, own, value in zip(frame["model"], audit, frame["uds"], strict=True)
        if pd.isna(value)
    }
    examples = table.examples
    if examples is not None and audits.examples is not None:
        renamed = {own: name for name, own in partners.items()}
        added = audits.examples[audits.examples["model"].isin(renamed)]
        added = added.assign(model=added["model"].map(renamed))
        replaced = (examples["metric"] == "uds") & examples["model"].isin(renamed.values())
        examples = pd.concat([examples[~replaced], added], ignore_index=True)
    kept = table.reasons[~table.reasons["metric"].isin(["uds", "uds_low", "uds_high"])]
    return replace(
        table,
        frame=frame,
        reasons=pd.concat([kept, reasons_frame(reasons)], ignore_index=True),
        source=f"{table.source}; {audits.source}",
        examples=examples,
        notes=tuple(dict.fromkeys((*table.notes, *conditions_note(frame)))),
    )


def _partners(table: ModelTable, audits: pd.DataFrame, pairs: Mapping[str, str]) -> dict[str, str]:
    """Return the audit of each model that has one."""
    names = [str(name) for name in table.frame["model"]]
    theirs = [str(name) for name in audits["model"]]
    for name, audit in pairs.items():
        if name not in names or audit not in theirs:
            kind, what, known = ("model", name, names) if name not in names else ("audit", audit, theirs)
            raise DataError(
                f"pairs names the {kind} {what!r}, which does not exist; the {kind}s are {', '.join(known[:6])}."
            )

    def end(name: str) -> str:
        return PurePath(name).name.removeprefix("unlearn_")

    ends = [end(str(path)) for path in audits["checkpoint"]]
    partners = {}
    for name in names:
        fits = [audit for audit in theirs if audit == pairs.get(name, name)]
        if not fits and name not in pairs:
            fits = [audit for audit, other in zip(theirs, ends, strict=True) if other == end(name)]
        if len(fits) > 1:
            raise DataError(f"{len(fits)} audits match the model {name!r}: choose one with pairs={{{name!r}: ...}}.")
        if fits:
            partners[name] = fits[0]
    if not partners:
        raise DataError(
            f"no audit matches any model: the models are {', '.join(names[:3])}, the audits are of "
            f"{', '.join(ends[:3])}. Name the pairs with pairs={{model: audit}}."
        )
    return partners


def as_text(conditions: Mapping[str, Any]) -> str:
    """Return conditions as a table cell."""
    return json.dumps(conditions, sort_keys=True)


def _unique_names(names: Sequence[str] | None, own: Sequence[str]) -> list[str]:
    """Return the names given, or else the results' own."""
    if not own:
        raise DataError("expected at least one result; got none.")
    if names is None:
        return list(own)
    if len(names) != len(own) or len(set(names)) != len(names):
        raise DataError(f"names must be {len(own)} different names; got {len(names)}.")
    return list(names)
