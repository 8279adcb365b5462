"""What an objective declares, and the decorator that collects it: the library's own and a user's alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_type_hints

from uds_lens._settings import shown, validated
from uds_lens._types import check_choice
from uds_lens.errors import ConfigError, Setting
from uds_lens.unlearning._configs import MethodConfig
from uds_lens.unlearning._method_words import DECLARED, OWN_WORDS, method_words

if TYPE_CHECKING:
    from uds_lens.unlearning._terms import Terms


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
    validated(config)

    def register(terms: F) -> F:
        DECLARED[config.method] = Objective(
            config=config, terms=terms, needs=frozenset(needs), prepare=prepare
        )
        return terms

    return register


def withdraw_objective(method: str) -> None:
    """Take back what `objective` declared; a word that is not there is no error."""
    DECLARED.pop(method, None)


def _require_free(config: type[MethodConfig]) -> None:
    known = DECLARED.get(config.method)
    same = known is not None and _home(known.config) == _home(config)
    foreign = (
        config.method in OWN_WORDS and config.__module__ != f"uds_lens.unlearning._objectives.{config.method}"
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


# All methods by their word: those of this package, read from `objectives/` on first use, and a user's own.


class _Methods(Mapping[str, type[MethodConfig]]):
    """Configuration classes by word; an objective of this package is imported when it is asked for."""

    def __getitem__(self, method: str) -> type[MethodConfig]:
        return objective_named(method).config if method in self else self._missing(method)

    def __iter__(self) -> Iterator[str]:
        return iter(method_words())

    def __len__(self) -> int:
        return len(method_words())

    def __contains__(self, method: object) -> bool:
        return method in method_words()

    def __repr__(self) -> str:
        return f"<methods: {', '.join(self)}>"

    @staticmethod
    def _missing(method: str) -> type[MethodConfig]:
        raise KeyError(method)


METHODS: Mapping[str, type[MethodConfig]] = _Methods()
"""Configuration class of each unlearning method, by its word; your own are in it once they are defined."""


def objective_named(method: str) -> Objective:
    """The declaration of a method.

    Raises:
        ConfigError: No such method.
    """
    if method not in method_words():
        raise ConfigError(
            f"no unlearning method {method!r}; there are {', '.join(method_words())}. One of your own is known once "
            "the file that declares it is imported."
        )
    if method in OWN_WORDS:
        import_module(f"uds_lens.unlearning._objectives.{method}")
    return DECLARED[method]


def method_class(method: str) -> type[MethodConfig]:
    """Class of a method's configuration.

    Raises:
        ConfigError: No such method.
    """
    return objective_named(method).config


def make_config(method: str, settings: Mapping[str, Any] | None = None) -> MethodConfig:
    """Configuration of a method with some settings changed; texts are read as numbers where numbers belong.

    Args:
        method: A word of `METHODS`.
        settings: Values by field name; texts come from a command line.

    Returns:
        The configuration.

    Raises:
        ConfigError: No such method or setting, or a value outside its range.

    Example:
        >>> make_config("npo", {"beta": "0.5"}).beta
        0.5
        >>> make_config("npo", {"gamma": 1})
        Traceback (most recent call last):
            ...
        uds_lens.errors.ConfigError: npo has no setting 'gamma'; it has alpha, batch_size, beta, ...
    """
    cls = method_class(method)
    hints = get_type_hints(cls)
    kinds = {field.name: hints[field.name] for field in fields(cls)}
    unknown = sorted(set(settings or {}) - set(kinds))
    if unknown:
        words = ", ".join(map(repr, unknown))
        raise ConfigError(f"{method} has no setting {words}; it has {', '.join(sorted(kinds))}.")
    return cls(**{name: _value(name, value, kinds[name]) for name, value in (settings or {}).items()})


def _value(name: str, value: Any, kind: Any) -> Any:
    if not isinstance(value, str) or kind not in (int, float):
        return value
    try:
        return kind(value)
    except ValueError as error:
        wanted = "a whole number" if kind is int else "a number"
        raise ConfigError(Setting(name), f" must be {wanted}; got {shown(value)}.") from error
