"""The files of a checkpoint on this machine, as far as one can tell without reading them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

import torch
from torch import nn

from uds_lens.checked_arguments import arguments_checked
from uds_lens.models.fingerprint import fingerprint

CheckpointFiles: TypeAlias = tuple[tuple[str, int, int, int, int], ...]
"""Path, size, times of change (contents, and all else) and number of each file, in nanoseconds."""

_known: dict[tuple[CheckpointFiles, torch.dtype, str], str] = {}


@arguments_checked
def checkpoint_files(*folders: str | os.PathLike[str]) -> CheckpointFiles | None:
    """Which files lie in some folders now; None where one of them is no folder here.

    Two calls that give the same were made while nobody wrote to a file, as far as the file system tells.
    """
    found = []
    for folder in folders:
        place = Path(folder).expanduser()
        if not place.is_dir():
            return None
        for entry in sorted(place.resolve().iterdir()):
            if entry.is_file():
                stat = entry.stat()
                found.append((str(entry), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino))
    return tuple(found)


def fingerprint_of_files(model: nn.Module, files: CheckpointFiles) -> str:
    """Fingerprint of a model that was just loaded from these files; hashed once as long as they do not change."""
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    key = (files, dtype, type(model).__qualname__)
    if key not in _known:
        _known[key] = fingerprint(model)
    return _known[key]
