"""The library's closed vocabularies, as `Literal` types, and the ranges of its settings."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, get_args

from annotated_types import Ge, Gt, Le

from uds_lens._settings import shown
from uds_lens.errors import ConfigError, Setting

Protocol: TypeAlias = Literal["raw", "chat"]
"""How a question and an answer become text: the UDS paper's raw form, or the tokenizer's chat template."""

AnswerProtocol: TypeAlias = Literal["auto", "raw", "chat"]
"""A protocol, or `auto`: the chat template where the tokenizer has one, else the raw form."""

ChatStyleName: TypeAlias = Literal[
    "open_unlearning", "open_unlearning_gemma", "paper_pools", "paper_scores", "paper_perturbed"
]
"""Published ways to fill a chat template (`uds_lens.data.CHAT_STYLES`)."""

EntitySpace: TypeAlias = Literal["answer", "always"]
"""What precedes an entity: the characters that the answer has there, or one space, as in the UDS paper."""

Site: TypeAlias = Literal["resid_post", "resid_mid", "attn_out", "mlp_out"]
"""Where a layer is patched, in TransformerLens's terms."""

HookSite: TypeAlias = Literal["resid_pre", "resid_post", "resid_mid", "attn_out", "mlp_out", "z", "q", "k", "v"]
"""Where states are read and patched outside audits: also the input of a block, and the states of its heads."""

Scope: TypeAlias = Literal["entity", "boundary", "answer", "all"]
"""Which positions are patched. The scored positions are those of the entity in every scope."""

MapPosition: TypeAlias = Literal["entity", "subject", "prompt", "all"]
"""Positions of a map: the entity's, as in a score; all mentions of the subject; those before the entity's; all."""

LastLayer: TypeAlias = Literal["resid_post", "post_norm"]
"""State used for the last layer: its true residual stream, or (the paper's script) the normed one."""

Sampling: TypeAlias = Literal["random", "first"]
"""Which examples a limit keeps: a random sample spread over the subjects, or the first ones of the file."""

StandIn: TypeAlias = Literal["base", "counterfactual"]
"""Stand-in for a missing retain model: `base`, the model before fine-tuning, or `counterfactual`, full's own states
without the question, or with a question about another subject."""

Counterfactual: TypeAlias = Literal["no_question", "other"]
"""What a counterfactual asks: nothing, or the same about another subject of the data."""

Words: TypeAlias = Literal["unlearning", "edit", "refusal"]
"""The kind of change that an audit's sentences describe: unlearning, an edited fact, or a refusal that was trained or
removed."""

RougeWords: TypeAlias = Literal["ascii", "unicode"]
"""Words that ROUGE counts: those made of a-z and 0-9, as in published numbers, or those in any script."""

PaddingSide: TypeAlias = Literal["left", "right"]
Engine: TypeAlias = Literal["auto", "wavefront", "naive"]
DType: TypeAlias = Literal["float32", "bfloat16", "float16"]

LogTo: TypeAlias = Literal["csv", "wandb", "trackio"]
"""Where a training run can be followed."""

PositiveInt: TypeAlias = Annotated[int, Ge(1)]
NonNegativeInt: TypeAlias = Annotated[int, Ge(0)]
PositiveFloat: TypeAlias = Annotated[float, Gt(0)]
NonNegativeFloat: TypeAlias = Annotated[float, Ge(0)]
Share: TypeAlias = Annotated[float, Gt(0), Le(1)]
"""A part of a whole, in (0, 1]."""


class _NullIsNaN:
    """Tells pydantic to read null as NaN; written without pydantic, which the command line need not import."""

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(
            lambda value: math.nan if value is None else value, handler(source)
        )


FloatOrNaN: TypeAlias = Annotated[float, _NullIsNaN]
"""A saved number that may be undefined: NaN here, null in JSON."""


_OURS = ("tokenize", "add_generation_prompt", "continue_final_message", "date_string")
"""Arguments of `apply_chat_template` that only the library sets."""


def template_kwargs(given: object) -> str | None:
    """Return settings for a chat template as a JSON object with sorted names; None if there are none.

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
    """Tells pydantic to read settings of a chat template; written without pydantic, as above."""

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(template_kwargs)


TemplateKwargs: TypeAlias = Annotated[str | dict[str, Any] | None, _AsJson]
"""Settings for a chat template: a JSON object or a dict, kept as JSON."""


def check_choice(name: str, value: object, choices: object) -> None:
    """Raise `ConfigError` unless `value` is one of the `Literal`'s words.

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
