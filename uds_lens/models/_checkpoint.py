"""From a directory or Hub id to a plain transformers model and its tokenizer."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens._compat.bitsandbytes import (
    block_size,
    is_bitsandbytes,
    is_repacked,
    may_repack,
    never_repack,
    no_kernel_note,
)
from uds_lens._compat.huggingface_hub import asking_the_hub, is_reachable
from uds_lens._compat.peft import merged
from uds_lens._compat.transformers import (
    downloaded,
    is_offline,
    quiet_loading,
    set_attention,
    unset_weights,
    unused_weights,
)
from uds_lens._optional_packages import require_package
from uds_lens._progress import tell
from uds_lens.errors import ModelError, Setting, warn_once
from uds_lens.models._anatomy import set_plain_outputs

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast


# Whether the files of a checkpoint and the model made of them hold the same weights.

_BUFFER = re.compile(r"(rotary_emb\.inv_freq|\.(attn|attention)\.(masked_)?bias)$")
"""Constants that earlier releases of transformers saved, and later ones compute."""

_IN_A_BLOCK = re.compile(r"\.(layers|h|blocks)\.\d+\.")
"""Names of weights in a block."""


def require_complete(info: dict[str, Any], source: str | os.PathLike[str], architecture: str) -> None:
    """Raise unless the files of a checkpoint fill the whole model, and the model uses all weights of its decoder.

    Others that it leaves out (a value head, an image tower) are named in a warning.

    Args:
        info: What `from_pretrained` tells of its loading.
        source: The checkpoint.
        architecture: Class of the model.

    Raises:
        ModelError: Naming some.
    """
    if unset := unset_weights(info):
        names = ", ".join(unset[:3])
        raise ModelError(
            f"checkpoint {os.fspath(source)!r} does not fill {len(unset)} weights of {architecture} ({names}, ...): "
            "they would be random. Save the complete model again."
        )
    unused = [name for name in unused_weights(info) if not _BUFFER.search(name)]
    if not unused:
        return
    told = f"{', '.join(unused[:3])}{', ...' if len(unused) > 3 else ''}"
    if inside := [name for name in unused if _IN_A_BLOCK.search(name)]:
        raise ModelError(
            f"checkpoint {os.fspath(source)!r} holds {len(inside)} weights that {architecture} does not use with its "
            f"config.json ({told}): a flag or a number in the config (a bias, num_hidden_layers ...) does not fit the "
            "files. Mend config.json, or save the complete model again."
        )
    warn_once(
        f"checkpoint {os.fspath(source)!r} holds {len(unused)} weights that {architecture} does not use ({told}): they "
        "take no part in what is measured."
    )


# 4-bit checkpoints of bitsandbytes on a CPU.


def require_reader(config: object, source: str | os.PathLike[str]) -> None:
    """Raise where a checkpoint has 4-bit weights and nothing here reads them.

    Raises:
        MissingDependencyError: bitsandbytes is not installed.
    """
    if is_bitsandbytes(config):
        require_package("bitsandbytes", needed_by=f"{os.fspath(source)!r} has 4-bit weights, which need")


def keep_plain_format(model: Any, *, live: bool = False) -> None:
    """Keep layers out of bitsandbytes' fast format for CPUs where it does harm.

    bitsandbytes repacks the weights in the first forward pass, 32 rows at a time and block by block along each row,
    without asking whether the shape allows it; otherwise it multiplies with the dequantised weights. Reading the
    state dict of a repacked model unpacks the weights again, and not to what they were: weights that belong to
    somebody else are never repacked here, and refused where they have been.

    Args:
        model: The model, before its first pass here.
        live: Its weights are shared with a model of the caller's.

    Raises:
        ModelError: The caller's model was run on a CPU and its weights are repacked.
    """
    for module in model.modules():
        if live and is_repacked(module):
            raise ModelError(
                "this live 4-bit model has been run on the CPU, where bitsandbytes repacked its weights in place, and "
                "they cannot be read back exactly: give its directory, or load it anew and do not run it first."
            )
        if may_repack(module) and (
            live or module.out_features % 32 or module.in_features % block_size(module)
        ):
            never_repack(module)


# What is said where a name is no directory and could not be had from the Hub either.


def not_on_the_hub(name: str, reason: str, *, offline: bool) -> str:
    """Why, and what helps.

    Args:
        name: What was asked for.
        reason: First line of what came.
        offline: Whether only files already downloaded were allowed.
    """
    if offline or is_offline():
        return (
            f"there is no directory {name!r} here, and offline it was looked for only among what was downloaded from "
            f"the Hub before: {reason}. Check the path, or download it where there is a connection: hf download {name}"
        )
    if not is_reachable():
        return (
            f"there is no directory {name!r} here, it was not downloaded before, and no connection to the Hub can be "
            f"opened. Check the path and the connection, or download it where there is one: hf download {name}"
        )
    return (
        f"there is no directory {name!r} here, so it was looked up on the Hub, and that failed: {reason}. Check the "
        "path or the spelling; log in for a gated model (hf auth login); without a connection, give the directory of a "
        "local copy."
    )


# One model is loaded at a time.
#
# While transformers, PEFT and TransformerLens build a model they change settings of torch and transformers
# for the whole process (the default dtype, functions that fill new weights, hooks of quantisation), and put
# them back when they are done. Two threads that do so at once put back what the other has set, and every
# later model comes out wrong.
#
# What is measured meanwhile must not depend on them: tensors are made with their dtype named.

LOADING = threading.RLock()
"""Held around everything that builds a model; the same thread may take it again."""

# Silence about files of checkpoints where it is none of a user's business: bars, notes, optional kernels.


@contextmanager
def quiet_files(*, report: bool = False) -> Iterator[None]:
    """No bars of transformers over the files of a checkpoint, and no note of bitsandbytes that a kernel is missing.

    Args:
        report: Leave what transformers says of weights that do not fit; whoever checks that himself needs no report.
    """
    with quiet_loading(report=report), no_kernel_note():
        yield


# Apple's GPU backend has returned wrong logits without an error: each model is compared with itself on the
# CPU.

_ROUNDING = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.01}
"""Largest difference between two devices that rounding explains, as a share of the largest logit."""

_ONCE = "Apple's GPU"
"""What is warned of is the device, not the model: once, however many models are opened on it."""


@torch.no_grad()
def move_checked(model: PreTrainedModel, device: str) -> PreTrainedModel:
    """Move a model from the CPU to another device, and compare its logits there with those from before.

    Args:
        model: The model, on the CPU, in evaluation mode.
        device: Where it goes.

    Returns:
        The model, moved.

    Raises:
        ModelError: Its logits differ by more than rounding.
    """
    before = _logits(model)
    model = model.to(device)
    after = _logits(model)
    gap = float((after - before).abs().max() / before.abs().max())
    allowed = _ROUNDING.get(model.dtype, 1e-3)
    if not gap <= allowed:
        raise ModelError(
            f"on device {device!r} the logits of {type(model).__name__} differ from those on the CPU by {gap:.1%} of "
            f"the largest (rounding explains {allowed:.1%}): this device computes them wrongly. Use ",
            Setting("device", "cpu"),
            ".",
        )
    tell(f"{device}: logits agree with the CPU's (largest difference {gap:.2g} of the largest logit)")
    warn_once(
        f"device {device!r}: Apple's backend has returned wrong logits without an error before. Each model is compared "
        f"with itself on the CPU on a short text; the first agreed with the CPU (largest difference {gap:.2g} of the "
        "largest logit). Compare the audit of a few examples with ",
        Setting("device", "cpu"),
        " before you trust the numbers.",
        key=_ONCE,
    )
    return model


def _logits(model: PreTrainedModel) -> Float[Tensor, "pos d_vocab"]:
    """Logits of two short rows, one of them padded, on the CPU in float32."""
    ids = torch.arange(1, 33).reshape(2, 16) * 7 % model.config.get_text_config().vocab_size
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    logits = model(input_ids=ids.to(model.device), attention_mask=mask.to(model.device)).logits
    return logits.float().cpu()[mask.bool()]


def is_local(source: str | os.PathLike[str]) -> bool:
    """Whether `source` names a directory here; raise if it looks like one and is not there.

    Raises:
        ModelError: A path (absolute, starting with a dot or ~, of more than two parts, or in a directory that is
            here) that does not exist, or a directory without `config.json`.
    """
    path = Path(source).expanduser()
    text = os.fspath(source)
    if path.is_dir():
        if not (path / "config.json").is_file() and not is_adapter(path):
            raise ModelError(f"{text!r} has no config.json: expected a directory written by save_pretrained.")
        return True
    if path.is_file():
        raise ModelError(f"{text!r} is a file: expected the directory of a checkpoint, or a Hub id.")
    if path.is_absolute() or text.startswith((".", "~")) or len(path.parts) > 2 or isinstance(source, Path):
        raise ModelError(
            f"no directory {text!r}: give the directory of a checkpoint, or a Hub id 'owner/name'."
        )
    if len(path.parts) == 2 and path.parent.is_dir():
        raise ModelError(
            f"no directory {text!r}. There is a directory {str(path.parent)!r} here, so the Hub was not asked: check "
            f"the name; a model on the Hub of that name can be downloaded first (hf download {text} --local-dir DIR)."
        )
    return False


def is_adapter(source: str | os.PathLike[str]) -> bool:
    """Whether `source` is a directory with a PEFT adapter instead of a whole model.

    Raises:
        ModelError: It holds both.
    """
    path = Path(source).expanduser()
    if not (path / "adapter_config.json").is_file():
        return False
    whole = [place.name for pattern in _WHOLE for place in path.glob(pattern)]
    if whole:
        raise ModelError(
            f"{os.fspath(source)!r} holds a whole model ({whole[0]}) and a PEFT adapter (adapter_config.json): if it "
            "was merged, it would be applied twice. Move the adapter's files to a directory of their own, or away."
        )
    return True


def checkpoint_folders(source: str | os.PathLike[str]) -> list[str | os.PathLike[str]]:
    """The directories a checkpoint is loaded from: its own (or a Hub id), and that of an adapter's base."""
    return [source, base_folder(source)] if is_adapter(source) else [source]


_WHOLE = ("model*.safetensors", "pytorch_model*.bin")
"""Names of files with the weights of a whole model."""


def adapter_base(source: str | os.PathLike[str]) -> str:
    """The checkpoint an adapter was trained on: a directory (relative ones count from the adapter's), or a Hub id.

    Raises:
        ModelError: The adapter does not name one.
    """
    path = Path(source).expanduser()
    try:
        base = json.loads((path / "adapter_config.json").read_text("utf-8"))["base_model_name_or_path"]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{os.fspath(source)!r} has a broken adapter_config.json: {error}") from error
    if not isinstance(base, str) or not base:
        raise ModelError(
            f"{os.fspath(source)!r} does not name its base model: set base_model_name_or_path in adapter_config.json, "
            "or merge the adapter and save the whole model."
        )
    beside = path / base
    return str(beside) if beside.is_dir() else base


def base_folder(source: str | os.PathLike[str]) -> str:
    """The directory of an adapter's base; of one from the Hub, where it was downloaded to: a directory asks no network.

    Raises:
        ModelError: The base is on the Hub and was not downloaded.
    """
    base = adapter_base(source)
    if is_local(base):
        return base
    if (folder := downloaded(base)) is None:
        raise ModelError(
            f"the adapter {os.fspath(source)!r} belongs to {base!r}, no directory here and not downloaded; a directory "
            f"never asks the network. Download it (hf download {base}), or give its path as base_model_name_or_path in "
            "adapter_config.json."
        )
    return folder


def load_config(
    source: str | os.PathLike[str], *, revision: str | None, offline: bool, trust_remote_code: bool
) -> PreTrainedConfig:
    """The transformers config of a checkpoint, without its weights; of an adapter, that of its base."""
    from transformers import AutoConfig

    if is_adapter(source):
        return _of_base(load_config, source, trust_remote_code=trust_remote_code)
    with _plain_errors(source, offline):
        config = AutoConfig.from_pretrained(
            _place(source), **_where(source, revision, offline, trust_remote_code)
        )
    set_attention(config, "eager")  # a checkpoint does not choose it, and may name a kernel of the Hub
    return config


def load_tokenizer(
    source: str | os.PathLike[str], *, revision: str | None, offline: bool, trust_remote_code: bool
) -> PreTrainedTokenizerFast | None:
    """The checkpoint's tokenizer, or None where a local directory holds none."""
    from transformers import AutoTokenizer

    if is_adapter(source) and not _has_tokenizer(Path(source).expanduser()):
        return _of_base(load_tokenizer, source, trust_remote_code=trust_remote_code)
    if is_local(source) and not _has_tokenizer(Path(source).expanduser()):
        return None
    with _plain_errors(source, offline):
        return AutoTokenizer.from_pretrained(
            _place(source), **_where(source, revision, offline, trust_remote_code)
        )


def load_weights(
    source: str | os.PathLike[str],
    *,
    dtype: torch.dtype,
    device: str,
    device_map: str | dict[str, Any] | None,
    revision: str | None,
    offline: bool,
    trust_remote_code: bool,
) -> PreTrainedModel:
    """The model in evaluation mode, every weight from the checkpoint; a PEFT adapter is merged into its base.

    A checkpoint quantised by bitsandbytes stays quantised; its other weights have `dtype`.

    Raises:
        ModelError: The checkpoint cannot be read, or leaves weights of the model unset.
        MissingDependencyError: It is an adapter or has 4-bit weights, and what reads those is not installed.
    """
    from transformers import AutoModelForCausalLM

    if is_adapter(source):
        require_package("peft", needed_by="an adapter needs")
        more = {"dtype": dtype, "device": device, "device_map": device_map}
        base = _of_base(load_weights, source, trust_remote_code=trust_remote_code, **more)
        with LOADING:
            return _with_adapter(base, source)
    placement = {"device_map": device_map} if device_map is not None else {}
    config = load_config(source, revision=revision, offline=offline, trust_remote_code=trust_remote_code)
    require_reader(config, source)
    with LOADING, _plain_errors(source, offline), quiet_files():
        model, info = AutoModelForCausalLM.from_pretrained(
            _place(source),
            config=config,
            dtype=dtype,
            attn_implementation="eager",
            output_loading_info=True,
            **placement,
            **_where(source, revision, offline, trust_remote_code),
        )
    require_complete(info, source, type(model).__name__)
    model = model.eval().requires_grad_(False)
    set_plain_outputs(model.config)
    keep_plain_format(model)
    if device_map is None and str(model.device) != device:
        return move_checked(model, device) if device.startswith("mps") else model.to(device)
    return model


def _of_base(load: Callable[..., Any], source: str | os.PathLike[str], **options: Any) -> Any:
    """Load something of an adapter's base."""
    return load(base_folder(source), revision=None, offline=True, **options)


def _with_adapter(base: PreTrainedModel, source: str | os.PathLike[str]) -> PreTrainedModel:
    with _plain_errors(source, offline=True), quiet_files():
        model: Any = merged(base, str(Path(source).expanduser()))
    return model.eval().requires_grad_(False)


def _has_tokenizer(path: Path) -> bool:
    return any((path / n).is_file() for n in ("tokenizer.json", "tokenizer_config.json", "vocab.json"))


def _place(source: str | os.PathLike[str]) -> str:
    return str(Path(source).expanduser()) if is_local(source) else os.fspath(source)


def _where(
    source: str | os.PathLike[str], revision: str | None, offline: bool, trust_remote_code: bool
) -> dict[str, Any]:
    named = {} if revision is None else {"revision": revision}
    local = offline or is_local(source)
    return {"trust_remote_code": trust_remote_code, "local_files_only": local, **named}


@contextmanager
def _plain_errors(source: str | os.PathLike[str], offline: bool) -> Iterator[None]:
    try:
        with nullcontext() if offline or is_local(source) else asking_the_hub():
            yield
    except ModelError:
        raise
    except Exception as error:
        text = os.fspath(source)
        first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        if is_local(source):
            raise ModelError(f"cannot load the checkpoint in {text!r}: {first}.") from error
        raise ModelError(not_on_the_hub(text, first, offline=offline)) from error
