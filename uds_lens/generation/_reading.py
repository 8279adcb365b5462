"""Token-by-token generation with a cache, or without one for models whose results a cache would change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from uds_lens._compat.torch import is_out_of_memory
from uds_lens._compat.transformers import keep_cached_rows
from uds_lens.data import TokenBatch, make_batch
from uds_lens.data._batches import pad_rows
from uds_lens.data._tokens import TokenSequence
from uds_lens.errors import ModelBusyError, ModelError, Setting, warn_once
from uds_lens.models import HookedModel
from uds_lens.models._anatomy import Anatomy
from uds_lens.patching import row_layout
from uds_lens.patching._costs import LOGITS_IN_CACHE, logits_at_once
from uds_lens.patching._hooks import run_decoder
from uds_lens.patching._side_by_side import ROUNDING, is_tested_family
from uds_lens.patching._states import at_window


def padded(
    rows: Sequence[Sequence[int]], device: torch.device, *, side: Literal["left", "right"]
) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch pos"]]:
    """Pad token lists to equal length; return ids and mask."""
    ones = [[1] * len(row) for row in rows]
    return pad_rows(rows, side=side).to(device), pad_rows(ones, side=side).to(device)


def cached_pass(
    model: HookedModel, ids: Int[Tensor, "batch new"], mask: Int[Tensor, "batch pos"] | None, cache: Any = None
) -> Any:
    """Run the decoder on the new tokens of every row, extending the `cache` of earlier tokens.

    The mask covers both earlier and new tokens and is 0 at padding; None means no padding. The output has
    `last_hidden_state` `[batch, new, d_model]` after the final norm, and `past_key_values`.
    """
    if mask is None:
        return model.anatomy.base(input_ids=ids, past_key_values=cache, use_cache=True)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
    where = {"attention_mask": mask, "position_ids": positions}
    return model.anatomy.base(input_ids=ids, past_key_values=cache, use_cache=True, **where)


def raise_not_finite(name: str, example: str) -> NoReturn:
    """Raise `ModelError` for NaN or infinite logits, which first occur for `example`."""
    raise ModelError(
        f"{name[:100]!r} gives NaN or infinite logits, first for {example[:80]!r}: the model's weights are broken, "
        "or its dtype overflows. Check the checkpoint, or use ",
        Setting("dtype", "float32"),
        ".",
    )


class TokenScores(NamedTuple):
    """A model's scores for target tokens."""

    logprobs: Float[Tensor, "row"]
    """Log-probability in nats, float32; NaN if the logits are not finite."""

    hits: Bool[Tensor, "row"]
    """Whether the token is the model's argmax."""

    standardised: Float[Tensor, "row"]
    """`(log p - mu) / sigma`, where mu and sigma are the mean and standard deviation of log p over the vocabulary,
    weighted by p."""

    first_choices: Int[Tensor, "row"]
    """The model's argmax token."""


def normed_at_window(model: HookedModel, batch: TokenBatch) -> Float[Tensor, "batch win d_model"]:
    """Return copies of the states after the final norm at a batch's window positions, for `Anatomy.unembed`.

    Entries beyond a row's own window repeat the row's last position. Gradients flow if the parameters require them.
    """
    return at_window(run_decoder(model.anatomy, batch, use_cache=False).last_hidden_state, batch.window)


def read_tokens(anatomy: Anatomy, normed: Float[Tensor, "row d_model"], targets: Int[Tensor, "row"]) -> TokenScores:
    """Score the target token of each state after the final norm.

    Logits are computed in chunks, and the log-softmax in float32 for any model dtype.
    """
    held = logits_at_once(normed.device)
    chunk = max(1, held // anatomy.d_vocab)
    # scoring takes four arrays of this size, which should stay in cache together; torch would split a sum over a single
    # row among its threads, so that its last digits would depend on their number
    piece = max(2, LOGITS_IN_CACHE.get(normed.device.type, 4 * held) // 4 // anatomy.d_vocab)
    parts: list[TokenScores] = []
    for start in range(0, len(normed), chunk):
        logits, wanted = anatomy.unembed(normed[start : start + chunk]).float(), targets[start : start + chunk]
        pieces = max(1, len(wanted) // piece)
        parts += map(_read_chunk, logits.tensor_split(pieces), wanted.tensor_split(pieces))
    return TokenScores(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _read_chunk(logits: Float[Tensor, "row d_vocab"], targets: Int[Tensor, "row"]) -> TokenScores:
    """Score with one exponential per logit: relative to the largest logit, log p is the logit minus a constant."""
    targets = targets.to(logits.device)
    largest, first_choices = logits.max(-1)
    below = logits - largest[:, None]
    mass = below.exp()
    total = mass.sum(-1)
    target = below.gather(-1, targets[:, None])[:, 0]
    finite = logits.sum(-1).isfinite()
    if not bool(finite.all()):  # the sum may overflow
        finite = logits.isfinite().all(-1)
    logprobs = torch.where(finite, target - total.log(), torch.nan)
    mean = torch.linalg.vecdot(mass, below) / total
    # in place, here and below: tensors over the whole vocabulary are the largest in memory
    apart = below.sub_(mean[:, None])
    variance = torch.linalg.vecdot(mass.mul_(apart), apart) / total
    standardised = (target - mean) / variance.clamp(min=1e-6).sqrt()
    return TokenScores(logprobs, first_choices == targets, standardised, first_choices)


Way: TypeAlias = Literal["side by side", "one by one", "whole"]
"""How texts are generated: in a left-padded batch with a shared cache that finished rows leave; one at a time with a
cache; or by processing the whole text again at each step."""


class CachedTexts:
    """Texts generated with a shared cache, padded on the left."""

    states: Float[Tensor, "row d_model"]
    """Final states of the last tokens, which predict the next tokens."""

    def __init__(self, model: HookedModel, texts: Sequence[Sequence[int]]) -> None:
        self._model, self._n = model, len(texts)
        self._cache: Any = None
        tokens, mask = padded(texts, model.device, side="left")
        # Some untested families (such as Bamba) count positions differently with a cache, so all untested families
        # run with a mask.
        unpadded = len(set(map(len, texts))) == 1 and is_tested_family(model.hf)
        self._mask = None if unpadded else mask
        self._read(tokens)

    def grow(self, kept: Sequence[int], tokens: Sequence[int]) -> None:
        """Keep some of the texts, and append a token to each."""
        self._keep(kept)
        new = torch.tensor(tokens, device=self._model.device)[:, None]
        if self._mask is not None:
            self._mask = torch.cat([self._mask, torch.ones_like(new)], dim=1)
        self._read(new)

    def repeat(self, times: int) -> None:
        """Repeat each text, with its copies adjacent."""
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
    """Texts that are processed as a whole at each step, as in scoring."""

    states: Float[Tensor, "row d_model"]
    """Final states of the last tokens, which predict the next tokens."""

    def __init__(self, model: HookedModel, texts: Sequence[Sequence[int]]) -> None:
        self._model = model
        self._texts: list[list[int]] = [list(text) for text in texts]
        self._read()

    def grow(self, kept: Sequence[int], tokens: Sequence[int]) -> None:
        """Keep some of the texts, and append a token to each."""
        self._texts = [[*self._texts[row], token] for row, token in zip(kept, tokens, strict=True)]
        self._read()

    def repeat(self, times: int) -> None:
        """Repeat each text, with its copies adjacent."""
        self._texts = [text for text in self._texts for _ in range(times)]
        self.states = self.states.repeat_interleave(times, dim=0)

    def _read(self) -> None:
        rows = [
            TokenSequence(ids=tuple(text), targets=(0,), scored=(len(text) - 1,), patched=()) for text in self._texts
        ]
        layout = row_layout(self._model)
        states: dict[int, Tensor] = {}
        for some in layout.split([range(len(rows))], [len(row.ids) for row in rows]):
            batch = make_batch(rows, pad_token_id=0, indices=some, padding_side=layout.padding_side)
            states |= zip(some, normed_at_window(self._model, batch.to(self._model.device))[:, 0], strict=True)
        self.states = torch.stack([states[row] for row in range(len(rows))])


def texts_growing(model: HookedModel, texts: Sequence[Sequence[int]], way: Way) -> CachedTexts | WholeTexts:
    """Process texts in preparation for generation in the given way."""
    return WholeTexts(model, texts) if way == "whole" else CachedTexts(model, texts)


def generate(
    model: HookedModel,
    growing: CachedTexts | WholeTexts,
    limits: Sequence[int],
    choose: Callable[[Float[Tensor, "row d_vocab"], list[int], int], Int[Tensor, "row"]],
    *,
    ends: frozenset[int],
    names: Sequence[str],
) -> tuple[list[list[int]], int]:
    """Extend texts until they end; return each text's new tokens, and the number of forward passes."""
    generated: list[list[int]] = [[] for _ in limits]
    alive = list(range(len(generated)))
    for step in count():
        logits = model.anatomy.unembed(growing.states)
        broken = (~logits.isfinite().all(-1)).nonzero()[:, 0].tolist()
        if broken:
            raise_not_finite(model.name, names[alive[broken[0]]])
        kept = []
        for n, token in enumerate(choose(logits, alive, step).tolist()):
            if token not in ends:
                generated[alive[n]].append(token)
                if len(generated[alive[n]]) < limits[alive[n]]:
                    kept.append(n)
        if not kept:
            break
        alive = [alive[n] for n in kept]
        growing.grow(kept, [generated[row][-1] for row in alive])
    return generated, step + 1


_ways: WeakKeyDictionary[nn.Module, Way] = WeakKeyDictionary()


def growing_way(model: HookedModel) -> Way:
    """Return how a model's texts are to be generated. The first call for a model tests this on a few short texts.

    Two texts of different lengths are extended in one batch, then one text leaves the batch and the other continues. If
    their states differ from the states of each text processed alone without a cache, a single text with a cache is
    tested. If the states still differ, the whole text is processed again for each token. Model families covered by the
    test suite are not tested here, as in `row_layout`.
    """
    way = _ways.get(model.hf)
    if way is None:
        with torch.no_grad(), model.running():
            way = _ways[model.hf] = "side by side" if is_tested_family(model.hf) else _try(model)
    return way


def way_of(model: HookedModel, length: int, new_tokens: int) -> Way:
    """Return how to extend a text of `length` tokens by `new_tokens`: without a cache if rotary frequencies change."""
    layout = row_layout(model)
    return growing_way(model) if layout.kind(length) == layout.kind(length + new_tokens) else "whole"


def _try(model: HookedModel) -> Way:
    why = _difference(model, [5, 12]) if row_layout(model).side == "left" else "padding changes its states"
    if why is None:
        return "side by side"
    alone = _difference(model, [5])
    way: Way = "one by one" if alone is None else "whole"
    slower = (
        "Texts are generated one at a time, which is slower."
        if alone is None
        else f"Even a single text with a cache differs ({alone}), so the whole text is processed again for "
        "each new token, which is slower."
    )
    warn_once(
        f"{model.name!r} ({model.architecture}): texts generated in a batch differ from texts generated alone ({why}). "
        f"{slower}",
        key=f"growing {model.architecture} {model.dtype} {way}",
    )
    return way


def _difference(model: HookedModel, lengths: Sequence[int]) -> str | None:
    """Describe how states with a cache differ from states without one; None if they do not differ."""
    vocabulary = min(model.d_vocab, model.anatomy.d_vocab)
    texts = [[(7 * place + n) % vocabulary for place in range(n + 2)] for n in lengths]
    allowed = ROUNDING.get(model.dtype, 1e-3)
    try:
        growing = CachedTexts(model, [text[:n] for text, n in zip(texts, lengths, strict=True)])
        for more in range(3):
            alone = [WholeTexts(model, [t[: n + more]]).states[0] for t, n in zip(texts, lengths, strict=True)]
            wanted = torch.stack(alone)
            gap = float(((growing.states - wanted).float().norm(dim=-1) / wanted.float().norm(dim=-1)).max())
            if not gap <= allowed and bool(wanted.isfinite().all()):
                return f"states differ by {gap:.1%}; rounding explains at most {allowed:.1%}"
            if more < 2:
                kept = list(range(len(texts)))[-1:] if more else list(range(len(texts)))
                texts, lengths = [texts[row] for row in kept], [lengths[row] for row in kept]
                growing.grow(kept, [text[n + more] for text, n in zip(texts, lengths, strict=True)])
    except Exception as error:
        if is_out_of_memory(error) or isinstance(error, ModelBusyError):
            raise
        return f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else 'no message'}"
    return None
