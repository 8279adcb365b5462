"""4-bit quantisation, one of the two perturbations of the robustness test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from uds_lens._compat.transformers import set_attention
from uds_lens._optional_packages import require_package
from uds_lens._storage.files import (
    IN_TEMPORARY,
    SpillFolder,
    atomic_directory,
    check_writable,
    located,
    refuse_to_replace,
    writing,
)
from uds_lens._storage.results import Kind, Result
from uds_lens._storage.weights import weight_files
from uds_lens.errors import ModelError, ResultFormatError
from uds_lens.models._checkpoint import (
    LOADING,
    PACKAGE,
    checkpoint_folders,
    is_local,
    load_tokenizer,
    load_weights,
    plain_errors,
    quiet_files,
    require_complete,
)
from uds_lens.models._gguf import SUFFIX
from uds_lens.models._hooked import pick_device
from uds_lens.results._records import versions
from uds_lens.unlearning._run_folder import file_sums

_SAVED, RECORD = Kind("quantisation"), "quantisation.json"


def quantise(
    model: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    device: str = "auto",
    offline: bool = False,
    revision: str | None = None,
    trust_remote_code: bool = False,
    redo: bool = False,
) -> Path:
    """Quantise a model to 4 bits (bitsandbytes NF4, bfloat16 arithmetic) and save it.

    Embeddings, norms and the head keep their precision. The result can be loaded with transformers, even on a CPU.

    Args:
        model: A directory or Hub id.
        out: Output directory, which also gets a `quantisation.json`.
        device: Device for quantising.
        offline: Use only files that are already downloaded.
        revision: Branch, tag or commit on the Hub.
        trust_remote_code: Run the checkpoint's own Python code.
        redo: Replace `out` even if it holds a quantised copy of another model or revision.

    Returns:
        `out`.

    Raises:
        ConfigError: `out` holds a quantised copy of another model or revision.
        ResultFormatError: `out` holds something other than a quantised copy.
        ModelError: The model cannot be opened, or is already quantised.
        MissingDependencyError: bitsandbytes is not installed.
    """
    require_package("bitsandbytes", needed_by="4-bit weights need")
    place = check_writable(out, directory=True, format=_SAVED.format)
    source = os.fspath(model) if os.fspath(model).startswith(PACKAGE) or not is_local(model) else str(located(model))
    hub = {"revision": revision, "trust_remote_code": trust_remote_code}
    if not redo and (place / RECORD).is_file():
        with suppress(ResultFormatError):  # a corrupted copy is replaced
            earlier = Result.load(place / RECORD, _SAVED).settings
            if (earlier.get("parent"), earlier.get("revision")) != (source, revision):
                refuse_to_replace(place, f"{str(earlier.get('parent'))[-80:]!r} quantised")
    with _plain_checkpoint(source, offline=offline, **hub) as plain, LOADING, quiet_files(report=True):
        quantised = _load_in_4_bits(plain, device=device, local_files_only=offline or is_local(model), **hub)
    tokenizer = load_tokenizer(model, revision=revision, offline=offline, trust_remote_code=trust_remote_code)
    own = {RECORD}
    with quiet_files(report=True), writing(place), atomic_directory(place, own=own) as folder:
        quantised.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        scheme = {"bits": 4, "type": "nf4", "arithmetic": "bfloat16", "double_quantisation": False}
        Result(
            _SAVED,
            {"parent": source, "revision": revision, "scheme": scheme},
            provenance={
                "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                "versions": versions("bitsandbytes"),
            },
            values={"files": file_sums(folder)},
        ).save(folder / RECORD)
        own.update(path.name for path in folder.iterdir())
    return place


@contextmanager
def _plain_checkpoint(source: str, *, offline: bool, **hub: Any) -> Iterator[str]:
    """Yield a checkpoint that transformers can quantise while loading; adapters and GGUF files are converted first."""
    if len(folders := checkpoint_folders(source)) == 1 and Path(folders[0]).suffix.lower() != SUFFIX:
        yield source
        return
    whole = load_weights(source, dtype=torch.float32, device_map=None, offline=offline, **hub)
    with SpillFolder() as folder, quiet_files(report=True):
        with writing(folder, advice=IN_TEMPORARY):
            whole.save_pretrained(folder)
        yield str(folder)


def _load_in_4_bits(source: str, *, device: str, **where: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

    with plain_errors(source, where["local_files_only"], failed="cannot quantise"):
        config = AutoConfig.from_pretrained(source, **where)
        if getattr(config, "quantization_config", None) is not None:
            raise ModelError(f"{source!r} is already quantised.")
        set_attention(config, "eager")  # a checkpoint may request a kernel from the Hub
        if Path(source).is_dir():
            weight_files(Path(source), source)
        four_bit = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        )
        model, info = AutoModelForCausalLM.from_pretrained(
            source,
            config=config,
            output_loading_info=True,
            quantization_config=four_bit,
            dtype=torch.bfloat16,
            device_map={"": pick_device(device)},
            **where,
        )
        require_complete(info, source, type(model).__name__)
        return model
