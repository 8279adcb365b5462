"""An open checkpoint: the plain transformers model, and a `TransformerBridge` on the same weights.

`open_model` opens a directory, a Hub id, a live transformers model or a live Bridge as a `HookedModel`.
"""

from __future__ import annotations

import copy
import gc
import hashlib
import itertools
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary, WeakSet

import torch
from jaxtyping import Int
from torch import Tensor, nn

from uds_lens._compat.accelerate import is_moved, is_offloaded, is_placed, runs_on
from uds_lens._compat.glibc import give_back_memory
from uds_lens._compat.peft import adapter_state, is_adapted, model_inside
from uds_lens._compat.torch import (
    COMPILED,
    altered_modules,
    compiled_module,
    forward_hooks_of,
    hook_tables,
    is_out_of_memory,
)
from uds_lens._compat.transformer_lens import boot, is_bridge, is_own_hook
from uds_lens._compat.transformers import attention_of, forget_longer_texts, is_plain_decoder
from uds_lens._progress import tell
from uds_lens._storage.files import SpillFolder
from uds_lens._types import DType, check_choice
from uds_lens.errors import ModelBusyError, ModelError, Setting, warn_once
from uds_lens.models._anatomy import Anatomy, anatomy_of, require_plain_outputs, set_plain_outputs
from uds_lens.models._checkpoint import (
    LOADING,
    ROUNDING,
    checkpoint_folders,
    keep_plain_format,
    load_tokenizer,
    load_weights,
    on_device,
    storage_of,
)
from uds_lens.models._fingerprint import (
    CheckpointFiles,
    checkpoint_files,
    fingerprint,
    fingerprint_of_files,
    hashing,
    known_fingerprints,
    loaded_from,
)

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


def clone_sharing_weights(model: nn.Module) -> nn.Module:
    """Copy a module tree without its tensors; parameters and buffers are shared with the original.

    Hooks already on the original also run on the copy; hooks added later do not.

    Args:
        model: Any module.

    Returns:
        A module of the same structure whose parameters are the same objects.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> twin = clone_sharing_weights(layer)
        >>> twin is layer, twin.weight is layer.weight
        (False, True)
    """
    memo: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    for module in model.modules():
        for hooks in hook_tables(module):
            memo[id(hooks)] = copy.copy(hooks)
    return copy.deepcopy(model, memo)


def bridge_on_shared_weights(
    model: nn.Module, tokenizer: PreTrainedTokenizerFast | None, *, name: str
) -> TransformerBridge:
    """Boot a `TransformerBridge` that shares its weights with `model` and leaves `model` untouched.

    `boot_transformers` modifies the model that it wraps, so the Bridge gets a copy with new module objects and its own
    config, but the same weight tensors.

    Args:
        model: A plain transformers causal language model.
        tokenizer: Its tokenizer; the Bridge gets a copy.
        name: Name of the model in the Bridge.

    Returns:
        The Bridge, in the model's dtype and with eager attention, without weight processing.

    Raises:
        ModelError: TransformerLens does not know the architecture, or fails to wrap it.
    """
    if is_offloaded(model):
        raise ModelError(
            f"TransformerLens cannot share the weights of {name!r}: accelerate keeps some of them on disk or moves "
            "them when they are needed."
        )
    twin: Any = clone_sharing_weights(model)
    if not getattr(twin.config, "architectures", None):
        twin.config.architectures = [type(model).__name__]
    dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
    try:
        device = None if is_placed(model) else str(next(model.parameters()).device)
        with LOADING:
            return boot(name, twin, tokenizer, dtype=dtype, device=device, scratch=SpillFolder)
    except Exception as error:
        why = str(error).partition(" Available architectures:")[0]  # the message continues with a hundred names
        raise ModelError(f"TransformerLens cannot wrap {name!r} ({type(model).__name__}): {why}") from error


_agreed: WeakSet[Any] = WeakSet()  # Bridges whose logits have been compared


@torch.no_grad()
def require_agreement(bridge: TransformerBridge, model: Any, *, name: str) -> None:
    """Compare a Bridge's logits with those of the plain model on a short text, once per Bridge."""
    if bridge in _agreed:
        return
    wraps = f"TransformerLens wraps {name!r} ({type(model).__name__}), but its Bridge"
    size = model.config.get_text_config().vocab_size
    ids = torch.tensor([[place * 7 % size for place in range(1, 9)]], device=next(model.parameters()).device)
    masks = {"attention_mask": torch.ones_like(ids), "position_ids": torch.arange(ids.shape[1])[None].to(ids)}
    with torch.autocast(ids.device.type, enabled=False):
        plain = model(ids, use_cache=False, **masks).logits.float()
        try:
            bridged = bridge(ids, return_type="logits", **masks).float()
        except Exception as error:
            if is_out_of_memory(error):
                raise
            first = str(error).splitlines()[0] if str(error) else "no message"
            raise ModelError(f"{wraps} does not run ({type(error).__name__}: {first[:200]}).") from error
    gap = float((bridged - plain).abs().max() / plain.abs().max())
    allowed = ROUNDING.get(model.dtype, 1e-3)
    if gap > allowed:  # NaN logits are reported by the pass in which they occur
        raise ModelError(
            f"{wraps} does not reproduce the logits of the plain model (they differ by {gap:.1%} of the largest; "
            f"rounding explains up to {allowed:.1%})."
        )
    _agreed.add(bridge)


_OURS = ("transformers.", "accelerate.", "uds_lens.")
"""Packages whose hooks and replaced forwards do not change results: they record, move weights, or are temporary."""

_process = secrets.token_hex(8)
_numbers: WeakKeyDictionary[Callable[..., Any], int] = WeakKeyDictionary()
_count = itertools.count()


class LiveChange(NamedTuple):
    """A change to a live model that does not affect its weights, and cannot be hashed."""

    # Kind of change: a forward hook, a replaced `forward`, or a module of another class.
    kind: Literal["hook", "forward", "module"]
    place: str  # name of the module
    mark: str  # equal only for the same change in the same process


def behaviour_changes(model: nn.Module) -> list[LiveChange]:
    """Return the user's hooks and replaced forwards on a model, including hooks on a Bridge's hook points."""
    changes = []
    for place, module in altered_modules(model):
        for number, hook in forward_hooks_of(module).items():
            if not _is_ours(hook):
                changes.append(LiveChange("hook", place, f"{_process} {number}"))
        forward = vars(module).get("forward")
        if forward is not None and not is_moved(module) and not _is_ours(forward):
            changes.append(LiveChange("forward", place, f"{_process} {_number(forward)}"))
    return changes


def module_changes(model: Any) -> list[LiveChange]:
    """Return the modules of a transformers model whose classes differ from those that its config would create."""
    if not is_plain_decoder(model) or getattr(model, "is_quantized", False):
        return []
    with torch.device("meta"):
        made = dict(type(model)(copy.deepcopy(model.config)).named_modules())
    return [
        LiveChange("module", place, f"{type(module).__module__}.{type(module).__qualname__} {adapter_state(module)}")
        for place, module in model.named_modules()
        if place not in made or type(module) is not type(made[place])
    ]


def _is_ours(function: object) -> bool:
    return str(getattr(function, "__module__", "")).startswith(_OURS) or is_own_hook(function)


def _number(function: Any) -> int:
    """Return a number that is unique to a function, even if another function later has the same address."""
    try:
        return _numbers.setdefault(getattr(function, "__func__", function), next(_count))
    except TypeError:  # an object without weak references is never equal to another
        return next(_count)


class HookedModel:
    """An open model, ready to be recorded and patched; created by `open_model`.

    It offers two views of the same weights: `hf`, the transformers model, for fast passes, and `bridge`, a
    TransformerLens `TransformerBridge` for hooks, which is built on first use. Neither view copies weights, and a
    caller's own model is never wrapped.

    Use it in a `with` block: leaving the block frees the memory of models that `open_model` loaded. A live model still
    belongs to the caller.

    Only one thread at a time can use it, because passes register hooks on it. Open a model once per thread.
    """

    is_resident = True
    """Whether all weights are loaded. A `StreamedModel` loads them block by block, so it cannot run as a whole."""

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
        self._turn = threading.RLock()  # shared by all handles to a model
        self._in_pass = False
        self._runs_hooks: bool | None = None  # cached until the pass ends
        self._swapped = [] if owned or bridge is not None else module_changes(hf)
        self.keeps_weights = False
        """Whether nobody else has access to the model, so that its weights cannot change and are hashed only once."""
        self.files: CheckpointFiles | None = None
        """The files from which the model was loaded, if they are local."""
        self.storage: str | None = None
        """The types in which its GGUF file stores the weights; None for models from other files."""
        self.is_wrapped = bridge is not None
        """Whether `hf` is the model inside a caller's Bridge."""
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
        """Reserve the model for this thread until the block ends; the same thread may reserve it again inside.

        Raises:
            ModelBusyError: Another thread is using the model.
        """
        if not self._turn.acquire(blocking=False):
            raise ModelBusyError(
                f"{self.name!r} is in use by another thread: a HookedModel serves one thread at a time, because passes "
                "register hooks on it. Open the model once for each thread."
            )
        try:
            yield self
        finally:
            self._turn.release()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Context for a pass: the model is reserved, and runs in its own dtype regardless of `torch.autocast`.

        Raises:
            ModelBusyError: Another thread is using the model.
        """
        with self.held(), torch.autocast(self.device.type, enabled=False):
            inside, self._in_pass = self._in_pass, True
            try:
                yield
            finally:
                self._in_pass = inside
                if not inside:
                    self._runs_hooks = None

    def embed(self, ids: Int[Tensor, "token"]) -> None:
        """Load the weights before the blocks, for all tokens that will be run."""

    def blocks(self, first: int = 0) -> Generator[int, None, None]:
        """Yield each block's index while its weights are loaded; a `StreamedModel` then releases them."""
        yield from range(first, self.n_layers)

    def head(self) -> AbstractContextManager[None]:
        """Load the head inside a `with` block."""
        return nullcontext()

    def close(self) -> None:
        """Release the model; free its memory if `open_model` loaded it. Closing twice is harmless."""
        if self._hf is None:
            return
        on_gpu = self.device.type == "cuda"
        weights = [weakref.ref(weight) for weight in self._hf.parameters()]
        self._hf = self._bridge = self._anatomy = None
        if self._owned:
            # A Bridge has reference cycles, so only garbage collection frees it. This may take a quarter of a second.
            if any(weight() is not None for weight in weights):
                gc.collect()
            if on_gpu:
                torch.cuda.empty_cache()
            # glibc keeps freed memory between small allocations that are still in use, so memory would grow with each
            # model.
            give_back_memory()

    @property
    def hf(self) -> PreTrainedModel:
        """The plain transformers model; for a caller's Bridge, the model inside it."""
        if self._hf is None:
            raise ModelError(f"{self.name!r} is closed: use the model inside its `with open_model(...)` block.")
        return self._hf

    @property
    def anatomy(self) -> Anatomy:
        """The parts of `hf`."""
        return self._anatomy if self._anatomy is not None else anatomy_of(self.hf)

    @property
    def bridge(self) -> TransformerBridge:
        """TransformerLens's view of the same weights, built on first use (imports transformer_lens)."""
        if not self.is_wrapped and (changes := self.changes):
            words = {"hook": "a hook", "forward": "a replaced forward", "module": "a replaced module"}
            more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
            raise ModelError(
                f"TransformerLens cannot wrap {self.name!r}: it has {words[changes[0].kind]} at "
                f"{changes[0].place or 'its root'!r}{more}, which a Bridge might not run. Make this change to "
                "your own TransformerBridge, and pass that Bridge."
            )
        if self._bridge is None and self._lender is not None and self._lender._hf is self.hf:
            self._bridge = self._lender.bridge
        if self._bridge is None:
            self._bridge = bridge_on_shared_weights(self.hf, self.tokenizer, name=self.name)
        return self._bridge

    @property
    def has_bridge(self) -> bool:
        """Whether TransformerLens can wrap the model. If not, a one-time warning says what still works."""
        if self._no_bridge or (not self.is_wrapped and self.changes):  # `bridge` says why
            return False
        try:
            if not self.is_wrapped:
                require_agreement(self.bridge, self.hf, name=self.name)
            return True
        except ModelError as error:
            self._no_bridge = True
            warn_once(
                f"{error} Falling back to plain forward hooks on its {self.n_layers} blocks: site 'resid_post' "
                "works as usual, but sites inside a block are not available.",
                key=f"no bridge {self.name} {self.fingerprint}: {error}",
            )
            return False

    @property
    def changes(self) -> list[LiveChange]:
        """Changes other than to weights: current hooks and replaced forwards, and modules replaced before opening."""
        model = self._bridge if self.is_wrapped and self._bridge is not None else self.hf
        return behaviour_changes(model) + self._swapped

    @property
    def runs_hooks(self) -> bool:
        """Whether the model has a user's hooks or replaced forwards, so that its blocks must not be run separately."""
        if self._runs_hooks is not None:
            return self._runs_hooks
        answer = any(change.kind != "module" for change in self.changes)
        # cached, because a pass needs it several times, and in a small model the search takes as long as a block
        if self._in_pass:
            self._runs_hooks = answer
        return answer

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the model's current state: its weights (see `uds_lens.models.fingerprint`) and `changes`.

        It is computed again each time, because a live model may be trained between two audits. A quantised model is
        hashed only once, because its kernels may repack the weights in the first pass. Changes cannot be hashed, so the
        fingerprint of a changed model recurs only with the same changes in the same process.
        """
        weights = self._weights_fingerprint()
        changes = sorted(self.changes)
        if not changes:
            return weights
        return hashlib.blake2b(repr((weights, changes)).encode(), digest_size=16).hexdigest()

    def _weights_fingerprint(self) -> str:
        if self._fingerprint is not None:
            return self._fingerprint
        files = self.files if self.keeps_weights else None
        weights = fingerprint(self.hf) if files is None else fingerprint_of_files(self.hf, files)
        if self.keeps_weights or getattr(self.hf, "is_quantized", False):
            self._fingerprint = weights
        return weights

    def lent(self) -> HookedModel:
        """Return a second handle, which can be closed separately; the weights must not change in the meantime."""
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
        """Device on which token ids are expected (that of the input embedding)."""
        return runs_on(self.hf.get_input_embeddings())


ModelSource: TypeAlias = "str | os.PathLike[str] | nn.Module | HookedModel"
"""A directory, a Hub id, a transformers model, a `TransformerBridge`, or an open `HookedModel`."""

RetainSource: TypeAlias = "ModelSource | Sequence[ModelSource]"
"""A retain model, or several trained with different seeds."""


def open_model(
    source: ModelSource,
    *,
    dtype: DType = "float32",
    device: str = "auto",
    device_map: str | dict[str, Any] | None = None,
    revision: str | None = None,
    offline: bool = False,
    trust_remote_code: bool = False,
    tokenizer: PreTrainedTokenizerFast | None = None,
) -> HookedModel:
    """Open a checkpoint as a hooked model.

    Opening a local directory never uses the network. A live model keeps its dtype and device: it must already have
    the requested `dtype`, because a conversion would change the caller's model or double its memory. A quantised model
    computes in the dtype named in its config, whatever `dtype` is requested.

    Args:
        source: A directory written by `save_pretrained` (a model, or a PEFT adapter with its base), a GGUF file or a
            directory with one, `package:NAME` for an installed package that holds either, a Hub id, a transformers
            causal language model, a `TransformerBridge`, or a `HookedModel` (returned unchanged).
        dtype: Dtype of the weights: `float32`, `bfloat16` or `float16`.
        device: `auto` (CUDA if available, else CPU), or a torch device such as `cuda:1`.
        device_map: accelerate's device map, for several devices; replaces `device`.
        revision: Branch, tag or commit on the Hub.
        offline: Use only files that have already been downloaded.
        trust_remote_code: Run the checkpoint's own Python code.
        tokenizer: Tokenizer to use instead of the checkpoint's own.

    Returns:
        The open model; use it in a `with` block to free its memory.

    Raises:
        ModelError: The source does not exist, its files are not a complete causal language model, or a live model has
            another dtype.

    Example:
        >>> import uds_lens as ul
        >>> world = ul.toy.load()
        >>> with ul.open_model(world.full, device="cpu") as model:
        ...     model.n_layers == len(model.bridge.blocks)
        True
    """
    check_choice("dtype", dtype, DType)
    if isinstance(source, HookedModel | nn.Module):
        model = source if isinstance(source, HookedModel) else adopt(source, tokenizer)
        have = str(model.dtype).removeprefix("torch.")
        # A quantised model computes in a fixed dtype, even when it is loaded from files.
        if have != dtype and not getattr(model.hf, "is_quantized", False):
            raise ModelError(
                f"the live model {model.name!r} is {have}, but dtype={dtype!r} was requested: convert it yourself "
                f"(model.to(torch.{dtype})), or request dtype={have!r}."
            )
        return model
    if not isinstance(source, str | os.PathLike):
        raise ModelError(
            f"cannot open {type(source).__name__} as a model: expected a directory, a Hub id, a transformers "
            "model or a TransformerBridge."
        )
    where: Any = {"revision": revision, "offline": offline, "trust_remote_code": trust_remote_code}
    return open_checkpoint(source, dtype=dtype, device=device, device_map=device_map, tokenizer=tokenizer, **where)


def open_checkpoint(
    source: str | os.PathLike[str],
    *,
    dtype: DType,
    device: str,
    device_map: str | dict[str, Any] | None,
    tokenizer: PreTrainedTokenizerFast | None,
    keeps_weights: bool = False,
    **where: Any,
) -> HookedModel:
    """Open a checkpoint like `open_model`; with `keeps_weights`, it is hashed while it moves to its device."""
    tell(f"opening {os.fspath(source)}")
    place, before = pick_device(device), checkpoint_files(*checkpoint_folders(source))
    hf = load_weights(source, dtype=getattr(torch, dtype), device_map=device_map, **where)
    known = loaded_from(hf, before) in known_fingerprints
    # quantised kernels may pack weights differently on each device, so these are hashed where they will run
    ahead = keeps_weights and not known and device_map is None and not getattr(hf, "is_quantized", False)
    # Reading weights back from a GPU to hash them takes several times as long as moving them there.
    with hashing(hf) if ahead else nullcontext() as digest:
        hf = on_device(hf, place) if device_map is None else hf
        chosen = tokenizer if tokenizer is not None else load_tokenizer(source, **where)
    model = HookedModel(hf, chosen, name=os.fspath(source), owned=True)
    model.storage, model.keeps_weights = storage_of(source), keeps_weights
    model.files = before if before == checkpoint_files(*checkpoint_folders(source)) else None
    if digest is not None:
        model._fingerprint = digest.result()
        if model.files is not None:
            known_fingerprints[loaded_from(hf, model.files)] = model._fingerprint
    return model


def pick_device(device: str) -> str:
    """Resolve `auto`, and check a named device. Apple's GPU is used only if named explicitly (see `move_checked`).

    >>> pick_device("cpu")
    'cpu'
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ModelError(f"no device {device!r}: expected 'auto', 'cpu', 'cuda' or 'cuda:N'.") from error
    missing = {
        "cuda": not torch.cuda.is_available() and "CUDA device",
        "mps": not torch.backends.mps.is_available() and "Apple GPU",
    }.get(kind)
    if missing:
        raise ModelError(
            f"device {device!r} was requested, but torch sees no {missing}: use ", Setting("device", "cpu"), "."
        )
    return device


def adopt(model: Any, tokenizer: PreTrainedTokenizerFast | None) -> HookedModel:
    """Open a live model or Bridge, which still belongs to the caller."""
    if is_bridge(model):
        return _adopt_bridge(model, tokenizer)
    model = _inner_model(model)
    name = getattr(model, "name_or_path", "") or type(model).__name__
    tokenizer = tokenizer if tokenizer is not None else _tokenizer_beside(model)
    if is_offloaded(model):  # weights that accelerate loads on demand would not be visible in a copy
        if model.training or attention_of(model.config) not in (None, "eager"):
            raise ModelError(
                f"the live model {name!r} is offloaded by accelerate, so its settings are not changed here: load it "
                "with attn_implementation='eager' and call .eval()."
            )
        require_plain_outputs(model.config, name)
        return HookedModel(model, tokenizer, name=name, owned=False)
    view: Any = clone_sharing_weights(model)
    if attention_of(view.config) not in (None, "eager"):
        view.set_attn_implementation("eager")
    set_plain_outputs(view.config)
    keep_plain_format(view, live=True)
    _require_one_dtype(view, name)
    if next(view.parameters()).device.type == "mps":
        warn_once(
            f"the live model {name!r} is on Apple's GPU, whose backend has returned wrong logits without an error "
            "before: compare a few examples on the CPU, or pass the model's directory, because models opened from "
            "files are checked."
        )
    return HookedModel(view.eval(), tokenizer, name=name, owned=False)


def _inner_model(model: Any) -> Any:
    """Return the transformers model that was passed, or the one inside its adapter's wrapper."""
    kind = type(model).__name__
    wrapped = {"module": getattr(model, "module", None), COMPILED: compiled_module(model)}
    for name, inside in wrapped.items():
        if isinstance(inside, nn.Module):
            raise ModelError(
                f"cannot open {kind}: it wraps a {type(inside).__name__}. Pass the model inside it, model.{name}."
            )
    if is_adapted(model):
        inner = model_inside(model)
        if inner is None:
            raise ModelError(
                f"cannot open {kind}: its adapter adds learned states before the prompt, which belong to no layer of "
                "the model. Adapters on layers (such as LoRA) are supported."
            )
        return _inner_model(inner)
    if not hasattr(getattr(model, "config", None), "get_text_config"):
        raise ModelError(
            f"cannot open {kind} as a model: expected a transformers causal language model, a TransformerBridge, a "
            "directory or a Hub id."
        )
    return model


def _require_one_dtype(model: Any, name: str) -> None:
    """Raise `ModelError` unless all linear layers of a live model have the same dtype."""
    dtypes: dict[torch.dtype, str] = {}
    for place, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if type(module) is nn.Linear and isinstance(weight, torch.Tensor) and weight.is_floating_point():
            dtypes.setdefault(weight.dtype, place)
    if len(dtypes) > 1:
        mixed = " and ".join(f"{place} {str(dtype).removeprefix('torch.')}" for dtype, place in dtypes.items())
        raise ModelError(
            f"the live model {name!r} mixes dtypes: {mixed}. Hidden states of one dtype cannot pass through layers of "
            "another: convert the whole model, for example with model.to(torch.float32)."
        )


def _tokenizer_beside(model: nn.Module) -> PreTrainedTokenizerFast | None:
    """Return the tokenizer from where a live model was loaded, if that is on this machine."""
    place = getattr(model, "name_or_path", "")
    if not place:
        return None
    try:
        return load_tokenizer(place, revision=None, offline=True, trust_remote_code=False)
    except ModelError:
        return None


def _adopt_bridge(bridge: Any, tokenizer: PreTrainedTokenizerFast | None) -> HookedModel:
    if bridge.compatibility_mode:
        raise ModelError(
            "this TransformerBridge is in compatibility mode: its weights were folded and no longer belong to the "
            "checkpoint. Boot it without enable_compatibility_mode()."
        )
    inside = bridge.original_model
    if bridge.training or inside.training:
        raise ModelError(
            "this TransformerBridge is in training mode, where dropout makes every pass differ: call its .eval() first."
        )
    name = str(getattr(bridge.cfg, "model_name", None) or "TransformerBridge")
    require_plain_outputs(inside.config, name)
    # The Bridge's tokenizer comes last, because TransformerLens modifies it (it adds a start token if there is none).
    chosen = tokenizer or _tokenizer_beside(inside) or bridge.tokenizer
    return HookedModel(inside, chosen, name=name, owned=False, bridge=bridge)
