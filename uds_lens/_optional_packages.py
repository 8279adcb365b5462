"""Optional packages: the extra that installs each, and the error raised if one is missing.

Each is imported inside the function that needs it, after `require_package`; long-running work checks before it begins.
"""

from __future__ import annotations

import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

from uds_lens.errors import MissingDependencyError

EXTRA_OF = {
    "bitsandbytes": "quantise",
    "gguf": "gguf",
    "kaleido": "static",
    "lm_eval": "lm-eval",
    "peft": "lora",
    "rouge_score": "metrics",
    "sklearn": "metrics",
    "spacy": "annotate",
    "submitit": "slurm",
    "trackio": "logging",
    "wandb": "logging",
}
"""Name of each package in Python, and the extra of `uds-lens` that installs it."""

_DISTRIBUTIONS = {"lm_eval": "lm-eval", "sklearn": "scikit-learn", "rouge_score": "rouge-score"}
"""Names under which packages are installed, where they differ."""


def require_package(module: str, *, needed_by: str, instead: str = "") -> None:
    """Raise an error if an optional package is not installed, without importing it.

    Args:
        module: Its name in Python, a key of `EXTRA_OF`.
        needed_by: Beginning of a sentence that says what needs it: "an adapter needs", "the metrics a and b need".
        instead: Sentences that say what can be done instead.

    Raises:
        MissingDependencyError: With the command that installs it.

    Example:
        >>> require_package("rouge_score", needed_by="ROUGE needs")
    """
    if find_spec(module) is None:
        known, extra = distribution_of(module), EXTRA_OF[module]
        more = f" {instead}" if instead else ""
        command = install_command(f"uds-lens[{extra}]")
        raise MissingDependencyError(f"{needed_by} {known}: {command}.{more}")


def install_command(requirement: str) -> str:
    """Return the command that installs a requirement in this environment, which may be that of a uv or pipx tool.

    >>> install_command("uds-lens[lora]")
    'pip install "uds-lens[lora]"'
    """
    home = Path(sys.prefix)
    if (home / "uv-receipt.toml").is_file():
        return f'uv pip install --python {shlex.quote(str(home))} "{requirement}"'
    if (home / "pipx_metadata.json").is_file():
        return f'pipx runpip {home.name} install "{requirement}"'
    return f'pip install "{requirement}"'


def distribution_of(module: str) -> str:
    """Return the name under which a package is installed.

    >>> distribution_of("sklearn")
    'scikit-learn'
    """
    return _DISTRIBUTIONS.get(module, module)
