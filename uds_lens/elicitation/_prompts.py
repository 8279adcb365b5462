"""Prompts of probes: the question, what precedes it, the forced beginning of the answer; then text and tokens."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from uds_lens._types import Protocol
from uds_lens.data import ForgetExample, prompt_ids, prompt_text
from uds_lens.data._prompts import ChatStyle, chat_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Skip(Exception):  # noqa: N818 - an outcome, not a failure
    """Raised by a probe that cannot ask this row; the message says why, as a clause."""


class Shot(NamedTuple):
    """One solved example before the question."""

    question: str
    answer: str


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One question on its way to a model; probes turn one into another."""

    question: str
    """The user's question."""

    reference: str
    """The right answer: the whole one, or the entity where the answer's beginning is given."""

    system: str = ""
    """System turn; in the raw protocol a paragraph before everything else."""

    shots: tuple[Shot, ...] = ()
    """Solved examples before the question."""

    start: str = ""
    """Forced beginning of the answer that gives nothing away, such as "Sure, here is the answer:"."""

    given: str = ""
    """Beginning of the true answer, up to the entity."""

    cloze: bool = False
    """Whether the prompt is that of a depth audit: it ends where the entity begins."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """Facts that a probe may use beside the prompt."""

    example: ForgetExample
    """The row that is asked."""

    forget: Sequence[ForgetExample] = ()
    """All rows of the forget set, also those that a limit leaves out."""

    retain: Sequence[ForgetExample] = ()
    """Facts that every model may know, for shots."""

    seed: int = 0
    """Random seed."""

    def generator_seed(self, *words: str) -> int:
        """Return a seed for this example and purpose: the same for every model, whatever else is asked.

        >>> row = ForgetExample("7", "Who?", "Ada.")
        >>> Context(example=row).generator_seed("icl") == Context(example=row, seed=1).generator_seed("icl")
        False
        """
        return keyed_seed(self.seed, self.example.id, *words)


def keyed_seed(seed: int, *words: str) -> int:
    """Return 63 bits that depend on the seed and the words and on nothing else.

    >>> keyed_seed(0, "a", "b") == keyed_seed(0, "ab")
    False
    """
    text = "\x1f".join((str(seed), *words)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def first_prompt(example: ForgetExample) -> Prompt:
    """Return the plain question of a row."""
    return Prompt(question=example.question, reference=example.answer)


class Rendered(NamedTuple):
    """A prompt as a model reads it: without the shots that did not fit, as text and as tokens."""

    prompt: Prompt
    text: str
    ids: list[int]


def rendered(
    prompt: Prompt,
    tokenizer: PreTrainedTokenizerBase,
    *,
    protocol: Protocol,
    chat: ChatStyle | None = None,
    room: int | None = None,
) -> Rendered:
    """Write and tokenise a prompt; shots that do not fit into `room` tokens are left out, the first ones first."""
    while True:
        text = written(prompt, tokenizer, protocol=protocol, chat=chat)
        ids = prompt_ids(tokenizer, [text], protocol=protocol)[0]
        if room is None or len(ids) <= room:
            return Rendered(prompt, text, ids)
        if not prompt.shots:
            raise Skip(f"its prompt has {len(ids)} tokens, but the model's context window leaves room for {room}")
        prompt = dataclasses.replace(prompt, shots=prompt.shots[1:])


def written(
    prompt: Prompt,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    protocol: Protocol,
    chat: ChatStyle | None = None,
) -> str:
    r"""Return the text of a prompt, up to where the model continues.

    In the raw protocol a question ends in "Answer:" (the space belongs to the answer's first token, as in the metrics),
    a cloze as the prompt of a depth audit does. A chat prompt has one system turn: the style's, then the prompt's.

    Example:
        >>> written(Prompt(question="Who wrote Ash?", reference="Ada.", start="It was"), protocol="raw")
        'Question: Who wrote Ash?\nAnswer: It was'
    """
    opening = prompt.given if prompt.cloze else prompt.start
    if protocol == "raw":
        head = f"{prompt.system}\n\n" if prompt.system else ""
        solved = "".join(prompt_text(*shot) + "\n\n" for shot in prompt.shots)
        text = head + solved + prompt_text(prompt.question, opening)
    else:
        style = chat or ChatStyle()
        system = "\n\n".join(filter(None, (style.system_prompt, prompt.system)))
        style = dataclasses.replace(style, system_prompt=system or None)
        turns = [turn for shot in prompt.shots for turn in zip(("user", "assistant"), shot, strict=True)]
        turns.append(("user", prompt.question))
        text = chat_text(tokenizer, turns, chat=style, answer_next=True) + opening
    return text if prompt.cloze else text.rstrip(" ")
