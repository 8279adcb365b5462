"""What is private or unstable in TransformerLens: how a Bridge wraps a model, and what its parts are called."""

from __future__ import annotations

import copy
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerFast


_WRAPPED = "_original_component"


def is_bridge(model: object) -> bool:
    """Whether a module is a `TransformerBridge` (asked without importing transformer_lens)."""
    return any(kind.__name__ == "TransformerBridge" for kind in type(model).__mro__)


def original_model(bridge: Any) -> Any:
    """The transformers model inside a Bridge."""
    return bridge.original_model


def in_compatibility_mode(bridge: Any) -> bool:
    """Whether the Bridge folded its weights, which then no longer are those of the checkpoint."""
    return bool(bridge.compatibility_mode)


def is_own_hook(hook: object) -> bool:
    """Whether TransformerLens works with a torch hook; those at a hook point carry a function of the user's."""
    ours = str(getattr(hook, "__module__", "")).startswith("transformer_lens.")
    return ours and not str(getattr(hook, "__qualname__", "")).startswith("HookPoint.add_hook.")


def has_wrapped_names(name: str) -> bool:
    """Whether a name in a state dict is one that wrapping made."""
    return _WRAPPED in name


def plain_name(name: str) -> str:
    """A weight's name as it was before its model was wrapped."""
    return name.replace(f".{_WRAPPED}", "").replace(f"{_WRAPPED}.", "")


def boot(
    name: str,
    model: Any,
    tokenizer: PreTrainedTokenizerFast | None,
    *,
    dtype: torch.dtype,
    device: str | None,
) -> TransformerBridge:
    """Wrap a transformers model, which is changed, in a Bridge without weight processing.

    TransformerLens loads the tokenizer a second time, by name: it gets one whose name is a directory.
    """
    from transformer_lens.model_bridge import TransformerBridge

    with ExitStack() as stack:
        return TransformerBridge.boot_transformers(
            name,
            hf_model=model,
            tokenizer=_reloadable(tokenizer, stack),
            dtype=dtype,
            device=device,
        )


def _reloadable(
    tokenizer: PreTrainedTokenizerFast | None, stack: ExitStack
) -> PreTrainedTokenizerFast | None:
    if tokenizer is None:
        return None
    from transformers import AutoTokenizer

    place = getattr(tokenizer, "name_or_path", "") or ""
    if "name_or_path" in tokenizer.init_kwargs and Path(place).is_dir():
        return copy.deepcopy(tokenizer)
    # only where it is needed: a killed process leaves its temporary directory
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="uds_lens-tokenizer-"))
    tokenizer.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)
