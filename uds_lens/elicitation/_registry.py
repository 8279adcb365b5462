"""Audits by their words: the registry, presets, settings in brackets, and how users add their own."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_origin, get_type_hints

from uds_lens._settings import shown
from uds_lens._types import Protocol, check_choice
from uds_lens.data import ForgetExample
from uds_lens.elicitation._options import ElicitOptions
from uds_lens.elicitation._probes import (
    AOA,
    ICL,
    Ask,
    Audit,
    ByPrompt,
    Cloze,
    Combined,
    Custom,
    Mask,
    Plain,
    PromptAudit,
    Start,
    Worded,
)
from uds_lens.elicitation._prompts import Context, Injection, Prompt, Skip, first_prompt, rendered
from uds_lens.errors import ConfigError, Setting

PROMPT_AUDITS: dict[str, PromptAudit] = {
    audit.word: audit for audit in (Plain(), Cloze(), AOA(), ICL(), Mask(), Start())
}
"""Prompt audits by their word; `prompt_audit` adds to them."""

PRESETS: dict[str, tuple[str, ...]] = {
    "quick": ("plain", "cloze", "start"),
    "black_box": ("plain", "cloze", "start", "aoa", "icl", "mask+icl", "mask+icl+aoa"),
    "paper": ("plain", "aoa", "icl", "mask+icl", "mask+icl+aoa"),
}
"""Audits that go together; `paper` holds the prompt audits of Chen et al. 2025."""


def prompt_audit(name: str, *, injects: Injection) -> Callable[[Callable[[Prompt, Context], Prompt]], Custom]:
    """Make a function `Prompt, Context -> Prompt` an audit that `elicit` knows by its word.

    Args:
        name: Its word: letters, digits and `_`.
        injects: The most that it hands over beside the question (see `Injection`).

    Returns:
        A decorator.

    Raises:
        ConfigError: The word is taken, or not of that form.

    Example:
        >>> import dataclasses
        >>> @prompt_audit("kindly", injects="nothing")
        ... def kindly(prompt, context):
        ...     return dataclasses.replace(prompt, question=f"Please: {prompt.question}")
        >>> find_audit("kindly+start").name
        'kindly+start'
        >>> del PROMPT_AUDITS["kindly"]
    """
    check_choice("injects", injects, Injection)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ConfigError(f"an audit's name is made of a-z, 0-9 and _; got {name!r}.")
    if name in PROMPT_AUDITS:
        raise ConfigError(f"there is an audit {name!r} already: choose another name.")

    def add(change: Callable[[Prompt, Context], Prompt]) -> Custom:
        made = Custom(name, injects, change)
        PROMPT_AUDITS[name] = made
        return made

    return add


def find_any(words: str) -> Audit | PromptAudit:
    """An audit by its words, those that need a model's insides too: `gcg`, `softgcg`, `actpert`, `mask+icl`.

    Raises:
        ConfigError: There is none of that name.

    Example:
        >>> find_any("gcg").access, find_any("plain").injects
        ('gradients', 'nothing')
    """
    from uds_lens.elicitation._act_pert import ActPert
    from uds_lens.elicitation._gcg import GCG
    from uds_lens.elicitation._soft_gcg import SoftGCG

    insides = {"gcg": GCG, "softgcg": SoftGCG, "actpert": ActPert}
    return insides[words]() if words in insides else find_audit(words)


def find_audit(words: str) -> PromptAudit:
    """The audit that `mask+icl+aoa` stands for.

    Raises:
        ConfigError: No audit has one of the names.

    Example:
        >>> find_audit("mask+icl(shots=3)").injects
        'other facts'
        >>> find_audit("aoa(variant=identity)").name
        'aoa(variant=identity)'
    """
    parts = tuple(_find_one(part.strip()) for part in words.split("+"))
    return parts[0] if len(parts) == 1 else Combined(parts)


def _find_one(words: str) -> PromptAudit:
    match = re.fullmatch(r"(\w+)(?:\((.*)\))?", words, re.DOTALL)
    if match is None or match[1] not in PROMPT_AUDITS:
        raise ConfigError(
            f"no audit {words[:80]!r}; there are {', '.join(PROMPT_AUDITS)}, joined with +, settings in brackets: "
            "aoa(variant=identity)."
        )
    audit = PROMPT_AUDITS[match[1]]
    return audit if not match[2] else _with_settings(audit, match[2])


def _with_settings(audit: PromptAudit, told: str) -> PromptAudit:
    known = {f.name: f for f in dataclasses.fields(audit)} if isinstance(audit, Worded) else {}  # type: ignore[arg-type]
    settings: dict[str, Any] = {}
    for part in told.split(", "):
        name, _, value = part.partition("=")
        if name not in known:
            raise ConfigError(f"{audit.name} has no setting {name!r}; it has {', '.join(known) or 'none'}.")
        settings[name] = _read(name, value, get_type_hints(type(audit))[name])
    return type(audit)(**settings)


def _read(name: str, value: str, kind: Any) -> Any:
    """A setting that was written out."""
    if get_origin(kind) is Literal:
        check_choice(name, value, kind)
        return value
    if kind is bool and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if kind is int and value.isdigit():
        return int(value)
    if kind is str:
        return value
    raise ConfigError(
        Setting(name), f" must be {'True or False' if kind is bool else 'a whole number'}; got {value!r}."
    )


def require_different(names: Sequence[str]) -> None:
    """Raise unless all names differ.

    Raises:
        ConfigError: Two have the same.
    """
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"two audits are called {twice[0]!r}: results could not tell them apart.")


# Which audits run, and what each asks: the same prompts for every model, and reasons for rows it cannot
# ask.


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
