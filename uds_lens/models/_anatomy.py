"""The parts of a transformers decoder: its blocks, final norm and head.

The engines in `uds_lens.patching` access models only through `Anatomy`, so only this module needs to know the attribute
names of a model family.
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
    """The parts of a causal language model, as references to its modules."""

    causal_lm: nn.Module
    """The complete model, including its head; calling it returns an output with `.logits`."""

    base: nn.Module
    """The decoder without the head; calling it returns an output with `.last_hidden_state`."""

    root: nn.Module
    """The module that contains the blocks; usually `base` itself."""

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
        """Whether blocks have a square buffer: an attention mask by position (as in GPT-Neo's local attention)."""
        return any(b.ndim >= 2 and b.shape[-1] == b.shape[-2] > 1 for b in self.layers.buffers())

    def unembed(self, normed: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_vocab"]:
        """Return the logits for hidden states that have already passed the final norm.

        The model's own `forward` runs with a stub in place of its decoder, so soft-capping, logit scaling and head
        biases apply as usual.

        Args:
            normed: Hidden states after the final norm.

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
                f"{type(self.causal_lm).__name__} does not compute its logits from its decoder's last hidden state "
                "alone, so its head cannot be applied separately. Use ",
                Setting("engine", "naive"),
                ".",
            )
        return logits


def anatomy_of(causal_lm: nn.Module) -> Anatomy:
    """Find the parts of a transformers causal language model.

    Args:
        causal_lm: A plain transformers model, or the one inside a `TransformerBridge`.

    Raises:
        ModelError: The model does not have the expected parts (an inner model with a list of blocks and a final norm,
            and a head). The message says what is missing and what is expected.
    """
    model: Any = causal_lm
    text = model.config.get_text_config()
    entries = ("hidden_size", "num_hidden_layers", "vocab_size")
    if absent := [entry for entry in entries if not isinstance(getattr(text, entry, None), int)]:
        raise _unfit(model, f"its config does not define {' and '.join(absent)}")
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
    """Return an error that says what a model lacks and what is expected."""
    return ModelError(
        f"{type(model).__name__} is not a decoder with the expected parts: {why}. Expected: an inner model, named by "
        "base_model_prefix or `model`, that returns last_hidden_state; in it (or its `decoder`), one ModuleList "
        f"of num_hidden_layers blocks, followed by a norm ({', '.join(FINAL_NORM_NAMES)}); a head that "
        "get_output_embeddings() returns; and hidden_size, num_hidden_layers and vocab_size in the config. Load causal "
        "language models with AutoModelForCausalLM, and from a multimodal model only its text model. "
        "Encoder-decoder models and models without attention (Mamba, RWKV) are not supported."
    )


class _DecoderOutput:
    """Decoder output for the head: the hidden states, and None for everything else (caches, router logits)."""

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
    module.__dict__["forward"] = forward  # not `setattr`: a Bridge's blocks pass attributes on to the modules they wrap
    try:
        yield
    finally:
        del module.__dict__["forward"]
        vars(module).update(before)


_PLAIN = {"return_dict": True, "output_router_logits": False}
"""Settings that change the format of a model's output, but not its values."""


def set_plain_outputs(config: Any) -> None:
    """Set the output format that this library reads, because saved checkpoints keep the format used in training."""
    for part in {id(c): c for c in (config, config.get_text_config())}.values():
        for name, value in _PLAIN.items():
            if getattr(part, name, value) != value:
                setattr(part, name, value)


def require_plain_outputs(config: Any, name: str) -> None:
    """Raise `ModelError` unless a live model has the output format that this library reads."""
    for part in (config, config.get_text_config()):
        for setting, value in _PLAIN.items():
            if getattr(part, setting, value) != value:
                raise ModelError(
                    f"the config of the live model {name!r} has {setting}={getattr(part, setting)!r}, and live models "
                    f"are not modified: set model.config.{setting} = {value!r} first."
                )
