"""What an audit is asked on: examples however they were given, checked before a model is opened, or a sample."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from uds_lens.data import ForgetExample, as_examples, sample_examples
from uds_lens.data.sampling import sorted_by
from uds_lens.errors import DataError
from uds_lens.results.settings import AuditConfig

if TYPE_CHECKING:
    from uds_lens.data.readers import ExampleSource


class ForgetSet(NamedTuple):
    """Examples to measure, and how they were chosen."""

    examples: list[ForgetExample]
    """In the order of the source."""
    sample: dict[str, Any] | None
    """Limit, number of all, way and seed, where not all of them are measured; for the record. With the first ones also
    what the whole is sorted by: `subject`, `type`, None where it is mixed, or `unknown` where nothing tells."""


def forget_set(
    examples: ExampleSource | Iterable[ForgetExample | Mapping[str, Any]], config: AuditConfig
) -> ForgetSet:
    """Read the examples, check that some have an entity, and keep as many as `config.limit` says.

    Raises:
        DataError: There are none, they cannot be read, or none of them has an entity.
    """
    found = as_examples(examples)
    if not found:
        raise DataError("no examples: an audit needs at least one row with question, answer and entity.")
    if not any((example.entity or "").strip() for example in found):
        raise DataError(
            f"none of the {len(found)} examples has an `entity`, the words of the answer that carry the knowledge, so "
            "nothing can be measured. Use data that has them (TOFU's forget10: jaeunglee/uds-annotated-tofu on the "
            "Hub), mark them (uds-lens annotate, or ul.annotate), or add a column `entity`."
        )
    if config.limit is None or config.limit >= len(found):
        return ForgetSet(found, None)
    kept = sample_examples(found, config.limit, seed=config.seed, sample=config.sample)
    told = {"limit": config.limit, "of": len(found), "sample": config.sample, "seed": config.seed}
    return ForgetSet(kept, told | ({"sorted_by": sorted_by(found)} if config.sample == "first" else {}))
