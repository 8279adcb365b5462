"""The parts of a transformers decoder: its blocks, its final norm, its head.

The engines of `uds_lens.patching` access models only through this map, so no other file needs a family's names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from uds_lens.errors import ModelError, Setting

FINAL_NORM_NAMES = ("norm", "ln_f", "final_layer_norm", "final_layernorm", "final_norm")


@dataclass(frozen=True, eq=False)
class Anatomy:
    """The parts of one causal language model, as references into it."""

    causal_lm: nn.Module
    """The whole model with its head; calling it returns an output with `.logits`."""

    base: nn.Module
    """The decoder without head; calling it returns an output with `.last_hidden_state`."""

    root: nn.Module
    """The module that holds the blocks; usually `base` itself."""

    layers: nn.ModuleList
    """The blocks, in execution order."""

    final_norm: nn.Module
    """The norm between the last block and the head."""

    @property
    def n_layers(self) -> int:
        """Number of blocks."""
        return len(self.layers)

    @property
    def d_vocab(self) -> int:
        """Number of logits."""
        return int(self.text_config.vocab_size)

    @property
    def text_config(self) -> Any:
        """Configuration of the text model."""
        config: Any = self.causal_lm.config
        return config.get_text_config()

    @cached_property
    def keeps_masks(self) -> bool:
        """Whether blocks hold a square buffer (GPT-Neo's local attention): a mask by position in the key layout."""
        return any(b.ndim >= 2 and b.shape[-1] == b.shape[-2] > 1 for b in self.layers.buffers())

    def unembed(self, normed: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_vocab"]:
        """Return the logits of states that already passed the final norm.

        The model's own `forward` runs with its decoder stubbed, so that a family's soft-capping, logit scaling and head
        biases apply automatically.

        Args:
            normed: States after the final norm.

        Returns:
            Logits in the model's dtype.
        """
        output = _DecoderOutput(normed.unsqueeze(0))
        dummy = torch.zeros(1, 1, dtype=torch.long, device=normed.device)

        def stub(*args: Any, **kwargs: Any) -> _DecoderOutput:
            return output

        with forward_replaced(self.base, stub), forward_replaced(self.root, stub):
            logits = self.causal_lm(input_ids=dummy, use_cache=False).logits[0]
        if len(logits) != len(normed):
            raise ModelError(
                f"{type(self.causal_lm).__name__} computes its logits from something other than its decoder's last "
                "state: its head cannot be applied alone. Use ",
                Setting("engine", "naive"),
                ".",
            )
        return logits


def anatomy_of(causal_lm: nn.Module) -> Anatomy:
    """Find the parts of a transformers causal language model.

    Args:
        causal_lm: A plain transformers model, or the one inside a `TransformerBridge`.

    Raises:
        ModelError: The model is not of the expected form (an inner model with a list of blocks and a norm, a head); the
            message says what is missing, and what a model must have.
    """
    model: Any = causal_lm
    text = model.config.get_text_config()
    entries = ("hidden_size", "num_hidden_layers", "vocab_size")
    if absent := [entry for entry in entries if not isinstance(getattr(text, entry, None), int)]:
        raise _unfit(model, f"its config does not give {' and '.join(absent)}")
    depth = text.num_hidden_layers
    # Llama-4 declares a prefix other than the one it uses.
    named = (getattr(model, name, None) for name in (getattr(model, "base_model_prefix", ""), "model") if name)
    base = next((inner for inner in named if isinstance(inner, nn.Module) and inner is not model), None)
    if base is None:
        raise _unfit(model, "it has no inner model")
    if model.get_output_embeddings() is None:
        raise _unfit(model, "it has no language-model head")
    for root in filter(None, (base, getattr(base, "decoder", None))):
        layers = next((m for m in root.children() if isinstance(m, nn.ModuleList) and len(m) == depth), None)
        norm = next((getattr(root, n) for n in FINAL_NORM_NAMES if getattr(root, n, None) is not None), None)
        if layers is not None and norm is not None:
            return Anatomy(causal_lm=causal_lm, base=base, root=root, layers=layers, final_norm=norm)
    raise _unfit(model, f"its inner model ({type(base).__name__}) has no list of {depth} blocks with a final norm")


def _unfit(model: Any, why: str) -> ModelError:
    """Say what a model lacks, and what it must have."""
    return ModelError(
        f"{type(model).__name__} is not a decoder of the expected form: {why}. Expected: an inner model, named by "
        "base_model_prefix or `model`, which returns last_hidden_state; in it (or its `decoder`) one ModuleList of "
        f"num_hidden_layers blocks, and a norm after them ({', '.join(FINAL_NORM_NAMES)}); a head that "
        "get_output_embeddings() returns; and hidden_size, num_hidden_layers and vocab_size in the config. Load causal "
        "language models with AutoModelForCausalLM, and the text model of a multimodal one on its own; "
        "encoder-decoders and models without attention (Mamba, RWKV) are not supported."
    )


class _DecoderOutput:
    """Decoder output for a head: it has the states, and None for everything else (caches, router logits)."""

    def __init__(self, states: Tensor) -> None:
        self.last_hidden_state = states

    def __getitem__(self, place: int) -> Tensor:
        return (self.last_hidden_state,)[place]

    def __getattr__(self, name: str) -> None:
        return None


@contextmanager
def forward_replaced(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Replace a module's `forward` inside the `with` block."""
    before = {name: value for name, value in vars(module).items() if name == "forward"}
    module.__dict__["forward"] = forward  # a Bridge's blocks pass attributes on to what they wrap
    try:
        yield
    finally:
        del module.__dict__["forward"]
        vars(module).update(before)


_PLAIN = {"return_dict": True, "output_router_logits": False}
"""Settings that change the form of a forward's output, not its values."""


def set_plain_outputs(config: Any) -> None:
    """Set the output format that the library reads: saved checkpoints keep the one used in training."""
    for part in {id(c): c for c in (config, config.get_text_config())}.values():
        for name, value in _PLAIN.items():
            if getattr(part, name, value) != value:
                setattr(part, name, value)


def require_plain_outputs(config: Any, name: str) -> None:
    """Raise `ModelError` unless a live model has the output format that the library reads."""
    for part in (config, config.get_text_config()):
        for setting, value in _PLAIN.items():
            if getattr(part, setting, value) != value:
                raise ModelError(
                    f"the live model {name!r} is used as it is, and its config has {setting}="
                    f"{getattr(part, setting)!r}: set model.config.{setting} = {value!r} first."
                )
