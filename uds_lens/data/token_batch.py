"""Token rows side by side in tensors, with a window over the positions that matter."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from uds_lens.checked_arguments import arguments_checked
from uds_lens.data.token_sequence import TokenSequence
from uds_lens.errors import ConfigError
from uds_lens.types import PaddingSide, check_choice

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED = -100
"""Target of a window position that is not scored."""


@dataclass(frozen=True)
class TokenBatch:
    """Rows padded to one length, each with a window from its first patched or scored position to its end."""

    input_ids: Int[Tensor, "batch pos"]
    """Token ids; padding holds the padding token, which nothing attends to."""
    attention_mask: Int[Tensor, "batch pos"]
    """1 for tokens, 0 for padding."""
    position_ids: Int[Tensor, "batch pos"]
    """0, 1, 2 ... over the tokens of a row; 0 on padding."""
    window: Int[Tensor, "batch win"]
    """Positions in the padded row, left-aligned; entries past the end repeat the last one."""
    window_mask: Bool[Tensor, "batch win"]
    """True for the entries of `window` that are real."""
    patched_mask: Bool[Tensor, "batch win"]
    """True where a window position is patched."""
    scored_mask: Bool[Tensor, "batch win"]
    """True where a window position is scored."""
    targets: Int[Tensor, "batch win"]
    """The token to predict where scored, else -100."""
    rows: tuple[int, ...]
    """Index of each row in the list the batch was made from."""
    padding_side: PaddingSide = "left"
    """Where the padding stands."""

    @arguments_checked
    def to(self, device: torch.device | str) -> TokenBatch:
        """The same batch with its tensors on `device`."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        moved = {name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}
        return TokenBatch(**{**values, **moved})

    @arguments_checked
    def take(self, rows: Sequence[int]) -> TokenBatch:
        """Some rows of the batch, at its length; the window as wide as theirs are."""
        which = list(rows)
        width = int(self.window_mask[which].sum(1).max())
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        taken = {name: value[which] for name, value in values.items() if isinstance(value, Tensor)}
        at_window = ("window", "window_mask", "patched_mask", "scored_mask", "targets")
        cut = {name: taken[name][:, :width] for name in at_window}
        return TokenBatch(**{**values, **taken, **cut, "rows": tuple(self.rows[row] for row in which)})

    def __len__(self) -> int:
        return len(self.rows)


@arguments_checked
def make_batch(
    rows: Sequence[TokenSequence],
    *,
    indices: Sequence[int] | None = None,
    pad_token_id: int | None = None,
    padding_side: PaddingSide = "left",
) -> TokenBatch:
    """Pad rows to one length.

    Args:
        rows: All rows, usually `Encoded.rows`.
        indices: Which of them, in this order; None takes all.
        pad_token_id: Filler, masked everywhere; None (a tokenizer without one) uses 0.
        padding_side: "left" or "right".

    Returns:
        The batch, on the CPU.

    Raises:
        ConfigError: No row is chosen, or `padding_side` is unknown.

    Example:
        >>> row = TokenSequence(ids=(5, 6, 7), targets=(7, 8), scored=(1, 2), patched=(1, 2))
        >>> batch = make_batch([row], pad_token_id=0)
        >>> batch.window.tolist(), batch.targets.tolist()
        ([[1, 2]], [[7, 8]])
    """
    check_choice("padding_side", padding_side, PaddingSide)
    indices = range(len(rows)) if indices is None else indices
    chosen = [rows[index] for index in indices]
    if not chosen:
        raise ConfigError("a batch needs at least one row; got none. Choose rows that were not skipped.")
    length = max(len(row.ids) for row in chosen)
    width = max(len(row.window) for row in chosen)
    pad = 0 if pad_token_id is None else pad_token_id
    columns = [_padded(row, length, width, pad, padding_side) for row in chosen]
    ids, mask, positions, window, real, patched, scored, targets = zip(*columns, strict=True)
    return TokenBatch(
        input_ids=torch.tensor(ids, dtype=torch.long),
        attention_mask=torch.tensor(mask, dtype=torch.long),
        position_ids=torch.tensor(positions, dtype=torch.long),
        window=torch.tensor(window, dtype=torch.long),
        window_mask=torch.tensor(real, dtype=torch.bool),
        patched_mask=torch.tensor(patched, dtype=torch.bool),
        scored_mask=torch.tensor(scored, dtype=torch.bool),
        targets=torch.tensor(targets, dtype=torch.long),
        rows=tuple(indices),
        padding_side=padding_side,
    )


@arguments_checked
def batch_from_texts(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    *,
    positions: int | Sequence[Sequence[int]],
    add_special_tokens: bool = True,
    padding_side: PaddingSide = "left",
) -> TokenBatch:
    """A batch over arbitrary texts, for patching outside an audit.

    The window runs from the first chosen position to the end of each text. Every window position but the last
    is scored: its target is the next token of the text.

    Args:
        tokenizer: Any tokenizer.
        texts: Texts to run, whole.
        positions: Token positions to patch: a number n for the last n tokens of every text, or per text a
            contiguous increasing run; negative ones count from the end.
        add_special_tokens: False where the texts already hold them.
        padding_side: "left" or "right".

    Returns:
        The batch; `rows` counts the texts.

    Raises:
        ConfigError: No text, or positions that are outside a text, not contiguous, or not one run per text.
    """
    if isinstance(texts, str) or not texts:
        raise ConfigError(f"texts must be a non-empty list of texts; got {texts!r}.")
    coded = tokenizer(
        list(texts), add_special_tokens=add_special_tokens, padding=False, truncation=False, verbose=False
    )
    chosen: list[int | Sequence[int]]
    chosen = [positions] * len(texts) if isinstance(positions, int) else list(positions)
    if len(chosen) != len(texts):
        raise ConfigError(f"positions must hold one run per text: {len(texts)} texts, {len(chosen)} runs.")
    rows = [
        _free_row(ids, run, index)
        for index, (ids, run) in enumerate(zip(coded["input_ids"], chosen, strict=True))
    ]
    return make_batch(rows, pad_token_id=tokenizer.pad_token_id, padding_side=padding_side)


def _free_row(ids: list[int], run: int | Sequence[int], index: int) -> TokenSequence:
    n = len(ids)
    asked = range(n - run, n) if isinstance(run, int) else [p + n if p < 0 else p for p in run]
    if (
        not asked
        or list(asked) != list(range(asked[0], asked[0] + len(asked)))
        or asked[0] < 0
        or asked[-1] >= n
    ):
        raise ConfigError(
            f"text {index} has {n} tokens: positions must be a contiguous run within 0..{n - 1}; got {run!r}."
        )
    scored = range(asked[0], n - 1)
    return TokenSequence(
        ids=tuple(ids), targets=tuple(ids[asked[0] + 1 :]), scored=tuple(scored), patched=tuple(asked)
    )


def _padded(row: TokenSequence, length: int, width: int, pad: int, side: PaddingSide) -> tuple[list, ...]:
    filler = length - len(row.ids)
    shift = filler if side == "left" else 0

    def pad_to_length(values: Sequence[int], fill: int) -> list[int]:
        return [fill] * filler + [*values] if side == "left" else [*values] + [fill] * filler

    window = row.window
    rest = width - len(window)
    target = dict(zip(row.scored, row.targets, strict=True))
    patched = set(row.patched)
    return (
        pad_to_length(row.ids, pad),
        pad_to_length([1] * len(row.ids), 0),
        pad_to_length(range(len(row.ids)), 0),
        [p + shift for p in window] + [window[-1] + shift] * rest,
        [True] * len(window) + [False] * rest,
        [p in patched for p in window] + [False] * rest,
        [p in target for p in window] + [False] * rest,
        [target.get(p, IGNORED) for p in window] + [IGNORED] * rest,
    )
