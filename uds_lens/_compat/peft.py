"""What is private or unstable in PEFT: its wrappers around a model, and what it says as a warning only."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def has_adapters(model: object) -> bool:
    """Whether a model is wrapped by PEFT (asked without importing it)."""
    return hasattr(model, "disable_adapter")


def adapters_off(model: Any) -> AbstractContextManager[None]:
    """A block in which the adapters of a wrapped model do nothing."""
    return model.disable_adapter()


def without_wrappers(model: nn.Module) -> Any:
    """The transformers model inside the wrappers of data-parallel training and of PEFT."""
    inner: Any = model
    while hasattr(inner, "module"):
        inner = inner.module
    return inner.get_base_model() if hasattr(inner, "get_base_model") else inner


def merge_adapters(model: Any) -> Any:
    """The plain model, adapters merged into its weights; a model without adapters as it is."""
    return model.merge_and_unload() if hasattr(model, "merge_and_unload") else model


@contextmanager
def quiet_wrapping() -> Iterator[None]:
    """No warning that PEFT asks transformers for `is_gradient_checkpointing`, a property by its old name."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        yield


def merged(base: Any, adapter: str) -> Any:
    """The base model with an adapter's weights added to its own.

    Args:
        base: The model; it is changed.
        adapter: Directory of the adapter.

    Raises:
        UserWarning: Keys that do not match would leave the adapter at its initial values: as if there were none, or
            random.
    """
    from peft import PeftModel

    with quiet_wrapping():
        warnings.filterwarnings("error", message="(?s).*missing adapter keys.*")
        return PeftModel.from_pretrained(base, adapter).merge_and_unload()


def is_adapted(model: object) -> bool:
    """Whether a live model is one of PEFT's wrappers."""
    return any(kind.__module__.startswith("peft.") for kind in type(model).__mro__)


def model_inside(wrapper: Any) -> Any | None:
    """The transformers model inside a wrapper, with the adapter's layers in place; None where it alters the prompt."""
    return None if wrapper.active_peft_config.is_prompt_learning else wrapper.get_base_model()


def adapter_state(module: object) -> str:
    """What an adapter's layer does beside its weights: which adapters are active or merged, and how they are scaled."""
    if not type(module).__module__.startswith("peft."):
        return ""
    names = ("active_adapters", "merged_adapters", "disable_adapters", "scaling")
    return repr([getattr(module, name, None) for name in names])
