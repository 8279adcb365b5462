"""Packages that not everyone needs: which extra installs each, and the error where one is missing.

Each is imported inside the function that needs it, after `require_package`; long work asks before it begins.
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
    "peft": "lora",
    "rouge_score": "metrics",
    "sklearn": "metrics",
    "spacy": "annotate",
    "submitit": "slurm",
    "trackio": "logging",
    "wandb": "logging",
}
"""Name of each package in Python, and the extra of `uds-lens` that installs it."""

_DISTRIBUTIONS = {"sklearn": "scikit-learn", "rouge_score": "rouge-score"}
"""Names under which packages are installed, where they differ."""


def require_package(module: str, *, needed_by: str, instead: str = "") -> None:
    """Raise where an optional package is not installed. Nothing is imported to find out.

    Args:
        module: Its name in Python, a key of `EXTRA_OF`.
        needed_by: What needs it, as the beginning of a sentence: "an adapter needs", "the metrics a and b need".
        instead: Sentences about what else can be done.

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
    """Return the command that installs a requirement here: pip elsewhere would not reach a uv or pipx tool's packages.

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
    """The name under which a package is installed.

    >>> distribution_of("sklearn")
    'scikit-learn'
    """
    return _DISTRIBUTIONS.get(module, module)
