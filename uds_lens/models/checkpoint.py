"""From a directory or Hub id to a plain transformers model and its tokenizer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uds_lens.checked_arguments import arguments_checked
from uds_lens.compat.huggingface_hub import asking_the_hub
from uds_lens.compat.peft import merged
from uds_lens.compat.transformers import (
    downloaded,
    set_attention,
)
from uds_lens.errors import ModelError
from uds_lens.models.apple import move_checked
from uds_lens.models.complete_weights import require_complete
from uds_lens.models.four_bit import keep_plain_format, require_reader
from uds_lens.models.hub_answers import not_on_the_hub
from uds_lens.models.loading_lock import LOADING
from uds_lens.models.outputs import set_plain_outputs
from uds_lens.models.quiet_files import quiet_files
from uds_lens.optional_packages import require_package

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast


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


@arguments_checked
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
