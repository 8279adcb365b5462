"""Settings of relearning over a grid. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge, Gt, Le
from pydantic import BeforeValidator

from uds_lens._settings import validated
from uds_lens._types import NonNegativeInt, PositiveFloat, PositiveInt, Share
from uds_lens.errors import ConfigError, Setting
from uds_lens.metrics._catalogue import METRICS
from uds_lens.unlearning._settings import RelearnConfig


def _tuple(given: Any) -> Any:
    """Return several values, or one, as a tuple."""
    return tuple(given) if isinstance(given, tuple | list) else (given,)


@validated
@dataclass(frozen=True, kw_only=True)
class RelearnGrid:
    """The settings to try, in all combinations, and the limits on choosing among them.

    The UDS paper's one setting (learning rate 2e-5, one epoch, all rows, all weights) is always among them.

    Raises:
        ConfigError: A value is outside its range.

    Example:
        >>> [each.name for each in RelearnGrid(learning_rate=(1e-4,), epochs=(1,), lora_rank=(0, 8)).settings]
        ['lr2e-05_epochs1', 'lr0.0001_epochs1', 'lr0.0001_epochs1_lora8']
    """

    learning_rate: Annotated[tuple[PositiveFloat, ...], BeforeValidator(_tuple)] = (1e-5, 2e-5, 5e-5, 1e-4)
    """Peak learning rates."""

    epochs: Annotated[tuple[PositiveInt, ...], BeforeValidator(_tuple)] = (1, 3)
    """Passes over the rows."""

    share: Annotated[tuple[Annotated[float, Gt(0), Le(1)], ...], BeforeValidator(_tuple)] = (1.0,)
    """Shares of the forget rows, spread over the subjects; the rest shows what comes back without being taught."""

    lora_rank: Annotated[tuple[NonNegativeInt, ...], BeforeValidator(_tuple)] = (0,)
    """Ranks of low-rank adapters; 0 trains all weights."""

    metric: str = "em"
    """Metric of knowledge, for the amount recovered by relearning."""

    utility: str = "retain_q_prob"
    """Metric of utility, which limits the allowed settings."""

    max_loss: Share = 0.2
    """Largest share of utility that a relearned model may lose."""

    seed: Annotated[int, Ge(0)] = 0
    """Seed of the rows and of the random halves."""

    def __post_init__(self) -> None:
        for name, ways in (("metric", ("knowledge", "erasure")), ("utility", ("utility",))):
            given = getattr(self, name)
            if given not in METRICS or METRICS[given].meaning.direction not in ways:
                raise ConfigError(Setting(name), f" must be a metric of {' or '.join(ways)}; got {given!r}.")

    @property
    def settings(self) -> tuple[RelearnSetting, ...]:
        """All settings without duplicates, the paper's first."""
        paper = RelearnSetting(RelearnConfig().learning_rate, RelearnConfig().epochs, 1.0, 0)
        tried = product(self.learning_rate, self.epochs, self.share, self.lora_rank)
        return tuple(dict.fromkeys([paper, *(RelearnSetting(*values) for values in tried)]))


class RelearnSetting(NamedTuple):
    """One way to relearn."""

    learning_rate: float
    epochs: int
    share: float
    lora_rank: int

    @property
    def name(self) -> str:
        """A name for files and tables."""
        rows = "" if self.share == 1 else f"_rows{self.share:g}"
        return f"lr{self.learning_rate:g}_epochs{self.epochs}{rows}" + (f"_lora{self.lora_rank}" * bool(self.lora_rank))
