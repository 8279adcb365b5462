"""Which audits run, and what each asks: the same prompts for every model, and reasons for rows it cannot ask."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from uds_lens.checked_settings import shown
from uds_lens.data import ForgetExample
from uds_lens.elicitation.audit_words import PRESETS, find_any, require_different
from uds_lens.elicitation.audits import Ask, Audit, ByPrompt
from uds_lens.elicitation.options import ElicitOptions
from uds_lens.elicitation.prompt import Context, Skip, first_prompt
from uds_lens.elicitation.prompt_audits import PromptAudit
from uds_lens.elicitation.rendering import rendered
from uds_lens.errors import ConfigError, Setting
from uds_lens.types import Protocol


@dataclass(frozen=True)
class Asked:
    """One audit with the rows it asks and those it cannot."""

    audit: Audit
    asks: tuple[Ask, ...]
    skipped: Mapping[int, str]


def chosen_audits(audits: Sequence[str | PromptAudit | Audit] | str) -> list[Audit]:
    """Audits by name, by preset, or as given.

    Raises:
        ConfigError: No such audit or preset, none at all, or two of one name.
    """
    if isinstance(audits, str):
        if audits not in PRESETS:
            raise ConfigError(
                f"no preset {audits!r}; there are {', '.join(PRESETS)}. A single audit goes in a list: [{audits!r}]."
            )
        audits = PRESETS[audits]
    if not isinstance(audits, Iterable):
        raise ConfigError(Setting("audits"), f" are a list of names, or a preset; got {shown(audits)}.")
    found: list[Any] = [find_any(audit) if isinstance(audit, str) else audit for audit in audits]
    made: list[Audit] = []
    for audit in found:
        if not isinstance(audit, Audit | PromptAudit):
            raise ConfigError(
                Setting("audits"), f" are names or audit objects; got {shown(audit)} among them."
            )
        made.append(audit if isinstance(audit, Audit) else ByPrompt(audit))
        made += [control for control in getattr(audit, "controls", ()) if control not in found]
    if not made:
        raise ConfigError(f"no audits: name some, or a preset ({', '.join(PRESETS)}).")
    require_different([audit.name for audit in made])
    return made


def ask_rows(
    audit: Audit,
    examples: Sequence[ForgetExample],
    forget: Sequence[ForgetExample],
    retain_examples: Sequence[ForgetExample],
    tokenizer: Any,
    *,
    protocol: Protocol,
    room: int | None,
    options: ElicitOptions,
) -> Asked:
    """The prompts of one audit, the same for every model, and the reasons of rows it cannot ask.

    `forget` holds all rows, also those that are not asked: shots come from there.
    """
    asks, skipped = [], {}
    for row, example in enumerate(examples):
        context = Context(example=example, forget=forget, retain=retain_examples, seed=options.seed)
        try:
            prompt = audit.prompt(first_prompt(example), context)
            ready = rendered(prompt, tokenizer, protocol=protocol, chat=options.chat, room=room)
            asks.append(Ask(row, example.id, example.subject, ready))
        except Skip as why:
            skipped[row] = str(why)
    return Asked(audit, tuple(asks), skipped)
