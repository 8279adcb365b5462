"""Names that say what a run was, and read back as its configuration."""

from __future__ import annotations

from dataclasses import MISSING, fields
from decimal import Decimal
from typing import Any
from urllib.parse import quote, unquote

from uds_lens.checked_arguments import arguments_checked
from uds_lens.errors import ConfigError
from uds_lens.unlearning.method_config import MethodConfig
from uds_lens.unlearning.methods import METHODS, make_config

_ALWAYS = ("learning_rate", "beta", "alpha", "delta", "gamma", "layer", "scale", "epochs")
"""Fields that every name shows, where the method has them, in this order; others only where they differ."""

_WORDS, _FREE = ("schedule", "protocol", "reduction"), ("system_prompt", "chat_date")
"""Fields with words of ours, and with any text, which is written as in an address: `%20` for a space."""

_SHORT = {"learning_rate": "lr", "epochs": "epoch"}


@arguments_checked
def config_name(config: MethodConfig) -> str:
    """A readable name: the method, then its settings.

    Learning rate, the method's own weights and the epochs are always there; other settings only where they differ
    from the default. Equal configurations have equal names, and `parse_name` brings the configuration back.

    Args:
        config: Configuration of a method.

    Returns:
        A name that is also fit for a directory.

    Example:
        >>> from uds_lens.unlearning import NPOConfig
        >>> config_name(NPOConfig(learning_rate=2e-5))
        'npo_lr2e-05_beta0.1_alpha1_epoch10'
        >>> config_name(NPOConfig(seed=3))
        'npo_lr1e-05_beta0.1_alpha1_epoch10_seed3'
    """
    names = [field.name for field in fields(config)]
    shown = [name for name in _ALWAYS if name in names]
    changed = [
        name for name in names if name not in shown and getattr(config, name) != _default(config, name)
    ]
    parts = [f"{_word(name)}{_text(name, getattr(config, name))}" for name in [*shown, *changed]]
    return "_".join([config.method, *parts])


@arguments_checked
def parse_name(name: str) -> MethodConfig:
    """The configuration behind a name made by `config_name`.

    Args:
        name: For example `npo_lr2e-05_beta0.1_alpha1_epoch10`; settings that are not named have their defaults.

    Returns:
        The configuration of the method.

    Raises:
        ConfigError: The name starts with no method, or names a setting the method does not have.

    Example:
        >>> parse_name("rmu_lr2e-05_layer10_scale10_epoch5").layer
        10
    """
    method, *parts = name.split("_")
    if method not in METHODS:
        raise ConfigError(f"{name!r} starts with no unlearning method; there are {', '.join(METHODS)}.")
    words = {_word(field.name): field.name for field in fields(METHODS[method])}
    settings: dict[str, Any] = {}
    for part in parts:
        word = next((w for w in sorted(words, key=len, reverse=True) if part.startswith(w)), None)
        value = part.removeprefix(word or "")
        if word is None or not value or words[word] in settings:
            raise ConfigError(
                f"{name!r}: {method} cannot read {part!r}. It has {', '.join(words)}, each followed by a value."
            )
        field = words[word]
        settings[field] = (
            unquote(value) if field in _FREE else value.replace("-", "_") if field in _WORDS else value
        )
    return make_config(method, settings)


def _word(field: str) -> str:
    return _SHORT.get(field, field.replace("_", ""))


def _default(config: MethodConfig, name: str) -> Any:
    field = next(field for field in fields(config) if field.name == name)
    return None if field.default is MISSING else field.default


def _text(field: str, value: Any) -> str:
    if field == "learning_rate":
        return _scientific(value)
    if isinstance(value, float):
        return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
    if field in _FREE:
        return quote(str(value), safe="").replace("_", "%5F")
    return str(value).replace("_", "-")


def _scientific(value: float) -> str:
    """The shortest scientific form that reads back as the same number: 2e-05."""
    number = Decimal(repr(value)).normalize()
    digits = "".join(map(str, number.as_tuple().digits))
    mantissa = digits[0] + (f".{digits[1:]}" if len(digits) > 1 else "")
    return f"{mantissa}e{number.adjusted():+03d}"
