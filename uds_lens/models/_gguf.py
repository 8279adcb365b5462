"""GGUF files (llama.cpp) as checkpoints: found, described, and opened by transformers' reader."""

from __future__ import annotations

import copy
import os
import re
from collections import Counter
from collections.abc import Callable
from functools import lru_cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from uds_lens._compat.transformers import QUANTISED_ENTRY, set_place
from uds_lens._optional_packages import require_package
from uds_lens.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerFast

T = TypeVar("T")

SUFFIX = ".gguf"

_MAGIC = b"GGUF"

_WHOLE = ("model*.safetensors*", "pytorch_model*.bin*")
"""Names of weights in transformers' own layout, which come first where a directory holds both."""

_PART = re.compile(r"-\d{5}-of-(\d{5})$")
"""End of the name of a part, as llama.cpp's gguf-split writes them."""


def gguf_file(place: str | os.PathLike[str]) -> Path | None:
    """Return the GGUF file that a path stands for: itself, or the only one in a directory without other weights."""
    path = Path(place)
    if path.is_file() and path.suffix.lower() == SUFFIX:
        return path
    if not path.is_dir() or any(any(path.glob(pattern)) for pattern in _WHOLE):
        return None
    files = sorted(file for file in path.iterdir() if file.suffix.lower() == SUFFIX and file.is_file())
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:4])
        raise ModelError(f"{str(path)!r} holds {len(files)} GGUF files ({names}): name one of them.")
    return files[0] if files else None


def reading(file: Path) -> dict[str, Any]:
    """Return the words with which transformers' `from_pretrained` reads a file of this kind."""
    _require_whole(file)
    return {"gguf_file": file.name, "local_files_only": True, "trust_remote_code": False}


def _require_whole(file: Path) -> None:
    require_package("gguf", needed_by=f"{file.name} is a GGUF file, and those need")
    try:
        with file.open("rb") as stream:
            begins = stream.read(len(_MAGIC))
    except OSError as error:
        raise ModelError(f"cannot read {str(file)!r}: {error.strerror}. Check the path and its permissions.") from error
    if begins != _MAGIC:
        raise ModelError(f"{str(file)!r} is no GGUF file: it begins with {begins!r} instead of {_MAGIC!r}.")
    if (file.parent / "adapter_config.json").is_file():
        raise ModelError(
            f"beside {file.name!r} lies a PEFT adapter (adapter_config.json), which transformers would apply to it: "
            "move one of them to a directory of its own."
        )
    part = _PART.search(file.stem)
    if part is not None and int(part[1]) > 1:
        raise ModelError(
            f"{file.name!r} is one of {int(part[1])} parts of a model: join them first, with llama.cpp's "
            "llama-gguf-split --merge."
        )


def _kept(read: Callable[[Path], T]) -> Callable[[Path], T]:
    """Keep what was read of a file until it changes: each reader parses it anew, seconds for a large vocabulary."""
    read_once = lru_cache(maxsize=8)(lambda file, size, time: read(file))

    @wraps(read)
    def read_again(file: Path) -> T:
        _require_whole(file)
        state = file.stat()
        return copy.deepcopy(read_once(file, state.st_size, state.st_mtime_ns))

    return read_again


@_kept
def storage(file: Path) -> str:
    """Return how a file stores its weights, the type of most weights first: `Q4_1 (79%), Q8_0, F32`."""
    from gguf import GGUFReader

    try:
        counts: Counter[str] = Counter()
        for tensor in GGUFReader(file).tensors:
            counts[tensor.tensor_type.name] += int(tensor.n_elements)
    except Exception as error:  # whatever parsing broken bytes raises
        raise ModelError(f"{str(file)!r} is a broken GGUF file ({_first_line(error)}): copy it again.") from error
    if not counts:
        raise ModelError(f"{str(file)!r} holds no weights.")
    (most, count), *others = counts.most_common()
    share = f" ({count / counts.total():.0%})" if others else ""
    return ", ".join([f"{most}{share}", *(name for name, _ in others)])


@_kept
def load_config(file: Path) -> PreTrainedConfig:
    """Read a model's config from a GGUF file."""
    from transformers import AutoConfig

    storage(file)  # of a broken file transformers says that its config is no JSON, or less
    config = AutoConfig.from_pretrained(str(file.parent), **reading(file))
    if hasattr(config, QUANTISED_ENTRY):
        delattr(config, QUANTISED_ENTRY)
    for name, value in config.to_dict().items():
        if isinstance(value, float):
            setattr(config, name, shortest(value))
    if rope := getattr(config, "rope_parameters", None):
        rope.update({name: shortest(value) for name, value in rope.items() if isinstance(value, float)})
    set_place(config, str(file))
    return config


@_kept
def load_tokenizer(file: Path) -> PreTrainedTokenizerFast:
    """Read a tokenizer from a GGUF file; errors as for `load_config`."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), **reading(file))
    config = load_config(file)
    # Some versions of the reader (5.17) take another token than the one the file names: SmolLM2 then ends its answers
    # with the token that opens a turn, and a model trained on them learns that.
    for name in ("bos_token", "eos_token", "pad_token"):
        number = getattr(config, f"{name}_id", None)
        if isinstance(number, int) and 0 <= number < len(tokenizer):
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(number))
    return tokenizer


def shortest(value: float) -> float:
    """Return the number that was meant by one that went through float32, as those of GGUF do.

    >>> shortest(9.999999747378752e-06), shortest(0.1)
    (1e-05, 0.1)
    """
    return float(str(np.float32(value))) if float(np.float32(value)) == value else value


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")[:200]
