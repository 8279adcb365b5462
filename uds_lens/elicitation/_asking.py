"""Ask a model: tokenised prompts of a probe, generated texts, and hooks that change a prompt's hidden states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from uds_lens._types import Protocol as PromptProtocol
from uds_lens.data import ForgetExample
from uds_lens.elicitation._options import Access, Decoding, ElicitOptions, Injection, ProbeRecord
from uds_lens.elicitation._probes import (
    Context,
    Prompt,
    PromptProbe,
    Rendered,
    Skip,
    first_prompt,
    keyed_seed,
    rendered,
)
from uds_lens.generation import SamplingSettings, sample_continuations
from uds_lens.generation._decoding import rows_of_one_length
from uds_lens.models import HookedModel
from uds_lens.patching._hooks import first_tensor


class Ask(NamedTuple):
    """One row with its tokenised prompt."""

    row: int  # index among the examples
    id: str  # the example's id, which also seeds its random numbers
    subject: str | None
    rendered: Rendered

    @property
    def key(self) -> tuple[object, ...]:
        """Everything that determines this row's texts and scores, apart from the model and the options."""
        return (self.row, self.id, self.subject, self.rendered.prompt.reference, list(self.rendered.ids))


class Answers(NamedTuple):
    """Answers to a list of prompts."""

    prompts: Sequence[str]
    texts: Sequence[tuple[str, ...]]
    details: Sequence[Mapping[str, Any]]  # see `Response.details`
    prefilled: int  # number of prompt tokens processed


class Generated(NamedTuple):
    """Texts generated from a list of prompts, without special tokens or surrounding white space."""

    texts: list[tuple[str, ...]]
    endless: list[int]  # per prompt, the number of texts cut off at `max_new_tokens`
    prefilled: int


@dataclass(frozen=True, kw_only=True)
class Asking:
    """Settings for asking a model."""

    decoding: Decoding
    options: ElicitOptions
    protocol: PromptProtocol
    ends: frozenset[int]
    desc: str = "answers"
    show: bool | None = None

    def generate(self, model: HookedModel, asks: Sequence[Ask], ids: Sequence[Sequence[int]]) -> Generated:
        """Generate texts that continue tokenised prompts."""
        options, drawn = self.options, self.decoding == "sampled"
        new = sample_continuations(
            model,
            ids,
            ends=self.ends,
            settings=SamplingSettings(
                max_new_tokens=options.max_new_tokens,
                samples=options.samples if drawn else 1,
                temperature=options.temperature if drawn else 0.0,
                top_k=options.top_k,
                rows_at_once=options.rows_at_once,
                progress=self.show,
            ),
            seeds=[keyed_seed(options.seed, ask.id, "sample") for ask in asks] if drawn else None,
            names=[ask.rendered.prompt.question for ask in asks],
            desc=self.desc,
        )
        tokenizer: Any = model.tokenizer
        return Generated(
            [tuple(tokenizer.decode(s, skip_special_tokens=True).strip() for s in row) for row in new.tokens],
            [sum(len(s) >= options.max_new_tokens for s in row) for row in new.tokens],
            new.prefilled,
        )


@runtime_checkable
class Probe(Protocol):
    """A way of asking a model for an answer."""

    @property
    def name(self) -> str:
        """Name of the probe, with its settings."""

    @property
    def access(self) -> Access:
        """The kind of model access that the probe needs."""

    @property
    def injects(self) -> Injection:
        """The most revealing information that the probe gives away."""

    @property
    def opening(self) -> str:
        """Target text of an optimiser, which is cut off before scoring; empty for other probes."""

    @property
    def samples_too(self) -> bool:
        """Whether the probe also supports sampled answers."""

    def prompt(self, prompt: Prompt, context: Context) -> Prompt:
        """Return the changed prompt; raise `Skip` if the probe does not apply to this row."""

    def answer(self, model: HookedModel, asks: Sequence[Ask], asking: Asking) -> Answers:
        """Return the model's answers."""


@dataclass(frozen=True)
class ByPrompt:
    """A probe that changes only the prompt."""

    change: PromptProbe  # a prompt probe
    opening: str = ""
    samples_too: bool = True
    access: Access = "text"

    @property
    def name(self) -> str:
        """The name of the prompt probe."""
        return self.change.name

    @property
    def injects(self) -> Injection:
        """The most revealing information that the probe gives away."""
        return self.change.injects

    def prompt(self, prompt: Prompt, context: Context) -> Prompt:
        """Return the changed prompt."""
        return self.change(prompt, context)

    def answer(self, model: HookedModel, asks: Sequence[Ask], asking: Asking) -> Answers:
        """Generate continuations of the prompts."""
        new = asking.generate(model, asks, [ask.rendered.ids for ask in asks])
        details = [{"endless": count} for count in new.endless]
        return Answers([ask.rendered.text for ask in asks], new.texts, details, new.prefilled)


@dataclass(frozen=True)
class Asked:
    """A probe with its prompts, and the ids of skipped rows with reasons."""

    probe: Probe
    asks: tuple[Ask, ...]
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def record(self) -> ProbeRecord:
        """Return the probe's entry in the ledger."""
        probe = self.probe
        return ProbeRecord(probe.name, probe.access, probe.injects, probe.opening, self.skipped)


def ask_rows(
    probe: Probe,
    rows: Sequence[ForgetExample],
    tokenizer: Any,
    *,
    pool: Sequence[ForgetExample],
    retain: Sequence[ForgetExample] = (),
    protocol: PromptProtocol,
    room: int | None,
    options: ElicitOptions,
) -> Asked:
    """Write a probe's prompts, which are the same for every model; `pool` holds all rows, for in-context examples."""
    asks, skipped = [], []
    for place, row in enumerate(rows):
        context = Context(example=row, forget=pool, retain=retain, seed=options.seed)
        try:
            prompt = probe.prompt(first_prompt(row), context)
            ready = rendered(prompt, tokenizer, protocol=protocol, chat=options.chat, room=room)
        except Skip as why:
            skipped.append((row.id, str(why)))
        else:
            asks.append(Ask(place, row.id, row.subject, ready))
    return Asked(probe, tuple(asks), tuple(skipped))


def changed_output(
    module: nn.Module,
    change: Callable[[Float[Tensor, "row pos d_model"]], Float[Tensor, "row pos d_model"]],
    *,
    length: int,
) -> RemovableHandle:
    """Within a `with` block, apply `change` to a module's output at the first `length` positions.

    Calls with fewer positions are decoding steps with a cache; their output is left unchanged.
    """

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        states = first_tensor(output)
        if states.shape[-2] < length:
            return None
        new = change(states[..., :length, :])
        if states.shape[-2] > length:  # the whole text is processed again, including generated tokens
            new = torch.cat([new, states[..., length:, :]], dim=-2)
        return new if isinstance(output, Tensor) else type(output)((new, *output[1:]))

    return module.register_forward_hook(hook)


def groups_of_one_length(
    model: HookedModel, prompts: Sequence[Sequence[int]], options: ElicitOptions, *, samples: int = 1
) -> list[list[int]]:
    """Group prompts of equal length so that their states can be changed together, up to `rows_at_once` texts per group.

    If the model cannot generate in batches, each prompt is its own group.
    """
    groups = []
    for way, rows in rows_of_one_length(model, prompts, options.max_new_tokens):
        size = max(1, options.rows_at_once // samples) if way == "side by side" else 1
        groups += [rows[first : first + size] for first in range(0, len(rows), size)]
    return groups
