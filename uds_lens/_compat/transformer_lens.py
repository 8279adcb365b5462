"""Private or unstable internals of TransformerLens: how a Bridge wraps a model, and the names of its parts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerFast


_WRAPPED = "_original_component"


def is_bridge(model: object) -> bool:
    """Return whether a module is a `TransformerBridge` (without importing transformer_lens)."""
    return any(kind.__name__ == "TransformerBridge" for kind in type(model).__mro__)


def is_own_hook(hook: object) -> bool:
    """Return whether a torch hook is TransformerLens's own, rather than a user's function at a hook point."""
    ours = str(getattr(hook, "__module__", "")).startswith("transformer_lens.")
    return ours and not str(getattr(hook, "__qualname__", "")).startswith("HookPoint.add_hook.")


def plain_name(name: str) -> str:
    """Return the name that a weight had before its model was wrapped."""
    return name.replace(f".{_WRAPPED}", "").replace(f"{_WRAPPED}.", "")


def boot(
    name: str,
    model: Any,
    tokenizer: PreTrainedTokenizerFast | None,
    *,
    dtype: torch.dtype,
    device: str | None,
    scratch: Callable[[], AbstractContextManager[Path]],
) -> TransformerBridge:
    """Wrap a transformers model in a Bridge, without weight processing; the model is modified in place.

    TransformerLens reloads the tokenizer by name, so the name must be that of a directory. A tokenizer that was not
    loaded from a directory is first saved to one in `scratch`.
    """
    from transformer_lens.model_bridge import TransformerBridge

    with ExitStack() as stack:
        return TransformerBridge.boot_transformers(
            name, hf_model=model, tokenizer=_reloadable(tokenizer, stack, scratch), dtype=dtype, device=device
        )


def _reloadable(
    tokenizer: PreTrainedTokenizerFast | None, stack: ExitStack, scratch: Callable[[], AbstractContextManager[Path]]
) -> PreTrainedTokenizerFast | None:
    if tokenizer is None:
        return None
    from transformers import AutoTokenizer

    place = getattr(tokenizer, "name_or_path", "") or ""
    if "name_or_path" in tokenizer.init_kwargs and Path(place).is_dir():
        return copy.deepcopy(tokenizer)
    folder = stack.enter_context(scratch())
    tokenizer.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)
