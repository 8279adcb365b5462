"""`open_model`: a directory, a Hub id, a live transformers model or a live Bridge, as one `HookedModel`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn

from uds_lens._compat.accelerate import is_offloaded
from uds_lens._compat.peft import is_adapted, model_inside
from uds_lens._compat.torch import COMPILED, compiled_module
from uds_lens._compat.transformer_lens import in_compatibility_mode, is_bridge, original_model
from uds_lens._compat.transformers import attention_of
from uds_lens._progress import tell
from uds_lens._types import DType, check_choice
from uds_lens.errors import ModelError, Setting, warn_once
from uds_lens.models._anatomy import require_plain_outputs, set_plain_outputs
from uds_lens.models._checkpoint import checkpoint_folders, keep_plain_format, load_tokenizer, load_weights, storage_of
from uds_lens.models._fingerprint import checkpoint_files
from uds_lens.models._hooked import HookedModel, clone_sharing_weights

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


ModelSource: TypeAlias = "str | os.PathLike[str] | nn.Module | HookedModel"
"""A directory, a Hub id, a transformers model, a `TransformerBridge`, or an open `HookedModel`."""

RetainSource: TypeAlias = "ModelSource | Sequence[ModelSource]"
"""A retain model, or several that differ in their seed."""


def open_model(
    source: ModelSource,
    *,
    dtype: DType = "float32",
    device: str = "auto",
    device_map: str | dict[str, Any] | None = None,
    revision: str | None = None,
    offline: bool = False,
    trust_remote_code: bool = False,
    tokenizer: PreTrainedTokenizerFast | None = None,
) -> HookedModel:
    """Open a checkpoint as a hooked model.

    Local directories never touch the network. A live model keeps its dtype and device: it must already have
    the requested `dtype`, because a conversion would change the caller's model or double its memory.

    Args:
        source: A directory written by `save_pretrained` (a model, or a PEFT adapter with its base), a GGUF file or a
            directory with one, `package:NAME` for an installed package that holds either, a Hub id, a transformers
            causal language model, a `TransformerBridge`, or a `HookedModel` (returned as it is).
        dtype: Dtype of the weights: `float32`, `bfloat16` or `float16`.
        device: `auto` (CUDA if available, else CPU), or a torch device such as `cuda:1`.
        device_map: accelerate's placement over several devices; replaces `device`.
        revision: Branch, tag or commit on the Hub.
        offline: Use only files already downloaded.
        trust_remote_code: Run the checkpoint's own Python code.
        tokenizer: Tokenizer to use instead of the checkpoint's own.

    Returns:
        The open model; use it in a `with` block to free its memory.

    Raises:
        ModelError: Nothing is there, the files do not form a complete causal language model, or a live model
            has another dtype.

    Example:
        >>> import uds_lens as ul
        >>> world = ul.toy.load()
        >>> with ul.open_model(world.full, device="cpu") as model:
        ...     model.n_layers == len(model.bridge.blocks)
        True
    """
    check_choice("dtype", dtype, DType)
    if isinstance(source, HookedModel | nn.Module):
        model = source if isinstance(source, HookedModel) else adopt(source, tokenizer)
        have = str(model.dtype).removeprefix("torch.")
        if have != dtype:
            raise ModelError(
                f"the live model {model.name!r} is {have}, but dtype={dtype!r} was requested: convert it yourself "
                f"(model.to(torch.{dtype})), or request dtype={have!r}."
            )
        return model
    if not isinstance(source, str | os.PathLike):
        raise ModelError(
            f"cannot open {type(source).__name__} as a model: expected a directory, a Hub id, a transformers "
            "model or a TransformerBridge."
        )
    common: dict[str, Any] = {"revision": revision, "offline": offline, "trust_remote_code": trust_remote_code}
    tell(f"opening {os.fspath(source)}")
    before = checkpoint_files(*checkpoint_folders(source))
    hf = load_weights(source, dtype=getattr(torch, dtype), device=pick_device(device), device_map=device_map, **common)
    chosen = tokenizer if tokenizer is not None else load_tokenizer(source, **common)
    model = HookedModel(hf, chosen, name=os.fspath(source), owned=True)
    model.storage = storage_of(source)
    model.files = before if before == checkpoint_files(*checkpoint_folders(source)) else None
    return model


def pick_device(device: str) -> str:
    """Resolve `auto`, and check a named device. Apple's GPU is used only when named (see `move_checked`).

    >>> pick_device("cpu")
    'cpu'
    """
    if not isinstance(device, str):
        raise ModelError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N'; got {device!r}.")
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ModelError(f"no device {device!r}: expected 'auto', 'cpu', 'cuda' or 'cuda:N'.") from error
    missing = {
        "cuda": not torch.cuda.is_available() and "CUDA device",
        "mps": not torch.backends.mps.is_available() and "Apple GPU",
    }.get(kind)
    if missing:
        raise ModelError(
            f"device {device!r} was requested, but torch sees no {missing}: use ", Setting("device", "cpu"), "."
        )
    return device


def adopt(model: Any, tokenizer: PreTrainedTokenizerFast | None) -> HookedModel:
    """Open a live model or Bridge, which stays the caller's."""
    if is_bridge(model):
        return _adopt_bridge(model, tokenizer)
    model = _inner_model(model)
    name = getattr(model, "name_or_path", "") or type(model).__name__
    tokenizer = tokenizer if tokenizer is not None else _tokenizer_beside(model)
    if is_offloaded(model):  # weights that come and go cannot be seen through a second set of modules
        if model.training or attention_of(model.config) not in (None, "eager"):
            raise ModelError(
                f"the live model {name!r} is offloaded by accelerate, so that it is used as it is: load it with "
                "attn_implementation='eager' and call .eval()."
            )
        require_plain_outputs(model.config, name)
        return HookedModel(model, tokenizer, name=name, owned=False)
    view: Any = clone_sharing_weights(model)
    if attention_of(view.config) not in (None, "eager"):
        view.set_attn_implementation("eager")
    set_plain_outputs(view.config)
    keep_plain_format(view, live=True)
    _require_one_dtype(view, name)
    if next(view.parameters()).device.type == "mps":
        warn_once(
            f"the live model {name!r} is on Apple's GPU, whose backend has returned wrong logits without an error "
            "before: compare a few examples on the CPU, or pass its directory: models opened from there are checked."
        )
    return HookedModel(view.eval(), tokenizer, name=name, owned=False)


def _inner_model(model: Any) -> Any:
    """Return the transformers model that was passed in, out of an adapter's wrapper."""
    kind = type(model).__name__
    wrapped = {"module": getattr(model, "module", None), COMPILED: compiled_module(model)}
    for name, inside in wrapped.items():
        if isinstance(inside, nn.Module):
            raise ModelError(
                f"cannot open {kind}: it wraps a {type(inside).__name__}. Pass the model inside, model.{name}."
            )
    if is_adapted(model):
        inner = model_inside(model)
        if inner is None:
            raise ModelError(
                f"cannot open {kind}: its adapter puts learned states before the prompt, which no layer of the model "
                "holds. Adapters on layers (such as LoRA) are supported."
            )
        return _inner_model(inner)
    if not hasattr(getattr(model, "config", None), "get_text_config"):
        raise ModelError(
            f"cannot open {kind} as a model: expected a transformers causal language model, a TransformerBridge, a "
            "directory or a Hub id."
        )
    return model


def _require_one_dtype(model: Any, name: str) -> None:
    """Raise `ModelError` unless the linear layers of a live model multiply in one dtype."""
    dtypes: dict[torch.dtype, str] = {}
    for place, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if type(module) is nn.Linear and isinstance(weight, torch.Tensor) and weight.is_floating_point():
            dtypes.setdefault(weight.dtype, place)
    if len(dtypes) > 1:
        mixed = " and ".join(f"{place} {str(dtype).removeprefix('torch.')}" for dtype, place in dtypes.items())
        raise ModelError(
            f"the live model {name!r} mixes dtypes: {mixed}. States of one cannot pass through the other; convert all, "
            "with model.to(torch.float32) for example."
        )


def _tokenizer_beside(model: nn.Module) -> PreTrainedTokenizerFast | None:
    """Return the tokenizer from where a live model was loaded, if that is on this machine."""
    place = getattr(model, "name_or_path", "")
    if not place:
        return None
    try:
        return load_tokenizer(place, revision=None, offline=True, trust_remote_code=False)
    except ModelError:
        return None


def _adopt_bridge(bridge: Any, tokenizer: PreTrainedTokenizerFast | None) -> HookedModel:
    if in_compatibility_mode(bridge):
        raise ModelError(
            "this TransformerBridge is in compatibility mode: its weights were folded and no longer belong to the "
            "checkpoint. Boot it without enable_compatibility_mode()."
        )
    inside = original_model(bridge)
    if bridge.training or inside.training:
        raise ModelError(
            "this TransformerBridge is in training mode, where dropout makes every pass differ: call its .eval() first."
        )
    name = str(getattr(bridge.cfg, "model_name", None) or "TransformerBridge")
    require_plain_outputs(inside.config, name)
    # TransformerLens changes the tokenizer it is given (a start token where there was none): last choice.
    chosen = tokenizer or _tokenizer_beside(inside) or bridge.tokenizer
    return HookedModel(inside, chosen, name=name, owned=False, bridge=bridge)
