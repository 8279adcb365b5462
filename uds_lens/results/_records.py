"""Records of measured models, their short names, and the provenance of a measurement."""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import combinations, count
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from uds_lens._compat.bitsandbytes import quantised_as
from uds_lens._types import DType
from uds_lens.models import HookedModel, open_model
from uds_lens.models._hooked import ModelSource, open_checkpoint

if TYPE_CHECKING:
    from uds_lens.results._depth_audit import DepthAudit
    from uds_lens.results._settings import RunOptions


_PACKAGES = ("uds_lens", "torch", "transformers", "transformer-lens", "tokenizers", "numpy", "scipy")


@dataclass(frozen=True, kw_only=True)
class ModelRecord:
    """A checkpoint as measured."""

    name: str
    """Path, Hub id, or name of an open model, as given."""

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

    storage: str | None = None
    """How the weights are quantised, for example `Q4_1 (79%), Q8_0, F32` (a GGUF file) or `4 bits (nf4)`; otherwise
    None."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", printable(self.name))

    @classmethod
    def of(cls, model: HookedModel) -> ModelRecord:
        """Return the record of an open model, hashing its weights."""
        return cls(
            name=model.name,
            fingerprint=model.fingerprint,
            architecture=model.architecture,
            dtype=str(model.dtype).removeprefix("torch."),
            n_layers=model.n_layers,
            d_model=model.d_model,
            storage=model.storage or quantised_as(model.hf.config),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


def fingerprint_of(model: str, *, dtype: DType, run: RunOptions) -> str:
    """Return the fingerprint of a checkpoint's weights, loaded as for a measurement."""
    with open_to_measure(model, dtype=dtype, run=run) as opened:
        return opened.fingerprint


def open_to_measure(source: ModelSource, *, dtype: DType, run: RunOptions, tokenizer: Any = None) -> HookedModel:
    """Open a model as `run` says, hashing a checkpoint only once, since no one else has access to the model.

    Without a `tokenizer`, the checkpoint's own is loaded.
    """
    where: Any = {
        "dtype": dtype,
        "device": run.device,
        "device_map": run.device_map,
        "revision": run.revision,
        "offline": run.offline,
        "trust_remote_code": run.trust_remote_code,
        "tokenizer": tokenizer,
    }
    if isinstance(source, str | os.PathLike):
        return open_checkpoint(source, **where, keeps_weights=True)
    return open_model(source, **where)


def printable(name: str) -> str:
    r"""Escape bytes in a name that are not UTF-8, which paths may contain but tables and terminals cannot show.

    >>> import os
    >>> printable(os.fsdecode(b"caf\xe9"))
    'caf\\udce9'
    """
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


# Short names of models and results.

_VAGUE = re.compile(r"(checkpoint|ckpt|step|epoch)?[-_]?\d*|final|last|best|model|weights|output", re.IGNORECASE)


def short_names(paths: Sequence[str]) -> list[str]:
    """Name paths and Hub ids by their last part, preceded by another part if the last is vague, or more if names clash.

    Equal paths get equal names, which `numbered` tells apart.

    >>> short_names(["runs/npo/last", "runs/rmu/last", "ckpt/ga", "ckpt/ga"])
    ['npo/last', 'rmu/last', 'ga', 'ga']
    """
    parts = [path.relative_to(path.anchor).parts for path in map(PurePath, paths)]
    apart = list(dict.fromkeys(parts))
    depths = [2 if len(path) > 1 and _VAGUE.fullmatch(path[-1]) else 1 for path in apart]
    named = dict(zip(apart, endings(apart, depths), strict=True))
    return [named[path] or "unlearned" for path in parts]


def endings(
    paths: Sequence[Sequence[str]], depths: Sequence[int], *, reserved: Collection[str] = (), joined: str = "/"
) -> list[str]:
    """Return the last parts of each path, at first as many as `depths` says, and more where two names clash."""
    depths = list(depths)
    while True:
        names = [joined.join(path[-depth:]) for path, depth in zip(paths, depths, strict=True)]
        taken = Counter([*names, *reserved])
        longer = [i for i, name in enumerate(names) if taken[name] > 1 and depths[i] < len(paths[i])]
        if not longer:
            return names
        for i in longer:
            depths[i] += 1


def numbered(names: Sequence[str]) -> list[str]:
    """Add a number to every name that occurred before.

    >>> numbered(["npo", "npo", "npo (2)"])
    ['npo', 'npo (3)', 'npo (2)']
    """
    unique = list(names)
    for i, name in enumerate(names):
        if name in unique[:i]:
            unique[i] = next(new for number in count(2) if (new := f"{name} ({number})") not in unique)
    return unique


def provenance(
    *,
    engine: str,
    device: str,
    rows: str | None,
    rendered_prompt: str | None,
    ids_hash: str,
    packages: Sequence[str] = (),
) -> dict[str, Any]:
    """Collect what helps to reproduce a measurement: versions, machine, command, first prompt, hash of tokens."""
    return {
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(sys.argv),
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
    """Return the installed versions of the packages that affect all numbers, and of `more`."""
    return {package: _installed(package) for package in (*_PACKAGES, *more)}


@cache
def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def equal_weights(models: Mapping[str, ModelRecord]) -> list[tuple[str, str]]:
    """Return the pairs of roles whose weights are byte-identical."""
    return [(a, b) for a, b in combinations(models, 2) if models[a].fingerprint == models[b].fingerprint]


def reference_role(audit: DepthAudit) -> str | None:
    """Return the reference that has the audited model's weights ("full", "retain", or "retain 2" of several), or None.

    The score of a reference is known in advance: 0 for `full`, and 1 for a retain model on its own scale.
    """
    return next((role for role, audited in audit.equal_weights if audited == "unlearned"), None)


def references_among(audits: Mapping[str, DepthAudit]) -> list[str]:
    """Return the names of audits whose model is a reference.

    >>> references_among({})
    []
    """
    return [name for name, audit in audits.items() if reference_role(audit) is not None]
