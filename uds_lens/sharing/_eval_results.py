"""`.eval_results/uds.yaml`: a score in the file where the Hub looks for benchmark results."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from uds_lens._storage.files import atomic_write_marked, check_folder, check_writable
from uds_lens.results._hub import EVAL_RESULTS, eval_results_yaml

if TYPE_CHECKING:
    from uds_lens.results import DepthAudit


def write_eval_results(
    audit: DepthAudit, folder: str | os.PathLike[str], *, dataset: str, config: str | None = None
) -> Path:
    """Write `.eval_results/uds.yaml` into the working copy of a model's repository (`push_to_hub` commits one).

    The Hub shows only entries for data sets that are registered there as benchmarks.

    Args:
        audit: The audit.
        folder: The working copy.
        dataset: Id of the forget set on the Hub, such as "locuslab/TOFU".
        config: The task within it, such as "forget10"; None is "default".

    Returns:
        The file.

    Raises:
        ConfigError: `dataset` is not a Hub id, or the audit has no score that may be quoted.
        ResultFormatError: Another file of that name exists.

    References:
        https://huggingface.co/docs/hub/eval-results
    """
    text = eval_results_yaml(audit, dataset=dataset, config=config)
    file = check_folder(folder) / EVAL_RESULTS
    check_writable(file, directory=False)
    atomic_write_marked(file, text)
    return file
