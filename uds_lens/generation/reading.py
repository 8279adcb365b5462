"""Texts that grow token by token: by a cache, or read whole at each token where a cache does not give the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from uds_lens.checked_arguments import arguments_checked
from uds_lens.compat.torch import is_out_of_memory
from uds_lens.compat.transformers import keep_cached_rows
from uds_lens.data import TokenSequence, make_batch
from uds_lens.errors import ModelBusyError, warn_once
from uds_lens.generation.cached_pass import cached_pass
from uds_lens.generation.padding import left_padded
from uds_lens.generation.token_scores import normed_at_window
from uds_lens.models import HookedModel
from uds_lens.patching import row_layout
from uds_lens.patching.side_by_side import ROUNDING
from uds_lens.patching.wavefront import is_tested_family

Way: TypeAlias = Literal["side by side", "one by one", "whole"]
"""How texts grow: padded on the left behind one cache, whose rows leave as they end; each behind a cache of its own; or
read from their first token at each step."""


class CachedTexts:
    """Texts behind one cache, padded on the left."""

    def __init__(self, model: HookedModel, texts: Sequence[Sequence[int]]) -> None:
        self._model, self._cache, self._n = model, None, len(texts)
        tokens, mask = left_padded(texts, model.device)
        self._mask = None if len(set(map(len, texts))) == 1 else mask
        self._read(tokens)

    states: Float[Tensor, "row d_model"]
    """Final states of the last tokens, which predict the next."""

    def grow(self, kept: Sequence[int], tokens: Sequence[int]) -> None:
        """Keep some of the texts, and append a token to each."""
        self._keep(kept)
        new = torch.tensor(tokens, device=self._model.device)[:, None]
        if self._mask is not None:
            self._mask = torch.cat([self._mask, torch.ones_like(new)], dim=1)
        self._read(new)

    def repeat(self, times: int) -> None:
        """Repeat each text, copies side by side."""
        self._keep([row for row in range(self._n) for _ in range(times)])
        self.states = self.states.repeat_interleave(times, dim=0)

    def _keep(self, rows: Sequence[int]) -> None:
        if list(rows) == list(range(self._n)):
            return
        which, self._n = torch.tensor(rows), len(rows)
        keep_cached_rows(self._cache, which)
        if self._mask is not None:
            self._mask = self._mask[which.to(self._mask.device)]

    def _read(self, tokens: Tensor) -> None:
        output = cached_pass(self._model, tokens, self._mask, self._cache)
        self._cache: Any = output.past_key_values
        self.states = output.last_hidden_state[:, -1]


class WholeTexts:
    """Texts that are read from their first token at each step, as they are when an answer is scored."""

    def __init__(self, model: HookedModel, texts: Sequence[Sequence[int]]) -> None:
        self._model = model
        self._texts: list[list[int]] = [list(text) for text in texts]
        self._read()

    states: Float[Tensor, "row d_model"]
    """Final states of the last tokens, which predict the next."""

    def grow(self, kept: Sequence[int], tokens: Sequence[int]) -> None:
        """Keep some of the texts, and append a token to each."""
        self._texts = [[*self._texts[row], token] for row, token in zip(kept, tokens, strict=True)]
        self._read()

    def repeat(self, times: int) -> None:
        """Repeat each text, copies side by side."""
        self._texts = [text for text in self._texts for _ in range(times)]
        self.states = self.states.repeat_interleave(times, dim=0)

    def _read(self) -> None:
        rows = [
            TokenSequence(ids=tuple(text), targets=(0,), scored=(len(text) - 1,), patched=())
            for text in self._texts
        ]
        layout = row_layout(self._model)
        found: dict[int, Tensor] = {}
        for some in layout.split([range(len(rows))], [len(row.ids) for row in rows]):
            batch = make_batch(rows, indices=some, padding_side=layout.padding_side)
            found |= zip(some, normed_at_window(self._model, batch.to(self._model.device))[:, 0], strict=True)
        self.states = torch.stack([found[row] for row in range(len(rows))])


_ways: WeakKeyDictionary[nn.Module, Way] = WeakKeyDictionary()
"""What was found, by the model."""


@arguments_checked
def growing_way(model: HookedModel) -> Way:
    """Return how texts of a model may grow; at its first call for a model, a few short texts are run.

    Two texts of different lengths grow side by side, one of them leaves, the other grows on. Where their states are not
    those of the whole texts, read alone, one text is tried by itself; where those differ too, texts are read whole at
    each token. Families that the tests compare with texts read whole are not tried, as in `row_layout`.
    """
    found = _ways.get(model.hf)
    if found is None:
        with torch.no_grad(), model.running():
            found = _ways[model.hf] = "side by side" if is_tested_family(model.hf) else _try(model)
    return found


@arguments_checked
def way_of(model: HookedModel, length: int, new_tokens: int) -> Way:
    """Return how one text grows: whole where its rotary frequencies change as it does.

    Args:
        model: The model.
        length: Tokens of the text.
        new_tokens: By how many tokens it may grow.
    """
    layout = row_layout(model)
    return growing_way(model) if layout.kind(length) == layout.kind(length + new_tokens) else "whole"


def _try(model: HookedModel) -> Way:
    way: Way = "side by side"
    why = _difference(model, [5, 12]) if row_layout(model).side == "left" else "padding changes its states"
    if why is None:
        return way
    alone = _difference(model, [5])
    way = "one by one" if alone is None else "whole"
    slower = (
        "Texts are generated one at a time, which is slower."
        if alone is None
        else f"Nor does one text by itself ({alone}). Texts are read whole at each new token, which is slower."
    )
    warn_once(
        f"{model.name!r} ({model.architecture}): texts that are generated side by side do not get what each gets alone "
        f"({why}). {slower}",
        key=f"growing {model.architecture} {model.dtype} {way}",
    )
    return way


def _difference(model: HookedModel, lengths: Sequence[int]) -> str | None:
    """How texts that grow by a cache differ from the same texts read whole; None where they do not."""
    vocabulary = min(model.d_vocab, model.anatomy.d_vocab)
    texts = [[(7 * place + n) % vocabulary for place in range(n + 2)] for n in lengths]
    allowed = ROUNDING.get(model.dtype, 1e-3)
    try:
        growing = CachedTexts(model, [text[:n] for text, n in zip(texts, lengths, strict=True)])
        for more in range(3):
            wanted = torch.stack(
                [
                    WholeTexts(model, [text[: n + more]]).states[0]
                    for text, n in zip(texts, lengths, strict=True)
                ]
            )
            gap = float(((growing.states - wanted).float().norm(dim=-1) / wanted.float().norm(dim=-1)).max())
            if not gap <= allowed and bool(wanted.isfinite().all()):
                return f"states differ by {gap:.1%}; rounding explains {allowed:.1%}"
            if more < 2:
                kept = list(range(len(texts)))[-1:] if more else list(range(len(texts)))
                texts, lengths = [texts[row] for row in kept], [lengths[row] for row in kept]
                growing.grow(kept, [text[n + more] for text, n in zip(texts, lengths, strict=True)])
    except Exception as error:
        if is_out_of_memory(error) or isinstance(error, ModelBusyError):
            raise
        return f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else 'no message'}"
    return None
