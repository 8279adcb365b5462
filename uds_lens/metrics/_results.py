"""`MetricResults`: every metric of one model, with the reason where it has no value, what it means and what it cost."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
from pydantic import AfterValidator

from uds_lens._storage import (
    atomic_write_bytes,
    atomic_write_text,
    conform,
    format_of,
    located,
    plain,
    read_sealed,
    require_fresh,
    sealed,
)
from uds_lens._types import FloatOrNaN
from uds_lens.errors import ConfigError, ResultFormatError, Setting
from uds_lens.metrics._catalogue import METRICS, resolve, studied
from uds_lens.metrics._data import about_sample
from uds_lens.metrics._declaration import Direction, Group
from uds_lens.metrics._options import MetricOptions
from uds_lens.results import Interval, ModelRecord, bootstrap_interval
from uds_lens.results._cautions import FEW
from uds_lens.results._intervals import FEW_CLUSTERS, SampleError, interval_basis, sample_error

if TYPE_CHECKING:
    import pandas as pd


class Cost(NamedTuple):
    """What the passes behind a metric took in this evaluation; passes that metrics share count in each.

    Passes that ran together (answers to the same questions, several models patched into `full`) share what that took,
    by their tokens.
    """

    seconds: float = 0.0
    """Wall time on the model."""

    forwards: int = 0
    """Forward passes of the model: one per batch, and per generated token of a batch."""

    reference_seconds: float = 0.0
    """Wall time on `retain` and `full`; 0 where the cache had it."""

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
    """What a higher value means: "knowledge" is still there, "erasure", or "utility"."""

    low: FloatOrNaN
    """Smallest possible value."""

    high: FloatOrNaN
    """Largest possible value."""

    zero: str
    """What 0 means."""

    one: str
    """What 1 means."""

    reason: str | None = None
    """Why the value is NaN."""

    ids: tuple[str, ...] = ()
    """Examples, in the order of `per_example`; empty for metrics of whole sets."""

    per_example: tuple[FloatOrNaN, ...] = ()
    """Value of each example; NaN where it has none."""

    subjects: Annotated[Sequence[str | None], AfterValidator(tuple)] = ()
    """Subject of each of them; empty where none has one."""

    details: Mapping[str, Any] = field(default_factory=dict)
    """More numbers behind the value, per layer for example."""

    cost: Cost = field(default_factory=Cost)
    """What it took."""

    @property
    def n(self) -> int:
        """Examples with a value."""
        return sum(not math.isnan(value) for value in self.per_example)

    @property
    def n_missing(self) -> int:
        """Examples without one."""
        return len(self.per_example) - self.n

    @property
    def interval(self) -> Interval:
        """95 % bootstrap interval, by subject where examples share one, else by example.

        NaN for what is no mean over examples (an AUC, a harmonic mean), and where all are about one subject.
        """
        values = self._drawn
        if values is None:
            return Interval(math.nan, math.nan)
        bounds = None if math.isinf(self.high) else (self.low, self.high)
        return bootstrap_interval(values, clusters=self.subjects or None, bounds=bounds)

    @property
    def n_subjects(self) -> int | None:
        """Subjects that the interval rests on; None where it goes by example, or there can be none."""
        values = self._drawn
        if values is None or not self.subjects:
            return None
        basis = interval_basis(values, self.subjects)
        return basis.n if basis.by == "subject" else None

    @property
    def _drawn(self) -> torch.Tensor | None:
        """The values whose mean the metric is; None where it is something else."""
        values = torch.tensor([float(value) for value in self.per_example], dtype=torch.float64)
        whole = len(values) and math.isclose(float(values.nanmean()), self.value, rel_tol=1e-6, abs_tol=1e-9)
        return values if whole else None


@dataclass(frozen=True, kw_only=True)
class MetricResults:
    """Metrics of one model; made by `uds_lens.metrics.evaluate`. `results["es"]` is a `MetricValue`."""

    metrics: Mapping[str, MetricValue]
    """By name, in the order of the registry."""

    models: Mapping[str, ModelRecord]
    """Records of `model`, and of `retain` and `full` where they were used."""

    options: MetricOptions
    """What was measured."""

    sizes: Mapping[str, int]
    """Number of examples per set."""

    generations: Mapping[str, Sequence[str]]
    """Greedy answers of the model by set ("forget", "forget, jailbreak", "retain", ...), in the set's order."""

    provenance: Mapping[str, Any]
    """Versions, machine, command, protocol, first prompt, fluency scorer."""

    total: Cost = field(default_factory=Cost)
    """What the evaluation took in all; less than the metrics' sum, because they share passes."""

    def __getitem__(self, name: str) -> MetricValue:
        return self.metrics[name]

    def __iter__(self) -> Iterator[MetricValue]:
        return iter(self.metrics.values())

    def __len__(self) -> int:
        return len(self.metrics)

    @property
    def values(self) -> dict[str, float]:
        """The numbers alone."""
        return {name: metric.value for name, metric in self.metrics.items()}

    @property
    def reasons(self) -> dict[str, str]:
        """Why metrics are NaN."""
        return {name: metric.reason for name, metric in self.metrics.items() if metric.reason is not None}

    @property
    def sample_errors(self) -> dict[str, SampleError]:
        """How far metrics may lie from those of all examples, by name; empty where all were asked.

        Only means over examples have one. Their `interval` answers another question: what other subjects would give.
        """
        told = self.provenance.get("sample")
        if told is None:
            return {}
        from uds_lens.metrics._catalogue import METRICS

        found = {}
        for metric in self:
            values, spec = metric._drawn, METRICS.get(metric.name)
            if values is None or spec is None or not spec.sets:
                continue
            name = spec.sets[0].partition("/")[0]
            of = told["of"].get(name, told["of"]["forget"])
            own = name == "entities" and name in told["of"] and told["sample"] != "first_of_each"
            drawn = self.sizes["entities"] if own else min(told["limit"], of)
            found[metric.name] = sample_error(
                values,
                of=of,
                drawn=drawn,
                subjects=metric.subjects,
                random=told["sample"] == "random",
                bounds=(metric.low, metric.high),
            )
        return found

    def _about_sample(self) -> tuple[str, ...]:
        told = self.provenance.get("sample")
        if told is None:
            return ()
        errors = {name: each.standard_error for name, each in self.sample_errors.items()}
        known = {name: error for name, error in errors.items() if not math.isnan(error)}
        if not known:
            return (about_sample(told),)
        worst = max(known, key=lambda name: known[name])
        return (
            f"{about_sample(told)} Asking all of them would move a mean by the error of the sample alone (standard "
            f"error at most {known[worst]:.3f}, that of {self[worst].label}); intervals answer another question, what "
            "other subjects or examples than those of the data would give.",
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know before quoting the numbers."""
        few: dict[int, list[str]] = {}
        for metric in self:
            if metric.per_example and metric.n < FEW:
                few.setdefault(metric.n, []).append(metric.label)
        return (
            self._about_sample()
            + self._few_subjects()
            + tuple(
                f"Only {n} example{'' if n == 1 else 's'} behind {', '.join(labels)}: {FEW} or more give useful "
                "intervals."
                for n, labels in sorted(few.items())
            )
            + self._doubtful()
            + self._failing_a_pair()
        )

    def _doubtful(self) -> tuple[str, ...]:
        """Metrics that did not tell models that know from others where that was tried."""
        found = {metric.label: studied().get(metric.name) for metric in self if metric.value == metric.value}
        told = [f"{label} ({trust})" for label, trust in found.items() if trust and trust.is_doubtful]
        if not told:
            return ()
        return (
            f"{', '.join(told)} told models trained on the forget set from others hardly better than chance (0.5), in "
            "our study of Llamas of 3.9 million parameters; whether that holds for this model is not known. Quote "
            "another metric beside it (docs, The other metrics).",
        )

    def _failing_a_pair(self) -> tuple[str, ...]:
        """Metrics that were not surely better than chance on some kinds of models where that was tried."""
        found = {metric.label: studied().get(metric.name) for metric in self if metric.value == metric.value}
        told = [
            f"{label} ({trust.worst:.2f}, 95 % {trust.worst_low:.2f} to {trust.worst_high:.2f})"
            for label, trust in found.items()
            if trust and trust.fails_a_pair and not trust.is_doubtful
        ]
        if not told:
            return ()
        return (
            "Not surely better than chance (0.5) at telling some kind of model that knows from some kind that does "
            "not, in our study of Llamas of 3.9 million parameters; in brackets F in the worst of nine pairs of kinds, "
            f"from five runs each: {', '.join(told)}. The rule for this sentence was made after the results were seen "
            "(docs, The other metrics).",
        )

    def _few_subjects(self) -> tuple[str, ...]:
        """Intervals that go by subject, and rest on few of them."""
        few: dict[int, list[str]] = {}
        for metric in self:
            if (n := metric.n_subjects) is not None and n < FEW_CLUSTERS:
                few.setdefault(n, []).append(metric.label)
        return tuple(
            f"The examples behind {', '.join(labels)} are about {n} subject{'' if n == 1 else 's'} only: intervals go "
            f"by subject, and from so few {'there are none' if n == 1 else 'they are rough'}."
            for n, labels in sorted(few.items())
        )

    def to_frame(self) -> pd.DataFrame:
        """One row per metric: value, reason, counts, direction, range, meaning of 0 and 1, cost.

        `sample_standard_error` is that of the sample alone (`sample_errors`): 0 where all were asked, NaN where the
        metric has none.
        """
        import pandas as pd

        errors = self.sample_errors
        none = 0.0 if self.provenance.get("sample") is None else math.nan
        return pd.DataFrame(
            [
                _row(metric)
                | {
                    "sample_standard_error": errors[metric.name].standard_error
                    if metric.name in errors
                    else none
                }
                for metric in self
            ]
        )

    def examples_frame(self) -> pd.DataFrame:
        """Long table: `metric`, `example_id`, `value`, for the metrics that have a value per example."""
        import pandas as pd

        rows = [
            {"metric": metric.name, "example_id": name, "value": value}
            for metric in self
            for name, value in zip(metric.ids, metric.per_example, strict=True)
        ]
        return pd.DataFrame(rows, columns=["metric", "example_id", "value"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one JSON file, whole or not at all; undefined numbers are null."""
        save_results(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> MetricResults:
        """Read a file written by `save`.

        Raises:
            ResultFormatError: The file is missing, broken, or of another version.
        """
        return load_results(path)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value:.3f}" for name, value in list(self.values.items())[:6])
        more = ", ..." if len(self) > 6 else ""
        return f"MetricResults({self.models['model'].name!r}, {len(self)} metrics: {shown}{more})"

    def _repr_html_(self) -> str:

        return results_card(self)


def _row(metric: MetricValue) -> dict[str, Any]:
    return {
        "metric": metric.name,
        "label": metric.label,
        "group": metric.group,
        "value": metric.value,
        "reason": metric.reason,
        "n": metric.n,
        "n_missing": metric.n_missing,
        "direction": metric.direction,
        "low": metric.low,
        "high": metric.high,
        "zero": metric.zero,
        "one": metric.one,
        **metric.cost._asdict(),
    }


# How metrics show themselves in a notebook: one row per metric, readable in light and dark themes.

ARROWS = {"knowledge": "↑ known", "erasure": "↑ erased", "utility": "↑ useful"}
"""Directions as a column of a table."""


def results_card(results: MetricResults) -> str:
    """HTML table of the metrics; every text from outside is escaped."""
    cell = "padding:2px 12px 2px 0;text-align:left;vertical-align:top"
    head = "".join(
        f'<th style="{cell}">{title}</th>' for title in ("metric", "value", "", "0 means", "1 means", "n")
    )
    body = "".join(f"<tr>{_cells(metric, cell)}</tr>" for metric in results)
    name = escape(results.models["model"].name)
    return f'<div><b>{name}</b><table style="border-collapse:collapse"><tr>{head}</tr>{body}</table></div>'


def shown(metric: MetricValue) -> str:
    """A value as text; where it is NaN, the reason too."""
    return f"NaN ({metric.reason})" if math.isnan(metric.value) else f"{metric.value:.3f}"


def _cells(metric: MetricValue, cell: str) -> str:
    count = str(metric.n) if metric.per_example else ""
    texts = (metric.label, shown(metric), ARROWS[metric.direction], metric.zero, metric.one, count)
    return "".join(f'<td style="{cell}">{escape(text)}</td>' for text in texts)


# Saved metrics: one strict JSON file with a format name, a version and a seal; whole or absent.

FORMAT = "uds_lens.MetricResults"
VERSION = 2
"""Version of the format; raised when older releases could misread a result."""

UNSEALED = 1
"""Version of release 0.1, which had no seal; still read."""


@dataclass(frozen=True, kw_only=True)
class _File:
    """Members of a file, beside format, version and seal."""

    options: MetricOptions
    models: Mapping[str, ModelRecord]
    sizes: Mapping[str, int]
    provenance: Mapping[str, Any]
    total: Cost
    metrics: tuple[MetricValue, ...]
    generations: Mapping[str, tuple[str, ...]]


def save_results(results: MetricResults, path: str | os.PathLike[str]) -> None:
    """Write `MetricResults`.

    Raises:
        ResultFormatError: Something else than saved results stands there.
        StorageError: The system refuses to write.
    """
    atomic_write_bytes(require_fresh(path, directory=False, format=FORMAT), sealed(as_dict(results)))


def as_dict(results: MetricResults) -> dict[str, Any]:
    """Everything in plain values as strict JSON has them; NaN and infinity are None."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "options": results.options.to_dict(),
        "models": {role: record.to_dict() for role, record in results.models.items()},
        "sizes": dict(results.sizes),
        "provenance": plain(results.provenance),
        "total": results.total._asdict(),
        "metrics": [
            plain({**_fields(metric), "cost": metric.cost._asdict(), "details": metric.details})
            for metric in results
        ],
        "generations": {name: list(texts) for name, texts in results.generations.items()},
    }


def load_results(path: str | os.PathLike[str]) -> MetricResults:
    """Read `MetricResults`."""
    file = located(path)
    if not file.exists() or file.is_dir():
        raise ResultFormatError(f"no saved metrics at {str(file)!r}: expected a JSON file written by save().")
    record = read_sealed(file, format=FORMAT, versions=(UNSEALED, VERSION), unsealed_versions=(UNSEALED,))
    told = repr(str(file))
    members = {name: value for name, value in record.items() if name not in ("format", "version")}
    found = conform(_File, members, where=told)
    if "model" not in found.models:
        raise ResultFormatError(f"{told} is not complete: it names no model.")
    return MetricResults(
        metrics=_by_name(found.metrics, told),
        models=found.models,
        options=found.options,
        sizes=found.sizes,
        generations=found.generations,
        provenance=found.provenance,
        total=found.total,
    )


def _by_name(metrics: tuple[MetricValue, ...], told: str) -> dict[str, MetricValue]:
    """Metrics by name; an upper bound of null is infinity."""
    found: dict[str, MetricValue] = {}
    for metric in metrics:
        sizes = {len(metric.per_example), len(metric.ids), len(metric.subjects or metric.ids)}
        if metric.name in found or len(sizes) > 1:
            raise ResultFormatError(
                f"{told}: the metric {metric.name[:60]!r} stands there twice, or its ids and values differ in number."
            )
        found[metric.name] = replace(metric, high=math.inf) if math.isnan(metric.high) else metric
    return found


def _fields(metric: MetricValue) -> dict[str, Any]:
    skipped = ("cost", "details") if metric.subjects else ("cost", "details", "subjects")
    return {field.name: getattr(metric, field.name) for field in fields(metric) if field.name not in skipped}


# What an earlier run left: results in a folder, and what measuring again would lose of them.


def results_in(folder: Path) -> dict[str, MetricResults]:
    """Saved metrics in a folder by the names of their files; those that cannot be read are left out."""
    found = {}
    for file in sorted(folder.glob("*.json")):
        results = _saved(file)
        if results is not None:
            found[file.stem] = results
    return found


def require_nothing_lost(
    files: Iterable[Path], metrics: Iterable[str] | None, *, options: MetricOptions
) -> None:
    """Find out before the work that results which go to these files hold what earlier ones there hold.

    Args:
        files: Where results will be saved.
        metrics: Names of what will be measured, as for `evaluate`.
        options: As for `evaluate`.

    Raises:
        ConfigError: A file holds a metric that would not be measured again.
    """
    wanted = {spec.name for spec in resolve(metrics, options=options)}
    for file in files:
        earlier = _saved(file)
        lost = [] if earlier is None else [name for name in earlier.metrics if name not in wanted]
        if lost:
            named = ", ".join(lost[:6]) + (f" and {len(lost) - 6} more" if len(lost) > 6 else "")
            raise ConfigError(
                f"{str(file)[-120:]!r} holds {named}, not measured this time: choose another ",
                Setting("out"),
                ", ask for them too, or replace all with ",
                Setting("redo", True),
                ".",
            )


def _saved(file: Path) -> MetricResults | None:
    if not file.is_file() or format_of(file) != FORMAT:
        return None
    try:
        return MetricResults.load(file)
    except ResultFormatError:
        return None


# Metrics of several models side by side: one row per model, one column per metric.


def metrics_by_model(results: Mapping[str, MetricResults]) -> pd.DataFrame:
    """The values of several models as a table.

    Args:
        results: Results by the model's name.

    Returns:
        A row per model: `model`, then a column per metric that any of them has; NaN where a model has no value.
    """
    import pandas as pd

    return pd.DataFrame([{"model": name, **found.values} for name, found in results.items()])


def require_metrics_table(file: str | os.PathLike[str]) -> Path:
    """The place of that table, before any work is done for it.

    Raises:
        ResultFormatError: Something else stands there, a table of audits for example.
        StorageError: Nothing can be written there.
    """
    place = located(file)
    return require_fresh(place, directory=False, begins=b"model," if _of_metrics(place) else None)


def _of_metrics(place: Path) -> bool:
    """Whether the columns of a table are those that `metrics_by_model` gives."""
    if not place.is_file():
        return False
    with open(place, "rb") as table:
        first, *names = table.readline(1 << 14).decode("utf-8", "replace").strip().split(",")
    if first != "model" or not names:
        return False
    own = set(names) - set(METRICS)  # declared in a file that was imported then
    return not own or own <= {name for each in results_in(place.parent).values() for name in each.metrics}


def write_metrics_table(results: Mapping[str, MetricResults], file: str | os.PathLike[str]) -> Path:
    """Write that table as CSV, of `results` and of all others that are saved beside it; an empty cell is undefined.

    Args:
        results: What is at hand, by name; it comes first. The others follow in the order of their files' names.
        file: Where the table goes.
    """
    place = require_metrics_table(file)
    every = {**results, **{n: found for n, found in results_in(place.parent).items() if n not in results}}
    atomic_write_text(place, metrics_by_model(every).to_csv(index=False))
    return place
