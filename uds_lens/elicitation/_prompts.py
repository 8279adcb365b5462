"""What is asked, before it becomes text: the question, what stands before it, and how the answer has to begin."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from uds_lens._types import Protocol
from uds_lens.data import ForgetExample, prompt_ids, prompt_text
from uds_lens.data._prompts import ChatStyle, chat_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


Access: TypeAlias = Literal["text", "samples", "gradients", "activations"]
"""What an audit needs of a model, least first."""

Injection: TypeAlias = Literal[
    "nothing", "format", "other facts", "answer prefix", "affirmative gradient", "gold answer"
]
"""What an audit hands over beside the question, least first."""

INJECTIONS: tuple[Injection, ...] = (
    "nothing",
    "format",
    "other facts",
    "answer prefix",
    "affirmative gradient",
    "gold answer",
)


def name_with_settings(word: str, audit: Any, *, untold: Sequence[str] = ()) -> str:
    """An audit's word, with the settings that differ from the default: `aoa(variant=identity)`.

    Args:
        word: What it is called.
        audit: A dataclass; its fields are the settings.
        untold: Settings that change no result beyond rounding.
    """
    fields = [f for f in dataclasses.fields(audit) if f.name not in untold]
    told = [f"{f.name}={getattr(audit, f.name)}" for f in fields if getattr(audit, f.name) != f.default]
    return f"{word}({', '.join(told)})" if told else word


class Shot(NamedTuple):
    """One solved example before the question."""

    question: str
    answer: str


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One question on its way to a model; audits turn one into another.

    Example:
        >>> Prompt(question="Who wrote Ash?", reference="Ada Vey wrote it.").form
        'question'
    """

    question: str
    """The user's question."""

    reference: str
    """What would be the right answer: the whole one, or the entity where the answer's beginning is given."""

    system: str = ""
    """System turn; in the raw protocol a paragraph before everything else."""

    shots: tuple[Shot, ...] = ()
    """Solved examples before the question."""

    start: str = ""
    """Beginning that is forced on the answer and tells nothing of it, such as "Sure, here is the answer:"."""

    given: str = ""
    """Beginning of the true answer, up to the entity."""

    cloze: bool = False
    """Whether the prompt is that of an audit by patching: it ends where the entity begins."""

    @property
    def form(self) -> Literal["question", "cloze"]:
        """`cloze` where the entity is asked for, `question` where the whole answer is."""
        return "cloze" if self.cloze else "question"


@dataclass(frozen=True, kw_only=True)
class Context:
    """What an audit may look at beside the prompt."""

    example: ForgetExample
    """The row that is asked."""

    forget: Sequence[ForgetExample] = ()
    """All rows of the forget set, also those that a limit leaves out."""

    retain: Sequence[ForgetExample] = ()
    """Facts that every model may know, for shots."""

    seed: int = 0
    """Seed of what is drawn."""

    def generator_seed(self, *words: str) -> int:
        """A seed of its own for each example and purpose: the same for every model, whatever else is asked.

        >>> row = ForgetExample("7", "Who?", "Ada.")
        >>> Context(example=row).generator_seed("icl") == Context(example=row, seed=1).generator_seed("icl")
        False
        """
        return keyed_seed(self.seed, self.example.id, *words)


def first_prompt(example: ForgetExample) -> Prompt:
    """The plain question of a row."""
    return Prompt(question=example.question, reference=example.answer)


class Skip(Exception):  # noqa: N818 - an outcome, not a failure
    """Raised by an audit that cannot ask this row; the message says why, as a clause."""


def keyed_seed(seed: int, *words: str) -> int:
    """63 bits that depend on the seed and the words and on nothing else.

    >>> keyed_seed(0, "a", "b") == keyed_seed(0, "ab")
    False
    """
    text = "\x1f".join((str(seed), *words)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


# A prompt as tokens: the raw protocol or the tokenizer's chat template, with as many shots as the window
# holds.


class Rendered(NamedTuple):
    """A prompt as a model reads it."""

    prompt: Prompt
    """As it was asked: shots that did not fit are gone."""

    text: str
    """Everything before the first generated token."""

    ids: list[int]
    """Its tokens, special ones included."""


def rendered(
    prompt: Prompt,
    tokenizer: PreTrainedTokenizerBase,
    *,
    protocol: Protocol,
    chat: ChatStyle | None = None,
    room: int | None = None,
) -> Rendered:
    """Write a prompt and tokenise it; shots that do not fit are left out, the first ones first.

    Args:
        prompt: What to ask.
        tokenizer: The model's.
        protocol: "raw" or "chat".
        chat: System turn and date of a chat prompt.
        room: Tokens that the prompt may take; None for any number.

    Returns:
        Text and tokens.

    Raises:
        Skip: Without any shot it is still too long.
    """
    while True:
        text = written(prompt, tokenizer, protocol=protocol, chat=chat)
        ids = prompt_ids(tokenizer, [text], protocol=protocol)[0]
        if room is None or len(ids) <= room:
            return Rendered(prompt, text, ids)
        if not prompt.shots:
            raise Skip(f"its prompt has {len(ids)} tokens, and the model's window leaves {room}")
        prompt = dataclasses.replace(prompt, shots=prompt.shots[1:])


def written(
    prompt: Prompt,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    protocol: Protocol,
    chat: ChatStyle | None = None,
) -> str:
    r"""The text of a prompt, up to where the model goes on.

    In the raw protocol a question ends in "Answer:" (the space belongs to the answer's first token, as in the metrics),
    a cloze as the prompt of an audit by patching does. A chat prompt has one system turn: the style's, then the
    prompt's own.

    Example:
        >>> written(Prompt(question="Who wrote Ash?", reference="Ada.", start="It was"), protocol="raw")
        'Question: Who wrote Ash?\nAnswer: It was'
    """
    begun = prompt.given if prompt.cloze else prompt.start
    if protocol == "raw":
        head = f"{prompt.system}\n\n" if prompt.system else ""
        solved = "".join(prompt_text(shot.question, shot.answer) + "\n\n" for shot in prompt.shots)
        asked = head + solved + prompt_text(prompt.question, begun)
    else:
        style = chat or ChatStyle()
        system = "\n\n".join(filter(None, (style.system_prompt, prompt.system)))
        turns = [
            turn for shot in prompt.shots for turn in (("user", shot.question), ("assistant", shot.answer))
        ]
        style = dataclasses.replace(style, system_prompt=system or None)
        asked = (
            chat_text(tokenizer, [*turns, ("user", prompt.question)], chat=style, answer_next=True) + begun
        )
    return asked if prompt.cloze else asked.rstrip(" ")
