"""Test how rows can be batched for a model (packed, padded, or one at a time); done once per open model.

Rows of different lengths are padded to the same length. Most families ignore padding, but some run it through a
recurrent layer, and some choose their rotary frequencies by the longest row in the batch. Every pass over a batch first
checks the result of this test.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from uds_lens._compat.accelerate import is_placed
from uds_lens._compat.transformers import RopeLimit, attention_of, is_plain_decoder, rope_limit, upcasts_attention
from uds_lens._types import PaddingSide
from uds_lens.data import TokenBatch, make_batch
from uds_lens.data._tokens import TokenSequence
from uds_lens.errors import ModelError, PatchError, warn_once
from uds_lens.models import HookedModel
from uds_lens.models._by_block import why_not_streamed as why_not_read_by_block
from uds_lens.models._checkpoint import load_config
from uds_lens.models._hooked import ModelSource, behaviour_changes
from uds_lens.patching._hooks import run_decoder
from uds_lens.patching._packing import configs_of

PACKED_FAMILIES = {"gemma2", "gemma3_text", "gpt2", "gpt_neox", "llama", "mistral", "mixtral", "olmo2", "phi3"}
PACKED_FAMILIES |= {"qwen2", "qwen3", "qwen3_moe"}
"""Families (`model_type`) whose blocks can run on packed rows. For each, the tests compare packed and padded rows with
single rows on a tiny model (`tests/tiny_models.py`)."""


def is_tested_family(model: Any) -> bool:
    """Return whether the tests cover packed and padded rows of a transformers model's family."""
    return is_plain_decoder(model) and model.config.get_text_config().model_type in PACKED_FAMILIES


def runs_plainly(model: HookedModel) -> bool:
    """Return whether blocks may be run separately from the model's forward pass.

    This is not allowed with hooks from accelerate (which run code after a block), TransformerLens or the user. Nor is
    it if blocks have their own causal masks, whose key positions would not match resumed tokens.
    """
    wrapped = is_placed(model.hf) or model.is_wrapped or model.runs_hooks
    return not wrapped and not model.anatomy.keeps_masks


def packable(model: HookedModel) -> bool:
    """Return whether a loaded model may run on packed rows: a tested family, eager attention, and no user hooks."""
    eager = all(attention_of(config) == "eager" for config in configs_of(model.anatomy.layers))
    return eager and runs_plainly(model) and _is_plain(model.hf)


def may_be_packable(source: ModelSource, model_type: object) -> bool:
    """Return whether a model may run on packed rows; for a checkpoint on disk, only the family is checked."""
    if model_type not in PACKED_FAMILIES:
        return False
    if isinstance(source, str | os.PathLike):
        return True
    return packable(source) if isinstance(source, HookedModel) else _is_plain(source)


def why_not_streamed(source: object, *, revision: str | None = None, offline: bool = False) -> str | None:
    """Return the reason why a model cannot be streamed; None if it can."""
    if not isinstance(source, str | os.PathLike):
        return "it is already in memory"
    if (why := why_not_read_by_block(source, revision=revision, offline=offline)) is not None:
        return why
    config = load_config(source, revision=revision, offline=offline, trust_remote_code=False)
    family = config.get_text_config().model_type
    if family not in PACKED_FAMILIES:
        return (
            f"{family!r} is not one of the families whose blocks are known to run on their own "
            f"({', '.join(sorted(PACKED_FAMILIES))}): a block's arguments may depend on the blocks before it"
        )
    if upcasts_attention(config):
        return "its config sets reorder_and_upcast_attn, which uses attention code that runs only in whole models"
    return None


def embed_tokens_of(model: HookedModel, batches: Sequence[TokenBatch]) -> None:
    """Load the weights that are needed before the blocks, for every token in some batches."""
    if not model.is_resident:
        none = torch.empty(0, dtype=torch.long)
        model.embed(torch.cat([none, *(batch.input_ids.flatten() for batch in batches)]).unique())


def _is_plain(model: Any) -> bool:
    """Return whether a model is of a tested family, without accelerate placement, user hooks or new forwards."""
    return is_tested_family(model) and not is_placed(model) and not behaviour_changes(model)


ROUNDING = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.01}
"""Largest difference between a row in a batch and the same row alone that rounding can explain: the norm of the
difference of their final states divided by the norm of the state, averaged over the row's tokens."""

_SHORT, _LONG, _LONGEST = 6, 19, 25
"""Lengths of the test rows; the padding between them exceeds the reach of a short convolution."""

LongRows: TypeAlias = Literal["together", "by length", "refused"]
"""How rows longer than the original maximum run (separately from shorter ones): together, only with rows of equal
length, or not at all."""


@dataclass(frozen=True)
class RowLayout:
    """How rows can be batched for a model without changing the numbers of any row."""

    side: PaddingSide | None = "left"
    """The side on which shorter rows are padded; None if rows run one at a time."""

    limit: int | None = None
    """Rows with more tokens than this run separately, because they have different rotary frequencies."""

    long_rows: LongRows = "together"
    """How rows longer than `limit` run."""

    @property
    def padding_side(self) -> PaddingSide:
        """Padding side for `make_batch`; irrelevant for a single row."""
        return self.side or "left"

    def described(self, *, packed: bool = False) -> str:
        """Describe the layout for the provenance of a measurement.

        >>> RowLayout().described(), RowLayout(limit=4096).described(packed=True)
        ('padded on the left', 'packed; rows longer than 4096 tokens apart')
        """
        padded = "one row at a time" if self.side is None else f"padded on the {self.side}"
        how = "packed" if packed else padded
        return how if self.limit is None else f"{how}; rows longer than {self.limit} tokens apart"

    def kind(self, length: int) -> int:
        """Return a number that identifies the rotary frequencies of a row; rows with the same number may be batched.

        >>> layout = RowLayout(limit=8, long_rows="by length")
        >>> [layout.kind(length) for length in (3, 8, 9, 20)]
        [0, 0, 9, 20]
        """
        if self.limit is None or length <= self.limit:
            return 0
        return 1 if self.long_rows == "together" else length

    def split(self, batches: Sequence[Sequence[int]], lengths: Sequence[int] | Mapping[int, int]) -> list[list[int]]:
        """Split batches into smaller ones that contain only rows that may run together.

        Args:
            batches: Indices of rows.
            lengths: Number of tokens of each row, by index.

        Returns:
            The same indices, in batches of rows that may run together.

        Raises:
            ModelError: A row is too long to be run reproducibly.

        Example:
            >>> RowLayout(limit=8).split([[0, 1, 2]], [4, 12, 5])
            [[0, 2], [1]]
            >>> RowLayout(side=None).split([[0, 1]], [4, 5])
            [[0], [1]]
        """
        if self.limit is None and self.side is not None:
            return [list(batch) for batch in batches]
        split: list[list[int]] = []
        for batch in batches:
            kinds: dict[int, list[int]] = {}
            for index in batch:
                kinds.setdefault(self.kind(lengths[index]), []).append(index)
            if self.long_rows == "refused" and set(kinds) - {0}:
                raise ModelError(
                    f"a row has {max(lengths[index] for index in batch)} tokens, but this model's rotary frequencies "
                    f"are fixed only up to {self.limit}. Beyond that, its numbers for a row depend on the rows before "
                    "it. Shorten the texts, or open the model without its own code."
                )
            split += [[i] for i in batch] if self.side is None else kinds.values()
        return split


_layouts: WeakKeyDictionary[nn.Module, RowLayout] = WeakKeyDictionary()  # known layouts, by model


def row_layout(model: HookedModel) -> RowLayout:
    """Return how rows may be batched for a model; the first call for each model tests this on a few short rows.

    A row is run alone and together with a longer one, padded on the left and, if that changes its states, on the right.
    If neither side works, rows run one at a time, with a warning. Families that the test suite covers are not tested
    here, unless their rotary frequencies depend on the length of the row. In that case, a few tokens at positions
    beyond the original maximum are tested as well.

    Raises:
        ModelError: Running the same row twice gives different numbers.
    """
    if model.hf not in _layouts:
        limit = rope_limit(model.hf.config)
        if not model.is_resident:
            _layouts[model.hf] = layout_of_config(model.hf.config)
        elif limit is None and is_tested_family(model.hf):
            _layouts[model.hf] = RowLayout()
        else:
            with torch.no_grad(), model.running():
                _layouts[model.hf] = _try(model, limit)
    return _layouts[model.hf]


def require_fitting(model: HookedModel, batch: TokenBatch) -> None:
    """Raise `PatchError` if batching these rows would change their numbers; see `row_layout`."""
    layout = row_layout(model)
    if layout == RowLayout():
        return
    lengths = batch.attention_mask.sum(1).tolist()
    apart = len(layout.split([range(len(batch))], lengths)) > 1
    if apart or (layout.side != batch.padding_side and len(set(lengths)) > 1):
        raise PatchError(
            f"rows of {model.name!r} ({model.architecture}) run {layout.described()}; this batch has {len(batch)} rows "
            f"of {min(lengths)} to {max(lengths)} tokens, padded on the {batch.padding_side}, which would change their "
            "numbers. Make batches of row_layout(model).split(...), with make_batch(..., "
            "padding_side=row_layout(model).padding_side)."
        )


def layout_of_config(config: Any) -> RowLayout:
    """Return the layout implied by a transformers config: rows with different rotary frequencies run separately."""
    limit = rope_limit(config)
    if limit is None:
        return RowLayout()
    return RowLayout(limit=limit.length, long_rows="by length" if limit.by_length else "together")


def _try(model: HookedModel, limit: RopeLimit | None) -> RowLayout:
    short, long = _row(model, _SHORT), _row(model, _LONG)
    alone = _alone(model, short)
    if not bool(alone.isfinite().all()):
        return RowLayout()  # a broken model is reported later, together with the example
    side = _side(model, short, long, alone)
    if limit is None:
        return RowLayout(side=side)
    return RowLayout(side=side, limit=limit.length, long_rows=_beyond(model, limit, side, short, alone))


def _side(
    model: HookedModel, short: TokenSequence, long: TokenSequence, alone: Float[Tensor, "pos d_model"]
) -> PaddingSide | None:
    """Return the side on which padding changes nothing; None if there is none."""
    allowed = ROUNDING.get(model.dtype, 1e-3)
    left = _gap(_states(model, [short, long], "left")[0], alone)
    if left <= allowed:
        return "left"
    right = _gap(_states(model, [short, long], "right")[0], alone)
    side: PaddingSide | None = "right" if right <= allowed else None
    if side is None and (again := _gap(_alone(model, short), alone)) > allowed:
        raise ModelError(
            f"{model.name!r} ({model.architecture}) gives different states when the same row is run again (they "
            f"differ by {again:.1%}), so none of its numbers can be reproduced: it draws random numbers or "
            "keeps state between calls. Run it in evaluation mode, without its own code."
        )
    instead = (
        "Rows are padded on the right instead, which changes nothing and costs nothing."
        if side
        else f"Padding on the right changes them by {right:.1%}. Rows therefore run one at a time, which is slower."
    )
    warn_once(
        f"{model.name!r} ({model.architecture}): padding a row on the left changes its states by {left:.1%} (rounding "
        f"can account for {allowed:.1%}). {instead}",
        key=f"rows {model.architecture} {model.dtype} {side}",
    )
    return side


def _beyond(
    model: HookedModel,
    limit: RopeLimit,
    side: PaddingSide | None,
    short: TokenSequence,
    alone: Float[Tensor, "pos d_model"],
) -> LongRows:
    """Return how rows beyond the limit run, by testing a few tokens at positions beyond it."""
    allowed, first = ROUNDING.get(model.dtype, 1e-3), limit.length
    far = _alone(model, short, first=first)
    beside = _states(model, [short, _row(model, _LONGEST)], side or "left", first=first)[0]
    far_again, again = _alone(model, short, first=first), _alone(model, short)
    if max(_gap(again, alone), _gap(far_again, far)) > allowed:
        return "refused"  # earlier rows change the results for later ones
    together = not limit.by_length and side is not None and _gap(beside, far) <= allowed
    return "together" if together else "by length"


def _row(model: HookedModel, n: int) -> TokenSequence:
    """Make a test row; rows of different lengths have different first tokens, so that they share no beginning."""
    vocabulary = min(model.d_vocab, model.anatomy.d_vocab)
    ids = tuple((7 * place + n) % vocabulary for place in range(n))
    return TokenSequence(ids=ids, targets=(0,) * n, scored=tuple(range(n)), patched=())


def _alone(model: HookedModel, row: TokenSequence, *, first: int = 0) -> Float[Tensor, "pos d_model"]:
    return _states(model, [row], "left", first=first)[0]


def _states(
    model: HookedModel, rows: Sequence[TokenSequence], side: PaddingSide, *, first: int = 0
) -> list[Float[Tensor, "pos d_model"]]:
    """Return the final states of each row's tokens, with positions counted from `first`."""
    batch = make_batch(rows, pad_token_id=0, padding_side=side).to(model.device)
    batch = replace(batch, position_ids=batch.position_ids + first * batch.attention_mask)
    states = run_decoder(model.anatomy, batch, use_cache=False).last_hidden_state
    return [own[mask.to(own.device).bool()] for own, mask in zip(states, batch.attention_mask, strict=True)]


def _gap(states: Tensor, expected: Tensor) -> float:
    states, expected = states.float(), expected.float().to(states.device)
    return float(((states - expected).norm(dim=-1) / expected.norm(dim=-1).clamp(min=1e-12)).mean())
