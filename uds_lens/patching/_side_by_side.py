"""Whether rows give the same numbers side by side as alone: decided once for each open model, by trying.

Rows of different lengths are padded to one. Most families ignore padding; some run it through a recurrent layer, and
some take their rotary frequencies from the longest row of the batch. Every pass over a batch asks here first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from uds_lens._compat.transformers import RopeLimit, rope_limit
from uds_lens._types import PaddingSide
from uds_lens.data import TokenBatch, TokenSequence, make_batch
from uds_lens.errors import ModelError, PatchError, warn_once
from uds_lens.models import HookedModel
from uds_lens.patching._blocks import is_tested_family
from uds_lens.patching._states import run_decoder

ROUNDING = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.01}
"""Largest difference between a row in a batch and the same row alone that rounding explains: the norm of the difference
of their final states over the norm of the state, mean over the row's tokens."""

_SHORT, _LONG, _LONGEST = 6, 19, 25
"""Tokens of the rows that are tried: more padding than a short convolution reaches over."""

LongRows: TypeAlias = Literal["together", "by length", "refused"]
"""How rows beyond the original maximum run, apart from shorter ones: with each other, only with rows of their own
length, or not at all."""


@dataclass(frozen=True)
class RowLayout:
    """How rows of a model may stand side by side, so that each gives the numbers that it gives alone."""

    side: PaddingSide | None = "left"
    """Where shorter rows are padded; None: one row at a time."""

    limit: int | None = None
    """Rows longer than that, in tokens, run apart from the others: they have other rotary frequencies."""

    long_rows: LongRows = "together"
    """How those run."""

    @property
    def padding_side(self) -> PaddingSide:
        """Side for `make_batch`; that of a single row means nothing."""
        return self.side or "left"

    def described(self, *, packed: bool = False) -> str:
        """Describe the layout for the record of a measurement.

        >>> RowLayout().described(), RowLayout(limit=4096).described(packed=True)
        ('padded on the left', 'packed; rows longer than 4096 tokens apart')
        """
        padded = "one row at a time" if self.side is None else f"padded on the {self.side}"
        how = "packed" if packed else padded
        return how if self.limit is None else f"{how}; rows longer than {self.limit} tokens apart"

    def kind(self, length: int) -> int:
        """Number of the frequencies that a text of some tokens is read with: texts of one kind may be batched.

        >>> layout = RowLayout(limit=8, long_rows="by length")
        >>> [layout.kind(length) for length in (3, 8, 9, 20)]
        [0, 0, 9, 20]
        """
        if self.limit is None or length <= self.limit:
            return 0
        return 1 if self.long_rows == "together" else length

    def split(
        self, batches: Sequence[Sequence[int]], lengths: Sequence[int] | Mapping[int, int]
    ) -> list[list[int]]:
        """Cut batches into those that may run.

        Args:
            batches: Indices of rows.
            lengths: Tokens of every row, by its index.

        Returns:
            The same indices in the same order, in batches of rows that may stand side by side.

        Raises:
            ModelError: A row is beyond a limit after which the model cannot be run reproducibly.

        Example:
            >>> RowLayout(limit=8).split([[0, 1, 2]], [4, 12, 5])
            [[0, 2], [1]]
            >>> RowLayout(side=None).split([[0, 1]], [4, 5])
            [[0], [1]]
        """
        if self.limit is None and self.side is not None:
            return [list(batch) for batch in batches]
        found: list[list[int]] = []
        for batch in batches:
            kinds: dict[int, list[int]] = {}
            for index in batch:
                kinds.setdefault(self.kind(lengths[index]), []).append(index)
            if self.long_rows == "refused" and set(kinds) - {0}:
                raise ModelError(
                    f"a row has {max(lengths[index] for index in batch)} tokens, more than the {self.limit} up to "
                    "which this model's rotary frequencies are fixed. Beyond that it gives other numbers for the same "
                    "text after another one was read. Shorten the texts, or open the model without its own code."
                )
            pieces = kinds.values()
            found += [[i] for piece in pieces for i in piece] if self.side is None else map(list, pieces)
        return found


_layouts: WeakKeyDictionary[nn.Module, RowLayout] = WeakKeyDictionary()
"""What was found, by the model."""


def row_layout(model: HookedModel) -> RowLayout:
    """Return how rows of a model may be batched; at its first call for a model, a few short rows are run.

    A row is run alone, and beside a longer one: padded on the left, else on the right, else rows run one at a time,
    with a warning that says so. Families whose rows the tests compare with the same rows alone are not tried, unless
    their rotary frequencies depend on the text's length. Then rows beyond the original maximum are tried too (a few
    tokens at such positions, which costs no more).

    Raises:
        ModelError: A row alone does not give the same numbers twice.
    """
    found = _layouts.get(model.hf)
    if found is None:
        limit = rope_limit(model.hf.config)
        if limit is None and is_tested_family(model.hf):
            found = RowLayout()
        else:
            with torch.no_grad(), model.running():
                found = _try(model, limit)
        _layouts[model.hf] = found
    return found


def require_fitting(model: HookedModel, batch: TokenBatch) -> None:
    """Raise unless the rows of a batch give the numbers that they give alone; see `row_layout`.

    Raises:
        PatchError: They are padded on the wrong side, or may not stand side by side.
    """
    layout = row_layout(model)
    if layout == RowLayout():
        return
    lengths = batch.attention_mask.sum(1).tolist()
    apart = len(layout.split([range(len(batch))], lengths)) > 1
    if apart or (layout.side != batch.padding_side and len(set(lengths)) > 1):
        raise PatchError(
            f"rows of {model.name!r} ({model.architecture}) run {layout.described()}; this batch has {len(batch)} rows "
            f"of {min(lengths)} to {max(lengths)} tokens, padded on the {batch.padding_side}, and would give other "
            "numbers than each row alone. Make batches of row_layout(model).split(...), with "
            "make_batch(..., padding_side=row_layout(model).padding_side)."
        )


def layout_of_config(config: Any) -> RowLayout:
    """Return what a transformers configuration says by itself: rows with other rotary frequencies run apart."""
    limit = rope_limit(config)
    if limit is None:
        return RowLayout()
    return RowLayout(limit=limit.length, long_rows="by length" if limit.by_length else "together")


def _try(model: HookedModel, limit: RopeLimit | None) -> RowLayout:
    short, long = _row(model, _SHORT), _row(model, _LONG)
    alone = _alone(model, short)
    if not bool(alone.isfinite().all()):
        return RowLayout()  # a broken model is reported by the pass that meets it, with the example
    side = _side(model, short, long, alone)
    if limit is None:
        return RowLayout(side=side)
    return RowLayout(side=side, limit=limit.length, long_rows=_beyond(model, limit, side, short, alone))


def _side(
    model: HookedModel, short: TokenSequence, long: TokenSequence, alone: Float[Tensor, "pos d_model"]
) -> PaddingSide | None:
    """The side on which padding changes nothing; None where it does on both."""
    allowed = _rounding(model)
    left = _gap(model, _states(model, [short, long], "left")[0], alone)
    if left <= allowed:
        return "left"
    right = _gap(model, _states(model, [short, long], "right")[0], alone)
    found: PaddingSide | None = "right" if right <= allowed else None
    if found is None:
        again = _gap(model, _alone(model, short), alone)
        if again > allowed:
            raise ModelError(
                f"{model.name!r} ({model.architecture}) gives other states when the same row is run again (they "
                f"differ by {again:.1%}), so that none of its numbers can be reproduced: it draws random numbers, or "
                "remembers what it read before. Run it in evaluation mode, without code of its own."
            )
    instead = (
        "Rows are padded on the right, which changes nothing and costs nothing."
        if found
        else f"So does padding on the right ({right:.1%}). Rows run one at a time, which is slower."
    )
    warn_once(
        f"{model.name!r} ({model.architecture}): padding a row on the left changes its states by {left:.1%} (rounding "
        f"explains {allowed:.1%}). {instead}",
        key=f"rows {model.architecture} {model.dtype} {found}",
    )
    return found


def _beyond(
    model: HookedModel,
    limit: RopeLimit,
    side: PaddingSide | None,
    short: TokenSequence,
    alone: Float[Tensor, "pos d_model"],
) -> LongRows:
    """How rows beyond the limit run: tried with few tokens at positions beyond it."""
    allowed, first = _rounding(model), limit.length
    far = _alone(model, short, first=first)
    beside = _states(model, [short, _row(model, _LONGEST)], side or "left", first=first)[0]
    far_again, again = _alone(model, short, first=first), _alone(model, short)
    if max(_gap(model, again, alone), _gap(model, far_again, far)) > allowed:
        return "refused"  # what was read before changes what is read now
    together = not limit.by_length and side is not None and _gap(model, beside, far) <= allowed
    return "together" if together else "by length"


def _row(model: HookedModel, n: int) -> TokenSequence:
    """Some tokens; longer rows begin otherwise, so that nothing is shared."""
    vocabulary = min(model.d_vocab, model.anatomy.d_vocab)
    ids = tuple((7 * place + n) % vocabulary for place in range(n))
    return TokenSequence(ids=ids, targets=(0,) * n, scored=tuple(range(n)), patched=())


def _alone(model: HookedModel, row: TokenSequence, *, first: int = 0) -> Float[Tensor, "pos d_model"]:
    return _states(model, [row], "left", first=first)[0]


def _states(
    model: HookedModel, rows: Sequence[TokenSequence], side: PaddingSide, *, first: int = 0
) -> list[Float[Tensor, "pos d_model"]]:
    """Final states of each row's tokens, whose positions count from `first`."""
    batch = make_batch(rows, padding_side=side).to(model.device)
    batch = replace(batch, position_ids=batch.position_ids + first * batch.attention_mask)
    states = run_decoder(model.anatomy, batch, use_cache=False).last_hidden_state
    return [own[mask.to(own.device).bool()] for own, mask in zip(states, batch.attention_mask, strict=True)]


def _gap(model: HookedModel, found: Tensor, wanted: Tensor) -> float:
    found, wanted = found.float(), wanted.float().to(found.device)
    return float(((found - wanted).norm(dim=-1) / wanted.norm(dim=-1).clamp(min=1e-12)).mean())


def _rounding(model: HookedModel) -> float:
    return ROUNDING.get(model.dtype, 1e-3)
