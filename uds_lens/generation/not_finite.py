"""What is said of a model whose logits are no numbers."""

from __future__ import annotations

from typing import NoReturn

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import ModelError, Setting


@arguments_checked
def raise_not_finite(name: str, example: str) -> NoReturn:
    """Say that a model gives NaN or infinite logits.

    Args:
        name: The model.
        example: What it was asked, or which row it was.

    Raises:
        ModelError: Always; names both.
    """
    raise ModelError(
        f"{name[:100]!r} gives NaN or infinite logits, first for {example[:80]!r}: its weights are broken, or its "
        "dtype overflows. Check the checkpoint, or use ",
        Setting("dtype", "float32"),
        ".",
    )
