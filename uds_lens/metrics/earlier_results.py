"""What an earlier run left: results in a folder, and what measuring again would lose of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from uds_lens.errors import ConfigError, ResultFormatError, Setting
from uds_lens.metrics.lookup import resolve
from uds_lens.metrics.metric_options import MetricOptions
from uds_lens.metrics.metric_results import MetricResults
from uds_lens.metrics.saved_metrics import FORMAT
from uds_lens.storage import format_of


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
