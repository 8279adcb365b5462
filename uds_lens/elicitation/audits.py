"""What every audit offers: a name, what it needs and hands over, its prompt, and the model's answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from uds_lens.elicitation.options import Decoding, ElicitOptions
from uds_lens.elicitation.prompt import Access, Context, Injection, Prompt, keyed_seed
from uds_lens.elicitation.prompt_audits import PromptAudit
from uds_lens.elicitation.rendering import Rendered
from uds_lens.generation.continuations import sample_continuations
from uds_lens.models import HookedModel
from uds_lens.types import Protocol as PromptProtocol


class Ask(NamedTuple):
    """One row, ready to be asked."""

    row: int
    """Place among the examples."""

    id: str
    """Identity of the example: what is drawn is keyed by it."""

    subject: str | None
    """Whom the question is about."""

    rendered: Rendered
    """The prompt as text and tokens."""

    @property
    def key(self) -> tuple[object, ...]:
        """All that texts and scores of this row depend on, beside the model and the options."""
        return (self.row, self.id, self.subject, self.rendered.prompt.reference, list(self.rendered.ids))


class Answers(NamedTuple):
    """What came back for a list of asks."""

    prompts: Sequence[str]
    """The text each answer followed."""

    texts: Sequence[tuple[str, ...]]
    """Texts of each ask."""

    told: Sequence[Mapping[str, Any]]
    """More about each."""

    prefilled: int
    """Prompt tokens that were read for generating."""


class Generated(NamedTuple):
    """Texts after a list of prompts."""

    texts: list[tuple[str, ...]]
    """Of each prompt, without special tokens and outer white space."""

    endless: list[int]
    """Of each prompt: texts that had not ended at `max_new_tokens`."""

    prefilled: int
    """Prompt tokens that were read."""


@dataclass(frozen=True, kw_only=True)
class Asking:
    """How a model is asked: decoding, options, ends of a text, what is shown."""

    decoding: Decoding
    options: ElicitOptions
    protocol: PromptProtocol
    ends: frozenset[int]
    desc: str = "answers"
    show: bool | None = None

    def generate(self, model: HookedModel, asks: Sequence[Ask], ids: Sequence[Sequence[int]]) -> Generated:
        """Texts after tokenised prompts."""
        options, drawn = self.options, self.decoding == "sampled"
        found = sample_continuations(
            model,
            ids,
            ends=self.ends,
            max_new_tokens=options.max_new_tokens,
            samples=options.samples if drawn else 1,
            temperature=options.temperature if drawn else 0.0,
            top_k=options.top_k,
            seeds=[keyed_seed(options.seed, ask.id, "sample") for ask in asks] if drawn else None,
            rows_at_once=options.rows_at_once,
            names=[ask.rendered.prompt.question for ask in asks],
            desc=self.desc,
            show=self.show,
        )
        tokenizer: Any = model.tokenizer
        texts = [
            tuple(tokenizer.decode(new, skip_special_tokens=True).strip() for new in samples)
            for samples in found.tokens
        ]
        limit = options.max_new_tokens
        endless = [sum(len(new) >= limit for new in samples) for samples in found.tokens]
        return Generated(texts, endless, found.prefilled)


@runtime_checkable
class Audit(Protocol):
    """One way to ask."""

    @property
    def name(self) -> str:
        """Its word."""

    @property
    def access(self) -> Access:
        """What it needs of a model beside texts."""

    @property
    def injects(self) -> Injection:
        """The most it hands over."""

    @property
    def opening(self) -> str:
        """What an optimiser works for; cut off before scoring."""

    @property
    def samples_too(self) -> bool:
        """Whether it is also sampled."""

    def prompt(self, prompt: Prompt, context: Context) -> Prompt:
        """What is asked; raises `Skip` where it cannot be."""

    def answer(self, model: HookedModel, asks: Sequence[Ask], asking: Asking) -> Answers:
        """Ask an open model."""


@dataclass(frozen=True)
class ByPrompt:
    """An audit that changes nothing but the prompt."""

    change: PromptAudit
    """What turns the plain question into what is asked."""

    opening: str = ""
    samples_too: bool = True
    access: Access = "text"

    @property
    def name(self) -> str:
        """The word of the prompt audit."""
        return self.change.name

    @property
    def injects(self) -> Injection:
        """The most it hands over."""
        return self.change.injects

    def prompt(self, prompt: Prompt, context: Context) -> Prompt:
        """The changed prompt."""
        return self.change(prompt, context)

    def answer(self, model: HookedModel, asks: Sequence[Ask], asking: Asking) -> Answers:
        """Generate after the prompts."""
        found = asking.generate(model, asks, [ask.rendered.ids for ask in asks])
        told = [{"endless": count} for count in found.endless]
        return Answers([ask.rendered.text for ask in asks], found.texts, told, found.prefilled)
