"""Who was measured, with what: model records and provenance."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from uds_lens.checked_arguments import arguments_checked
from uds_lens.models import HookedModel

_PACKAGES = ("uds_lens", "torch", "transformers", "transformer-lens", "tokenizers", "numpy", "scipy")


@dataclass(frozen=True, kw_only=True)
class ModelRecord:
    """One checkpoint as it was measured."""

    name: str
    """Path, Hub id or name of the live model, as given."""

    fingerprint: str
    """Fingerprint of the weights, 32 hexadecimal digits."""

    architecture: str
    """transformers class."""

    dtype: str
    """Dtype of the activations."""

    n_layers: int
    """Number of blocks."""

    d_model: int
    """Width of the residual stream."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", printable(self.name))

    @classmethod
    @arguments_checked
    def of(cls, model: HookedModel) -> ModelRecord:
        """Record an open model (hashes its weights)."""
        return cls(
            name=model.name,
            fingerprint=model.fingerprint,
            architecture=model.architecture,
            dtype=str(model.dtype).removeprefix("torch."),
            n_layers=model.n_layers,
            d_model=model.d_model,
        )

    def to_dict(self) -> dict[str, Any]:
        """The record by field name."""
        return asdict(self)


def printable(name: str) -> str:
    r"""A name with the bytes that are no UTF-8 as escapes: paths may hold them, tables and terminals cannot.

    >>> import os
    >>> printable(os.fsdecode(b"caf\xe9"))
    'caf\\udce9'
    """
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def provenance(
    *,
    engine: str,
    device: str,
    rows: str | None,
    rendered_prompt: str | None,
    ids_hash: str,
    packages: Sequence[str] = (),
) -> dict[str, Any]:
    """What is needed to trace and repeat a measurement: versions, machine, command, first prompt, hash of tokens."""
    return {
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        "versions": versions(*packages),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "engine": engine,
        "device": device,
        "rows": rows,
        "first_prompt": rendered_prompt,
        "ids_hash": ids_hash,
    }


def versions(*more: str) -> dict[str, str]:
    """Installed versions of the packages that every number depends on, and of `more` that this one does."""
    return {package: _installed(package) for package in (*_PACKAGES, *more)}


@cache
def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def equal_weights(models: Mapping[str, ModelRecord]) -> list[tuple[str, str]]:
    """Pairs of roles whose weights are the same bytes."""
    roles = list(models)
    return [
        (a, b)
        for i, a in enumerate(roles)
        for b in roles[i + 1 :]
        if models[a].fingerprint == models[b].fingerprint
    ]
