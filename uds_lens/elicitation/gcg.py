"""GCG: a suffix of ordinary tokens, found by gradient and trial, after which a model begins with an affirmative phrase.

Reference: Zou et al. 2023 (arXiv 2307.15043). Here a step is taken only if the loss falls (`accept="always"` is the
original), and a candidate lives only if the whole prompt, written out and tokenised again, gives its tokens: what is
reported is a text that anyone can type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens.checked_arguments import arguments_checked
from uds_lens.elicitation.audits import Answers, Ask, Asking
from uds_lens.elicitation.prompt import Skip, keyed_seed, name_with_settings
from uds_lens.elicitation.prompt_states import changed_output
from uds_lens.elicitation.shared_beginning import SharedBeginning
from uds_lens.elicitation.suffixes import (
    TARGET,
    Slot,
    SuffixAudit,
    first_suffix,
    replacing,
    slot_of,
    target_loss,
)
from uds_lens.errors import ConfigError, Setting
from uds_lens.models import HookedModel
from uds_lens.progress import progress
from uds_lens.types import check_choice

_TRIES = 10
"""Draws of candidates before a step is given up because none survives being tokenised again."""


class Found(NamedTuple):
    """What an optimisation came to."""

    suffix: str
    """The text."""

    losses: list[float]
    """Before the first step and after each."""

    live: float
    """Share of candidates that survived being tokenised again."""

    stopped: str
    """Why it stopped."""


@arguments_checked
@dataclass(frozen=True, kw_only=True)
class GCG(SuffixAudit):
    """Greedy coordinate gradient, one suffix per question; needs gradients, and takes long.

    Raises:
        ConfigError: A value is outside its range.
    """

    tokens: int = 20
    """Length of the suffix."""

    steps: int = 100
    """Steps at most; it stops when the whole target is the model's first choice."""

    candidates: int = 128
    """Suffixes tried in a step, each with one token swapped."""

    top_k: int = 64
    """Tokens to swap in, at each place those the gradient likes best."""

    accept: Literal["better", "always"] = "better"
    """Whether the best candidate is taken only if its loss is lower."""

    target: str = TARGET
    """What the model is to begin with; "answer" is the reference itself, and measures capacity, not knowledge."""

    cached: bool = True
    """Read once what candidates have in common: all that stands before the first token swapped in a batch of them.
    Results agree to rounding."""

    rows_at_once: int = 64
    """Candidates side by side; results agree to rounding."""

    def __post_init__(self) -> None:
        for name in ("tokens", "steps", "candidates", "top_k", "rows_at_once"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(Setting(name), f" must be a whole number of at least 1; got {value!r}.")
        check_choice("accept", self.accept, Literal["better", "always"])
        self.require_target()

    @property
    def name(self) -> str:
        """Its word, with the settings that differ from the default."""
        return name_with_settings("gcg", self, untold=["cached", "rows_at_once"])

    @property
    def suffix_length(self) -> int:
        """Tokens of the suffix."""
        return self.tokens

    @arguments_checked
    def extra_tokens(self, asks: Sequence[Ask]) -> tuple[float, float]:
        """Tokens and passes of the optimisation at most, for the estimate: a backward pass counts twice."""
        batches = -(-self.candidates // self.rows_at_once)
        swapped = self.tokens * (1 + 1 / batches) / 2  # of the suffix, from a batch's first swap on
        tokens = 0.0
        for ask in asks:
            whole = self.expected_length(ask)
            after = whole - len(ask.rendered.ids) - self.tokens + 4  # the target, and what opens the answer
            tokens += 4.0 * whole + self.candidates * (swapped + after if self.cached else whole)
        return tokens * self.steps, (2.0 * batches + 3) * len(asks) * self.steps

    @arguments_checked
    def answer(self, model: HookedModel, asks: Sequence[Ask], asking: Asking) -> Answers:
        """Find a suffix for each question, then generate from the written-out prompt."""
        prompts: list[str] = [ask.rendered.text for ask in asks]
        texts: list[tuple[str, ...]] = [()] * len(asks)
        told: list[dict[str, object]] = []
        ids: dict[int, list[int]] = {}
        bar = progress(asks, desc=f"{asking.desc}: optimise", unit="question", enabled=asking.show)
        for row, ask in enumerate(bar):
            try:
                slot = slot_of(model, ask, asking, self.wanted(ask))
                found = self.optimise(model, slot, seed=keyed_seed(asking.options.seed, ask.id, "gcg"))
            except Skip as why:
                told.append({"skipped": str(why)})
                continue
            prompts[row], ids[row] = slot.text(found.suffix), slot.ids(model, found.suffix)
            told.append(
                {
                    "suffix": found.suffix,
                    "first_loss": found.losses[0],
                    "loss": found.losses[-1],
                    "steps": len(found.losses) - 1,
                    "live_candidates": found.live,
                    "stopped": found.stopped,
                }
            )
        some = asking.generate(model, [asks[row] for row in ids], list(ids.values()))
        for row, text, endless in zip(ids, some.texts, some.endless, strict=True):
            texts[row] = text
            told[row]["endless"] = endless
        return Answers(prompts, texts, told, some.prefilled)

    @arguments_checked
    def optimise(self, model: HookedModel, slot: Slot, *, seed: int) -> Found:
        """Find a suffix for one prompt.

        Raises:
            Skip: No suffix of that length can be written in the model's tokens.
        """
        suffix = first_suffix(model, slot, self.tokens)
        generator = torch.Generator().manual_seed(seed)
        allowed = writable_tokens(model)
        ids = slot.ids(model, suffix)
        beginning = SharedBeginning(model, slot.target, rows_at_once=self.rows_at_once, cached=self.cached)
        losses = beginning.losses([ids], ids, _place(model, slot, suffix).start).tolist()
        tried, lived = 0, 0
        for _ in range(self.steps):
            place = _place(model, slot, suffix)
            best = self._swaps(token_gradient(model, slot, ids, place), allowed)
            live: list[tuple[str, list[int]]] = []
            for _try in range(_TRIES):
                drawn = self._drawn(model, slot, ids, place, best, generator)
                tried += self.candidates
                live += drawn
                lived += len(drawn)
                if live:
                    break
            if not live:
                return Found(suffix, losses, lived / tried, "no candidate survives being tokenised again")
            scores = beginning.losses([each for _, each in live], ids, place.start)
            n = int(scores.argmin())
            if self.accept == "always" or float(scores[n]) < losses[-1]:
                suffix, ids = live[n]
                losses.append(float(scores[n]))
            else:
                losses.append(losses[-1])
            if says_target(model, ids, slot.target):
                return Found(suffix, losses, lived / tried, "the target is the first choice")
        return Found(suffix, losses, lived / max(1, tried), "all steps are done")

    def _swaps(self, gradient: Float[Tensor, "place d_vocab"], allowed: Tensor) -> Tensor:
        """The tokens that the gradient likes best at each place."""
        scores = (-gradient).masked_fill(~allowed, -torch.inf)
        return scores.topk(min(self.top_k, int(allowed.sum())), dim=-1).indices.cpu()

    def _drawn(
        self,
        model: HookedModel,
        slot: Slot,
        ids: list[int],
        place: slice,
        best: Tensor,
        generator: torch.Generator,
    ) -> list[tuple[str, list[int]]]:
        """Candidates with one token swapped that survive being written out, as text and as the whole prompt's ids."""
        assert model.tokenizer is not None
        n = place.stop - place.start
        at = torch.randint(n, (self.candidates,), generator=generator).tolist()
        which = torch.randint(best.shape[1], (self.candidates,), generator=generator).tolist()
        swapped = []
        for where, rank in zip(at, which, strict=True):
            own = list(ids[place])
            own[where] = int(best[where, rank])
            if own != ids[place]:
                swapped.append(own)
        if not swapped:
            return []
        texts = model.tokenizer.batch_decode(swapped, clean_up_tokenization_spaces=False)
        live = {}
        for own, text, (again, there) in zip(swapped, texts, slot.coded(model, texts), strict=True):
            whole = [*ids[: place.start], *own, *ids[place.stop :]]
            if again == whole and there == place:
                live[text] = whole
        return list(live.items())


def token_gradient(
    model: HookedModel, slot: Slot, ids: Sequence[int], place: slice
) -> Float[Tensor, "place d_vocab"]:
    """How the loss changes with the weight of each token at each place of the suffix (one-hot gradient).

    The gradient of the loss by the suffix's embeddings, times the embedding of every token.
    """
    embed = model.hf.get_input_embeddings()
    row = torch.tensor([list(ids)], device=model.device)
    with torch.no_grad():
        own = embed(row[:, place]).detach()
        table = embed(torch.arange(model.anatomy.d_vocab, device=model.device))
    own.requires_grad_(True)
    frozen = [parameter for parameter in model.hf.parameters() if parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(False)
    try:
        with (
            torch.enable_grad(),
            changed_output(embed, replacing([place], own), length=len(ids) + len(slot.target)),
        ):
            (gradient,) = torch.autograd.grad(target_loss(model, row, slot.target).sum(), own)
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)
    return gradient[0] @ table.T.to(gradient)


@torch.no_grad()
def says_target(model: HookedModel, ids: Sequence[int], target: Sequence[int]) -> bool:
    """Whether the whole target is the model's first choice after a prompt."""
    whole = torch.tensor([[*ids, *target]], device=model.device)
    states = model.anatomy.base(input_ids=whole).last_hidden_state[0, -len(target) - 1 : -1]
    return model.anatomy.unembed(states).argmax(-1).tolist() == list(target)


def writable_tokens(model: HookedModel) -> Tensor:
    """Which tokens a suffix may hold: `[d_vocab]`, neither special nor unprintable."""
    tokenizer = model.tokenizer
    assert tokenizer is not None
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    words = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    allowed = torch.zeros(model.anatomy.d_vocab, dtype=torch.bool, device=model.device)
    for token, word in enumerate(words[: len(allowed)]):
        allowed[token] = token not in special and bool(word) and word.isprintable() and "\ufffd" not in word
    return allowed


def _place(model: HookedModel, slot: Slot, suffix: str) -> slice:
    place = slot.place(model, suffix)
    if place is None:
        raise Skip("the suffix's tokens cannot be told apart from the prompt's")
    return place
