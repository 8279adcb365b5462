"""GCG: search for a suffix of ordinary tokens that makes a model begin its answer with a given phrase.

Reference: Zou et al. 2023 (arXiv 2307.15043). Unlike the original, this implementation accepts a step only if the loss
falls (`accept="always"` restores the original rule). It also rejects candidates whose prompt changes when it is decoded
and tokenised again, so the reported suffix is text that anyone can type. By default, the optimiser never sees the
answer; its target phrase is cut off before scoring.

SoftGCG optimises the suffix embeddings instead of tokens. Reference: Chen et al. 2025 (arXiv 2505.23270); see Schwinn
et al. 2024 for attacks in embedding space.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uds_lens._compat.transformers import keeps_plain_keys, shared_cached_row
from uds_lens._progress import progress
from uds_lens._settings import validated
from uds_lens._types import PositiveFloat, PositiveInt, Protocol
from uds_lens.data._batches import pad_rows
from uds_lens.data._prompts import continuation_text
from uds_lens.data._tokens import prompt_ids
from uds_lens.elicitation._asking import Answers, Ask, Asking, changed_output, groups_of_one_length
from uds_lens.elicitation._options import Access, Injection
from uds_lens.elicitation._probes import Context, Prompt, Skip, keyed_seed, name_with_settings, written_with_space
from uds_lens.errors import ConfigError, Setting
from uds_lens.models import HookedModel
from uds_lens.patching import row_layout

TARGET = "Sure, the answer is"  # the default target

_MARK = "\x02suffix\x02"

_TRIES = 10  # draws of candidates before the search stops because none survives re-tokenisation


class SuffixProbe:
    """Base class of probes that optimise a suffix."""

    access: ClassVar[Access] = "gradients"
    samples_too: ClassVar[bool] = False

    target: str

    def __post_init__(self) -> None:
        if not self.target.strip():
            raise ConfigError(Setting("target"), f" must be non-empty text; got {self.target!r}.")

    @property
    def injects(self) -> Injection:
        """The most revealing information that the target gives away."""
        return "gold answer" if self.target == "answer" else "affirmative gradient"

    @property
    def opening(self) -> str:
        """The target, which is cut off before scoring; empty if the target is the answer itself."""
        return "" if self.target == "answer" else self.target

    def prompt(self, prompt: Prompt, context: Context) -> Prompt:
        """Return the plain question."""
        return prompt

    def slot(self, model: HookedModel, ask: Ask, asking: Asking) -> Slot:
        """Split the prompt at the end of the question, where the suffix is inserted, and tokenise the target."""
        question = dataclasses.replace(ask.rendered.prompt, question=ask.rendered.prompt.question + _MARK)
        whole = written_with_space(question, model.tokenizer, protocol=asking.protocol, chat=asking.options.chat)
        text = whole.rstrip(" ")
        wanted = ask.rendered.prompt.reference if self.target == "answer" else self.target
        before, _, after = text.rpartition(_MARK)
        words = continuation_text(text, wanted) if question.start else whole[len(text) :] + wanted
        assert model.tokenizer is not None
        ids = model.tokenizer(words, add_special_tokens=False, verbose=False)["input_ids"]
        return Slot(before, after, tuple(ids), asking.protocol)


@dataclass(frozen=True, eq=False)
class Slot:
    """A prompt with a gap for the suffix."""

    before: str  # text before the suffix
    after: str  # text after the suffix, up to the model's answer
    target: tuple[int, ...]  # tokens with which the answer should begin
    protocol: Protocol

    def text(self, suffix: str) -> str:
        """Return the whole prompt."""
        return self.before + suffix + self.after

    def coded(self, model: HookedModel, suffixes: Sequence[str]) -> list[tuple[list[int], slice | None]]:
        """Tokenise the prompt with each suffix; return the tokens and the position of the suffix.

        The position is None if a token straddles a boundary of the suffix.
        """
        tokenizer = model.tokenizer
        assert tokenizer is not None
        texts = [self.text(suffix) for suffix in suffixes]
        ids = prompt_ids(tokenizer, texts, protocol=self.protocol)
        coded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return [
            (row, self._place(len(row), offsets, len(suffix)))
            for row, offsets, suffix in zip(ids, coded["offset_mapping"], suffixes, strict=True)
        ]

    def ids_and_place(self, model: HookedModel, suffix: str) -> tuple[list[int], slice]:
        """Tokenise the prompt with one suffix; raise `Skip` if the suffix cannot be located in the tokens."""
        ((ids, place),) = self.coded(model, [suffix])
        if place is None:
            raise Skip("the suffix's tokens cannot be separated from the prompt's")
        return ids, place

    def _place(self, n_ids: int, offsets: Sequence[tuple[int, int]], length: int) -> slice | None:
        lead = n_ids - len(offsets)  # special tokens before the text
        start, stop = len(self.before), len(self.before) + length
        inside = [n for n, (a, b) in enumerate(offsets) if a < stop and b > start]
        if not inside or lead < 0 or offsets[inside[0]][0] < start or offsets[inside[-1]][1] > stop:
            return None
        return slice(lead + inside[0], lead + inside[-1] + 1)


def first_suffix(model: HookedModel, slot: Slot, n_tokens: int) -> str:
    """Return an initial suffix of `n_tokens` tokens: exclamation marks if possible, otherwise letters or words."""
    assert model.tokenizer is not None
    special = set(model.tokenizer.all_special_ids)
    for piece in (" !", "!", " x", " a", " the"):
        suffix = piece * n_tokens
        ((ids, place),) = slot.coded(model, [suffix])
        if place and place.stop - place.start == n_tokens and special.isdisjoint(ids[place]):
            return suffix
    raise Skip(f"no suffix of {n_tokens} tokens survives re-tokenisation")


def target_loss(
    model: HookedModel, ids: Int[Tensor, "row pos"], target: Sequence[int], *, past: object = None
) -> Float[Tensor, "row"]:
    """Return each prompt's loss: the mean negative log-probability of the target, in nats per token."""
    wanted = torch.tensor(list(target), device=ids.device)
    whole = torch.cat([ids, wanted.expand(len(ids), -1)], dim=1)
    options = {} if past is None else {"past_key_values": past, "use_cache": True}
    states = model.anatomy.base(input_ids=whole, **options).last_hidden_state
    logp = token_logprobs(model, states[:, -len(wanted) - 1 : -1].flatten(0, 1), wanted.repeat(len(ids)))
    return -logp.unflatten(0, (len(ids), len(wanted))).mean(-1)


def token_logprobs(
    model: HookedModel, states: Float[Tensor, "pos d_model"], tokens: Int[Tensor, "pos"]
) -> Float[Tensor, "pos"]:
    """Return the log-probability of one token per state, in float32 (float64 for a float64 model)."""
    logits = model.anatomy.unembed(states)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]


def replacing(places: Sequence[slice], embeddings: Float[Tensor, "row suffix d_model"]) -> Callable[[Tensor], Tensor]:
    """Return a function for `changed_output` that replaces each row's suffix embeddings."""

    def change(states: Tensor) -> Tensor:
        return torch.stack(
            [
                torch.cat([row[: place.start], new.to(row), row[place.stop :]])
                for row, place, new in zip(states, places, embeddings, strict=True)
            ]
        )

    return change


@contextmanager
def frozen(model: HookedModel) -> Iterator[None]:
    """Freeze the model's parameters and enable gradients, which then flow to the inputs only."""
    trained = [parameter for parameter in model.hf.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        with torch.enable_grad():
            yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


class SharedBeginning:
    """Compute candidates' losses; their common prefix is processed once and cached from step to step.

    Each candidate differs from the current prompt in one token. With the candidates sorted by the position of that
    token, all candidates in a batch share everything before the batch's first swap, not only the text before the
    suffix. The keys and values of a single row are therefore extended from batch to batch and shared by all rows.
    """

    def __init__(self, model: HookedModel, target: Sequence[int], *, rows_at_once: int, cached: bool = True) -> None:
        self._model, self._target = model, tuple(target)
        self._layout = row_layout(model)
        self._rows_at_once = rows_at_once if self._layout.side is not None else 1
        self._cached = cached
        self._before: list[int] = []
        self._kept: Any = None

    @torch.no_grad()
    def losses(self, rows: Sequence[Sequence[int]], current: Sequence[int], start: int) -> Float[Tensor, "row"]:
        """Return the `target_loss` of each prompt, on the CPU."""
        ids = torch.tensor([list(row) for row in rows])
        self._cached = self._cached and self._layout.kind(ids.shape[1] + len(self._target)) == 0
        changed = ids != torch.tensor(list(current))
        changed[:, -1] = True  # rows identical to the current prompt still process their last token
        first = changed.int().argmax(-1)
        order = first.argsort(stable=True)
        read, cache = self._beginning(list(current[:start]))
        sorted_losses = []
        for batch in order.split(self._rows_at_once):
            past, shared = None, int(first[batch[0]]) if self._cached else 0
            if shared > read:
                cache, read = self._read(current[read:shared], cache), shared
            if not self._cached:  # `_read` found that the model caches more than keys and values
                shared = 0
            if shared > 0:
                past = shared_cached_row(cache, len(batch))
            after = ids[batch, shared:].to(self._model.device)
            sorted_losses.append(target_loss(self._model, after, self._target, past=past).cpu())
        losses = torch.cat(sorted_losses)
        return torch.empty_like(losses).index_copy_(0, order, losses)

    def _beginning(self, before: list[int]) -> tuple[int, Any]:
        """Return the number of tokens processed before the suffix, and a copy of their keys and values."""
        if not self._cached or not before:
            return 0, None
        if before != self._before:
            self._before, self._kept = before, self._read(before, None)
        return (len(before), copy.deepcopy(self._kept)) if self._cached else (0, None)

    def _read(self, tokens: Sequence[int], cache: Any) -> Any:
        row = torch.tensor([list(tokens)], device=self._model.device)
        options = {} if cache is None else {"past_key_values": cache}
        kept = getattr(self._model.anatomy.base(input_ids=row, use_cache=True, **options), "past_key_values", None)
        self._cached = self._cached and keeps_plain_keys(kept)
        return kept


class Found(NamedTuple):
    """Outcome of a search."""

    suffix: str
    losses: list[float]  # before the first step and after each step
    live: float  # fraction of candidates that survived re-tokenisation
    stopped: str  # why the search stopped


@validated
@dataclass(frozen=True, kw_only=True)
class GCG(SuffixProbe):
    """Optimise one suffix per question by greedy coordinate gradient. Needs gradients and takes a long time.

    Raises:
        ConfigError: A value is outside its range.
    """

    tokens: PositiveInt = 20
    """Length of the suffix."""

    steps: PositiveInt = 100
    """Maximum number of steps. The search stops early once the model's greedy answer begins with the target."""

    candidates: PositiveInt = 128
    """Number of suffixes tried per step, each with one token swapped."""

    top_k: PositiveInt = 64
    """Number of replacement tokens considered per position: those with the steepest gradient."""

    accept: Literal["better", "always"] = "better"
    """`better` accepts the best candidate only if it lowers the loss; `always` accepts the best candidate even if the
    loss rises."""

    target: str = TARGET
    """Text with which the model's answer should begin; "answer" means the reference itself, in which case the result
    measures what the model can be made to say, not what it knows."""

    cached: bool = True
    """Process the candidates' common prefix only once. Results are the same up to rounding."""

    rows_at_once: PositiveInt = 64
    """Candidates per batch. Results are the same up to rounding."""

    @property
    def name(self) -> str:
        """Name of the probe, with the settings that differ from the default."""
        return name_with_settings("gcg", self, unnamed=["cached", "rows_at_once"])

    def answer(self, model: HookedModel, asks: Sequence[Ask], asking: Asking) -> Answers:
        """Find a suffix for each question, then generate from the prompt with that suffix."""
        prompts: list[str] = [ask.rendered.text for ask in asks]
        texts: list[tuple[str, ...]] = [()] * len(asks)
        details: list[dict[str, object]] = []
        ids: dict[int, list[int]] = {}
        bar = progress(asks, desc=f"{asking.desc}: optimising", unit="question", enabled=asking.show)
        for row, ask in enumerate(bar):
            slot = self.slot(model, ask, asking)
            try:
                best = self.optimise(model, slot, seed=keyed_seed(asking.options.seed, ask.id, "gcg"))
            except Skip as why:
                details.append({"skipped": str(why)})
                continue
            prompts[row] = slot.text(best.suffix)
            ids[row], _ = slot.ids_and_place(model, best.suffix)
            details.append(
                {
                    "suffix": best.suffix,
                    "first_loss": best.losses[0],
                    "loss": best.losses[-1],
                    "steps": len(best.losses) - 1,
                    "live_candidates": best.live,
                    "stopped": best.stopped,
                }
            )
        new = asking.generate(model, [asks[row] for row in ids], list(ids.values()))
        for row, text, endless in zip(ids, new.texts, new.endless, strict=True):
            texts[row] = text
            details[row]["endless"] = endless
        return Answers(prompts, texts, details, new.prefilled)

    def optimise(self, model: HookedModel, slot: Slot, *, seed: int) -> Found:
        """Find a suffix for one prompt.

        Raises:
            Skip: No suffix of `tokens` tokens survives re-tokenisation.
        """
        suffix = first_suffix(model, slot, self.tokens)
        generator = torch.Generator().manual_seed(seed)
        allowed = writable_tokens(model)
        ids, place = slot.ids_and_place(model, suffix)
        beginning = SharedBeginning(model, slot.target, rows_at_once=self.rows_at_once, cached=self.cached)
        losses = beginning.losses([ids], ids, place.start).tolist()
        tried, lived = 0, 0
        for _ in range(self.steps):
            scores = -token_gradient(model, slot, ids, place)
            scores = scores.masked_fill(~allowed, -torch.inf)
            best = scores.topk(min(self.top_k, int(allowed.sum())), dim=-1).indices.cpu()
            live: list[tuple[str, list[int]]] = []
            for _try in range(_TRIES):
                live = self._drawn(model, slot, ids, place, best, generator)
                tried, lived = tried + self.candidates, lived + len(live)
                if live:
                    break
            if not live:
                return Found(suffix, losses, lived / tried, "no candidate survives re-tokenisation")
            new_losses = beginning.losses([row for _, row in live], ids, place.start)
            n = int(new_losses.argmin())
            if self.accept == "always" or float(new_losses[n]) < losses[-1]:
                suffix, ids = live[n]
                losses.append(float(new_losses[n]))
            else:
                losses.append(losses[-1])
            if says_target(model, ids, slot.target):
                return Found(suffix, losses, lived / tried, "the greedy answer begins with the target")
        return Found(suffix, losses, lived / max(1, tried), "the maximum number of steps was reached")

    def _drawn(
        self,
        model: HookedModel,
        slot: Slot,
        ids: list[int],
        place: slice,
        best: Int[Tensor, "place choice"],
        generator: torch.Generator,
    ) -> list[tuple[str, list[int]]]:
        """Draw candidates with one token swapped; return texts and ids of those that survive re-tokenisation."""
        assert model.tokenizer is not None
        at = torch.randint(len(best), (self.candidates,), generator=generator).tolist()
        which = torch.randint(best.shape[1], (self.candidates,), generator=generator).tolist()
        swapped = []
        for where, rank in zip(at, which, strict=True):
            suffix = list(ids[place])
            suffix[where] = int(best[where, rank])
            if suffix != ids[place]:
                swapped.append(suffix)
        if not swapped:
            return []
        texts = model.tokenizer.batch_decode(swapped, clean_up_tokenization_spaces=False)
        live = {}
        for suffix, text, (again, there) in zip(swapped, texts, slot.coded(model, texts), strict=True):
            whole = [*ids[: place.start], *suffix, *ids[place.stop :]]
            if again == whole and there == place:
                live[text] = whole
        return list(live.items())


def token_gradient(model: HookedModel, slot: Slot, ids: Sequence[int], place: slice) -> Float[Tensor, "place d_vocab"]:
    """Return the gradient of the loss with respect to the one-hot token vectors of the suffix."""
    embed = model.hf.get_input_embeddings()
    row = torch.tensor([list(ids)], device=model.device)
    with torch.no_grad():
        suffix = embed(row[:, place]).detach()
        table = embed(torch.arange(model.anatomy.d_vocab, device=model.device))
    suffix.requires_grad_(True)
    with frozen(model), changed_output(embed, replacing([place], suffix), length=len(ids) + len(slot.target)):
        (gradient,) = torch.autograd.grad(target_loss(model, row, slot.target).sum(), suffix)
    return gradient[0] @ table.T.to(gradient)


@torch.no_grad()
def says_target(model: HookedModel, ids: Sequence[int], target: Sequence[int]) -> bool:
    """Return whether the model's greedy continuation of the prompt begins with the whole target."""
    whole = torch.tensor([[*ids, *target]], device=model.device)
    states = model.anatomy.base(input_ids=whole).last_hidden_state[0, -len(target) - 1 : -1]
    return model.anatomy.unembed(states).argmax(-1).tolist() == list(target)


def writable_tokens(model: HookedModel) -> Bool[Tensor, "d_vocab"]:
    """Return a mask of the tokens that a suffix may contain: printable and not special."""
    tokenizer = model.tokenizer
    assert tokenizer is not None
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    words = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    allowed = torch.zeros(model.anatomy.d_vocab, dtype=torch.bool, device=model.device)
    for token, word in enumerate(words[: len(allowed)]):
        allowed[token] = token not in special and bool(word) and word.isprintable() and "\ufffd" not in word
    return allowed


class Padded(NamedTuple):
    """A batch of prompts with their targets, padded on the right."""

    ids: Int[Tensor, "row pos"]  # prompt, target, padding
    says: Bool[Tensor, "row pos"]  # true where the next token belongs to the target


def padded(prompts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], device: torch.device) -> Padded:
    """Batch prompts with their targets; each prompt and target has at least one token.

    Example:
        >>> padded([[1, 2], [1]], [[3], [4, 5, 6]], torch.device("cpu")).ids.tolist()
        [[1, 2, 3, 0], [1, 4, 5, 6]]
    """
    pairs = list(zip(prompts, targets, strict=True))
    ids = pad_rows([[*prompt, *target] for prompt, target in pairs])
    says = pad_rows([[0] * (len(prompt) - 1) + [1] * len(target) + [0] for prompt, target in pairs])
    return Padded(ids.to(device), says.bool().to(device))


def padded_loss(
    model: HookedModel, batch: Padded, places: Sequence[slice], embeddings: Float[Tensor, "row suffix d_model"]
) -> Float[Tensor, "row"]:
    """Return the `target_loss` of each row with its suffix embeddings replaced, in nats per target token."""
    embed = model.hf.get_input_embeddings()
    with changed_output(embed, replacing(places, embeddings), length=batch.ids.shape[1]):
        states = model.anatomy.base(input_ids=batch.ids).last_hidden_state
    logp = token_logprobs(model, states[batch.says], batch.ids[:, 1:][batch.says[:, :-1]])
    rows = batch.says.nonzero()[:, 0]
    sums = torch.zeros(len(batch.ids), dtype=logp.dtype, device=logp.device).index_add(0, rows, -logp)
    return sums / batch.says.sum(-1)


class Effort(NamedTuple):
    """Optimisation effort of `SoftGCG`."""

    tokens: int  # length of the suffix
    steps: int  # steps of Adam
    learning_rate: float  # in units of the embedding


_USUAL = Effort(20, 100, 0.005)
_FOR_ANSWERS = Effort(60, 300, 0.02)
"""Effort if the target is a whole answer, which is longer and less likely than an affirmative phrase."""


@validated
@dataclass(frozen=True, kw_only=True, repr=False)
class SoftGCG(SuffixProbe):
    """Optimise a suffix in embedding space. Needs gradients.

    With `target="answer"`, the optimiser is given the answer itself. The result then measures what a model can be made
    to say, not what it knows, and is left out of summaries.

    Example:
        >>> SoftGCG().effort
        Effort(tokens=20, steps=100, learning_rate=0.005)
        >>> SoftGCG(target="answer", steps=50).effort
        Effort(tokens=60, steps=50, learning_rate=0.02)

    Raises:
        ConfigError: A value is outside its range.
    """

    tokens: PositiveInt | None = None
    """Suffix length in tokens; None means 20, or 60 if the answer is the target."""

    steps: PositiveInt | None = None
    """Number of Adam steps; None means 100, or 300 if the answer is the target."""

    learning_rate: PositiveFloat | None = None
    """Adam learning rate, in embedding units; None means 0.005, or 0.02 if the answer is the target."""

    target: str = TARGET
    """Text with which the model's answer should begin; "answer" means the reference itself."""

    rows_at_once: PositiveInt = 16
    """Questions per batch."""

    @property
    def name(self) -> str:
        """Name of the probe, with the settings that differ from the default."""
        usual = {"rows_at_once": self.rows_at_once, **self._usual._asdict()}
        return name_with_settings("softgcg", self, unnamed=[n for n, v in usual.items() if getattr(self, n) == v])

    def __repr__(self) -> str:
        """All settings, with defaults resolved. Finished parts of a run are looked up by this string."""
        whole = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        whole |= self.effort._asdict()
        return f"SoftGCG({', '.join(f'{name}={value!r}' for name, value in whole.items())})"

    @property
    def effort(self) -> Effort:
        """Tokens, steps and learning rate, with None replaced by the default, which depends on the target."""
        given = {name: getattr(self, name) for name in Effort._fields}
        return self._usual._replace(**{name: value for name, value in given.items() if value is not None})

    @property
    def _usual(self) -> Effort:
        return _FOR_ANSWERS if self.target == "answer" else _USUAL

    def answer(self, model: HookedModel, asks: Sequence[Ask], asking: Asking) -> Answers:
        """Optimise a suffix for each question, then generate from the question with that suffix."""
        texts: list[tuple[str, ...]] = [()] * len(asks)
        details: list[dict[str, object]] = [{}] * len(asks)
        prompts = [ask.rendered.text for ask in asks]
        slots: dict[int, Slot] = {}
        ids: dict[int, list[int]] = {}
        places: dict[int, slice] = {}
        for row, ask in enumerate(asks):
            slot = self.slot(model, ask, asking)
            try:
                suffix = first_suffix(model, slot, self.effort.tokens)
            except Skip as why:
                details[row] = {"skipped": str(why)}
                continue
            slots[row], prompts[row] = slot, slot.text(suffix)
            ids[row], places[row] = slot.ids_and_place(model, suffix)
        lengths = {row: len(ids[row]) + len(slots[row].target) for row in ids}
        ordered = sorted(ids, key=lengths.__getitem__)  # to minimise padding
        batches = row_layout(model).split(
            [ordered[n : n + self.rows_at_once] for n in range(0, len(ordered), self.rows_at_once)], lengths
        )
        prefilled = 0
        for rows in progress(batches, desc=f"{asking.desc}: optimising", unit="batch", enabled=asking.show):
            suffixes, losses = self.optimise(
                model, [ids[r] for r in rows], [slots[r].target for r in rows], [places[r] for r in rows]
            )
            nearest = _nearest(model, suffixes)
            for some in groups_of_one_length(model, [ids[row] for row in rows], asking.options):
                these = [rows[n] for n in some]
                with changed_output(
                    model.hf.get_input_embeddings(),
                    replacing([places[row] for row in these], suffixes[some]),
                    length=len(ids[these[0]]),
                ):
                    new = asking.generate(model, [asks[row] for row in these], [ids[row] for row in these])
                prefilled += new.prefilled
                for n, row, text, endless in zip(some, these, new.texts, new.endless, strict=True):
                    texts[row] = text
                    details[row] = {
                        "first_loss": losses[0][n],
                        "loss": losses[-1][n],
                        "steps": len(losses) - 1,
                        "nearest_tokens": nearest[n],
                        "endless": endless,
                    }
        return Answers(prompts, texts, details, prefilled)

    def optimise(
        self,
        model: HookedModel,
        prompts: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        places: Sequence[slice],
    ) -> tuple[Float[Tensor, "row suffix d_model"], list[list[float]]]:
        """Return the final suffix embeddings, and the losses before each step and after the last."""
        batch = padded(prompts, targets, model.device)
        with torch.no_grad():
            embedded = model.hf.get_input_embeddings()(batch.ids)
        suffixes = torch.stack([row[place] for row, place in zip(embedded, places, strict=True)]).detach()
        suffixes = suffixes.float().clone().requires_grad_(True)
        adam = torch.optim.Adam([suffixes], lr=self.effort.learning_rate)
        losses = []
        with frozen(model):
            for _ in range(self.effort.steps):
                loss = padded_loss(model, batch, places, suffixes)
                losses.append(loss.detach().tolist())
                adam.zero_grad()
                loss.sum().backward()
                adam.step()
        with torch.no_grad():
            losses.append(padded_loss(model, batch, places, suffixes).tolist())
        return suffixes.detach(), losses


@torch.no_grad()
def _nearest(model: HookedModel, embeddings: Tensor) -> list[str]:
    """Approximate each suffix as text, using the tokens with the nearest embeddings."""
    table = model.hf.get_input_embeddings().weight.float()
    flat = embeddings.flatten(0, 1).to(table)
    nearest = torch.cdist(flat, table).argmin(-1).unflatten(0, embeddings.shape[:2])
    assert model.tokenizer is not None
    return [model.tokenizer.decode(row) for row in nearest.tolist()]
