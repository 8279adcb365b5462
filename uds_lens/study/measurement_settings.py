"""The tables of a plan that hold settings of other rooms, as the records of those rooms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from uds_lens.checked_settings import require_known, shown
from uds_lens.errors import ConfigError
from uds_lens.optional_packages import require_package
from uds_lens.study.plan_records import Measurement, StudyPlan

if TYPE_CHECKING:
    from uds_lens.elicitation import ElicitOptions
    from uds_lens.metrics import MetricOptions
    from uds_lens.results import AuditConfig, RunOptions
    from uds_lens.unlearning import TrainOptions

T = TypeVar("T")


def settings_of(kind: type[T], given: Mapping[str, Any], where: str) -> T:
    """A record of settings from a table of a plan.

    Raises:
        ConfigError: A name is unknown, or a value does not fit.
    """
    require_known(where, given, [each.name for each in fields(kind)])  # type: ignore[arg-type]
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    try:
        return kind(**values)
    except (TypeError, AttributeError) as error:
        raise ConfigError(
            f"{where} has a value of the wrong kind: {str(error)[:160]}; got {shown(given)}."
        ) from error


def metric_settings(measure: Measurement) -> MetricOptions:
    """How metrics are measured; checks their names too."""
    from uds_lens.metrics import METRICS, MetricOptions

    options = settings_of(MetricOptions, measure.options, "[measure] options")
    for name in (*measure.metrics, *measure.utility):
        if name not in METRICS:
            import difflib

            near = difflib.get_close_matches(name, list(METRICS), n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigError(
                f"no metric {name[:60]!r}; {hint}`uds-lens metrics --list` shows those there are."
            )
    both = (*measure.metrics, *measure.utility)
    twice = next((name for name in both if both.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"the metric {twice!r} is named twice: name it once, in metrics or in utility.")
    return options


def audit_settings(measure: Measurement) -> AuditConfig | None:
    """What an audit measures, or None."""
    from uds_lens.results import AuditConfig

    if measure.audit is None:
        return None
    if "uds" in measure.metrics:
        raise ConfigError(
            "uds would be measured twice, by the audit and as a metric: leave it out of metrics."
        )
    return settings_of(AuditConfig, measure.audit, "[measure] audit")


def elicitation_settings(measure: Measurement) -> tuple[tuple[str, ...] | str, ElicitOptions] | None:
    """Which audits by prompt, and how; or None."""
    if measure.elicitation is None:
        return None
    from uds_lens.elicitation import ElicitOptions
    from uds_lens.elicitation.asked import chosen_audits

    given = dict(measure.elicitation)
    audits = given.pop("audits", "quick")
    if isinstance(audits, list):
        audits = tuple(audits)
    chosen_audits(audits)
    return audits, settings_of(ElicitOptions, given, "[measure] elicitation")


def require_packages_of(plan: StudyPlan) -> None:
    """Raise where the plan asks for something whose package is not installed.

    Raises:
        MissingDependencyError: With the command that installs it.
    """
    from uds_lens.metrics.lookup import require_packages, resolve

    asked = (*plan.measure.metrics, *plan.measure.utility)
    if asked:
        require_packages(resolve(asked, options=metric_settings(plan.measure)))
    if plan.measure.elicitation is not None:
        require_package("rouge_score", needed_by="[measure] elicitation needs")
    if plan.perturb.quantise:
        require_package("bitsandbytes", needed_by="[perturb] quantise needs")


def training_settings(plan: StudyPlan) -> TrainOptions:
    """How models are trained; no bar unless one is asked for."""
    from uds_lens.unlearning import TrainOptions

    return settings_of(TrainOptions, {"progress": False, **plan.training}, "[training]")


def running_settings(plan: StudyPlan) -> RunOptions:
    """How models are run; no bar unless one is asked for."""
    from uds_lens.results import RunOptions

    return settings_of(RunOptions, {"progress": False, **plan.running}, "[running]")
