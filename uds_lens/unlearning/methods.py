"""All methods by their word: those of this package, read from `objectives/` on first use, and a user's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from importlib import import_module
from typing import Any

from uds_lens.checked_arguments import arguments_checked
from uds_lens.checked_settings import shown
from uds_lens.errors import ConfigError, Setting
from uds_lens.unlearning.method_config import MethodConfig, kind_of
from uds_lens.unlearning.method_words import DECLARED, OWN_WORDS, method_words
from uds_lens.unlearning.objective_registry import Objective


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
        import_module(f"uds_lens.unlearning.objectives.{method}")
    return DECLARED[method]


def method_class(method: str) -> type[MethodConfig]:
    """Class of a method's configuration.

    Raises:
        ConfigError: No such method.
    """
    return objective_named(method).config


@arguments_checked
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
    kinds = {field.name: kind_of(field) for field in fields(cls)}
    unknown = sorted(set(settings or {}) - set(kinds))
    if unknown:
        words = ", ".join(map(repr, unknown))
        raise ConfigError(f"{method} has no setting {words}; it has {', '.join(sorted(kinds))}.")
    return cls(**{name: _value(name, value, kinds[name]) for name, value in (settings or {}).items()})


def _value(name: str, value: Any, kind: str) -> Any:
    if not isinstance(value, str) or kind not in ("int", "float"):
        return value
    try:
        return int(value) if kind == "int" else float(value)
    except ValueError as error:
        wanted = "a whole number" if kind == "int" else "a number"
        raise ConfigError(Setting(name), f" must be {wanted}; got {shown(value)}.") from error
