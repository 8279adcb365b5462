"""Settings for relearning over a grid. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, NamedTuple, TypeAlias

from annotated_types import Ge, Gt, Le
from pydantic import BeforeValidator, StringConstraints

from uds_lens._settings import validated
from uds_lens._types import NonNegativeInt, PositiveFloat, PositiveInt, Share
from uds_lens.errors import ConfigError, Setting
from uds_lens.metrics._catalogue import METRICS
from uds_lens.unlearning._settings import RelearnConfig


def _tuple(given: Any) -> Any:
    """Return one or several values as a tuple."""
    return tuple(given) if isinstance(given, tuple | list) else (given,)


TRAINED = ("relearn", "others", "benign")
"""Attacks that train; the other attacks change the weights or the states directly."""

Attack: TypeAlias = Annotated[
    str, StringConstraints(pattern=rf"^({'|'.join(TRAINED)}|(prune|noise|refusal):(0|1|0?\.\d+))$")
]
"""An attack: its name, followed by a strength from 0 to 1 if the attack trains nothing."""


@validated
@dataclass(frozen=True, kw_only=True)
class RelearnGrid:
    """The settings to try, in all combinations, and a bound on the utility they may cost.

    The UDS paper's only setting (learning rate 2e-5, one epoch, all rows, all weights) is always included.

    If an attack does not teach the answers that are tested afterwards, it shows which of them were only hidden.

    - `relearn` trains on the forget rows.
    - `others` trains on the rows of half of the subjects and tests only the other half.
    - `benign` trains on retained rows, `share` times as many as there are forget rows.
    - `prune:S` sets the share S of the entries with the smallest absolute values in each block matrix to 0.
    - `noise:S` adds normal noise to each block matrix, with a standard deviation of S times its root
      mean square.
    - `refusal:S` removes one direction from what each block and the embedding write: the mean state at the last token
      of forget questions minus that of retained questions, after block floor(S L) of L (the last block for S = 1).

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
    """Shares of the forget rows, spread over the subjects; the other rows show what comes back without being taught."""

    lora_rank: Annotated[tuple[NonNegativeInt, ...], BeforeValidator(_tuple)] = (0,)
    """Ranks of low-rank adapters; 0 trains all weights."""

    attack: Annotated[tuple[Attack, ...], BeforeValidator(_tuple)] = ("relearn",)
    """Attacks to try. Attacks that train are run with every combination of the settings above."""

    metric: str = "em"
    """Knowledge metric, which measures how much an attack brings back."""

    utility: str = "retain_q_prob"
    """Utility metric, which decides which settings are allowed."""

    max_loss: Share = 0.2
    """Largest share of utility that a relearned model may lose."""

    seed: Annotated[int, Ge(0)] = 0
    """Seed for drawing rows and for the random halves."""

    def __post_init__(self) -> None:
        for name, ways in (("metric", ("knowledge", "erasure")), ("utility", ("utility",))):
            given = getattr(self, name)
            if given not in METRICS or METRICS[given].meaning.direction not in ways:
                raise ConfigError(Setting(name), f" must be a metric of {' or '.join(ways)}; got {given!r}.")

    @property
    def settings(self) -> tuple[RelearnSetting, ...]:
        """All settings without duplicates, starting with the paper's."""
        paper = RelearnSetting(RelearnConfig().learning_rate, RelearnConfig().epochs, 1.0, 0)
        trained = list(product(self.learning_rate, self.epochs, self.share, self.lora_rank))
        tried = [
            RelearnSetting(rate, epochs, 0.5 if attack == "others" else share, rank, attack)
            for attack in self.attack
            for rate, epochs, share, rank in (trained if attack in TRAINED else [(0.0, 0, 0.0, 0)])
        ]
        return tuple(dict.fromkeys([paper, *tried]))


class RelearnSetting(NamedTuple):
    """One setting of one attack."""

    learning_rate: float
    epochs: int
    share: float
    lora_rank: int
    attack: str = "relearn"

    @property
    def kind(self) -> str:
        """The name of the attack, without its strength."""
        return self.attack.partition(":")[0]

    @property
    def name(self) -> str:
        """A name for files and tables."""
        if self.attack not in TRAINED:
            return self.attack.replace(":", "")
        begin = "" if self.attack == "relearn" else f"{self.attack}_"
        rows = "" if self.share == 1 or self.attack == "others" else f"_rows{self.share:g}"
        trained = f"lr{self.learning_rate:g}_epochs{self.epochs}{rows}"
        return begin + trained + (f"_lora{self.lora_rank}" * bool(self.lora_rank))
