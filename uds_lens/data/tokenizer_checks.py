"""What a tokenizer must be able to do, and how long its texts may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uds_lens.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SANE_LENGTH = 1_000_000
"""Tokenizers without a limit carry a huge `model_max_length`; above this it means nothing."""


def longest_of(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Tokens of the longest text that a tokenizer's model takes; None where it has no limit."""
    limit = tokenizer.model_max_length
    return int(limit) if limit is not None and 0 < limit < _SANE_LENGTH else None


def require_fast(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise unless a tokenizer tells where in the text each token stands.

    Raises:
        DataError: It does not.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise DataError(
            "a fast tokenizer is needed, because entities are found by character offsets; "
            f"got {type(tokenizer).__name__}. "
            "Load it with AutoTokenizer.from_pretrained(path, use_fast=True), "
            "or save a fast one (tokenizer.json) there."
        )
