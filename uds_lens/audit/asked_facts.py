"""What an audit is asked on beside the forget set, and against whom: control facts, and one retain model or several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast, overload

from uds_lens.audit.forget_set import ForgetSet, forget_set
from uds_lens.data import ExamplesLike, ForgetExample
from uds_lens.errors import ConfigError, DataError, Setting
from uds_lens.models import ModelSource, RetainSource
from uds_lens.results.settings import AuditConfig


class AskedFacts(NamedTuple):
    """Everything the models are asked on."""

    forget: ForgetSet
    """The forget set, or a sample."""
    control: ForgetSet | None
    """Facts that were to be kept, or a sample; None without a control."""

    @property
    def control_examples(self) -> list[ForgetExample] | None:
        """The control facts, or None."""
        return None if self.control is None else self.control.examples


def asked_facts(examples: ExamplesLike, control: ExamplesLike | None, config: AuditConfig) -> AskedFacts:
    """Read both sets and check them before a model is opened; `config.limit` holds for each of them.

    Raises:
        DataError: A set is empty, cannot be read or has no entity, or the control holds examples of the forget set.
    """
    asked = forget_set(examples, config)
    if control is None:
        return AskedFacts(asked, None)
    try:
        kept = forget_set(control, config)
    except DataError as error:
        raise DataError(Setting("control"), ": ", *error.args) from error
    forgotten = {(example.question, example.answer) for example in asked.examples}
    both = sum((example.question, example.answer) in forgotten for example in kept.examples)
    if both:
        raise DataError(
            Setting("control"),
            f" holds {both} of the examples to forget: it must hold facts that full and retain both know.",
        )
    return AskedFacts(asked, kept)


@overload
def retain_roles(retain: str | Sequence[str]) -> Mapping[str, str]: ...


@overload
def retain_roles(retain: RetainSource) -> Mapping[str, ModelSource]: ...


def retain_roles(retain: RetainSource) -> Mapping[str, ModelSource]:
    """The retain models by role: `retain`, or `retain 1`, `retain 2` ... where there are several.

    Raises:
        ConfigError: There is none.

    Example:
        >>> retain_roles("ckpt/retain"), retain_roles(["ckpt/seed1", "ckpt/seed2"])
        ({'retain': 'ckpt/retain'}, {'retain 1': 'ckpt/seed1', 'retain 2': 'ckpt/seed2'})
    """
    if not isinstance(retain, list | tuple):
        return {"retain": cast("ModelSource", retain)}
    if not retain:
        raise ConfigError(Setting("retain"), " must name at least one model; got an empty list.")
    if len(retain) == 1:
        return {"retain": retain[0]}
    return {f"retain {i}": model for i, model in enumerate(retain, start=1)}
