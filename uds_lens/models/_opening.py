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
from uds_lens.models._checkpoint import (
    checkpoint_folders,
    keep_plain_format,
    load_tokenizer,
    load_weights,
)
from uds_lens.models._fingerprint import checkpoint_files
from uds_lens.models._hooked import HookedModel, clone_sharing_weights

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


ModelSource: TypeAlias = "str | os.PathLike[str] | nn.Module | HookedModel"
"""What can be opened: a directory, a Hub id, a transformers model, a `TransformerBridge`, an open `HookedModel`."""

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
    the `dtype` asked for, because converting it would change the caller's model or double its memory.

    Args:
        source: A directory written by `save_pretrained`, a Hub id, a transformers causal language model, a
            `TransformerBridge`, or a `HookedModel` (returned as it is).
        dtype: Dtype of the weights: `float32`, `bfloat16` or `float16`.
        device: `auto` (CUDA if there is one, else CPU), or a torch device such as `cuda:1`.
        device_map: accelerate's placement over several devices; replaces `device`.
        revision: Branch, tag or commit on the Hub.
        offline: Use only files already downloaded.
        trust_remote_code: Run the checkpoint's own Python code. Off unless asked.
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
    if isinstance(source, HookedModel):
        return _require_dtype(source, dtype)
    if isinstance(source, nn.Module):
        return _require_dtype(_adopt(source, tokenizer), dtype)
    if not isinstance(source, str | os.PathLike):
        raise ModelError(
            f"cannot open {type(source).__name__} as a model: expected a directory, a Hub id, a transformers "
            "model or a TransformerBridge."
        )
    common: dict[str, Any] = {
        "revision": revision,
        "offline": offline,
        "trust_remote_code": trust_remote_code,
    }
    tell(f"opening {os.fspath(source)}")
    before = checkpoint_files(*checkpoint_folders(source))
    hf = load_weights(
        source, dtype=getattr(torch, dtype), device=pick_device(device), device_map=device_map, **common
    )
    own = tokenizer if tokenizer is not None else load_tokenizer(source, **common)
    model = HookedModel(hf, own, name=os.fspath(source), owned=True)
    model.files = before if before == checkpoint_files(*checkpoint_folders(source)) else None
    return model


def pick_device(device: str) -> str:
    """`auto` to a real device, never Apple's; that one is taken when it is named, and checked (see `move_checked`).

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
    if kind == "cuda" and not torch.cuda.is_available():
        raise ModelError(
            f"device {device!r} was asked for, but torch sees no CUDA device: use ",
            Setting("device", "cpu"),
            ".",
        )
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ModelError(
            f"device {device!r} was asked for, but torch sees no Apple GPU: use ",
            Setting("device", "cpu"),
            ".",
        )
    return device


def _adopt(model: Any, tokenizer: PreTrainedTokenizerFast | None) -> HookedModel:
    if is_bridge(model):
        return _adopt_bridge(model, tokenizer)
    model = _inner_model(model)
    name = getattr(model, "name_or_path", "") or type(model).__name__
    if tokenizer is None:
        tokenizer = _tokenizer_beside(model)
    if is_offloaded(model):
        return _adopt_offloaded(model, tokenizer, name)
    view: Any = clone_sharing_weights(model)
    if attention_of(view.config) not in (None, "eager"):
        view.set_attn_implementation("eager")
    set_plain_outputs(view.config)
    keep_plain_format(view, live=True)
    _require_one_dtype(view, name)
    if next(view.parameters()).device.type == "mps":
        warn_once(
            f"the live model {name!r} is on Apple's GPU, whose backend has returned wrong logits without an error "
            "before: compare a few examples on the CPU, or give its directory: what is opened from there is checked."
        )
    return HookedModel(view.eval(), tokenizer, name=name, owned=False)


def _inner_model(model: Any) -> Any:
    """The transformers model that a caller handed over, out of an adapter's wrapper.

    Raises:
        ModelError: It is none, or wrapped in something that is not run here.
    """
    kind = type(model).__name__
    wrapped = {"module": getattr(model, "module", None), COMPILED: compiled_module(model)}
    for name, inside in wrapped.items():
        if isinstance(inside, nn.Module):
            raise ModelError(
                f"cannot open {kind}: it wraps a {type(inside).__name__}. Hand over what is inside, model.{name}."
            )
    if is_adapted(model):
        found = model_inside(model)
        if found is None:
            raise ModelError(
                f"cannot open {kind}: its adapter puts learned states before the prompt, which no layer of the model "
                "holds. Adapters on layers (LoRA and its kin) are supported."
            )
        return _inner_model(found)
    if not hasattr(getattr(model, "config", None), "get_text_config"):
        raise ModelError(
            f"cannot open {kind} as a model: expected a transformers causal language model, a TransformerBridge, a "
            "directory or a Hub id."
        )
    return model


def _require_one_dtype(model: Any, name: str) -> None:
    """Raise unless the linear layers of a live model multiply in one dtype.

    Raises:
        ModelError: Naming one of each.
    """
    found: dict[torch.dtype, str] = {}
    for place, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if type(module) is nn.Linear and isinstance(weight, torch.Tensor) and weight.is_floating_point():
            found.setdefault(weight.dtype, place)
    if len(found) > 1:
        told = " and ".join(f"{place} {str(dtype).removeprefix('torch.')}" for dtype, place in found.items())
        raise ModelError(
            f"the live model {name!r} mixes dtypes: {told}. States of one cannot pass the other; convert all, with "
            "model.to(torch.float32) for example."
        )


def _adopt_offloaded(model: Any, tokenizer: PreTrainedTokenizerFast | None, name: str) -> HookedModel:
    """A model whose weights come and go cannot be seen through a second set of modules: it is used as it is."""
    if model.training or attention_of(model.config) not in (None, "eager"):
        raise ModelError(
            f"the live model {name!r} is offloaded by accelerate, so that it is used as it is: load it with "
            "attn_implementation='eager' and call .eval()."
        )
    require_plain_outputs(model.config, name)
    return HookedModel(model, tokenizer, name=name, owned=False)


def _tokenizer_beside(model: nn.Module) -> PreTrainedTokenizerFast | None:
    """The tokenizer where a live model was loaded from, if it lies on this machine."""
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
    own = tokenizer or _tokenizer_beside(inside) or bridge.tokenizer
    return HookedModel(inside, own, name=name, owned=False, bridge=bridge)


def _require_dtype(model: HookedModel, dtype: str) -> HookedModel:
    have = str(model.dtype).removeprefix("torch.")
    if have != dtype:
        raise ModelError(
            f"the live model {model.name!r} is {have}, but dtype={dtype!r} was asked for: convert it yourself "
            f"(model.to(torch.{dtype})), or ask for dtype={have!r}."
        )
    return model
