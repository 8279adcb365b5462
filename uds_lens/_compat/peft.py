"""Private or unstable internals of PEFT: its model wrappers, and errors that it only reports as warnings."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from uds_lens.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import nn


def has_adapters(model: object) -> bool:
    """Return whether a model is wrapped by PEFT (without importing PEFT)."""
    return hasattr(model, "disable_adapter")


def without_wrappers(model: nn.Module) -> Any:
    """Return the transformers model inside any data-parallel and PEFT wrappers."""
    inner: Any = model
    while hasattr(inner, "module"):
        inner = inner.module
    return inner.get_base_model() if hasattr(inner, "get_base_model") else inner


def merge_adapters(model: Any) -> Any:
    """Return the plain model with its adapters merged into the weights; a model without adapters is returned unchanged.

    If several modules share a weight that has an adapter (as with a tied head), each module gets its own copy first,
    because the adapter changes only one of them.

    Raises:
        ModelError: PEFT cannot merge all adapters.
    """
    if not hasattr(model, "merge_and_unload"):
        return model
    _untie(model.get_base_model())
    plain = model.merge_and_unload()
    if (left := next((name for name, module in plain.named_modules() if is_adapted(module)), None)) is not None:
        raise ModelError(
            f"PEFT cannot merge all adapters: {left!r} has two, and PEFT merges only one of them (trainable tokens "
            "next to another adapter, for example). Use the model without merging, or train one adapter per weight."
        )
    return plain


def _untie(model: Any) -> None:
    """Untie shared weights if one of the modules that share them has an adapter or is replaced entirely."""
    owners: dict[int, list[tuple[nn.Module, str]]] = {}
    changed = set()
    for module in model.modules():
        if is_adapted(module):
            changed |= {id(getattr(module, name, None)) for name in ("base_layer", "original_module")}
            continue
        for name, weight in module._parameters.items():
            if weight is not None:
                owners.setdefault(id(weight), []).append((module, name))
    shared = [places for places in owners.values() if len(places) > 1]
    if not any(id(module) in changed for places in shared for module, _ in places):
        return
    for (first, name), *others in shared:
        weight = first.get_parameter(name)
        for module, other in others:
            setattr(module, other, type(weight)(weight.detach().clone(), requires_grad=weight.requires_grad))
    for config in (model.config, model.config.get_text_config()):
        config.tie_word_embeddings = False


def save_adapter(model: Any, folder: Path, *, base: str, dtype: torch.dtype) -> None:
    """Save a wrapped model's adapter without the base model, and round the adapter in memory to the saved values."""
    from peft import get_peft_model_state_dict, set_peft_model_state_dict
    from safetensors.torch import save_file

    state = get_peft_model_state_dict(model, save_embedding_layers=False)
    saved = {name: weight.detach().to("cpu", dtype).contiguous() for name, weight in state.items()}
    save_file(saved, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = copy.copy(model.peft_config[model.active_adapter])
    config.base_model_name_or_path, config.inference_mode = base, True
    config.save_pretrained(str(folder))
    set_peft_model_state_dict(model, {name: weight.to(state[name].dtype) for name, weight in saved.items()})


@contextmanager
def quiet_wrapping() -> Iterator[None]:
    """Silence PEFT warnings that do not concern the user.

    The warnings concern an old name in transformers (`is_gradient_checkpointing`), tied weights (which `merge_adapters`
    handles), and embeddings that are saved together with their adapter during training.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        warnings.filterwarnings("ignore", message="Model (with|has) `tie_word_embeddings=True`")
        warnings.filterwarnings("ignore", message="Setting `save_embedding_layers` to `True`")
        yield


def merged(base: Any, adapter: str) -> Any:
    """Return a base model with an adapter merged into its weights."""
    from peft import PeftModel

    with quiet_wrapping():
        warnings.filterwarnings("error", message="(?s).*missing adapter keys.*")
        return merge_adapters(PeftModel.from_pretrained(base, adapter))


def is_adapted(model: object) -> bool:
    """Return whether an object is one of PEFT's wrappers or layers."""
    return any(kind.__module__.startswith("peft.") for kind in type(model).__mro__)


def model_inside(wrapper: Any) -> Any | None:
    """Return the model inside a PEFT wrapper, including the adapter's layers; None if the adapter alters the prompt."""
    return None if wrapper.active_peft_config.is_prompt_learning else wrapper.get_base_model()


def adapter_state(module: object) -> str:
    """Describe the state of an adapter layer apart from the weights: active and merged adapters, and scales."""
    if not type(module).__module__.startswith("peft."):
        return ""
    names = ("active_adapters", "merged_adapters", "disable_adapters", "scaling")
    return repr([getattr(module, name, None) for name in names])
