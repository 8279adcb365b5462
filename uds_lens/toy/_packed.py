"""Unlearned models that ship as differences to `full`, in a fifth of the space, and are unpacked once."""

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
    """Return a folder with the checkpoints of a packed file, made on first use.

    Args:
        packed: The file, as `examples/toy_building/packing.py` writes it.
        full: The checkpoint that its models differ from.

    Returns:
        A folder in `HF_HOME`, named by the file's hash, with a checkpoint for each model.

    Raises:
        StorageError: `HF_HOME` cannot be written to.
    """
    content = packed.read_bytes()
    folder = Path(HF_HOME) / "uds_lens" / f"toy-{sha256_bytes(content)[:12]}"
    if folder.is_dir():
        return folder
    with writing(folder, advice="Set HF_HOME to a directory that can be written to."):
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
    """Return the header of a checkpoint's file, and its bfloat16 weights as integers of the same bits."""
    content = (checkpoint / _WEIGHTS).read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    return content[:start], np.frombuffer(content, "<i2", offset=start)


def ordered(bits: np.ndarray) -> np.ndarray:
    """Turn bits of floating-point numbers into integers in the order of these numbers, or back.

    >>> ordered(np.array([-0.5, -0.0, 0.0, 0.5], np.float16).view(np.int16))
    array([-14337,     -1,      0,  14336], dtype=int16)
    """
    return bits ^ ((bits >> 15) & 0x7FFF)
