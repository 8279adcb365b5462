"""A checkpoint, opened: the plain transformers model, and beside it a `TransformerBridge` on the same weights."""

from __future__ import annotations

import gc
import hashlib
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from uds_lens.compat.transformers import forget_longer_texts
from uds_lens.errors import ModelBusyError, ModelError, warn_once
from uds_lens.models.anatomy import Anatomy, anatomy_of
from uds_lens.models.bridge import bridge_on_shared_weights, require_agreement
from uds_lens.models.file_identity import CheckpointFiles, fingerprint_of_files
from uds_lens.models.fingerprint import fingerprint
from uds_lens.models.live_changes import LiveChange, behaviour_changes, module_changes

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

    It serves one thread at a time: passes put hooks on it. Open a model once for each thread.
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
        forget_longer_texts(hf)
        self._bridge = bridge
        self._no_bridge = False
        self._lender: HookedModel | None = None
        self._fingerprint: str | None = None
        self._turn = _Turn()
        self._swapped = [] if owned or bridge is not None else module_changes(hf)
        self.keeps_weights = False
        """Set by who opened the model and shows it to nobody: its weights stay as they are, and are hashed once."""
        self.files: CheckpointFiles | None = None
        """The files it was loaded from, if they are on this machine."""
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

    @contextmanager
    def held(self) -> Iterator[HookedModel]:
        """For this thread alone, until the block ends; the same thread may hold it again meanwhile.

        Raises:
            ModelBusyError: Another thread holds the model.
        """
        if not self._turn.taken():
            raise ModelBusyError(
                f"{self.name!r} is run by another thread: a HookedModel serves one thread at a time, since hooks "
                "are put on it while it runs. Open the model once for each thread."
            )
        try:
            yield self
        finally:
            self._turn.given_back()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around every pass: held, and in the model's own dtype whatever `torch.autocast` says.

        Raises:
            ModelBusyError: Another thread holds the model.
        """
        with self.held(), torch.autocast(self.device.type, enabled=False):
            yield

    def close(self) -> None:
        """Let go of the model; free its memory if `open_model` loaded it. Closing twice is harmless."""
        if self._hf is None:
            return
        on_gpu = self.device.type == "cuda"
        weights = [weakref.ref(weight) for weight in self._hf.parameters()]
        self._hf = self._bridge = self._anatomy = None
        if self._owned:
            # A plain model is gone with its last reference. A Bridge refers to itself in circles: only a collection
            # ends it, and that walks every object of the process, a quarter of a second in a notebook.
            if any(weight() is not None for weight in weights):
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
        if not self.is_wrapped and (changes := self.changes):
            raise ModelError(
                f"TransformerLens cannot wrap {self.name!r}: it has {_told(changes)}, which a Bridge might not run. "
                "Put it on a TransformerBridge of your own, and hand that over."
            )
        if self._bridge is None and self._lender is not None and self._lender._hf is self.hf:
            self._bridge = self._lender.bridge
        if self._bridge is None:
            self._bridge = bridge_on_shared_weights(self.hf, self.tokenizer, name=self.name)
        return self._bridge

    @property
    def has_bridge(self) -> bool:
        """Whether TransformerLens can wrap the model; where it cannot, warns once and says what is left."""
        if not self.is_wrapped and self.changes:
            return False  # `bridge` says why
        if self._no_bridge:
            return False
        try:
            if not self.is_wrapped:
                require_agreement(self.bridge, self.hf, name=self.name)
            return True
        except ModelError as error:
            self._no_bridge = True
            warn_once(
                f"{error} Falling back to plain forward hooks on its {self.n_layers} blocks: site 'resid_post' "
                "works as before, the sites inside a block do not.",
                key=f"no bridge {self.name} {self.fingerprint}: {error}",
            )
            return False

    @property
    def changes(self) -> list[LiveChange]:
        """What the model does beyond its weights: hooks and forwards on it now, modules it was handed over with."""
        model = self._bridge if self.is_wrapped and self._bridge is not None else self.hf
        return behaviour_changes(model) + self._swapped

    @property
    def runs_hooks(self) -> bool:
        """Whether somebody's hooks or forwards are on the model, which its blocks may not be run apart from."""
        return any(change.kind != "module" for change in self.changes)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of what the model computes now: weights (see `uds_lens.models.fingerprint`) and `changes`.

        Hashed anew each time, because a live model may be trained between two audits; of a quantised model once,
        because its kernels may repack the weights at the first pass. Changes cannot be hashed: a model that has some
        equals nothing but itself, with the same ones, in this process.
        """
        weights = self._weights_fingerprint()
        changes = sorted(self.changes)
        if not changes:
            return weights
        return hashlib.blake2b(repr((weights, changes)).encode(), digest_size=16).hexdigest()

    def _weights_fingerprint(self) -> str:
        if self._fingerprint is not None:
            return self._fingerprint
        if self.keeps_weights and self.files is not None:
            found = fingerprint_of_files(self.hf, self.files)
        else:
            found = fingerprint(self.hf)
        if self.keeps_weights or getattr(self.hf, "is_quantized", False):
            self._fingerprint = found
        return found

    def lent(self) -> HookedModel:
        """A handle on the same model that may be closed without closing it; its weights stay as they are meanwhile."""
        handle = HookedModel(self.hf, self.tokenizer, name=self.name, owned=True, bridge=self._bridge)
        handle._owned, handle._lender = False, self
        handle.is_wrapped, handle._swapped, handle._turn = self.is_wrapped, self._swapped, self._turn
        handle._fingerprint, handle.keeps_weights = self._weights_fingerprint(), True
        return handle

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


class _Turn:
    """Which thread runs a model, and how many of its blocks are inside one another; handles on one model share it."""

    def __init__(self) -> None:
        self._door, self._thread, self._depth = threading.Lock(), 0, 0

    def taken(self) -> bool:
        """Whether this thread may run the model; it then has to give it back."""
        me = threading.get_ident()
        with self._door:
            if self._depth and self._thread != me:
                return False
            self._thread, self._depth = me, self._depth + 1
            return True

    def given_back(self) -> None:
        """One block of this thread has ended."""
        with self._door:
            self._depth -= 1


def _told(changes: list[LiveChange]) -> str:
    """Some changes, in words."""
    words = {"hook": "a hook", "forward": "another forward", "module": "another module"}
    first = changes[0]
    more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
    return f"{words[first.kind]} at {first.place or 'its root'!r}{more}"
