"""The registry of methods, the decorator that declares a method, and the UDS paper's grid. Does not import torch."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_type_hints

from uds_lens._settings import require_known, shown, validated
from uds_lens._storage.records import program_digest
from uds_lens._types import check_choice
from uds_lens.errors import ConfigError, Setting
from uds_lens.unlearning._settings import MethodConfig

if TYPE_CHECKING:
    from uds_lens.unlearning._passes import Terms


Need: TypeAlias = Literal["retain", "frozen", "reference", "refusals", "alternates"]
"""Inputs of an objective in addition to the model and the forget answers.

`retain`: retain answers. `frozen`: the complete model before training, kept alongside the model being trained.
`reference`: each answer's log-probability under the model before training, computed only once. `refusals` and
`alternates`: preferred answers (the side `winner`), either drawn from a list of refusals or sampled from the model
before training.
"""

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Declaration of a method."""

    config: type[MethodConfig]
    """Configuration class, which also holds the method's name."""

    terms: Callable[[Any, Any], Terms]
    """Function from a configuration and forward passes (`Passes`) to the terms of the loss."""

    needs: frozenset[Need] = frozenset()
    """Inputs that the method needs."""

    prepare: Callable[[Any, Any], None] | None = None
    """Function called before training with the configuration and the model; may freeze or change weights."""

    reweigh: Callable[[Any, float | None, float, float], float] | None = None
    """Function called after each step to update a weight that changes during training (see `objective`)."""

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.config.method

    @property
    def meaning(self) -> str:
        """First line of the configuration's docstring."""
        return (self.config.__doc__ or "").strip().partition("\n")[0]

    @property
    def source(self) -> str | None:
        """Hash of a user-defined method's code; None for built-in methods, which are versioned by `RULES`."""
        if self.config.__module__.startswith("uds_lens."):
            return None
        return program_digest(self.terms, self.prepare, self.config, *([self.reweigh] if self.reweigh else []))


OWN_WORDS = tuple(
    sorted(file.stem for file in (Path(__file__).parent / "_objectives").glob("*.py") if not file.stem.startswith("_"))
)
"""Built-in methods, each named after its file in `_objectives/`."""

DECLARED: dict[str, Objective] = {}
"""Objectives declared so far, by name: user-defined objectives, and built-in objectives that have been imported."""


def method_words() -> tuple[str, ...]:
    """Return the names of all methods: built-in methods in alphabetical order, then user-defined methods.

    >>> method_words()[:3]
    ('altpo', 'ceu', 'ga')
    """
    return (*OWN_WORDS, *(word for word in DECLARED if word not in OWN_WORDS))


def objective(
    config: type[MethodConfig],
    *,
    needs: tuple[Need, ...] = (),
    prepare: Callable[[Any, Any], None] | None = None,
    reweigh: Callable[[Any, float | None, float, float], float] | None = None,
) -> Callable[[F], F]:
    """Declare an unlearning method; the decorated function computes loss terms from a configuration and passes.

    Once declared, the method works with `unlearn`, `make_config`, `parse_name`, `METHODS` and the command line. Saved
    records refer to the method by name, so the method must be defined or imported before its configuration can be read.

    Args:
        config: A frozen dataclass derived from `MethodConfig` or `RetainConfig`, with a `method` made of lowercase
            letters and digits.
        needs: Inputs to provide (see `Need`).
        prepare: Function called before training with the configuration and the model, for example to freeze weights.
        reweigh: Function called after each step with four arguments: the configuration; the weight (None at first); the
            retain term of the whole batch, before multiplying by the weight given to `per_token` (0 without such a
            term); and the fraction of completed steps. The return value becomes `passes.weight` in the next batch, and
            is saved in checkpoints.

    Returns:
        A decorator that returns the function unchanged. The same class may be declared again, for example by rerunning
        a notebook cell.

    Raises:
        ConfigError: The name is missing or taken, or `config` is not a frozen dataclass of settings.

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
    sampling = ("n_alternates", "temperature", "max_new_tokens")
    if "alternates" in needs and not {field.name for field in fields(config)}.issuperset(sampling):
        raise ConfigError(
            f"an objective that needs alternates must have the settings {', '.join(sampling)}: add them to "
            f"{config.__name__}, or derive it from AltPOConfig."
        )
    if {"refusals", "alternates"}.issubset(needs):
        raise ConfigError("an objective can prefer refusals or alternates, but not both.")
    validated(config)

    def register(terms: F) -> F:
        DECLARED[config.method] = Objective(
            config=config, terms=terms, needs=frozenset(needs), prepare=prepare, reweigh=reweigh
        )
        return terms

    return register


def withdraw_objective(method: str) -> None:
    """Withdraw a declared method; unknown names are ignored."""
    DECLARED.pop(method, None)


def _check_config(config: Any) -> None:
    is_config = isinstance(config, type) and issubclass(config, MethodConfig)
    if not is_config or "__dataclass_fields__" not in vars(config):
        raise ConfigError(
            "an objective needs a configuration class that is derived from MethodConfig or RetainConfig and decorated "
            f"with @dataclass(frozen=True, kw_only=True); got {config!r}."
        )
    word = config.method
    if not (word.isascii() and word.isalnum() and word.islower()) or "method" not in vars(config):
        raise ConfigError(
            f"{config.__name__} needs a unique name made of lowercase letters and digits, such as method = 'myword'; "
            f"got {word!r}."
        )
    known = DECLARED.get(word)
    home = (config.__module__, config.__qualname__)
    is_same = known is None or home == (known.config.__module__, known.config.__qualname__)
    in_package = config.__module__ == f"uds_lens.unlearning._objectives.{word}"
    if not is_same or (word in OWN_WORDS and not in_package):
        raise ConfigError(f"the name {word!r} is taken by another method: give {config.__name__} another name.")


class _Methods(Mapping[str, type[MethodConfig]]):
    """Configuration classes by name; built-in objectives are imported on first use."""

    def __getitem__(self, method: str) -> type[MethodConfig]:
        if method not in method_words():
            raise KeyError(method)
        return objective_named(method).config

    def __iter__(self) -> Iterator[str]:
        return iter(method_words())

    def __len__(self) -> int:
        return len(method_words())

    def __repr__(self) -> str:
        return f"<methods: {', '.join(self)}>"


METHODS: Mapping[str, type[MethodConfig]] = _Methods()
"""Configuration classes of all unlearning methods by name, including your own methods once they are declared."""


def objective_named(method: str) -> Objective:
    """Return the objective of a method."""
    words = method_words()
    if method not in words:
        near = difflib.get_close_matches(str(method), words, n=1)
        hint = f"did you mean {near[0]!r}? There" if near else "there"
        raise ConfigError(
            f"no unlearning method {shown(method)}; {hint} are {', '.join(words)}. Import the file that declares "
            "your own method first."
        )
    if method in OWN_WORDS:
        import_module(f"uds_lens.unlearning._objectives.{method}")
    return DECLARED[method]


def make_config(method: str, settings: Mapping[str, Any] | None = None) -> MethodConfig:
    """Create a method's configuration, changing the given settings.

    Args:
        method: A key of `METHODS`.
        settings: Values by field name; strings (as from a command line) are converted to numbers where needed.

    Raises:
        ConfigError: The method or a setting does not exist, or a value is outside its range.

    Example:
        >>> make_config("npo", {"beta": "0.5"}).beta
        0.5
        >>> make_config("npo", {"gamma": 1})
        Traceback (most recent call last):
            ...
        uds_lens.errors.ConfigError: npo has no setting 'gamma'; it has alpha, batch_size, beta, ...
    """
    cls, settings = objective_named(method).config, dict(settings or {})
    hints = get_type_hints(cls)
    require_known(method, settings, [field.name for field in fields(cls)])
    for name, value in settings.items():
        kind = hints[name]
        if isinstance(value, str) and kind in (int, float):
            try:
                settings[name] = kind(value)
            except ValueError as error:
                wanted = "a whole number" if kind is int else "a number"
                raise ConfigError(Setting(name), f" must be {wanted}; got {shown(value)}.") from error
    return cls(**settings)


_RUNS = {"epochs": (5, 10), "learning_rate": (1e-5, 2e-5, 5e-5)}
_WEIGHTED = {**_RUNS, "alpha": (1.0, 2.0, 5.0)}
_THEIRS = {"reduction": ("open_unlearning",)}
_PAPER: dict[str, dict[str, tuple[Any, ...]]] = {
    "graddiff": _WEIGHTED,
    "idknll": _WEIGHTED,
    "npo": {**_WEIGHTED, "beta": (0.1,)},
    "idkdpo": {**_WEIGHTED, "beta": (0.1,)},
    "altpo": {**_WEIGHTED, "beta": (0.1,), "n_alternates": (1,)},
    "simnpo": {**_RUNS, "beta": (3.5, 4.5), "gamma": (0.125, 0.25), "delta": (1.0,), "alpha": (1.0,)},
    "rmu": {**_RUNS, "layer": (5, 10, 15), "scale": (10.0,), **_THEIRS},
    "undial": {**_WEIGHTED, "learning_rate": (1e-5, 1e-4, 3e-4), "beta": (10.0,), **_THEIRS},
}


def grid(name: str = "paper") -> Iterator[MethodConfig]:
    """Yield the configurations of a published grid.

    Args:
        name: "paper" is the grid of the UDS paper for a 16-layer model: 24 runs of SimNPO, and 18 runs each of
            GradDiff, IdkNLL, NPO, IdkDPO, AltPO, RMU and UNDIAL. As in the paper, AltPO has one alternate per question,
            and RMU and UNDIAL average as Open-Unlearning does.

    Returns:
        150 distinct configurations.

    Raises:
        ConfigError: There is no such grid.

    Example:
        >>> from uds_lens.unlearning import config_name
        >>> runs = list(grid("paper"))
        >>> len(runs), config_name(runs[0])
        (150, 'graddiff_lr1e-05_alpha1_epoch5')
    """
    if name != "paper":
        raise ConfigError(f"no grid {name!r}; the only grid is 'paper'.")
    for method, axes in _PAPER.items():
        for values in product(*axes.values()):
            yield make_config(method, dict(zip(axes, values, strict=True)))
