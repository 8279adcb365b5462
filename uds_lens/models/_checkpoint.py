"""Loading a plain transformers model and its tokenizer from a directory or Hub id."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens._compat.bitsandbytes import (
    block_size,
    is_bitsandbytes,
    is_repacked,
    may_repack,
    never_repack,
    no_hub_kernels,
    plain_in_packed,
)
from uds_lens._compat.huggingface_hub import asking_the_hub, is_reachable
from uds_lens._compat.peft import merged
from uds_lens._compat.transformers import (
    QUANTISED_ENTRY,
    WEIGHTS_ENTRY,
    dequantised,
    downloaded,
    follow_file,
    forget_quantisation,
    is_offline,
    quiet_loading,
    set_attention,
    set_place,
    unknown_quantisation,
    unset_weights,
    unused_weights,
)
from uds_lens._optional_packages import require_package
from uds_lens._progress import tell
from uds_lens._storage.files import did_you_mean
from uds_lens._storage.weights import require_blocks, weight_files
from uds_lens.data._examples import short
from uds_lens.errors import ModelError, Setting, UdsLensError, warn_once
from uds_lens.models import _gguf as gguf
from uds_lens.models._anatomy import set_plain_outputs
from uds_lens.models._fingerprint import fingerprint, former_fingerprint, rounded_fingerprint
from uds_lens.models._gguf import SUFFIX, gguf_file, storage

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

Place: TypeAlias = str | os.PathLike[str]
"""A directory, a GGUF file, `package:NAME`, or a Hub id."""

LOADING = threading.RLock()
"""Lock held while any model is being built; the same thread may acquire it again.

transformers, PEFT and TransformerLens change process-wide torch settings while they build a model (the default dtype,
weight initialisation, quantisation hooks). If two threads did so at once, each would restore the other's settings and
break every later model. Code that runs at the same time must specify the dtypes of its tensors.
"""

_WHOLE = ("model*.safetensors", "pytorch_model*.bin")
"""Names of files with the weights of a complete model."""

PACKAGE = "package:"
"""Prefix of a source that is an installed package."""

_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.json")

_BUFFER = re.compile(r"(rotary_emb\.inv_freq|\.(attn|attention)\.(masked_)?bias)$")
"""Constants that earlier releases of transformers saved and later releases compute."""

_IN_A_BLOCK = re.compile(r"\.(layers|h|blocks)\.\d+\.")
"""Names of weights in a block."""


@contextmanager
def quiet_files(*, report: bool = False) -> Iterator[None]:
    """Silence progress bars during loading, and keep bitsandbytes from downloading kernels from the Hub."""
    with quiet_loading(report=report), no_hub_kernels():
        yield


def place_of(source: Place) -> Path:
    """Return the path of a source, whether it exists or not.

    `~` is expanded, and `package:NAME` becomes the directory of the installed package, which is not imported.
    """
    text = os.fspath(source)
    if not text.startswith(PACKAGE):
        return Path(source).expanduser()
    name = text.removeprefix(PACKAGE)
    spec = find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            f"no package {name!r} is installed: install the package that contains the model, or pass a directory."
        )
    return Path(next(iter(spec.submodule_search_locations)))


def is_local(source: Place) -> bool:
    """Return whether `source` is a local directory, GGUF file or package; raise an error if it only looks like one."""
    path = place_of(source)
    text = os.fspath(source)
    if path.is_dir():
        if not (path / "config.json").is_file() and not is_adapter(path) and gguf_file(path) is None:
            raise ModelError(
                f"{text!r} has no config.json: expected a directory written by save_pretrained, or one with a GGUF "
                "file."
            )
        return True
    if path.is_file():
        if gguf_file(path) is None:
            raise ModelError(f"{text!r} is a file: expected a checkpoint directory, a GGUF file, or a Hub id.")
        return True
    if path.suffix.lower() == SUFFIX:
        raise ModelError(f"no GGUF file {text!r}: check the path; a file on the Hub must be downloaded first.")
    if path.is_absolute() or text.startswith((".", "~")) or len(path.parts) > 2 or isinstance(source, Path):
        raise ModelError(
            f"no directory {text!r}: pass a checkpoint directory, or a Hub id 'owner/name'.{did_you_mean(path)}"
        )
    if len(path.parts) == 2 and path.parent.is_dir():
        raise ModelError(
            f"no directory {text!r}. Because {str(path.parent)!r} is a directory here, the name was not looked up on "
            f"the Hub: check the name, or download the model first (hf download {text} --local-dir DIR)."
            f"{did_you_mean(path)}"
        )
    return False


def is_adapter(source: Place) -> bool:
    """Return whether `source` is a directory with a PEFT adapter instead of a complete model."""
    path = place_of(source)
    if not (path / "adapter_config.json").is_file():
        return False
    whole = [file.name for pattern in _WHOLE for file in path.glob(pattern)]
    if whole:
        raise ModelError(
            f"{os.fspath(source)!r} contains a complete model ({whole[0]}) and a PEFT adapter (adapter_config.json): "
            "if the adapter was already merged, it would be applied twice. Move the adapter's files to a separate "
            "directory, or remove them."
        )
    return True


def checkpoint_folders(source: str | os.PathLike[str]) -> list[str | os.PathLike[str]]:
    """Return the directory, file or Hub id of a checkpoint; for an adapter, followed by those of its base."""
    here = place_of(source) if os.fspath(source).startswith(PACKAGE) else source
    if is_adapter(source):
        return [here, *checkpoint_folders(base_folder(source))]
    return [_gguf(source) or here]


def storage_of(source: Place) -> str | None:
    """Return how the weights of a GGUF file are stored (`Q4_1 (79%), Q8_0, F32`); None for other checkpoints.

    For an adapter, this describes its base.
    """
    place = checkpoint_folders(source)[-1]
    file = gguf_file(place) if is_local(place) else None
    return None if file is None else storage(file)


_LONGEST_NAME = 1024


def adapter_base(source: Place) -> str:
    """Return an adapter's base: a path (possibly relative to the adapter's directory), a package, or a Hub id."""
    path = place_of(source)
    try:
        base = json.loads((path / "adapter_config.json").read_text("utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(f"{os.fspath(source)!r} has a broken adapter_config.json: {error}") from error
    if not isinstance(base, str) or not base:
        raise ModelError(
            f"{os.fspath(source)!r} does not name its base model: set base_model_name_or_path in adapter_config.json, "
            "or merge the adapter and save the whole model."
        )
    if len(base) > _LONGEST_NAME or not base.isprintable():
        raise ModelError(
            f"{os.fspath(source)!r} has a broken adapter_config.json: base_model_name_or_path must be a path or a Hub "
            f"id of at most {_LONGEST_NAME} printable characters; got {short(base, 60)}."
        )
    beside = path / base
    return os.path.normpath(beside) if beside.exists() else base


def base_folder(source: Place) -> str:
    """Return the path of an adapter's base, which must already be downloaded, because the network is not used."""
    base = adapter_base(source)
    places, place = {place_of(source).resolve()}, base
    while is_adapter(place):
        folder = place_of(place).resolve()
        if folder in places:
            raise ModelError(
                f"the adapter {os.fspath(source)!r} has itself as its base ({base!r}): set base_model_name_or_path in "
                "adapter_config.json to the model it was trained on."
            )
        places.add(folder)
        place = adapter_base(place)
    try:
        if is_local(base):
            return base
    except ModelError as error:
        raise ModelError(
            f"the adapter {os.fspath(source)!r} belongs to {base!r}, which cannot be used ({str(error).rstrip('.')}). "
            "Relative paths start from the adapter's directory: move both together, or correct "
            "base_model_name_or_path in adapter_config.json."
        ) from error
    if (downloads := downloaded(base)) is None:
        raise ModelError(
            f"the adapter {os.fspath(source)!r} belongs to {base!r}, which is neither a local directory nor "
            f"downloaded; bases of local adapters are not downloaded automatically. Run hf download {base}, or set "
            "base_model_name_or_path in adapter_config.json to the path of the base."
        )
    return downloads


def load_config(source: Place, *, revision: str | None, offline: bool, trust_remote_code: bool) -> PreTrainedConfig:
    """Load a checkpoint's transformers config; for an adapter, that of its base, without quantisation."""
    from transformers import AutoConfig

    if is_adapter(source):
        base = _of_base(load_config, source, trust_remote_code=trust_remote_code)
        vars(base).pop(QUANTISED_ENTRY, None)
        return base
    if (file := _gguf(source)) is not None:
        with plain_errors(source, offline=True):
            config = gguf.load_config(file)
        set_attention(config, "eager")
        return config
    with plain_errors(source, offline):
        if is_local(source):
            require_blocks(place_of(source), os.fspath(source))
        config = AutoConfig.from_pretrained(_place(source), **_where(source, revision, offline, trust_remote_code))
    set_attention(config, "eager")  # the checkpoint's own choice may name a kernel on the Hub
    return config


def load_tokenizer(
    source: Place, *, revision: str | None, offline: bool, trust_remote_code: bool
) -> PreTrainedTokenizerFast | None:
    """Load the checkpoint's tokenizer; None if a local directory has none."""
    from transformers import AutoTokenizer

    if (file := _gguf(source)) is not None:
        with plain_errors(source, offline=True):
            return gguf.load_tokenizer(file)
    has_none = is_local(source) and not any((place_of(source) / n).is_file() for n in _TOKENIZER)
    if has_none:
        if not is_adapter(source):
            return None
        return _of_base(load_tokenizer, source, trust_remote_code=trust_remote_code)
    where = _where(source, revision, offline, trust_remote_code)
    with plain_errors(source, offline):
        tokenizer = AutoTokenizer.from_pretrained(_place(source), **where)
        changed = follow_file(tokenizer, _place(source), revision=revision, offline=where["local_files_only"])
    if changed:
        warn_once(
            f"transformers and tokenizer.json split texts differently for {os.fspath(source)!r} (class "
            f"{type(tokenizer).__name__}): tokenizer.json is used, as in PreTrainedTokenizerFast.from_pretrained."
        )
    return tokenizer


def require_known_quantisation(config: Any, name: str) -> None:
    """Raise `ModelError` if transformers does not know the quantisation method named in a config."""
    if (method := unknown_quantisation(config)) is not None:
        how = f"by {method[:60]!r}, which transformers does not know" if method else "but not by which method"
        raise ModelError(
            f"config.json of {name!r} says that its weights are quantised {how}: remove quantization_config if the "
            "weights are not quantised, or save the model unquantised."
        )


def require_packed(model: PreTrainedModel, name: str) -> None:
    """Raise `ModelError` if layers expect weights packed by bitsandbytes but the files contain unquantised weights."""
    if (layer := plain_in_packed(model)) is not None:
        raise ModelError(
            f"config.json of {name!r} says that its weights are quantised by bitsandbytes, but its files contain "
            f"unquantised weights ({layer}): remove quantization_config from config.json."
        )


def is_finite(weight: Tensor) -> bool:
    """Return whether a weight is free of NaN and infinity, from its sum."""
    # torch already sums bfloat16 in float32; with a dtype, it first converts every number, which takes 7 times as long
    dtype = None if weight.dtype == torch.bfloat16 else torch.float32
    return bool(weight.sum(dtype=dtype).isfinite())


def require_finite(weights: Iterable[tuple[str, Tensor]], name: str) -> None:
    """Raise `ModelError` if weights read from files contain NaN or infinity."""
    for place, weight in weights:
        plain = weight.is_floating_point() and weight.dtype.itemsize > 1 and not weight.is_meta
        if plain and not is_finite(weight):
            raise ModelError(
                f"{name!r} holds NaN or infinite weights ({place}): the model is broken. Save or download it again; if "
                "training broke it, use a lower learning rate, or another dtype."
            )


def load_weights(
    source: Place,
    *,
    dtype: torch.dtype,
    device_map: str | dict[str, Any] | None,
    revision: str | None,
    offline: bool,
    trust_remote_code: bool,
) -> PreTrainedModel:
    """Load the model in evaluation mode, with every weight from the checkpoint; a PEFT adapter is merged into its base.

    Without a `device_map`, the model is on the CPU (see `on_device`).

    A checkpoint quantised by bitsandbytes stays quantised; its unquantised weights have `dtype`. The base of an adapter
    is dequantised, because an adapter cannot be merged exactly into quantised weights.
    """
    from transformers import AutoModelForCausalLM

    name = os.fspath(source)
    if is_adapter(source):
        require_package("peft", needed_by="an adapter needs")
        if not weight_files(place_of(source), name, of_adapter=True):  # otherwise PEFT would search the Hub
            raise ModelError(
                f"{name!r} has the config of a PEFT adapter (adapter_config.json) but not its weights: expected "
                "adapter_model.safetensors in the same directory. Copy the whole directory, or train the adapter "
                "again."
            )
        # merged on the CPU, so that the result has the same bytes whichever device it is used on
        more = {"dtype": _dtype_of_base(source, dtype), "device_map": device_map}
        base = _of_base(load_weights, source, trust_remote_code=trust_remote_code, **more)
        with LOADING, plain_errors(source, offline=True), quiet_files():
            require_its_base(source, base)
            if getattr(base, "is_quantized", False):  # otherwise its weights would be rounded twice
                base = dequantised(base)
            try:
                adapted: Any = merged(base, str(place_of(source)))
            except RuntimeError as error:
                if (mismatch := _MISMATCH.search(str(error))) is None:
                    raise
                raise ModelError(
                    f"the adapter {name!r} does not match its base {base_folder(source)!r} ({mismatch[0].strip()}): it "
                    "was trained on another model. Correct base_model_name_or_path in adapter_config.json."
                ) from error
        if more["dtype"] != dtype:
            for weight in adapted.parameters():  # buffers, such as rotary frequencies, keep their precision
                weight.data = weight.data.to(dtype)
            adapted.config.dtype = dtype
        require_finite(adapted.named_parameters(), name)
        return adapted.eval().requires_grad_(False)
    config = load_config(source, revision=revision, offline=offline, trust_remote_code=trust_remote_code)
    if is_bitsandbytes(config):
        require_package("bitsandbytes", needed_by=f"{name!r} has 4-bit weights, which need")
    require_known_quantisation(config, name)
    placement = {"device_map": device_map} if device_map is not None else {}
    file = _gguf(source)
    if file is None and is_local(source):
        weight_files(place_of(source), name, named=getattr(config, WEIGHTS_ENTRY, None))
    reading = _where(source, revision, offline, trust_remote_code) if file is None else gguf.reading(file)
    with LOADING, plain_errors(source, offline), quiet_files():
        if file is not None:
            gguf.require_fit(config, file)
        model, info = AutoModelForCausalLM.from_pretrained(
            _place(source) if file is None else str(file.parent),
            config=config,
            dtype=dtype,
            attn_implementation="eager",
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # `require_complete` reports them; transformers only logs them
            **placement,
            **reading,
        )
    if not is_local(source) and (snapshot := downloaded(name, revision)) is not None:
        weight_files(Path(snapshot), name, named=getattr(config, WEIGHTS_ENTRY, None))
    require_complete(info, source, type(model).__name__)
    require_packed(model, name)
    require_finite(model.named_parameters(), name)
    if file is not None:
        forget_quantisation(model)
        set_place(model.config, str(file))
    model = model.eval().requires_grad_(False)
    set_plain_outputs(model.config)
    keep_plain_format(model)
    return model


_MISMATCH = re.compile("size mismatch for [^\n]*")
"""Matches torch's message about the first weight with a wrong shape."""


def on_device(model: PreTrainedModel, device: str) -> PreTrainedModel:
    """Move a model from the CPU to a device; on Apple's GPU, its logits are checked."""
    if str(model.device) == device:
        return model
    return move_checked(model, device) if device.startswith("mps") else model.to(device)


def _of_base(load: Callable[..., Any], source: Place, **options: Any) -> Any:
    """Load the config, tokenizer or weights of an adapter's base."""
    return load(base_folder(source), revision=None, offline=True, **options)


def _dtype_of_base(source: Place, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which an adapter's base is opened.

    If the base is itself an adapter, it is opened in the dtype that it had while this adapter was trained, because
    merging it in another dtype would give other weights.
    """
    if not is_adapter(base_folder(source)):
        return dtype
    options = checkpoint_record(source).get("options")
    trained = options.get("dtype") if isinstance(options, dict) else None
    return _LOWER.get(str(trained), torch.float32)


_LOWER = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""Dtypes to which weights are rounded."""


def rounded_fingerprints(model: PreTrainedModel) -> dict[str, str]:
    """Return the fingerprints of a model's weights in the lower dtypes in which they may be opened, for its record."""
    return {
        f"fingerprint_{name}": rounded_fingerprint(model, dtype)
        for name, dtype in _LOWER.items()
        if model.dtype in (torch.float32, dtype)
    }


def require_its_base(source: Place, base: PreTrainedModel) -> None:
    """Check that an adapter's base has the fingerprint in the adapter's record, if the record has one.

    A fingerprint depends on the dtype. If the base is opened in a different dtype than in training, the weights are
    compared in the lower of the two dtypes, provided that the record has a fingerprint for it.
    """
    record = checkpoint_record(source)
    parent, options = record.get("parent"), record.get("options")
    if not isinstance(parent, dict) or not isinstance(options, dict) or not isinstance(parent.get("fingerprint"), str):
        return
    trained, opened = options.get("dtype"), str(base.dtype).removeprefix("torch.")
    expected: object = parent["fingerprint"]
    dtype = None
    if trained != opened:
        lower = trained if opened == "float32" else opened
        expected = parent.get(f"fingerprint_{lower}")
        if lower not in _LOWER or not isinstance(expected, str):  # records of earlier releases have none
            return
        dtype = _LOWER[lower]
    actual = fingerprint(base) if dtype is None else rounded_fingerprint(base, dtype)
    if actual != expected and former_fingerprint(base, dtype) != expected:
        raise ModelError(
            f"the adapter {os.fspath(source)!r} was trained on weights with fingerprint "
            f"{str(expected)[:32]!r}, but its base {base_folder(source)!r} has {actual!r}: the "
            "base is another model, or has changed since. Restore the original base."
        )


_RECORDS = ("unlearning.json", "relearning.json", "finetuning.json")
"""Names of the records that training writes next to a checkpoint."""


def checkpoint_record(source: Place) -> dict[str, Any]:
    """Return the record that training wrote next to a checkpoint, without checking it; empty if there is none."""
    for file in (place_of(source) / name for name in _RECORDS):
        try:
            record = json.loads(file.read_bytes()) if file.is_file() else None  # opening a pipe would block
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            return record
    return {}


def _gguf(source: Place) -> Path | None:
    return gguf_file(place_of(source)) if is_local(source) and not is_adapter(source) else None


def _place(source: Place) -> str:
    return str(place_of(source)) if is_local(source) else os.fspath(source)


def _where(source: Place, revision: str | None, offline: bool, trust_remote_code: bool) -> dict[str, Any]:
    named = {} if revision is None else {"revision": revision}
    local = offline or is_local(source)
    return {"trust_remote_code": trust_remote_code, "local_files_only": local, **named}


@contextmanager
def plain_errors(source: Place, offline: bool, failed: str = "cannot load the checkpoint in") -> Iterator[None]:
    """Convert another library's error about a checkpoint to a `ModelError` with a single sentence."""
    try:
        with nullcontext() if offline or is_local(source) else asking_the_hub():
            yield
    except UdsLensError:
        raise
    except Exception as error:
        text = os.fspath(source)
        first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        if is_local(source):
            raise ModelError(f"{failed} {text!r}: {first}.") from error
        raise ModelError(not_on_the_hub(text, first, offline=offline)) from error


def not_on_the_hub(name: str, reason: str, *, offline: bool) -> str:
    """Return a message that says why a name could not be loaded from the Hub, and what to do."""
    near = did_you_mean(name)
    if offline or is_offline():
        return (
            f"there is no directory {name!r} here and no downloaded copy, and the Hub is not used offline: {reason}. "
            f"Check the path, or download the model on a machine with a connection: hf download {name}"
            f"{near and '.'}{near}"
        )
    if not is_reachable():
        return (
            f"there is no directory {name!r} here and no downloaded copy, and the Hub cannot be reached. Check the "
            f"path and the connection, or download the model elsewhere: hf download {name}"
            f"{near and '.'}{near}"
        )
    return (
        f"there is no directory {name!r} here, and looking it up on the Hub failed: {reason}. Check the "
        "path or the spelling, log in for a gated model (hf auth login), or pass the directory of a local copy."
        f"{near}"
    )


def require_complete(info: dict[str, Any], source: Place, architecture: str) -> None:
    """Raise an error unless a checkpoint's files fill the whole model, and the model uses all their decoder weights.

    Other unused weights (a value head, an image tower) are listed in a warning.
    """
    name = f"checkpoint {os.fspath(source)!r}"
    if unset := unset_weights(info):
        raise ModelError(
            f"{name} does not fill {len(unset)} weights of {architecture} ({', '.join(unset[:3])}, ...): "
            "they would be random. Save the complete model again."
        )
    unused = [weight for weight in unused_weights(info) if not _BUFFER.search(weight)]
    if not unused:
        return
    some = f"{', '.join(unused[:3])}{', ...' if len(unused) > 3 else ''}"
    if inside := [weight for weight in unused if _IN_A_BLOCK.search(weight)]:
        raise ModelError(
            f"{name} contains {len(inside)} weights that {architecture} does not use with its config.json ({some}): a "
            "config entry (a bias, num_hidden_layers ...) does not match the files. Correct config.json, or save "
            "the complete model again."
        )
    warn_once(
        f"{name} contains {len(unused)} weights that {architecture} does not use ({some}): they do not affect the "
        "measurement."
    )


def keep_plain_format(model: Any, *, live: bool = False) -> None:
    """Keep bitsandbytes from repacking 4-bit weights if that would fail or change them.

    On a CPU, bitsandbytes may repack weights in the first forward pass, 32 rows at a time and block by block along each
    row, without checking that the shape is divisible. If it does not repack them, it multiplies with the dequantised
    weights. Reading the state dict of a repacked model unpacks the weights inexactly, so a caller's weights are never
    repacked.
    """
    for module in model.modules():
        if live and is_repacked(module):
            raise ModelError(
                "this live 4-bit model has been run on the CPU, where bitsandbytes repacked its weights in place, so "
                "that they cannot be read back exactly: pass the model's directory, or load the model again and do not "
                "run it before the audit."
            )
        if may_repack(module) and (live or module.out_features % 32 or module.in_features % block_size(module)):
            never_repack(module)


ROUNDING = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.01}
"""Largest difference between logits that rounding can account for (across devices, or in a Bridge), as a share of
the largest logit."""


@torch.no_grad()
def move_checked(model: PreTrainedModel, device: str) -> PreTrainedModel:
    """Move a model from the CPU to Apple's GPU, and compare its logits, because that GPU has returned wrong ones."""
    before = _logits(model)
    model = model.to(device)
    gap = float((_logits(model) - before).abs().max() / before.abs().max())
    allowed = ROUNDING.get(model.dtype, 1e-3)
    if not gap <= allowed:
        raise ModelError(
            f"on device {device!r} the logits of {type(model).__name__} differ from those on the CPU by {gap:.1%} of "
            f"the largest (rounding explains up to {allowed:.1%}): they are wrong on this device. Use ",
            Setting("device", "cpu"),
            ".",
        )
    tell(f"{device}: logits agree with those on the CPU (largest difference {gap:.2g} of the largest logit)")
    warn_once(
        f"device {device!r}: Apple's backend has returned wrong logits without an error before. The logits of each "
        f"model on a short text are compared with those on the CPU; the first model agreed (largest difference "
        f"{gap:.2g} of the largest logit). Compare the audit of a few examples with ",
        Setting("device", "cpu"),
        " before you trust the numbers.",
        key="Apple's GPU",  # concerns the device, not the model, so shown only once
    )
    return model


def _logits(model: PreTrainedModel) -> Float[Tensor, "pos d_vocab"]:
    """Return the logits of two short rows, one of them padded, on the CPU in float32."""
    ids = torch.arange(1, 33).reshape(2, 16) * 7 % model.config.get_text_config().vocab_size
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    logits = model(input_ids=ids.to(model.device), attention_mask=mask.to(model.device)).logits
    return logits.float().cpu()[mask.bool()]
