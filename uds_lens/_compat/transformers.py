"""Private or unstable internals of transformers: attention implementations, caches, rotary frequencies, loading."""

from __future__ import annotations

import copy
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.hooks import RemovableHandle


PLACE_ENTRY, QUANTISED_ENTRY = "_name_or_path", "quantization_config"
"""Config entries for where a model was loaded from, and how its weights are quantised."""

WEIGHTS_ENTRY = "transformers_weights"
"""Config entry that names a weight file other than the usual one."""


def attention_of(config: Any) -> str | None:
    """Return the name of the attention implementation set in a config; None if none was ever set."""
    return getattr(config, "_attn_implementation", None)


def set_attention(config: Any, name: str) -> None:
    """Set the attention implementation of a model before it is built, overriding its config.json."""
    for part in {id(c): c for c in (config, config.get_text_config())}.values():
        part._attn_implementation = name


@contextmanager
def attention_replaced(configs: Iterable[Any], name: str) -> Iterator[None]:
    """Make modules with these configs run another attention implementation inside the `with` block."""
    replaced = [(config, now) for config in configs if (now := config._attn_implementation) != name]
    try:
        for config, _ in replaced:
            config._attn_implementation = name
        yield
    finally:
        for config, implementation in replaced:
            config._attn_implementation = implementation


def has_torch_attention(model: object) -> bool:
    """Return whether a model's classes support torch's own attention (`sdpa`)."""
    return bool(getattr(model, "_supports_sdpa", False))


def register_attention(name: str, attend: Callable[..., Any]) -> None:
    """Register an attention function with transformers, unless the name is already registered."""
    from transformers import AttentionInterface

    if name not in AttentionInterface._global_mapping:
        AttentionInterface.register(name, attend)


def eager_attention(module: nn.Module) -> Callable[..., Any] | None:
    """Return the eager attention function from the file that defines a module; None if there is none."""
    return getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)


def is_offline() -> bool:
    """Return whether the process is in offline mode (HF_HUB_OFFLINE)."""
    from transformers.utils.hub import is_offline_mode

    return bool(is_offline_mode())


def downloaded(name: str, revision: str | None = None) -> str | None:
    """Return a model's directory in the Hub cache, without network access; None if the model is not cached."""
    from transformers.utils.hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, "config.json", revision=revision)
    return os.path.dirname(config) if isinstance(config, str) else None


@contextmanager
def quiet_loading(*, report: bool = False) -> Iterator[None]:
    """Hide progress bars while a model is loaded, and warnings too unless `report` is true."""
    from transformers.utils import logging

    gguf: Any = sys.modules.get("transformers.modeling_gguf_pytorch_utils")
    shown = None if gguf is None else gguf.tqdm
    verbosity = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    if not report and verbosity == logging.WARNING:
        logging.set_verbosity_error()
    if gguf is not None:
        gguf.tqdm = lambda tensors, **_: tensors
    try:
        yield
    finally:
        if gguf is not None:
            gguf.tqdm = shown
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def key_value_cache(updates: Sequence[Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]], *, length: int = 0) -> object:
    """Return a transformers cache whose layers pass their keys and values to the given functions.

    The cache deliberately has no config: with a config, models with sliding windows would truncate the keys.
    """
    from transformers.cache_utils import Cache, DynamicLayer

    class Calling(DynamicLayer):
        def __init__(self, update: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
            super().__init__()
            self._update = update

        def update(
            self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
        ) -> tuple[Tensor, Tensor]:
            return self._update(key_states, value_states)

        def get_seq_length(self) -> int:
            return length

    return Cache(layers=[Calling(update) for update in updates])


def keeps_plain_keys(cache: Any) -> bool:
    """Return whether a model's cache holds only keys and values, complete or in a sliding window.

    The states of recurrent and linear layers can be neither shared with other rows nor truncated.
    """
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

    if type(cache) is not DynamicCache:  # a model family's cache class may hold more than layers (MiniMaxCache)
        return False
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in cache.layers or [None])


def keep_cached_rows(cache: Any, rows: Tensor) -> None:
    """Select rows of a cache in place, in the given order; rows may be repeated.

    Linear layers have no `batch_select_indices`, and in layers that combine linear and full attention this method
    leaves the linear states unchanged. `reorder_cache` selects rows in all of a layer's tensors.
    """
    if any(hasattr(layer, "conv_states") for layer in cache.layers):
        cache.reorder_cache(rows)
    else:
        cache.batch_select_indices(rows)


def shared_cached_row(cache: Any, times: int) -> Any:
    """Return a copy of a one-row cache with its row repeated `times` times; the original is left unchanged.

    Layers that keep all keys and values share their memory with the original; other layers are copied.
    """
    from transformers.cache_utils import DynamicLayer

    twin = copy.copy(cache)
    twin.layers = []
    for layer in cache.layers:
        plain = type(layer) is DynamicLayer and layer.keys is not None
        copied = copy.copy(layer) if plain else copy.deepcopy(layer)
        if plain:
            copied.keys, copied.values = (kept.expand(times, *kept.shape[1:]) for kept in (layer.keys, layer.values))
        else:
            copied.batch_repeat_interleave(times)
        twin.layers.append(copied)
    return twin


def largest_entry(config: Any, name: str) -> int | None:
    """Return a config entry (the largest value if blocks differ, as in Gemma-4); None if it is absent."""
    # if blocks differ, the config itself raises an error when the entry is read
    blocks = getattr(config, "per_layer_config", None) or [config]
    values = [getattr(block, name, None) for block in blocks]
    several = [value if isinstance(value, list | tuple) else [value] for value in values]
    return max((int(value) for part in several for value in part if value), default=None)


class RopeLimit(NamedTuple):
    """The text length up to which a model's rotary frequencies do not change."""

    length: int  # in tokens
    by_length: bool  # whether every longer length has its own frequencies; if not, all longer texts share a second set


_FIXED_ROPE = ("default", "linear", "llama3", "yarn", "proportional", "mrope")
"""Types of RoPE scaling whose frequencies do not depend on the text length."""


def rope_limit(config: Any) -> RopeLimit | None:
    """Return the text length beyond which a model's rotary frequencies change; None if they never do.

    For "longrope" and "dynamic", transformers derives the frequencies from the longest row in a batch. For an unknown
    type, every length is assumed to have its own frequencies.
    """
    text, limits = config.get_text_config(), []
    for kind, part in _rope_settings(text):
        if kind in _FIXED_ROPE:
            continue
        longest = [part.get("original_max_position_embeddings")]
        longest.append(getattr(text, "original_max_position_embeddings", None))
        if kind != "longrope" or longest == [None, None]:
            longest.append(getattr(text, "max_position_embeddings", None))
        limits.append(RopeLimit(min((n for n in longest if n), default=0), kind != "longrope"))
    if not limits:
        return None
    return RopeLimit(min(limit.length for limit in limits), any(limit.by_length for limit in limits))


def longest_text(config: Any) -> int | None:
    """Return a model's maximum text length in tokens, including its extension by "dynamic" RoPE scaling."""
    text = config.get_text_config()
    positions = getattr(text, "max_position_embeddings", None)
    factors = [part.get("factor") or 1.0 for kind, part in _rope_settings(text) if "dynamic" in kind]
    return int(positions * max(factors, default=1.0)) if positions else None


def _rope_settings(text: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the type and settings of each RoPE scaling; some models have several."""
    settings = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    several = all(isinstance(part, dict) for part in settings.values())
    for part in settings.values() if several else [settings]:
        yield str(part.get("rope_type", part.get("type", "default"))), part


def forget_longer_texts(model: nn.Module) -> list[RemovableHandle]:
    """Make "dynamic" rotary frequencies depend on the current text, not on the longest text seen so far.

    By default, the frequencies of the longest text so far are reused for every text beyond the original maximum length.
    """
    return [
        module.register_forward_pre_hook(_begin_anew)
        for module in model.modules()
        if hasattr(module, "original_max_seq_len")
        and "dynamic" in str(getattr(module, "rope_type", ""))
        and _begin_anew not in module._forward_pre_hooks.values()
    ]


def _begin_anew(module: Any, args: object) -> None:
    for name in [name for name in vars(module) if name.endswith("max_seq_len_cached")]:
        setattr(module, name, module.original_max_seq_len)
    for name in [name for name, _ in module.named_buffers() if name.endswith("original_inv_freq")]:
        now = name.replace("original_inv_freq", "inv_freq")
        setattr(module, now, getattr(module, name).to(getattr(module, now).device))


def is_plain_decoder(model: Any) -> bool:
    """Return whether a model's class is part of transformers and computes attention scores in the usual way."""
    in_its_files = type(model).__module__.startswith("transformers.models.")
    return in_its_files and not upcasts_attention(model.config)


def upcasts_attention(config: Any) -> bool:
    """Return whether a model's own code computes attention scores in float32 (a GPT-2 option)."""
    return bool(getattr(config.get_text_config(), "reorder_and_upcast_attn", False))


def unknown_quantisation(config: Any) -> str | None:
    """Return a config's quantisation method if transformers does not know it and would ignore it; otherwise None.

    The method is an empty string if the config does not name one.
    """
    settings = getattr(config, QUANTISED_ENTRY, None)
    if not isinstance(settings, dict):
        return None
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    method = settings.get("quant_method")
    four_or_eight = settings.get("load_in_4bit") or settings.get("load_in_8bit")
    if method in (None, "bitsandbytes") and four_or_eight:  # early checkpoints do not name the method
        return None
    return None if isinstance(method, str) and method in AUTO_QUANTIZATION_CONFIG_MAPPING else str(method or "")


def forget_quantisation(model: Any) -> None:
    """Remove the quantisation settings from a dequantised model, so that it is saved like any other model."""
    if getattr(model.config, QUANTISED_ENTRY, None) is not None:
        delattr(model.config, QUANTISED_ENTRY)
    for name in ("hf_quantizer", "is_quantized", "quantization_method"):
        vars(model).pop(name, None)


def gguf_tensors_left_out(model: Any, architecture: str, tensors: Iterable[str]) -> list[str]:
    """List the block tensors of a GGUF file that transformers' reader silently drops.

    Two kinds of unmatched tensors are not dropped, and not listed: the reader handles experts separately, and
    recomputes the rotary frequencies stored in early files.
    """
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=model.config.to_dict())
    known = get_gguf_hf_weights_map(model, processor)
    return [
        name
        for name in tensors
        if name not in known and not re.search(r"_(exps|projs)\.|exp_probs_b|attn_rot_embd", name)
    ]


def inverse_frequencies(config: Any) -> Any:
    """Return a config's inverse rotary frequencies as a float64 array, provided that all blocks share them."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = config.rope_parameters
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if rope["rope_type"] == "default":
        return rope["rope_theta"] ** -(np.arange(0, head, 2) / head)
    frequencies, _ = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, None)
    return frequencies.double().numpy()


def dequantised(model: Any) -> Any:
    """Return a quantised model with plain weights, so that it is saved like any other model."""
    plain = model.dequantize()
    forget_quantisation(plain)
    vars(plain).pop("_weight_conversions", None)  # otherwise `save_pretrained` would try to quantise the weights again
    return plain


_TEXT = (
    "Question, it's (1990) or 12:45?\n\nÜber «Ada  Vey»\t$3.50 e\u0301 — don't_I 你好 x=7. WE'LL 1234567890, ２³ ½ "
    "camelCase snake_case\n    indented \r\n\n\n он ปีที่ हिन्दी 日本の年 a.b@c.org/d?e#f !!! ... ﬁ \uff21\u00a0Vey"
)
"""Text with the kinds of characters that pre-tokenizers treat differently."""


def follow_file(tokenizer: Any, place: str, *, revision: str | None, offline: bool) -> bool:
    """Make a tokenizer split text according to its tokenizer.json, and return whether that changed anything.

    transformers rebuilds some tokenizers (GPT-2's and Qwen2's classes, for example) from the vocabulary, with the
    pre-tokenization of the family's first models. The first word is not compared, because whether a space precedes it
    is a separate setting.
    """
    from tokenizers import Tokenizer
    from transformers.utils import cached_file

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not type(tokenizer).__module__.startswith("transformers.models."):
        return False
    options: dict[str, Any] = {"revision": revision, "local_files_only": offline}
    quiet = {f"_raise_exceptions_for_{what}": False for what in ("missing_entries", "connection_errors", "gated_repo")}
    file = cached_file(place, "tokenizer.json", **options, **quiet)
    if file is None:
        return False
    written = Tokenizer.from_file(file)

    def split(by: Tokenizer) -> list[int]:
        by.no_padding()  # every call of the tokenizer sets both again
        by.no_truncation()
        found = by.encode(_TEXT, add_special_tokens=False)
        return [number for number, (begin, _) in zip(found.ids, found.offsets, strict=True) if begin >= 8]

    if split(written) == split(backend):
        return False
    for part in ("model", "normalizer", "pre_tokenizer", "decoder"):
        setattr(backend, part, getattr(written, part))
    return True


def set_place(config: Any, place: str) -> None:
    """Record where a config was loaded from, and remove the title that configs read from GGUF files contain."""
    setattr(config, PLACE_ENTRY, place)
    vars(config).pop("_model_name_or_path", None)


def unused_weights(loading_info: dict[str, Any]) -> list[str]:
    """List the stored weights that the model lacks, from the loading info that `from_pretrained` returns."""
    return sorted(loading_info["unexpected_keys"])


def unset_weights(loading_info: dict[str, Any]) -> list[str]:
    """List the weights that a checkpoint did not set, from the loading info that `from_pretrained` returns."""
    missing = sorted(loading_info["missing_keys"])
    mismatched = sorted(loading_info["mismatched_keys"])
    return missing + [f"{name}: {tuple(stored)} instead of {tuple(wanted)}" for name, stored, wanted in mismatched]


class EmptyModel(NamedTuple):
    """A checkpoint's model before its weights are loaded, and how to load them."""

    model: Any  # weights are on the meta device; buffers that are in no file are computed on the CPU
    # What `from_pretrained` would report: weights missing from the files, and stored weights that the model lacks.
    loading_info: dict[str, Any]
    # The weight into which each stored tensor is loaded (one of several if the tensor is split).
    filled_by: dict[str, str]
    settings: Any  # how tensors are converted during loading (experts stacked, dtypes changed)


def empty_model(config: Any, tensors: dict[str, Tensor], *, dtype: Any) -> EmptyModel:
    """Build a model on the meta device, the way `from_pretrained` does."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import (
        WeightConverter,
        WeightRenaming,
        convert_and_load_state_dict_in_model,
        rename_source_key,
    )
    from transformers.modeling_utils import LoadStateDictConfig

    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(
            copy.deepcopy(config), dtype=dtype, attn_implementation="eager", trust_remote_code=False
        )
    mapping = get_model_conversion_mapping(model)
    settings = LoadStateDictConfig(
        dtype=dtype, dtype_plan=model._get_dtype_plan(dtype), weight_mapping=mapping, device_map={"": "meta"}
    )
    renamings = [entry for entry in mapping or [] if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping or [] if isinstance(entry, WeightConverter)]
    wanted = model.state_dict()
    filled_by = {}
    for name in tensors:
        place, _ = rename_source_key(name, renamings, converters, model.base_model_prefix, wanted)
        if place not in wanted and name in wanted:
            place = name
        filled_by[name] = place
    info, _ = convert_and_load_state_dict_in_model(model, tensors, settings)
    missing = set(info.missing_keys)
    model.mark_tied_weights_as_initialized(info)
    model._adjust_missing_and_unexpected_keys(info)
    tied = model.all_tied_weights_keys  # by default the head and the embedding it is tied to; either may be stored
    info.missing_keys -= {*tied, *(source for place, source in tied.items() if place not in missing)}
    if not unset_weights(info.to_dict()):  # only buffers are left to compute
        model._move_missing_keys_from_meta_to_device(set(), None, None, None)
        model._initialize_missing_keys(False)
    model.tie_weights(missing_keys=missing, recompute_mapping=False)
    return EmptyModel(model.eval().requires_grad_(False), info.to_dict(), filled_by, settings)


def fill_weights(model: Any, tensors: dict[str, Any], settings: Any) -> list[str]:
    """Convert a checkpoint's tensors and load them into its model, on the CPU; return conversion errors."""
    import dataclasses

    from transformers.core_model_loading import convert_and_load_state_dict_in_model

    on_cpu = dataclasses.replace(settings, device_map={"": "cpu"})
    info, _ = convert_and_load_state_dict_in_model(model, tensors, on_cpu)
    return list(info.conversion_errors.values())
