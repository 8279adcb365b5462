"""Finding a checkpoint's weight files, and checking that other weight files in its directory agree with them."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uds_lens.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

INDEX, ALONE = "model.safetensors.index.json", "model.safetensors"

_OF_MODELS = (ALONE, INDEX, "pytorch_model.bin", "pytorch_model.bin.index.json")
_OF_ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")
"""Names of weight files, in the order in which transformers and PEFT look for them: the first that exists is read."""


def weight_files(folder: Path, name: str, *, named: object = None, of_adapter: bool = False) -> list[Path]:
    """List the files from which a checkpoint's weights are read; empty if none has one of the usual names.

    Args:
        folder: Its directory.
        name: The checkpoint's name in error messages.
        named: Weight file that the config names, read instead of a file with one of the usual names.
        of_adapter: Whether the checkpoint is a PEFT adapter.

    Raises:
        ModelError: An index is broken, a file is not a regular file inside the directory, or the directory also
            contains other weights that differ from these (an old model.safetensors next to new shards, for example).
    """
    names = _OF_ADAPTERS if of_adapter else _OF_MODELS if named is None else (str(named),)
    there = [each for each in names if (folder / each).exists()]
    if not there:
        return []
    first, *others = there
    files = _files(folder, first, name)
    for other in others:
        try:
            more = _files(folder, other, name)
        except ModelError:  # its files are gone, so this index cannot be the intended one
            continue
        if (where := _difference(_state(files), _state(more))) is not None:
            raise ModelError(
                f"{name!r} holds two sets of weights that differ: {first} is read, but {other} differs in {where!r}. "
                "Move the unwanted set to another directory."
            )
    return files


def require_blocks(folder: Path, name: str) -> None:
    """Raise `ModelError` if a config describes a model that is far larger than the stored weights.

    Building such a model would never finish. It has more blocks than there are stored tensors, or a matrix with more
    elements than the weight files have bits. Without weight files, nothing is checked.
    """
    try:
        text = (folder / "config.json").read_text("utf-8")
        blocks, hidden, vocabulary, inner = (
            max(map(int, entry.findall(text)), default=0) for entry in (_BLOCKS, _HIDDEN, _VOCABULARY, _INNER)
        )
    except (OSError, ValueError):  # transformers will report the problem
        return
    largest = hidden * max(vocabulary, inner)
    if (blocks <= _MANY and largest <= _LARGE) or not (files := weight_files(folder, name)):
        return
    if blocks > _MANY and blocks > (stored := len(_tensors(files))):
        raise ModelError(
            f"config.json of {name!r} declares {blocks} blocks, but the number of stored tensors is {stored}: correct "
            "config.json, or copy the complete model again."
        )
    if largest > 8 * (size := sum(file.stat().st_size for file in files)):
        raise ModelError(
            f"config.json of {name!r} declares a matrix of {hidden} by {max(vocabulary, inner)}, but the weight files "
            f"have only {size} bytes in total: correct config.json, or copy the complete model again."
        )


_BLOCKS = re.compile(r'"(?:num_hidden_layers|num_layers|n_layers?)"\s*:\s*(\d+)')
_HIDDEN = re.compile(r'"(?:hidden_size|n_embd|d_model)"\s*:\s*(\d+)')
_VOCABULARY = re.compile(r'"vocab_size"\s*:\s*(\d+)')
_INNER = re.compile(r'"(?:intermediate_size|n_inner|d_ff|ffn_dim)"\s*:\s*(\d+)')
_LARGE = 10**8  # matrices with fewer elements are created within a second, and are not checked
_MANY = 1000  # more blocks than any published model has; smaller numbers are built in seconds and are not checked


def _files(folder: Path, first: str, name: str) -> list[Path]:
    """Return a weight file, or the files listed in an index; each must be a regular file (or a link to one)."""
    shards: Any = [first]
    _require_regular(folder, first, first, name)
    if first.endswith(".index.json"):
        try:
            shards = sorted(set(json.loads((folder / first).read_text("utf-8"))["weight_map"].values()))
        except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise ModelError(f"{name!r} has a broken {first}: {error}") from error
    for shard in shards:
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise ModelError(f"{first} of {name!r} names {shard!r}: expected files in the same directory.")
        _require_regular(folder, shard, first, name)
    return [folder / shard for shard in shards]


def _require_regular(folder: Path, file: str, first: str, name: str) -> None:
    """Raise `ModelError` unless a path is a regular file, because reading a pipe or a device might never end."""
    if not (folder / file).is_file():
        raise ModelError(
            f"{name!r} has no regular file {file!r}, which should contain its weights ({first}): copy or save the "
            "complete model again."
        )


def _state(files: Sequence[Path]) -> tuple[tuple[Path, int, int], ...]:
    return tuple((file, (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files)


@lru_cache(maxsize=16)  # cached: a run opens each model several times, and a comparison reads both sets completely
def _difference(one: tuple[tuple[Path, int, int], ...], two: tuple[tuple[Path, int, int], ...]) -> str | None:
    """Return the name of a weight that differs between two sets of files, even in the lower of the two dtypes."""
    try:
        here, there = (_tensors(file for file, *_ in files) for files in (one, two))
        common = here.keys() & there.keys()
        if not common:
            return next(iter(there), "(nothing)")
        for key in sorted(common):
            if not _same(here[key](), there[key]()):
                return key
        for key in sorted(here.keys() ^ there.keys()):  # a tied head may be missing, an untied head may not
            alone = (here.get(key) or there[key])()
            alike = [here[other]() for other in common if alone.ndim == 2 and here[other]().shape == alone.shape]
            if alike and not any(_same(alone, tensor) for tensor in alike):
                return key
        return None
    except Exception as error:  # broken files may raise any error
        raise ModelError(f"cannot compare {one[0][0].name!r} with {two[0][0].name!r} next to it: {error}") from error


def _tensors(files: Iterable[Path]) -> dict[str, Callable[[], Any]]:
    """Return a function for each tensor in the files that reads it on demand."""
    import torch
    from safetensors import safe_open

    read: dict[str, Callable[[], Any]] = {}
    for file in files:
        if file.suffix == ".safetensors":
            opened = safe_open(file, framework="pt").__enter__()
            read |= {key: lambda opened=opened, key=key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
        else:
            stored = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
            read |= {key: lambda tensor=tensor: tensor for key, tensor in stored.items()}
    return read


def _same(one: Tensor, two: Tensor) -> bool:
    lower = min(one.dtype, two.dtype, key=lambda dtype: dtype.itemsize)
    return one.to(lower).equal(two.to(lower))
