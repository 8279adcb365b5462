"""Optional packages: the extra that installs each of them, and the error raised if one is missing.

An optional package is imported inside the function that uses it, after a call to `require_package`. Long-running
functions make this call before they start.
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
"""Import name of each package, and the extra of `uds-lens` that installs it."""

_DISTRIBUTIONS = {"lm_eval": "lm-eval", "sklearn": "scikit-learn", "rouge_score": "rouge-score"}
"""Distribution names of packages, where they differ from the import names."""


def require_package(module: str, *, needed_by: str, instead: str = "") -> None:
    """Raise an error if an optional package is not installed, without importing it.

    Args:
        module: The import name of the package, a key of `EXTRA_OF`.
        needed_by: Start of the message, such as "an adapter needs" or "the metrics a and b need".
        instead: Advice on alternatives, appended to the message.

    Raises:
        MissingDependencyError: The package is not installed; the message gives the command to install it.

    Example:
        >>> require_package("rouge_score", needed_by="ROUGE needs")
    """
    if find_spec(module) is None:
        known, extra = distribution_of(module), EXTRA_OF[module]
        more = f" {instead}" if instead else ""
        command = install_command(f"uds-lens[{extra}]")
        raise MissingDependencyError(f"{needed_by} {known}: {command}.{more}")


def install_command(requirement: str) -> str:
    """Return the command that installs a requirement in this environment (possibly one created by uv or pipx).

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
    """Return the distribution name for an import name.

    >>> distribution_of("sklearn")
    'scikit-learn'
    """
    return _DISTRIBUTIONS.get(module, module)
