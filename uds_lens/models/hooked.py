"""A checkpoint, opened: the plain transformers model, and beside it a `TransformerBridge` on the same weights."""

from __future__ import annotations

import gc
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from uds_lens.errors import ModelError, warn_once
from uds_lens.models.anatomy import Anatomy, anatomy_of
from uds_lens.models.bridge import bridge_on_shared_weights
from uds_lens.models.fingerprint import fingerprint

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


class HookedModel:
    """One model, ready to be read and patched; made by `open_model`.

    Two views of one set of weights: `hf`, the transformers model, for the fast paths, and `bridge`, a
    TransformerLens `TransformerBridge`, built when it is first asked for, for hooks. Neither copies a weight,
    and a model handed over by the caller is never wrapped itself.

    Use it in a `with` block: leaving the block frees the memory of what `open_model` loaded. A model that the
    caller handed over stays the caller's.
    """

    def __init__(
        self,
        hf: PreTrainedModel | nn.Module,
        tokenizer: PreTrainedTokenizerFast | None,
        *,
        name: str,
        owned: bool,
        bridge: TransformerBridge | None = None,
    ) -> None:
        self._hf: Any = hf
        self._bridge = bridge
        self._fingerprint: str | None = None
        self.is_wrapped = bridge is not None
        """Whether `hf` is the model inside a Bridge that the caller handed over."""
        self.tokenizer = tokenizer
        self.name = name
        self._owned = owned
        self._anatomy: Anatomy | None = anatomy_of(hf)

    def __enter__(self) -> HookedModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._hf is None:
            return f"HookedModel({self.name!r}, closed)"
        return (
            f"HookedModel({self.name!r}, {self.architecture}, {self.n_layers} layers, d_model {self.d_model}, "
            f"{str(self.dtype).removeprefix('torch.')}, {self.device})"
        )

    def close(self) -> None:
        """Let go of the model; free its memory if `open_model` loaded it. Closing twice is harmless."""
        if self._hf is None:
            return
        on_gpu = self.device.type == "cuda"
        self._hf = self._bridge = self._anatomy = None
        if self._owned:
            gc.collect()
            if on_gpu:
                torch.cuda.empty_cache()

    @property
    def hf(self) -> PreTrainedModel:
        """The plain transformers model (the one inside the Bridge, if a Bridge was handed over)."""
        if self._hf is None:
            raise ModelError(
                f"{self.name!r} is closed: use the model inside its `with open_model(...)` block."
            )
        return self._hf

    @property
    def anatomy(self) -> Anatomy:
        """Where the parts of `hf` are."""
        return self._anatomy if self._anatomy is not None else anatomy_of(self.hf)

    @property
    def bridge(self) -> TransformerBridge:
        """TransformerLens's view of the same weights, built on first use (imports transformer_lens)."""
        if self._bridge is None:
            self._bridge = bridge_on_shared_weights(self.hf, self.tokenizer, name=self.name)
        return self._bridge

    @cached_property
    def has_bridge(self) -> bool:
        """Whether TransformerLens can wrap the model; where it cannot, warns once and says what is left."""
        try:
            return self.bridge is not None
        except ModelError as error:
            warn_once(
                f"{error} Falling back to plain forward hooks on its {self.n_layers} blocks: site 'resid_post' "
                "works as before, the sites inside a block do not.",
                key=f"no bridge {self.architecture}",
            )
            return False

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the weights as they are now (see `uds_lens.models.fingerprint`).

        Hashed anew each time, because a live model may be trained between two audits; of a quantised model once,
        because its kernels may repack the weights at the first pass.
        """
        if not getattr(self.hf, "is_quantized", False):
            return fingerprint(self.hf)
        if self._fingerprint is None:
            self._fingerprint = fingerprint(self.hf)
        return self._fingerprint

    @property
    def architecture(self) -> str:
        """Name of the transformers class, for example `LlamaForCausalLM`."""
        return type(self.hf).__name__

    @property
    def n_layers(self) -> int:
        """Number of blocks."""
        return self.anatomy.n_layers

    @property
    def d_model(self) -> int:
        """Width of the residual stream."""
        return int(self.hf.config.get_text_config().hidden_size)

    @property
    def d_vocab(self) -> int:
        """Number of rows of the input embedding."""
        return int(self.hf.get_input_embeddings().weight.shape[0])

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the activations (that of the first floating-point weight)."""
        return next((p.dtype for p in self.hf.parameters() if p.is_floating_point()), torch.float32)

    @property
    def device(self) -> torch.device:
        """Device that token ids go to (that of the input embedding)."""
        return self.hf.get_input_embeddings().weight.device
