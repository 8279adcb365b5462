"""`Literal` types for settings with fixed choices, and `Annotated` types for numeric ranges."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, get_args

from annotated_types import Ge, Gt, Le

from uds_lens._settings import shown
from uds_lens.errors import ConfigError, Setting

Protocol: TypeAlias = Literal["raw", "chat"]
"""How a question and its answer are formatted: in the UDS paper's raw form, or with the tokenizer's chat template."""

AnswerProtocol: TypeAlias = Literal["auto", "raw", "chat"]
"""A protocol, or `auto`: the chat template if the tokenizer has one, otherwise the raw form."""

ChatStyleName: TypeAlias = Literal[
    "open_unlearning", "open_unlearning_gemma", "paper_pools", "paper_scores", "paper_perturbed"
]
"""Published ways to fill a chat template (`uds_lens.data.CHAT_STYLES`)."""

EntitySpace: TypeAlias = Literal["answer", "always"]
"""What precedes an entity: the same characters as in the answer, or always one space (as in the UDS paper)."""

Site: TypeAlias = Literal["resid_post", "resid_mid", "attn_out", "mlp_out"]
"""Where in a block a layer is patched, named as in TransformerLens."""

HookSite: TypeAlias = Literal["resid_pre", "resid_post", "resid_mid", "attn_out", "mlp_out", "z", "q", "k", "v"]
"""Where states can be read and patched outside audits, which includes the input of a block and its attention heads."""

Scope: TypeAlias = Literal["entity", "boundary", "answer", "all"]
"""Which positions are patched. The scope does not change which positions are scored."""

MapPosition: TypeAlias = Literal["entity", "subject", "prompt", "all"]
"""Positions patched for a map: the entity (as for a score), all mentions of the subject, all positions before the
entity, or all positions."""

LastLayer: TypeAlias = Literal["resid_post", "post_norm"]
"""State used for the last layer: the residual stream, or (as in the paper's script) its value after the final norm."""

Sampling: TypeAlias = Literal["random", "first"]
"""Which examples `limit` keeps: a random sample spread over the subjects, or the first ones in the file."""

StandIn: TypeAlias = Literal["base", "counterfactual"]
"""What replaces a missing retain model: `base` (the model before fine-tuning) or `counterfactual` (the states of `full`
without the question, or with a question about another subject)."""

Counterfactual: TypeAlias = Literal["no_question", "other"]
"""What a counterfactual prompt asks: nothing, or the same question about another subject in the data."""

Words: TypeAlias = Literal["unlearning", "edit", "refusal"]
"""The kind of change that an audit's text describes: unlearning, editing a fact, or training or removing refusals."""

RougeWords: TypeAlias = Literal["ascii", "unicode"]
"""Words that ROUGE counts: only a-z and 0-9, as in published numbers, or words in any script."""

PaddingSide: TypeAlias = Literal["left", "right"]
Engine: TypeAlias = Literal["auto", "wavefront", "naive"]
DType: TypeAlias = Literal["float32", "bfloat16", "float16"]

LogTo: TypeAlias = Literal["csv", "wandb", "trackio"]
"""Where a training run is logged."""

PositiveInt: TypeAlias = Annotated[int, Ge(1)]
NonNegativeInt: TypeAlias = Annotated[int, Ge(0)]
PositiveFloat: TypeAlias = Annotated[float, Gt(0)]
NonNegativeFloat: TypeAlias = Annotated[float, Ge(0)]
Share: TypeAlias = Annotated[float, Gt(0), Le(1)]
"""A fraction of a whole, in (0, 1]."""


class _NullIsNaN:
    """Makes pydantic read null as NaN; imports pydantic only when used, so that the command line starts faster."""

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(
            lambda value: math.nan if value is None else value, handler(source)
        )


FloatOrNaN: TypeAlias = Annotated[float, _NullIsNaN]
"""A saved number that may be undefined: NaN in Python, null in JSON."""


_OURS = ("tokenize", "add_generation_prompt", "continue_final_message", "date_string")
"""Arguments of `apply_chat_template` that are reserved for the library."""


def template_kwargs(given: object) -> str | None:
    """Return chat template settings as a JSON object with sorted names; None if there are none.

    >>> template_kwargs({"enable_thinking": False}), template_kwargs("{}")
    ('{"enable_thinking": false}', None)
    """
    example = 'a JSON object such as {"enable_thinking": false}'
    try:
        settings = json.loads(given) if isinstance(given, str) else {} if given is None else given
        if not isinstance(settings, Mapping) or not all(isinstance(name, str) for name in settings):
            raise TypeError
        text = json.dumps(dict(settings), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise ConfigError(Setting("template_kwargs"), f" must be {example}; got {shown(given)}.") from None
    if ours := [name for name in _OURS if name in settings]:
        fix = ": use chat_date" if ours[0] == "date_string" else ""
        raise ConfigError(Setting("template_kwargs"), f" cannot set {ours[0]!r}, which is set automatically{fix}.")
    return text if settings else None


class _AsJson:
    """Makes pydantic read chat template settings with `template_kwargs`."""

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(template_kwargs)


TemplateKwargs: TypeAlias = Annotated[str | dict[str, Any] | None, _AsJson]
"""Chat template settings: a JSON object or a dict, stored as JSON."""


def check_choice(name: str, value: object, choices: object) -> None:
    """Raise `ConfigError` unless `value` is one of the choices of a `Literal`.

    >>> check_choice("site", "resid_post", Site)
    >>> check_choice("site", "resid", Site)
    Traceback (most recent call last):
        ...
    uds_lens.errors.ConfigError: site must be one of 'resid_post', 'resid_mid', 'attn_out', 'mlp_out'; got 'resid'.
    """
    allowed = get_args(choices)
    if not isinstance(value, str) or value not in allowed:
        words = ", ".join(repr(choice) for choice in allowed)
        raise ConfigError(Setting(name), f" must be one of {words}; got {shown(value)}.")
