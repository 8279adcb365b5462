"""Texts that grow token by token: by a cache, or read whole at each token where a cache does not give the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from uds_lens._compat.torch import is_out_of_memory
from uds_lens._compat.transformers import keep_cached_rows
from uds_lens.data import TokenBatch, TokenSequence, make_batch
from uds_lens.errors import ModelBusyError, ModelError, Setting, warn_once
from uds_lens.models import Anatomy, HookedModel
from uds_lens.patching import row_layout
from uds_lens.patching._costs import logits_at_once
from uds_lens.patching._hooks import run_decoder
from uds_lens.patching._side_by_side import ROUNDING, is_tested_family
from uds_lens.patching._states import at_window

# Token lists of several lengths side by side, and the position of each token in its own text.


def left_padded(
    rows: Sequence[Sequence[int]], device: torch.device
) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch pos"]]:
    """Ids and mask, texts at the right edge: what follows them stands in the next column for all."""
    length = max(map(len, rows))
    ids = [[0] * (length - len(row)) + list(row) for row in rows]
    mask = [[0] * (length - len(row)) + [1] * len(row) for row in rows]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def right_padded(
    rows: Sequence[Sequence[int]], device: torch.device
) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch pos"]]:
    """Ids and mask, texts at the left edge, where they follow what stands before all of them."""
    length = max(map(len, rows))
    ids = [list(row) + [0] * (length - len(row)) for row in rows]
    mask = [[1] * len(row) + [0] * (length - len(row)) for row in rows]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def positions_of(mask: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
    """0, 1, 2 ... over the tokens of each row; padding has those of the token before it, or 0."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


# A pass over tokens that stand behind others, whose keys and values are kept.


def cached_pass(
    model: HookedModel,
    ids: Int[Tensor, "batch new"],
    mask: Int[Tensor, "batch pos"] | None,
    cache: Any = None,
) -> Any:
    """Run the decoder on new tokens of every row.

    Args:
        model: The model.
        ids: New tokens.
        mask: 0 at padding, 1 at tokens: of those before, then of the new ones; None where nothing is padding.
        cache: Keys and values of those before, which grows; None where there are none.

    Returns:
        The decoder's output: `last_hidden_state` `[batch, new, d_model]` after the final norm, and `past_key_values`.
    """
    padded: dict[str, Any] = {}
    if mask is not None:
        padded = {"attention_mask": mask, "position_ids": positions_of(mask)[:, -ids.shape[1] :]}
    return model.anatomy.base(input_ids=ids, past_key_values=cache, use_cache=True, **padded)


# What is said of a model whose logits are no numbers.


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


# What a model says about given tokens: one forward over a batch, read at its window.


class TokenScores(NamedTuple):
    """What the model says about each token."""

    logprobs: Float[Tensor, "row"]
    """Log-probability, nats, float32; NaN where the logits are not finite."""

    hits: Bool[Tensor, "row"]
    """Is the token the model's first choice?"""

    standardised: Float[Tensor, "row"]
    """`(log p - mu) / sigma`, mu and sigma the mean and deviation of log p over the vocabulary under p."""

    first_choices: Int[Tensor, "row"]
    """The model's first choice."""


def normed_at_window(model: HookedModel, batch: TokenBatch) -> Float[Tensor, "batch win d_model"]:
    """States after the final norm at the window positions of a batch, ready for `Anatomy.unembed`.

    Args:
        model: The model; gradients flow where its parameters ask for them.
        batch: Tokens and windows, on the model's device.

    Returns:
        Copies of the states; entries beyond a row's own window repeat its last position.
    """
    return at_window(run_decoder(model.anatomy, batch, use_cache=False).last_hidden_state, batch.window)


def read_tokens(
    anatomy: Anatomy, normed: Float[Tensor, "row d_model"], targets: Int[Tensor, "row"]
) -> TokenScores:
    """Log-probability, first choice or not, and standardised log-probability of each target.

    Logits live in chunks; the log-softmax is float32 whatever the model's dtype.

    Args:
        anatomy: The model.
        normed: States after its final norm.
        targets: The token each state should predict.

    Returns:
        Four tensors, one entry per target.
    """
    chunk = max(1, logits_at_once(normed.device) // anatomy.d_vocab)
    parts = [
        _read_chunk(anatomy.unembed(normed[start : start + chunk]).float(), targets[start : start + chunk])
        for start in range(0, len(normed), chunk)
    ]
    return TokenScores(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _read_chunk(logits: Float[Tensor, "row d_vocab"], targets: Int[Tensor, "row"]) -> TokenScores:
    """Everything from one exponential of each logit; with z below the largest logit, log p is z minus a constant."""
    targets = targets.to(logits.device)
    largest, first_choices = logits.max(-1)
    below = logits - largest[:, None]
    mass = below.exp()
    total = mass.sum(-1)
    own = below.gather(-1, targets[:, None])[:, 0]
    logprobs = torch.where(_all_finite(logits), own - total.log(), torch.nan)
    mean = torch.linalg.vecdot(mass, below) / total
    apart = below - mean[:, None]
    variance = torch.linalg.vecdot(mass * apart, apart) / total
    standardised = (own - mean) / variance.clamp(min=1e-6).sqrt()
    return TokenScores(logprobs, first_choices == targets, standardised, first_choices)


def _all_finite(logits: Float[Tensor, "row d_vocab"]) -> Bool[Tensor, "row"]:
    """Whether a row holds numbers only. Their sum tells it, unless it overflows: then each is looked at."""
    finite = logits.sum(-1).isfinite()
    if not bool(finite.all()):
        finite = logits.isfinite().all(-1)
    return finite


Way: TypeAlias = Literal["side by side", "one by one", "whole"]
"""How texts grow: padded on the left behind one cache, whose rows leave as they end; each behind a cache of its own; or
read from their first token at each step."""


class CachedTexts:
    """Texts behind one cache, padded on the left."""

    def __init__(self, model: HookedModel, texts: Sequence[Sequence[int]]) -> None:
        self._model, self._n = model, len(texts)
        self._cache: Any = None
        tokens, mask = left_padded(texts, model.device)
        # Other families may count positions otherwise behind a cache (Bamba): they run as they were tried.
        unpadded = len(set(map(len, texts))) == 1 and is_tested_family(model.hf)
        self._mask = None if unpadded else mask
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
        self._cache = output.past_key_values
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
