"""`MetricResults`: all metrics of one model, with scales, costs, and reasons for undefined values."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
from pydantic import AfterValidator

from uds_lens._quoting import csv_text
from uds_lens._storage.files import atomic_write_marked, check_writable, format_of, refuse_to_replace
from uds_lens._storage.results import Kind, Result
from uds_lens._types import FloatOrNaN
from uds_lens.errors import ResultFormatError
from uds_lens.metrics._catalogue import METRICS, Trust, resolve, studied
from uds_lens.metrics._data import MetricData, data_hash
from uds_lens.metrics._declaration import Direction, Group
from uds_lens.metrics._options import MetricOptions
from uds_lens.results import Interval, ModelRecord, RunOptions, bootstrap_interval
from uds_lens.results._cautions import FEW
from uds_lens.results._conditions import marks
from uds_lens.results._intervals import IntervalBasis, SampleError, interval_basis, sample_error
from uds_lens.results._other_cautions import about_few, about_sampled_metrics, about_trust
from uds_lens.results._records import fingerprint_of

if TYPE_CHECKING:
    import pandas as pd

ARROWS = {"knowledge": "↑ known", "erasure": "↑ erased", "utility": "↑ utility"}  # table labels for directions

_SPEED = ("fisher_memory_gb", "generation_rows")  # options that do not affect the numbers


class Cost(NamedTuple):
    """Cost of the passes behind a metric in this evaluation; shared passes are counted for every metric.

    The cost of passes that ran together (answers to the same questions, several models patched into `full`) is divided
    in proportion to their tokens.
    """

    seconds: float = 0.0
    """Wall time on the model, in seconds."""

    forwards: int = 0
    """Forward passes of the model, counting one per batch, and one per generated token of a batch."""

    reference_seconds: float = 0.0
    """Wall time on `retain` and `full`, in seconds; 0 if the cache already held their results."""

    reference_forwards: int = 0
    """Forward passes of `retain` and `full`."""


@dataclass(frozen=True, kw_only=True)
class MetricValue:
    """One metric of one model."""

    name: str
    """Key, as in `uds_lens.metrics.METRICS`."""

    label: str
    """Name for tables."""

    group: Group
    """Family."""

    value: FloatOrNaN
    """The metric; NaN where it is undefined."""

    direction: Direction
    """What a higher value means: more "knowledge" left, more "erasure", or more "utility"."""

    low: FloatOrNaN
    """Smallest possible value."""

    high: FloatOrNaN
    """Largest possible value."""

    zero: str
    """Meaning of 0."""

    one: str
    """Meaning of 1."""

    reason: str | None = None
    """Reason why the value is NaN; None if it is not NaN."""

    ids: tuple[str, ...] = ()
    """Ids of the examples, in the order of `per_example`; empty for metrics that have no values per example."""

    per_example: tuple[FloatOrNaN, ...] = ()
    """Value of each example; NaN if an example has no value."""

    subjects: Annotated[Sequence[str | None], AfterValidator(tuple)] = ()
    """Subject of each example; empty if no example has a subject."""

    details: Mapping[str, Any] = field(default_factory=dict)
    """Further numbers, for example per layer."""

    cost: Cost = field(default_factory=Cost)
    """Time and forward passes."""

    @property
    def n(self) -> int:
        """Number of examples with a value."""
        return sum(not math.isnan(value) for value in self.per_example)

    @property
    def n_missing(self) -> int:
        """Number of examples without a value."""
        return len(self.per_example) - self.n

    @property
    def interval(self) -> Interval:
        """95% bootstrap interval, over subjects if examples share subjects, otherwise over examples.

        NaN if the metric is not a mean over examples (an AUC, a harmonic mean), or if all examples are about one
        subject.
        """
        values = self._averaged
        if values is None:
            return Interval(math.nan, math.nan)
        bounds = None if math.isinf(self.high) else (self.low, self.high)
        return bootstrap_interval(values, clusters=self.subjects or None, bounds=bounds)

    @property
    def basis(self) -> IntervalBasis | None:
        """Unit that is resampled for the interval; None if there is no interval."""
        values = self._averaged
        return None if values is None or not self.subjects else interval_basis(values, self.subjects)

    @property
    def n_subjects(self) -> int | None:
        """Number of subjects behind the interval; None if the interval is over examples, or undefined."""
        return self.basis.n if self.basis is not None and self.basis.by == "subject" else None

    @property
    def _averaged(self) -> torch.Tensor | None:
        """Values whose mean is the metric; None if the metric is not a mean."""
        values = torch.tensor([float(value) for value in self.per_example], dtype=torch.float64)
        is_mean = len(values) and math.isclose(float(values.nanmean()), self.value, rel_tol=1e-6, abs_tol=1e-9)
        return values if is_mean else None

    def __str__(self) -> str:
        return f"NaN ({self.reason})" if math.isnan(self.value) else f"{self.value:.3f}"


@dataclass(frozen=True, kw_only=True)
class MetricResults:
    """Metrics of one model, as returned by `uds_lens.metrics.evaluate`; `results["es"]` is a `MetricValue`."""

    metrics: Mapping[str, MetricValue]
    """Values by metric name, in the order of the registry."""

    models: Mapping[str, ModelRecord]
    """Records of `model` and, if used, of `retain` and `full`."""

    options: MetricOptions
    """Settings of the metrics."""

    sizes: Mapping[str, int]
    """Number of examples per set."""

    generations: Mapping[str, Sequence[str]]
    """The model's greedy answers by set ("forget", "forget, jailbreak", "retain", ...), in the set's order."""

    provenance: Mapping[str, Any]
    """Versions, machine, command, prompt format, first prompt and fluency scorer."""

    total: Cost = field(default_factory=Cost)
    """Cost of the whole evaluation, which is less than the sum over metrics if metrics share passes."""

    def __getitem__(self, name: str) -> MetricValue:
        return self.metrics[name]

    def __iter__(self) -> Iterator[MetricValue]:
        return iter(self.metrics.values())

    def __len__(self) -> int:
        return len(self.metrics)

    @property
    def values(self) -> dict[str, float]:
        """Values by metric name."""
        return {name: metric.value for name, metric in self.metrics.items()}

    @property
    def reasons(self) -> dict[str, str]:
        """Reasons for NaN, by metric name."""
        return {name: metric.reason for name, metric in self.metrics.items() if metric.reason is not None}

    @property
    def conditions(self) -> dict[str, Any]:
        """Return everything that the values depend on, except the model; see `uds_lens.results._conditions`.

        These are the options, the prompts, hashes of the questions, and the fingerprints of `retain` and `full` if they
        were used.
        """
        found = {name: value for name, value in self.options.to_dict().items() if name not in _SPEED}
        found |= {role: record.fingerprint for role, record in self.models.items() if role != "model"}
        sets = ", ".join(name for name, size in self.sizes.items() if size)
        asked = {
            "protocol": self.provenance.get("protocol"),
            "questions": self.provenance.get("ids_hash"),
            "questions of uds": self.provenance.get("entity_ids_hash"),
            f"examples of {sets}": self.provenance.get("data_hash"),  # compared only between results on the same sets
        }
        return found | {name: value for name, value in asked.items() if value is not None}

    @property
    def sample_errors(self) -> dict[str, SampleError]:
        """Return each metric's standard error due to sampling, by name; empty if all examples were used.

        Only means over examples have such an error. The `interval` of a mean answers a different question: how the mean
        would vary for other subjects.
        """
        sample: dict[str, Any] | None = self.provenance.get("sample")
        errors: dict[str, SampleError] = {}
        if sample is None:
            return errors
        for metric in self:
            values, spec = metric._averaged, METRICS.get(metric.name)
            if values is None or spec is None or not spec.sets:
                continue
            name = spec.sets[0].partition("/")[0]
            of = sample["of"].get(name, sample["of"]["forget"])
            followed = name == "entities" and name in sample["of"] and sample["sample"] != "first_of_each"
            errors[metric.name] = sample_error(
                values,
                of=of,
                drawn=self.sizes["entities"] if followed else min(sample["limit"], of),
                subjects=metric.subjects,
                random=sample["sample"] == "random",
                bounds=(metric.low, metric.high),
            )
        return errors

    @property
    def warnings(self) -> tuple[str, ...]:
        """Cautions to read before reporting the numbers."""
        few_subjects: dict[IntervalBasis, list[str]] = {}
        few: dict[int, list[str]] = {}
        trusts: list[tuple[str, Trust]] = []
        for metric in self:
            if (basis := metric.basis) is not None and basis.few:
                few_subjects.setdefault(basis, []).append(metric.label)
            if metric.per_example and metric.n < FEW:
                few.setdefault(metric.n, []).append(metric.label)
            if not math.isnan(metric.value) and (trust := studied().get(metric.name)) is not None:
                trusts.append((metric.label, trust))
        doubtful = [f"{label} ({trust})" for label, trust in trusts if trust.is_doubtful]
        failing = [
            f"{label} ({trust.worst:.2f}, 95% CI {trust.worst_low:.2f} to {trust.worst_high:.2f})"
            for label, trust in trusts
            if trust.fails_a_pair and not trust.is_doubtful
        ]
        sample = self.provenance.get("sample")
        errors = {self[name].label: error.standard_error for name, error in self.sample_errors.items()}
        return (
            *([] if sample is None else [about_sampled_metrics(sample, errors)]),
            *about_few(few_subjects, few),
            *about_trust(doubtful, failing),
        )

    def to_frame(self) -> pd.DataFrame:
        """Return one row per metric: value, reason, counts, direction, range, meanings of 0 and 1, cost.

        `sample_standard_error` is the error due to sampling alone (`sample_errors`): 0 if all examples were used, NaN
        if it is undefined for the metric.
        """
        import pandas as pd

        errors = {name: error.standard_error for name, error in self.sample_errors.items()}
        none = 0.0 if self.provenance.get("sample") is None else math.nan
        columns = ("label", "group", "value", "reason", "n", "n_missing", "direction", "low", "high", "zero", "one")
        return pd.DataFrame(
            {"metric": metric.name}
            | {name: getattr(metric, name) for name in columns}
            | metric.cost._asdict()
            | {"sample_standard_error": errors.get(metric.name, none)}
            for metric in self
        )

    def examples_frame(self) -> pd.DataFrame:
        """Return a long table (`metric`, `example_id`, `value`) of all metrics that have values per example."""
        import pandas as pd

        rows = [
            (metric.name, name, value)
            for metric in self
            for name, value in zip(metric.ids, metric.per_example, strict=True)
        ]
        return pd.DataFrame(rows, columns=["metric", "example_id", "value"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one JSON file, atomically, with undefined numbers as null.

        Raises:
            ResultFormatError: The path holds something other than saved results.
            StorageError: The file cannot be written.
        """
        Result(
            KIND,
            self.options.to_dict(),
            models=self.models,
            provenance=self.provenance,
            values={"metrics": list(self), "sizes": self.sizes, "generations": self.generations, "total": self.total},
            cautions=self.warnings,
        ).save(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> MetricResults:
        """Read a file written by `save`.

        Raises:
            ResultFormatError: The file is missing, corrupted or altered, or has an unsupported version.
        """
        saved = Result.load(path, KIND)
        if "model" not in saved.models:
            raise ResultFormatError(f"{saved.where} is incomplete: it contains no model.")
        metrics: dict[str, MetricValue] = {}
        for metric in saved.values.metrics:
            sizes = {len(metric.per_example), len(metric.ids), len(metric.subjects or metric.ids)}
            if metric.name in metrics or len(sizes) > 1:
                raise ResultFormatError(
                    f"{saved.where}: the metric {metric.name[:60]!r} occurs twice, or its ids and values differ in "
                    "number."
                )
            # an upper bound of null means infinity
            metrics[metric.name] = replace(metric, high=math.inf) if math.isnan(metric.high) else metric
        return cls(
            options=saved.settings,
            models=saved.models,
            provenance=saved.provenance,
            **{**vars(saved.values), "metrics": metrics},
        )

    def __repr__(self) -> str:
        listed = ", ".join(f"{name}={value:.3f}" for name, value in list(self.values.items())[:6])
        more = ", ..." if len(self) > 6 else ""
        return f"MetricResults({self.models['model'].name!r}, {len(self)} metrics: {listed}{more})"

    def _repr_html_(self) -> str:
        """Return a table that is readable in light and dark themes, with all data escaped."""
        cell = "padding:2px 12px 2px 0;text-align:left;vertical-align:top"

        def row(tag: str, *texts: str) -> str:
            return "".join(f'<{tag} style="{cell}">{escape(text)}</{tag}>' for text in texts)

        head = row("th", "metric", "value", "", "0 means", "1 means", "n")
        body = "".join(
            f"<tr>{row('td', m.label, str(m), ARROWS[m.direction], m.zero, m.one, count)}</tr>"
            for m in self
            for count in [str(m.n) if m.per_example else ""]
        )
        name = escape(self.models["model"].name)
        return f'<div><b>{name}</b><table style="border-collapse:collapse"><tr>{head}</tr>{body}</table></div>'


@dataclass(frozen=True, kw_only=True)
class _Values:
    """Stored values other than options, models and provenance."""

    metrics: tuple[MetricValue, ...]
    sizes: Mapping[str, int]
    generations: Mapping[str, tuple[str, ...]]
    total: Cost


KIND = Kind("MetricResults", settings=MetricOptions, values=_Values, model=ModelRecord)
"""Storage format of metric results."""


# Saved results in a folder, and the multi-model table.


def results_in(folder: Path) -> dict[str, MetricResults]:
    """Read the saved metrics in a folder, by file name; unreadable files are left out."""
    return {file.stem: saved for file in sorted(folder.glob("*.json")) if (saved := _saved(file)) is not None}


def _saved(file: Path) -> MetricResults | None:
    if not file.is_file() or format_of(file) != KIND.format:
        return None
    try:
        return MetricResults.load(file)
    except ResultFormatError:
        return None


def require_nothing_lost(
    files: Mapping[Path, Mapping[str, str | None]],
    metrics: Iterable[str] | None,
    *,
    data: MetricData,
    options: MetricOptions,
    run: RunOptions,
) -> None:
    """Raise `ConfigError` if a file holds results of another measurement, which would be overwritten."""
    wanted, asked = {spec.name for spec in resolve(metrics, options=options)}, data_hash(data)
    for file, models in files.items():
        if (earlier := _saved(file)) is None:
            continue
        if lost := [metric for metric in earlier.metrics if metric not in wanted]:
            named = ", ".join(lost[:6]) + (f" and {len(lost) - 6} more" if len(lost) > 6 else "")
            refuse_to_replace(file, f"{named}, which this run does not measure")
        named = f"metrics of {earlier.models['model'].name[-80:]!r}"
        if earlier.options != options:
            refuse_to_replace(file, f"{named} with different options")
        if earlier.sizes != data.sizes() or earlier.provenance.get("data_hash") != asked:
            refuse_to_replace(file, f"{named} on different examples")
        for role, record in earlier.models.items():
            model = models.get(role)
            if model is None:
                refuse_to_replace(
                    file, f"{named} against the {role} model {record.name[-80:]!r}, which this run does not use"
                )
            if record.fingerprint != fingerprint_of(model, dtype=options.dtype, run=run):
                against = "" if role == "model" else f" against a {role} model"
                refuse_to_replace(file, f"{named}{against} whose weights differ from the weights of {model!r}")


def metrics_by_model(results: Mapping[str, MetricResults]) -> pd.DataFrame:
    """Return a table of the metric values of several models.

    Args:
        results: Results by model name.

    Returns:
        A row per model, with a column `model` and a column for each metric that any model has; NaN where a model has no
        value. If the models were measured under different conditions, a last column `conditions` holds the differences
        as JSON.
    """
    import pandas as pd

    table = pd.DataFrame([{"model": name, **result.values} for name, result in results.items()])
    if conditions := marks([result.conditions for result in results.values()]):
        table["conditions"] = conditions
    return table


def require_metrics_table(file: str | os.PathLike[str]) -> Path:
    """Return the path for the multi-model table, after checking that it is writable."""
    return check_writable(file, directory=False)


def write_metrics_table(results: Mapping[str, MetricResults], file: str | os.PathLike[str]) -> Path:
    """Write the table of `results` and all results in the same folder as CSV; undefined values are empty cells."""
    place = require_metrics_table(file)
    others = {name: saved for name, saved in results_in(place.parent).items() if name not in results}
    atomic_write_marked(place, csv_text(metrics_by_model({**results, **others})))
    return place
