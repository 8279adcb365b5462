"""A fingerprint of a model: equal when its weights are, byte for byte, and its config computes the same with them."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from os import cpu_count
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from uds_lens._compat.accelerate import is_moved, weights_on_cpu
from uds_lens._compat.transformer_lens import has_wrapped_names, plain_name
from uds_lens._compat.transformers import PLACE_ENTRY, QUANTISED_ENTRY
from uds_lens.errors import ModelError

# Which entries of a transformers config change what the weights compute, and which do not.

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
"""Entries of a transformers config that do not change an evaluation forward with these weights."""

_FOR_LONG_TEXTS = ("max_position_embeddings", "n_positions", "n_ctx", "seq_length")
"""How long texts may be: no part of the computation where positions are rotated by one plain base."""

_ELSEWHERE = ("tie_word_embeddings", "vocab_size")
"""Entries that say how weights are stored, or are compared as part of the shape."""


def computing_entries(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a config, as `to_dict` gives it, that may change an evaluation forward with given weights.

    >>> computing_entries({"rms_norm_eps": 1e-6, "use_cache": True, "bos_token_id": 1})
    {'rms_norm_eps': 1e-06}
    """
    return {k: v for k, v in settings.items() if k not in _NOT_COMPUTED and not k.endswith("_token_id")}


def arithmetic(config: Any) -> dict[str, Any]:
    """What must agree between models whose states are exchanged; nested entries as `rope_parameters.rope_theta`.

    Entries that the config's class does not know are left out, since its model does not read them.
    """
    text = config.get_text_config()
    known = type(text)().to_dict()
    settings = {name: value for name, value in computing_entries(text.to_dict()).items() if name in known}
    flat = dict(_flat(settings))
    plain_positions = (
        "max_position_embeddings" not in flat or flat.get("rope_parameters.rope_type") == "default"
    )
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
    """BLAKE2b over every parameter and saved buffer of a plain transformers model, and its config.

    Tensors are hashed in parallel (hashing releases the interpreter lock), each with its name, shape and
    dtype, and the digests are combined in the order of the names. Tied weights are hashed once. The result
    does not depend on the path, the file layout, or the device the weights lie on; it does depend on the dtype
    they were loaded in.

    Args:
        model: The model; one wrapped by TransformerLens counts as the model inside it.

    Returns:
        32 hexadecimal digits.

    Raises:
        ModelError: A weight is on the meta device and accelerate does not know where its bytes are.

    Example:
        >>> a, b = nn.Linear(2, 2), nn.Linear(2, 2)
        >>> fingerprint(a) == fingerprint(a), fingerprint(a) == fingerprint(b)
        (True, False)
    """
    tensors = named_weights(model)
    start = _digest_config(model)
    if any(tensor.is_meta for _, tensor in tensors):
        return _combined(start, (_digest_offloaded(model, name, tensor) for name, tensor in tensors))
    with ThreadPoolExecutor(max_workers=min(16, cpu_count() or 1)) as pool:
        return _combined(start, pool.map(_digest, tensors))


def _combined(start: bytes, digests: Iterable[bytes]) -> str:
    return hashlib.blake2b(start + b"".join(digests), digest_size=16).hexdigest()


def _digest_config(model: nn.Module) -> bytes:
    """Settings that change what the weights compute (rotary base, norm epsilon, soft caps ...), not names or labels."""
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_dict"):
        return b""
    settings = computing_entries(config.to_dict())
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _digest_offloaded(model: nn.Module, name: str, tensor: Tensor) -> bytes:
    """The digest of a weight that accelerate may keep on disk: its module is brought to the CPU for the moment."""
    owner, _, leaf = name.rpartition(".")
    module = model.get_submodule(owner)
    if not tensor.is_meta or not is_moved(module):
        return _digest((name, tensor))
    with weights_on_cpu(module):
        return _digest((name, getattr(module, leaf).detach()))


def named_weights(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and persistent buffers by plain transformers name, tied ones once, sorted by name."""
    state = model.state_dict(keep_vars=True)
    expected = _unwrapped_names(model) if any(map(has_wrapped_names, state)) else None
    kept: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in sorted(((plain_name(name), t) for name, t in state.items()), key=itemgetter(0)):
        unwanted = expected is not None and (name not in expected or name in kept)
        if unwanted or not isinstance(tensor, Tensor) or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        kept[name] = tensor.detach()
    return sorted(kept.items())


def _unwrapped_names(model: nn.Module) -> set[str]:
    """Names of a transformers model that TransformerLens has wrapped, as they were before."""
    with torch.device("meta"):
        return set(type(model)(copy.deepcopy(model.config)).state_dict())


def _digest(item: tuple[str, Tensor]) -> bytes:
    name, tensor = item
    if tensor.is_meta:
        raise ModelError(
            f"cannot fingerprint {name!r}: it is on the meta device, without bytes. Load the weights, with "
            "from_pretrained for example."
        )
    digest = hashlib.blake2b(f"{name}|{tuple(tensor.shape)}|{tensor.dtype}|".encode(), digest_size=16)
    flat = tensor.contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else None
    if flat is not None:
        for start in range(0, flat.numel(), _CHUNK):
            digest.update(flat[start : start + _CHUNK].cpu().numpy().data)
    return digest.digest()


# The files of a checkpoint on this machine, as far as one can tell without reading them.

CheckpointFiles: TypeAlias = tuple[tuple[str, int, int, int, int], ...]
"""Path, size, times of change (contents, and all else) and number of each file, in nanoseconds."""

_known: dict[tuple[CheckpointFiles, torch.dtype, str], str] = {}


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
