"""`MetricResults`: every metric of one model, with the reason where it has no value, what it means and what it cost."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from uds_lens.checked_arguments import arguments_checked
from uds_lens.metrics.declaration import Direction, Group
from uds_lens.metrics.metric_data import about_sample
from uds_lens.metrics.metric_options import MetricOptions
from uds_lens.metrics.trust import studied
from uds_lens.results import Interval, ModelRecord, bootstrap_interval
from uds_lens.results.cautions import FEW
from uds_lens.results.intervals import FEW_CLUSTERS, interval_basis
from uds_lens.results.sampling_error import SampleError, sample_error

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

    value: float
    """The metric; NaN where it is undefined."""

    direction: Direction
    """What a higher value means: "knowledge" is still there, "erasure", or "utility"."""

    low: float
    """Smallest possible value."""

    high: float
    """Largest possible value."""

    zero: str
    """What 0 means."""

    one: str
    """What 1 means."""

    reason: str | None = None
    """Why the value is NaN."""

    ids: Sequence[str] = ()
    """Examples, in the order of `per_example`; empty for metrics of whole sets."""

    per_example: Sequence[float] = ()
    """Value of each example; NaN where it has none."""

    subjects: Sequence[str | None] = ()
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
        from uds_lens.metrics.catalogue import METRICS

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

    @arguments_checked
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one JSON file, whole or not at all; undefined numbers are null."""
        from uds_lens.metrics.saved_metrics import save_results

        save_results(self, path)

    @classmethod
    @arguments_checked
    def load(cls, path: str | os.PathLike[str]) -> MetricResults:
        """Read a file written by `save`.

        Raises:
            ResultFormatError: The file is missing, broken, or of another version.
        """
        from uds_lens.metrics.saved_metrics import load_results

        return load_results(path)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value:.3f}" for name, value in list(self.values.items())[:6])
        more = ", ..." if len(self) > 6 else ""
        return f"MetricResults({self.models['model'].name!r}, {len(self)} metrics: {shown}{more})"

    def _repr_html_(self) -> str:
        from uds_lens.metrics.metrics_card import results_card

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
