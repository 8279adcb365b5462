"""GGUF files (llama.cpp) as checkpoints: finding them, describing them, and opening them with transformers' reader."""

from __future__ import annotations

import copy
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from uds_lens._compat.transformers import QUANTISED_ENTRY, gguf_tensors_left_out, inverse_frequencies, set_place
from uds_lens._optional_packages import require_package
from uds_lens.errors import ModelError
from uds_lens.models._fingerprint import shortest

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerFast

T = TypeVar("T")

SUFFIX = ".gguf"

_MAGIC = b"GGUF"

_WHOLE = ("model*.safetensors*", "pytorch_model*.bin*")
"""Names of weight files in transformers' own formats, which take precedence over GGUF files in the same directory."""

_PART = re.compile(r"-\d{5}-of-(\d{5})$")
"""Suffix of the name of one part of a model, as written by llama.cpp's gguf-split."""


def gguf_file(place: str | os.PathLike[str]) -> Path | None:
    """Return the GGUF file at a path: the path itself, or the only one in a directory without other weights."""
    path = Path(place)
    if path.is_file() and path.suffix.lower() == SUFFIX:
        return path
    if not path.is_dir() or any(any(path.glob(pattern)) for pattern in _WHOLE):
        return None
    files = sorted(file for file in path.iterdir() if file.suffix.lower() == SUFFIX and file.is_file())
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:4])
        raise ModelError(f"{str(path)!r} contains {len(files)} GGUF files ({names}): choose one of them.")
    return files[0] if files else None


def reading(file: Path) -> dict[str, Any]:
    """Return the arguments with which transformers' `from_pretrained` reads a GGUF file."""
    _require_whole(file)
    # With only the file's name, transformers would look for it in the current directory.
    return {"gguf_file": str(file.absolute()), "local_files_only": True, "trust_remote_code": False}


def _require_whole(file: Path) -> None:
    require_package("gguf", needed_by=f"{file.name} is a GGUF file, and GGUF files need")
    try:
        with file.open("rb") as stream:
            begins = stream.read(len(_MAGIC))
    except OSError as error:
        raise ModelError(f"cannot read {str(file)!r}: {error.strerror}. Check the path and its permissions.") from error
    if begins != _MAGIC:
        raise ModelError(f"{str(file)!r} is not a GGUF file: it begins with {begins!r} instead of {_MAGIC!r}.")
    if (file.parent / "adapter_config.json").is_file():
        raise ModelError(
            f"there is a PEFT adapter (adapter_config.json) next to {file.name!r}, and transformers would apply it: "
            "move one of the two to another directory."
        )
    part = _PART.search(file.stem)
    if part is not None and int(part[1]) > 1:
        raise ModelError(
            f"{file.name!r} is one of {int(part[1])} parts of a model: join them first, with llama.cpp's "
            "llama-gguf-split --merge."
        )


def _kept(read: Callable[[Path], T]) -> Callable[[Path], T]:
    """Cache what `read` returns until the file changes, because parsing a large vocabulary takes seconds."""
    read_once = lru_cache(maxsize=8)(lambda file, size, time: read(file))

    @wraps(read)
    def read_again(file: Path) -> T:
        _require_whole(file)
        state = file.stat()
        return copy.deepcopy(read_once(file, state.st_size, state.st_mtime_ns))

    return read_again


@dataclass(frozen=True)
class _Content:
    """The contents of a GGUF file, except for its weights."""

    architecture: str
    stated: Mapping[str, Any]
    """Scalar metadata, keyed by name without the architecture (`rope.freq_base`)."""
    tensors: tuple[str, ...]
    n_elements: int
    rope_divisors: np.ndarray | None
    """One divisor for each inverse rotary frequency; None if the file has none."""
    storage: str


@_kept
def _content(file: Path) -> _Content:
    try:
        content = _parsed(file)
    except Exception as error:  # parsing a broken file may raise any error
        raise ModelError(f"{str(file)!r} is a broken GGUF file ({_first_line(error)}): copy it again.") from error
    if not content.tensors:
        raise ModelError(f"{str(file)!r} contains no weights.")
    stated, stored = content.stated.get("block_count"), len({name.split(".")[1] for name in _in_blocks(content)})
    if stored and stated != stored:
        raise ModelError(
            f"{str(file)!r} declares {stated} blocks, but contains the weights of {stored}: copy or convert it again."
        )
    return content


def _in_blocks(content: _Content) -> list[str]:
    return [name for name in content.tensors if name.startswith("blk.")]


def _parsed(file: Path) -> _Content:
    from gguf import GGUFReader, dequantize

    class Reader(GGUFReader):
        """A reader that stops at the end of the file; gguf's own reader trusts any array length stated in the file."""

        def _get(self, offset: int, dtype: Any, count: Any = 1, *more: Any, **options: Any) -> Any:
            if offset + int(count) * np.dtype(dtype).itemsize > len(self.data):
                raise ValueError("it ends early")
            return super()._get(offset, dtype, count, *more, **options)

    with np.errstate(over="ignore"):  # a broken offset may overflow; it is checked below
        reader = Reader(file)
    expected = 0
    for tensor in reader.tensors:  # without gaps, as llama.cpp writes and expects them
        offset = int(tensor.field.parts[-1][0])
        if offset != expected or math.prod(map(int, tensor.shape)) != tensor.n_elements:
            raise ValueError(f"{tensor.name} begins at {offset} instead of {expected}")
        expected += -(-tensor.n_bytes // int(reader.alignment)) * int(reader.alignment)
    architecture = str(reader.fields["general.architecture"].contents())
    stated = {
        name.removeprefix(f"{architecture}."): field.contents()
        for name, field in reader.fields.items()
        if name.startswith(f"{architecture}.") and len(field.types) == 1
    }
    counts: Counter[str] = Counter()
    for tensor in reader.tensors:
        counts[tensor.tensor_type.name] += int(tensor.n_elements)
    (most, count), *others = counts.most_common() or [("nothing", 0)]
    share = f" ({count / counts.total():.0%})" if others else ""
    divisors = next((tensor for tensor in reader.tensors if tensor.name == "rope_freqs.weight"), None)
    return _Content(
        architecture,
        stated,
        tuple(tensor.name for tensor in reader.tensors),
        counts.total(),
        None if divisors is None else dequantize(divisors.data, divisors.tensor_type).astype(float),
        ", ".join([f"{most}{share}", *(name for name, _ in others)]),
    )


def storage(file: Path) -> str:
    """Return the types in which a file stores its weights, most frequent type first: `Q4_1 (79%), Q8_0, F32`."""
    return _content(file).storage


@_kept
def load_config(file: Path) -> PreTrainedConfig:
    """Read a model's config from a GGUF file."""
    from transformers import AutoConfig

    content = _content(file)  # for a broken file, transformers' own message would be misleading
    config = AutoConfig.from_pretrained(str(file.parent), **reading(file))
    if hasattr(config, QUANTISED_ENTRY):
        delattr(config, QUANTISED_ENTRY)
    _complete(config, content, str(file))
    for name, value in config.to_dict().items():
        if isinstance(value, float):
            setattr(config, name, shortest(value))
    set_place(config, str(file))
    return config


_SAID_TWICE = {
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.layer_norm_epsilon": ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps"),
    "attention.sliding_window": ("sliding_window",),
    "attention.key_length": ("head_dim",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "use_parallel_residual": ("use_parallel_residual",),
}
"""Metadata about a model's computation, and the corresponding config entries (the first that exists is used)."""


def _complete(config: Any, content: _Content, name: str) -> None:
    """Add metadata that transformers' reader ignores to a config; raise an error for unsupported metadata."""
    entries = config.to_dict()
    for key, names in _SAID_TWICE.items():
        entry = next((each for each in names if each in entries), None)
        # Gemma 4 has two head sizes, each with its own entry, which the reader does set.
        if entry is not None and key in content.stated and not (entry == "head_dim" and "global_head_dim" in entries):
            setattr(config, entry, content.stated[key] or None)  # 0 means no window
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)  # some models use other frequencies in blocks with a sliding window
    if "rope_theta" in rope:
        rope["rope_theta"] = shortest(content.stated.get("rope.freq_base", rope["rope_theta"]))
    if "partial_rotary_factor" in rope and rope["rope_type"] == "default":
        heads = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        rope["partial_rotary_factor"] = content.stated.get("rope.dimension_count", heads) / heads
    # if a file has a factor but no type, llama.cpp scales linearly; early files use another name for the factor
    scaling = content.stated.get("rope.scaling.type", "linear")
    factor = content.stated.get("rope.scaling.factor", content.stated.get("rope.scale_linear")) or 1.0
    if scaling == "linear" and factor == 1:
        scaling = "none"
    if scaling == "linear" and rope.get("rope_type") == "default":
        rope |= {"rope_type": "linear", "factor": shortest(factor)}
    elif scaling not in ("none", rope.get("rope_type")):
        raise ModelError(
            f"{name!r} scales rotary frequencies ({scaling!r}) in a way that is not supported for GGUF files: pass "
            "the safetensors checkpoint from which it was converted."
        )
    if content.rope_divisors is not None and rope.get("rope_type") == "default":
        _divide(config, rope, content, name)
    if others := [each for each in content.tensors if each.startswith("rope_factors_")]:
        raise ModelError(
            f"{name!r} contains rotary factors ({others[0]}), which are not supported for GGUF files: pass the "
            "safetensors checkpoint from which it was converted."
        )


def _divide(config: Any, rope: dict[str, Any], content: _Content, name: str) -> None:
    """Set the Llama 3 RoPE scaling that yields a file's divisors, because llama.cpp stores only the divisors.

    All published models share the two wavelength factors, so only the original context length, a power of two, has to
    be determined.
    """
    divisors, plain = content.rope_divisors, inverse_frequencies(config)
    if divisors is None or np.allclose(divisors, 1):
        return
    before = dict(rope)
    for length in (8192, *(1 << power for power in range(3, 24))):
        scaling = {"rope_type": "llama3", "factor": float(np.float32(divisors.max())), "low_freq_factor": 1.0}
        rope |= {**scaling, "high_freq_factor": 4.0, "original_max_position_embeddings": length}
        scaled = inverse_frequencies(config)
        if scaled.shape == divisors.shape and np.allclose(scaled * divisors, plain, rtol=1e-4, atol=0):
            return
    rope.clear()
    rope.update(before)
    raise ModelError(
        f"{name!r} divides rotary frequencies (rope_freqs.weight) in a way that matches no known setting of Llama 3: "
        "pass the safetensors checkpoint from which it was converted."
    )


def require_fit(config: Any, file: Path) -> None:
    """Raise `ModelError` unless a file has enough weights for its model, and the model uses all tensors in its blocks.

    No weights are read. The check is needed because transformers' reader ignores unknown tensors and builds a model of
    any size.
    """
    import torch
    from transformers import AutoModelForCausalLM

    content = _content(file)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(copy.deepcopy(config))
    wanted = sum(weight.numel() for weight in model.parameters())
    if wanted > content.n_elements:
        raise ModelError(
            f"{str(file)!r} describes a model of {wanted:,} weights, but contains {content.n_elements:,}: copy or "
            "convert it again."
        )
    if left_out := gguf_tensors_left_out(model, content.architecture, _in_blocks(content)):
        raise ModelError(
            f"{str(file)!r} contains {len(left_out)} tensors that {type(model).__name__} does not use "
            f"({left_out[0]}), so a different model would be run: pass the safetensors checkpoint from which it was "
            "converted."
        )


@_kept
def load_tokenizer(file: Path) -> PreTrainedTokenizerFast:
    """Read a tokenizer from a GGUF file; raises the same errors as `load_config`."""
    from transformers import AutoTokenizer

    config = load_config(file)
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), **reading(file))
    # Some versions of transformers (5.17) use other special tokens than those named in the file. SmolLM2, for example,
    # would then end its answers with the token that opens a turn, and a model trained with this tokenizer would learn
    # to do so.
    for name in ("bos_token", "eos_token", "pad_token"):
        number = getattr(config, f"{name}_id", None)
        if isinstance(number, int) and 0 <= number < len(tokenizer):
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(number))
    return tokenizer


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")[:200]
