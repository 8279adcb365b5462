"""After training: look at the weights, and save them with their record."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import torch

from uds_lens.errors import ModelError, ResultFormatError, UdsLensWarning
from uds_lens.models import fingerprint
from uds_lens.storage import atomic_directory, writing
from uds_lens.types import DType
from uds_lens.unlearning.alternates import FILE
from uds_lens.unlearning.file_sums import file_sums
from uds_lens.unlearning.parent import Parent
from uds_lens.unlearning.training_record import read_record, write_record


def save_model(
    model: Any,
    parent: Parent,
    record: dict[str, Any],
    *,
    out: Path,
    folder: Path,
    file: str,
    dtype: DType,
) -> None:
    """Save a trained model with its tokenizer and record, whole or not at all.

    The record's fingerprint is that of the saved weights, read in the dtype they were trained in.

    Args:
        model: The plain transformers model.
        parent: What it started from.
        record: Its record, without fingerprint and sums of files.
        out: Directory of the result.
        folder: Where alternates lie, if there are any.
        file: File name of the record.
        dtype: Dtype to save in.

    Raises:
        ModelError: A weight is not a finite number; nothing is saved.

    Warns:
        UdsLensWarning: The weights are those of the parent.
    """
    require_finite(model)
    trained_dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
    model = model.to("cpu").to(getattr(torch, dtype))
    model.config.dtype = getattr(torch, dtype)
    own = {file} | _files_before(out)
    with writing(out), atomic_directory(out, own=own) as place:
        model.save_pretrained(place)
        parent.tokenizer.save_pretrained(place)
        if (folder / FILE).is_file():
            shutil.copyfile(folder / FILE, place / FILE)
        record = {**record, "fingerprint": fingerprint(model.to(trained_dtype)), "files": file_sums(place)}
        write_record(record, place / file)
        own.update(path.name for path in place.iterdir())
    if record["fingerprint"] == parent.fingerprint:
        warnings.warn(
            f"{str(out)!r} has the weights of {parent.name!r}: training changed nothing (in {dtype}). Raise "
            "learning_rate or epochs, or save in float32.",
            UdsLensWarning,
            stacklevel=2,
        )


def _files_before(out: Path) -> set[str]:
    """What an earlier, damaged result of this library left at a place; anything else there stays."""
    try:
        record = read_record(out)
    except ResultFormatError:
        return set()
    return {name.partition("/")[0] for name in record.get("files") or ()}


def require_finite(model: Any) -> None:
    """Raise unless every weight is a finite number.

    Raises:
        ModelError: Naming the first weights that are not.
    """
    broken = [name for name, p in model.named_parameters() if not bool(torch.isfinite(p).all())]
    if broken:
        raise ModelError(
            f"training has diverged: {len(broken)} weights are not finite ({', '.join(broken[:3])}, ...). Lower "
            "learning_rate or epochs, or raise alpha. Nothing was saved."
        )
