"""A suffix after the question: where its tokens stand, what a model has to say for it, and what that costs.

Optimisers work for an affirmative beginning and never see the answer; what they hand over is a beginning, which is cut
off before scoring.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from uds_lens.checked_arguments import arguments_checked
from uds_lens.data import continuation_text, prompt_ids
from uds_lens.elicitation.audits import Ask, Asking
from uds_lens.elicitation.prompt import Access, Context, Injection, Prompt, Skip
from uds_lens.elicitation.prompt_states import changed_output
from uds_lens.elicitation.rendering import written
from uds_lens.errors import ConfigError, Setting
from uds_lens.models import HookedModel

TARGET = "Sure, the answer is"
"""What a model is brought to say."""

_MARK = "\x02suffix\x02"


class SuffixAudit:
    """What audits that optimise a suffix share: what they hand over and what is cut off follow from the target."""

    access: ClassVar[Access] = "gradients"
    samples_too: ClassVar[bool] = False

    target: str

    @property
    def suffix_length(self) -> int:
        """Tokens of the suffix."""
        raise NotImplementedError

    def require_target(self) -> None:
        """Refuse a target that is no text."""
        if not isinstance(self.target, str) or not self.target.strip():
            raise ConfigError(Setting("target"), f" must be a text that is not empty; got {self.target!r}.")

    @property
    def injects(self) -> Injection:
        """An affirmative gradient, or the answer."""
        return "gold answer" if self.target == "answer" else "affirmative gradient"

    @property
    def opening(self) -> str:
        """What is cut off before scoring; nothing where the answer itself was the target."""
        return "" if self.target == "answer" else self.target

    @arguments_checked
    def prompt(self, prompt: Prompt, context: Context) -> Prompt:
        """The plain question."""
        return prompt

    @arguments_checked
    def wanted(self, ask: Ask) -> str:
        """What the model is to begin with at one row."""
        return ask.rendered.prompt.reference if self.target == "answer" else self.target

    @arguments_checked
    def expected_length(self, ask: Ask) -> int:
        """Tokens of a prompt with suffix and target, roughly: two to a word of the target."""
        return len(ask.rendered.ids) + self.suffix_length + 2 * len(self.wanted(ask).split())


@dataclass(frozen=True, eq=False)
class Slot:
    """A prompt with a place for a suffix."""

    before: str
    """Text up to the suffix."""

    after: str
    """Text from the suffix to the model's turn."""

    target: tuple[int, ...]
    """Tokens the model has to begin with."""

    protocol: str

    def text(self, suffix: str) -> str:
        """The whole prompt."""
        return self.before + suffix + self.after

    def ids(self, model: HookedModel, suffix: str) -> list[int]:
        """Its tokens."""
        return self.coded(model, [suffix])[0][0]

    def place(self, model: HookedModel, suffix: str) -> slice | None:
        """Where the suffix's own tokens stand; None where a token crosses its border."""
        return self.coded(model, [suffix])[0][1]

    def coded(self, model: HookedModel, suffixes: Sequence[str]) -> list[tuple[list[int], slice | None]]:
        """Tokens of the whole prompt with each suffix, and where the suffix's own stand among them."""
        tokenizer = model.tokenizer
        assert tokenizer is not None
        texts = [self.text(suffix) for suffix in suffixes]
        ids = prompt_ids(tokenizer, texts, protocol=self.protocol)  # type: ignore[arg-type]
        coded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return [
            (own, self._place(len(own), offsets, len(suffix)))
            for own, offsets, suffix in zip(ids, coded["offset_mapping"], suffixes, strict=True)
        ]

    def _place(self, n_ids: int, offsets: Sequence[tuple[int, int]], length: int) -> slice | None:
        lead = n_ids - len(offsets)  # special tokens before the text
        start, stop = len(self.before), len(self.before) + length
        inside = [n for n, (a, b) in enumerate(offsets) if a < stop and b > start]
        if not inside or lead < 0:
            return None
        if offsets[inside[0]][0] < start or offsets[inside[-1]][1] > stop:
            return None
        return slice(lead + inside[0], lead + inside[-1] + 1)


def slot_of(model: HookedModel, ask: Ask, asking: Asking, target: str) -> Slot:
    """The place after a question, and the tokens that are to follow the prompt."""
    prompt = dataclasses.replace(ask.rendered.prompt, question=ask.rendered.prompt.question + _MARK)
    assert model.tokenizer is not None
    text = written(prompt, model.tokenizer, protocol=asking.protocol, chat=asking.options.chat)
    before, _, after = text.rpartition(_MARK)
    words = continuation_text(text, target)
    ids = model.tokenizer(words, add_special_tokens=False, verbose=False)["input_ids"]
    return Slot(before, after, tuple(ids), asking.protocol)


def first_suffix(model: HookedModel, slot: Slot, n_tokens: int) -> str:
    """A suffix of that many tokens to start from: exclamation marks, or else letters.

    Raises:
        Skip: The tokenizer has no plain token that can be repeated.
    """
    assert model.tokenizer is not None
    special = set(model.tokenizer.all_special_ids)
    for piece in (" !", "!", " x", " a", " the"):
        suffix = piece * n_tokens
        place = slot.place(model, suffix)
        if place is None or place.stop - place.start != n_tokens:
            continue
        if special.isdisjoint(slot.ids(model, suffix)[place]):
            return suffix
    raise Skip(f"no suffix of {n_tokens} tokens survives being tokenised again")


def target_loss(
    model: HookedModel, ids: Int[Tensor, "row pos"], target: Sequence[int], *, past: object = None
) -> Float[Tensor, "row"]:
    """Mean negative log-probability of the target after each prompt, nats per token; float32, or a float64 model's own.

    Args:
        model: The model.
        ids: Prompts of one length, without the target; with `past`, what follows it.
        target: Tokens that are to follow.
        past: Keys and values of what stands before, of as many rows.

    Returns:
        One number per row; gradients flow to what hooks put in.
    """
    wanted = torch.tensor(list(target), device=ids.device)
    whole = torch.cat([ids, wanted.expand(len(ids), -1)], dim=1)
    options = {} if past is None else {"past_key_values": past, "use_cache": True}
    states = model.anatomy.base(input_ids=whole, **options).last_hidden_state
    logits = model.anatomy.unembed(states[:, -len(wanted) - 1 : -1].flatten(0, 1))
    logits = logits if logits.dtype == torch.float64 else logits.float()
    logp = logits.log_softmax(-1).gather(-1, wanted.repeat(len(ids))[:, None])[:, 0]
    return -logp.unflatten(0, (len(ids), len(wanted))).mean(-1)


def loss_from_embeddings(
    model: HookedModel,
    ids: Int[Tensor, "row pos"],
    target: Sequence[int],
    places: Sequence[slice],
    embeddings: Float[Tensor, "row suffix d_model"],
) -> Float[Tensor, "row"]:
    """`target_loss` with the suffixes' embeddings replaced."""
    with changed_output(
        model.hf.get_input_embeddings(), replacing(places, embeddings), length=ids.shape[1] + len(target)
    ):
        return target_loss(model, ids, target)


def replacing(
    places: Sequence[slice], embeddings: Float[Tensor, "row suffix d_model"]
) -> Callable[[Tensor], Tensor]:
    """A change that writes each row's suffix embeddings over what stands at its place."""

    def change(states: Tensor) -> Tensor:
        rows = []
        for row, place, own in zip(states, places, embeddings, strict=True):
            rows.append(torch.cat([row[: place.start], own.to(row), row[place.stop :]]))
        return torch.stack(rows)

    return change
