"""Unlearned models that are shipped as differences from `full`, in a fifth of the space, and unpacked on first use."""

from __future__ import annotations

import lzma
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
from huggingface_hub.constants import HF_HOME
from safetensors.numpy import load

from uds_lens._storage.files import sha256_bytes, writing

PACKED = "unlearned.xz"
_WEIGHTS = "model.safetensors"


def unpacked(packed: Path, full: Path) -> Path:
    """Return a folder with the checkpoints from a packed file, which are unpacked on first use.

    Args:
        packed: A file written by `examples/toy_building/packing.py`.
        full: The checkpoint from which the differences were computed.

    Returns:
        A folder in `HF_HOME`, named after the file's hash, with one checkpoint for each model.

    Raises:
        StorageError: `HF_HOME` is not writable.
    """
    content = packed.read_bytes()
    folder = Path(HF_HOME) / "uds_lens" / f"toy-{sha256_bytes(content)[:12]}"
    if folder.is_dir():
        return folder
    with writing(folder, advice="Set HF_HOME to a writable directory."):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            whole = Path(scratch) / "whole"
            _unpack(content, full, whole)
            try:
                os.rename(whole, folder)
            except OSError:  # another process was faster
                if not folder.is_dir():
                    raise
    return folder


def _unpack(content: bytes, full: Path, into: Path) -> None:
    header, start = weights(full)
    for name, planes in load(lzma.decompress(content)).items():
        zigzag = np.ascontiguousarray(planes.T).view("<u2")[:, 0]
        steps = (zigzag >> 1).astype(np.int16) ^ -(zigzag & 1).astype(np.int16)
        shutil.copytree(full, into / name, ignore=shutil.ignore_patterns(_WEIGHTS))
        (into / name / _WEIGHTS).write_bytes(header + ordered(ordered(start) + steps).tobytes())


def weights(checkpoint: Path) -> tuple[bytes, np.ndarray]:
    """Return the header of a checkpoint's file, and its bfloat16 weights as integers with the same bits."""
    content = (checkpoint / _WEIGHTS).read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    return content[:start], np.frombuffer(content, "<i2", offset=start)


def ordered(bits: np.ndarray) -> np.ndarray:
    """Map the bits of floating-point numbers to integers with the same order, or back.

    >>> ordered(np.array([-0.5, -0.0, 0.0, 0.5], np.float16).view(np.int16))
    array([-14337,     -1,      0,  14336], dtype=int16)
    """
    return bits ^ ((bits >> 15) & 0x7FFF)
