"""What an objective declares, and the decorator that collects it: the library's own and a user's alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from uds_lens.checked_arguments import arguments_checked, arguments_checked_but
from uds_lens.errors import ConfigError
from uds_lens.types import check_choice
from uds_lens.unlearning.method_config import MethodConfig
from uds_lens.unlearning.method_words import DECLARED, OWN_WORDS

if TYPE_CHECKING:
    from uds_lens.unlearning.terms import Terms

Need: TypeAlias = Literal["retain", "frozen", "reference", "refusals", "alternates"]
"""What an objective asks for beside the model and the forget answers.

`retain`: retain answers. `frozen`: the whole model before training, beside the one that trains. `reference`: only the
log-probability of each answer under it, computed once. `refusals` and `alternates`: answers to prefer (the side
`winner`), drawn from a list of refusals, or sampled from the model before training.
"""

Loss: TypeAlias = "Callable[[Any, Any], Terms]"
"""From a configuration and the forward passes of a batch (`Passes`) to the terms of its loss."""

F = TypeVar("F", bound=Callable[..., Any])

_ALTERNATE_FIELDS = ("n_alternates", "temperature", "max_new_tokens")


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What is known of a method before it runs."""

    config: type[MethodConfig]
    """Class of its configuration; carries the method's word."""

    terms: Loss
    """Its loss on one pass of a batch."""

    needs: frozenset[Need] = frozenset()
    """What it asks for."""

    prepare: Callable[[Any, Any], None] | None = None
    """Called with configuration and model before training; may choose which weights train."""

    @property
    def method(self) -> str:
        """The method's word."""
        return self.config.method

    @property
    def meaning(self) -> str:
        """What it does, in a line: the first of its configuration's docstring."""
        return (self.config.__doc__ or "").strip().partition("\n")[0]


@arguments_checked_but("config", "needs")
def objective(
    config: type[MethodConfig],
    *,
    needs: tuple[Need, ...] = (),
    prepare: Callable[[Any, Any], None] | None = None,
) -> Callable[[F], F]:
    """Declare an unlearning method: a function from its configuration and the passes of a batch to its terms.

    Once the function is defined, `unlearn(method=...)`, `make_config`, `parse_name`, `METHODS` and the command line
    know the method. A saved record names it by its word: to read the configuration back, define or import it first.

    Args:
        config: A frozen dataclass derived from `MethodConfig` or `RetainConfig`, whose `method` is a word of
            small letters and digits.
        needs: What to provide (see `Need`).
        prepare: Called with configuration and model before training, for example to freeze weights.

    Returns:
        A decorator that registers the function and gives it back unchanged. The same class registers again without
        an error, so that a cell of a notebook can run twice.

    Raises:
        ConfigError: The word is missing or taken, or the class is no frozen dataclass of settings.

    Example:
        >>> from dataclasses import dataclass
        >>> from uds_lens import unlearning as u
        >>> @dataclass(frozen=True, kw_only=True)
        ... class BoundedConfig(u.RetainConfig):
        ...     '''Gradient ascent on each answer, until it costs `ceiling` nats per token.'''
        ...     method = "bounded"
        ...     ceiling: float = 3.0
        >>> @u.objective(BoundedConfig, needs=("retain",))
        ... def bounded(config, passes):
        ...     cost = -passes.answer_log_probs("forget") / u.answer_lengths(passes.labels("forget"))
        ...     loss = -cost.clamp(max=config.ceiling).mean()
        ...     return u.Terms(u.per_answer("forget", loss), u.retained(config, passes))
        >>> u.make_config("bounded", {"ceiling": "2.5"}).ceiling
        2.5
        >>> u.withdraw_objective("bounded")
    """
    _check_config(config)
    for need in needs:
        check_choice("needs", need, Need)
    if "alternates" in needs and not {field.name for field in fields(config)}.issuperset(_ALTERNATE_FIELDS):
        raise ConfigError(
            f"an objective that needs alternates has their settings {', '.join(_ALTERNATE_FIELDS)}: add them to "
            f"{config.__name__}, or derive it from AltPOConfig."
        )
    if {"refusals", "alternates"}.issubset(needs):
        raise ConfigError("an objective has one kind of answers to prefer: refusals or alternates, not both.")
    _require_free(config)

    def register(terms: F) -> F:
        DECLARED[config.method] = Objective(
            config=config, terms=terms, needs=frozenset(needs), prepare=prepare
        )
        return terms

    return register


@arguments_checked
def withdraw_objective(method: str) -> None:
    """Take back what `objective` declared; a word that is not there is no error."""
    DECLARED.pop(method, None)


def _require_free(config: type[MethodConfig]) -> None:
    known = DECLARED.get(config.method)
    same = known is not None and _home(known.config) == _home(config)
    foreign = (
        config.method in OWN_WORDS and config.__module__ != f"uds_lens.unlearning.objectives.{config.method}"
    )
    if foreign or (known is not None and not same):
        raise ConfigError(
            f"the word {config.method!r} is taken by another method: give {config.__name__} another one."
        )


def _home(config: type[MethodConfig]) -> tuple[str, str]:
    return config.__module__, config.__qualname__


def _check_config(config: Any) -> None:
    right = isinstance(config, type) and issubclass(config, MethodConfig)
    if not right or "__dataclass_fields__" not in vars(config):
        raise ConfigError(
            "an objective is declared with its configuration: a class derived from MethodConfig or RetainConfig under "
            f"@dataclass(frozen=True, kw_only=True); got {config!r}."
        )
    word = config.method
    if not (word.isascii() and word.isalnum() and word.islower()) or "method" not in vars(config):
        raise ConfigError(
            f"{config.__name__} needs a word of its own: method = 'myword', small letters and digits; got {word!r}."
        )
