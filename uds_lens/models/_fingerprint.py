"""Fingerprints, which are equal if weights are equal byte for byte and the configs imply the same computation."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from operator import itemgetter
from os import cpu_count
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor, nn

from uds_lens._compat.accelerate import is_moved
from uds_lens._compat.transformer_lens import plain_name
from uds_lens._compat.transformers import PLACE_ENTRY, QUANTISED_ENTRY
from uds_lens.errors import ModelError

_NOT_COMPUTED = frozenset(
    (
        PLACE_ENTRY,
        QUANTISED_ENTRY,
        "architectures",
        "attention_dropout",
        "chunk_size_feed_forward",
        "dtype",
        "id2label",
        "initializer_range",
        "is_encoder_decoder",
        "label2id",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "pretraining_tp",
        "problem_type",
        "return_dict",
        "router_aux_loss_coef",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    )
)
"""Config entries that do not change a forward pass in evaluation mode with given weights."""

_FOR_LONG_TEXTS = ("max_position_embeddings", "n_positions", "n_ctx", "seq_length")
"""Entries for the maximum text length, which does not affect the computation with plain rotary embeddings."""

_ELSEWHERE = ("tie_word_embeddings", "vocab_size")
"""Entries that describe how weights are stored, or that are compared as part of the shape."""


def computing_entries(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config entries that may change a forward pass in evaluation mode with given weights.

    >>> computing_entries({"rms_norm_eps": 9.999999974752427e-07, "use_cache": True, "bos_token_id": 1})
    {'rms_norm_eps': 1e-06}
    """
    return {k: _meant(v) for k, v in settings.items() if k not in _NOT_COMPUTED and not k.endswith("_token_id")}


def _meant(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _meant(part) for name, part in value.items()}
    return shortest(value) if isinstance(value, float) else value


def shortest(value: float) -> float:
    """Undo the rounding of a number to float32 (as in GGUF files), so that equal models compare equal.

    >>> shortest(9.999999747378752e-06), shortest(0.1)
    (1e-05, 0.1)
    """
    with np.errstate(over="ignore"):
        single = np.float32(value)
    return float(str(single)) if float(single) == value else value


def arithmetic(config: Any) -> dict[str, Any]:
    """Return the entries that must agree between models that exchange states, keyed like `rope_parameters.rope_theta`.

    Entries that the config's class does not define are left out, because its model does not use them.
    """
    text = config.get_text_config()
    defaults = type(text)().to_dict()
    flat = dict(_flat({k: v for k, v in computing_entries(text.to_dict()).items() if k in defaults}))
    plain_positions = "max_position_embeddings" not in flat or flat.get("rope_parameters.rope_type") == "default"
    left_out = (*_ELSEWHERE, *(_FOR_LONG_TEXTS if plain_positions else ()))
    return {
        name: value
        for name, value in flat.items()
        if name not in left_out and "dropout" not in name and not name.endswith("pdrop")
    }


def _flat(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


_CHUNK = 1 << 26


def fingerprint(model: nn.Module) -> str:
    """Hash every parameter and saved buffer of a plain transformers model, and its config, with BLAKE3.

    Tensors are hashed in parallel, each with its name, shape and dtype, and the hashes are combined, sorted by name;
    tied weights are hashed once. The result does not depend on path, file layout or device, but it does depend on the
    dtype in which the weights were loaded.

    Args:
        model: The model. If TransformerLens wraps the model, the model inside is hashed.

    Returns:
        32 hexadecimal digits.

    Raises:
        ModelError: A weight is on the meta device, and accelerate has no data for it.

    Example:
        >>> a, b = nn.Linear(2, 2), nn.Linear(2, 2)
        >>> fingerprint(a) == fingerprint(a), fingerprint(a) == fingerprint(b)
        (True, False)
    """
    tensors = named_weights(model)
    if any(tensor.is_meta for _, tensor in tensors):
        return fingerprint_of_digests(model, {n: _digest_offloaded(model, n, tensor) for n, tensor in tensors})
    return fingerprint_of_digests(model, digests_of(dict(tensors)))


@contextmanager
def hashing(model: nn.Module) -> Iterator[Future[str]]:
    """Hash a model like `fingerprint`, in threads, while the `with` block moves it to another device.

    Weights are read from the device on which they were when the block began. The block must not change the weights; on
    exit, the function waits until all of them are hashed.
    """
    weights = dict(named_weights(model))
    with ThreadPoolExecutor(max_workers=1) as thread:
        yield thread.submit(lambda: fingerprint_of_digests(model, digests_of(weights)))


def rounded_fingerprint(model: nn.Module, dtype: torch.dtype) -> str:
    """Hash a model like `fingerprint`, but with its floating-point weights rounded to another dtype.

    Two models that were loaded from the same files in different dtypes have the same hash in the lower dtype.

    Example:
        >>> a = nn.Linear(2, 2)
        >>> rounded_fingerprint(a, torch.bfloat16) == fingerprint(a.to(torch.bfloat16))
        True
    """
    weights = named_weights(model)  # sequentially, because each weight is copied
    return fingerprint_of_digests(model, {n: _digest_offloaded(model, n, tensor, dtype) for n, tensor in weights})


def former_fingerprint(model: nn.Module, dtype: torch.dtype | None = None) -> str:
    """Hash a model with BLAKE2b, as earlier releases of `fingerprint` (or, with a dtype, `rounded_fingerprint`) did.

    Adapters that were trained with those releases identify their base by this hash.
    """
    weights = named_weights(model)
    return fingerprint_of_digests(model, {n: _digest_offloaded(model, n, t, dtype, _blake2b) for n, t in weights})


def _blake2b(data: bytes) -> Any:
    return hashlib.blake2b(data, digest_size=16)


def digests_of(weights: Mapping[str, Tensor]) -> dict[str, bytes]:
    """Return the hash of each weight, keyed by name; computed in parallel."""
    with ThreadPoolExecutor(max_workers=min(16, cpu_count() or 1)) as pool:
        return dict(zip(weights, pool.map(_digest, weights.items()), strict=True))


def fingerprint_of_digests(model: nn.Module, digests: Mapping[str, bytes]) -> str:
    """Combine the hashes of all weights, sorted by name, with the hash of the config."""
    config: Any = getattr(model, "config", None)
    start = b""
    if hasattr(config, "to_dict"):
        text = json.dumps(computing_entries(config.to_dict()), sort_keys=True, default=str)
        start = hashlib.blake2b(text.encode(), digest_size=16).digest()
    in_order = b"".join(digests[name] for name in sorted(digests))
    return hashlib.blake2b(start + in_order, digest_size=16).hexdigest()


def _digest_offloaded(
    model: nn.Module,
    name: str,
    tensor: Tensor,
    dtype: torch.dtype | None = None,
    hasher: Callable[[bytes], Any] = blake3,
) -> bytes:
    """Hash a weight that accelerate may keep on disk, loading its module onto the CPU temporarily."""

    def rounded(weight: Tensor) -> Tensor:
        return weight if dtype is None or not weight.is_floating_point() else weight.detach().to(dtype)

    owner, _, leaf = name.rpartition(".")
    if not tensor.is_meta or not is_moved(module := model.get_submodule(owner)):
        return _digest((name, rounded(tensor)), hasher)
    from accelerate.utils import align_module_device

    with align_module_device(module, "cpu"):
        return _digest((name, rounded(getattr(module, leaf).detach())), hasher)


def named_weights(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Return parameters and persistent buffers, sorted by transformers name; tied tensors are listed once."""
    state = model.state_dict(keep_vars=True)
    expected: set[str] | None = None
    if any(plain_name(name) != name for name in state):
        with torch.device("meta"):
            expected = set(type(model)(copy.deepcopy(model.config)).state_dict())
    weights: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in sorted(((plain_name(name), t) for name, t in state.items()), key=itemgetter(0)):
        unwanted = expected is not None and (name not in expected or name in weights)
        if unwanted or not isinstance(tensor, Tensor) or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        weights[name] = tensor.detach()
    return sorted(weights.items())


def _digest(item: tuple[str, Tensor], hasher: Callable[[bytes], Any] = blake3) -> bytes:
    name, tensor = item
    if tensor.is_meta:
        raise ModelError(
            f"cannot fingerprint {name!r}: it is on the meta device and has no data. Load the weights, for "
            "example with from_pretrained."
        )
    digest = hasher(f"{name}|{tuple(tensor.shape)}|{tensor.dtype}|".encode())
    if tensor.numel():
        flat = tensor.contiguous().reshape(-1).view(torch.uint8)
        for start in range(0, flat.numel(), _CHUNK):
            digest.update(flat[start : start + _CHUNK].cpu().numpy().data)
    return bytes(digest.digest()[:16])


CheckpointFiles: TypeAlias = tuple[tuple[str, int, int, int, int], ...]
"""Path, size, modification times (of contents and metadata, in nanoseconds) and inode of each file."""

known_fingerprints: dict[tuple[CheckpointFiles | None, torch.dtype, str], str] = {}
"""Fingerprints that were computed in this process, keyed by `loaded_from`; they stay valid until the files change."""


def checkpoint_files(*folders: str | os.PathLike[str]) -> CheckpointFiles | None:
    """List the given files, and those in the given folders, with their state; None if a path does not exist.

    If two lists are equal, no file was written in between, as far as the file system can tell.
    """
    files = []
    for folder in folders:
        place = Path(folder).expanduser()
        if not place.exists():
            return None
        for entry in sorted(place.resolve().iterdir()) if place.is_dir() else [place.resolve()]:
            if entry.is_file():
                stat = entry.stat()
                files.append((str(entry), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino))
    return tuple(files)


def loaded_from(model: nn.Module, files: CheckpointFiles | None) -> tuple[CheckpointFiles | None, torch.dtype, str]:
    """Return the cache key for the fingerprint of a model just loaded from some files."""
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return files, dtype, type(model).__qualname__


def fingerprint_of_files(model: nn.Module, files: CheckpointFiles) -> str:
    """Return the fingerprint of a model just loaded from these files; cached until the files change."""
    key = loaded_from(model, files)
    if key not in known_fingerprints:
        known_fingerprints[key] = fingerprint(model)
    return known_fingerprints[key]
