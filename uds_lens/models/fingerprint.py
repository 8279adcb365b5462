"""A fingerprint of a model: equal when its weights are, byte for byte, and its config computes the same with them."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from os import cpu_count
from typing import Any

import torch
from torch import Tensor, nn

from uds_lens.checked_arguments import arguments_checked
from uds_lens.compat.accelerate import is_moved, weights_on_cpu
from uds_lens.compat.transformer_lens import has_wrapped_names, plain_name
from uds_lens.errors import ModelError
from uds_lens.models.arithmetic import computing_entries

_CHUNK = 1 << 26


@arguments_checked
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
