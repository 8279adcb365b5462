"""Find out how many examples are enough for a first look."""

from __future__ import annotations

from dataclasses import replace

from uds_lens._progress import tell
from uds_lens._settings import as_settings
from uds_lens.audit._two_stage import measure_stages
from uds_lens.data._readers import ExamplesLike, as_examples
from uds_lens.errors import ConfigError, Setting
from uds_lens.models._hooked import ModelSource, RetainSource
from uds_lens.results._settings import AuditConfig, RunOptions


def limit_for(
    full: ModelSource,
    retain: RetainSource | None,
    unlearned: ModelSource,
    examples: ExamplesLike,
    *,
    precision: float = 0.1,
    config: AuditConfig | None = None,
    options: RunOptions | None = None,
) -> int:
    """Return how many examples, spread over the subjects, are enough for a first look.

    More rows about the same subjects add little, because the interval mostly reflects variation between subjects. The
    function audits samples of increasing size, starting at two rows per subject (at least 16 rows) and doubling, until
    the sampling error of UDS is at most `precision` times the width of its interval; a sample of more than half of the
    rows is not tried. The audit that follows measures the chosen rows again. For a published score, use all rows.

    Args:
        full: The model that was trained on everything.
        retain: The model that never saw the forget set.
        unlearned: The unlearned model to audit.
        examples: The forget set.
        precision: Largest acceptable sampling error, as a fraction of the interval's width; above 0.
        config: What to measure; its `limit` is ignored.
        options: How to run it.

    Returns:
        A `limit` for `AuditConfig`, at most the number of examples (which is returned if no sample is enough).

    Raises:
        ConfigError: `precision` is not above 0, or the settings take the first rows instead of a random sample.
        DataError: No examples.

    Example:
        >>> import uds_lens as ul
        >>> world = ul.toy.load()
        >>> enough = ul.audit.limit_for(world.full, world.retain, world.half, world.examples, precision=0.2)
        >>> 16 <= enough <= len(world.examples)
        True
    """
    config = as_settings(AuditConfig, config, name="config")
    if not precision > 0:
        raise ConfigError(Setting("precision"), f" must be above 0; got {precision}.")
    if config.sample != "random":
        raise ConfigError(Setting("precision"), " needs a random sample: leave out ", Setting("sample"), ".")
    rows = as_examples(examples)
    limit = max(16, 2 * len({row.subject for row in rows}))
    while limit <= len(rows) // 2:
        _, audit = measure_stages(full, retain, unlearned, rows, config=replace(config, limit=limit), options=options)
        if audit is not None and audit.sample_error is not None:
            low, high = audit.uds_interval
            error = audit.sample_error.standard_error
            if error <= precision * (high - low):
                tell(
                    f"{limit} of {len(rows)} rows, spread over the subjects, are enough for a first look: sampling "
                    f"error {error:.3f}, interval {low:.2f} to {high:.2f}"
                )
                return limit
        limit *= 2
    return len(rows)
