"""What the function of a metric may ask: what was measured, the data, the settings, and other metrics."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from uds_lens.metrics.declaration import Outcome, Role
from uds_lens.metrics.means import Undefined

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from uds_lens.metrics.answer_scores import AnswerScores
    from uds_lens.metrics.fluency_scorers import FluencyScorer
    from uds_lens.metrics.masked_weights import FisherMasks
    from uds_lens.metrics.metric_data import MetricData
    from uds_lens.metrics.metric_options import MetricOptions


class Evidence(ABC):
    """Everything that was measured for one model and its references. This class loads no torch; `Measured` does."""

    data: MetricData
    """The sets that were asked."""

    options: MetricOptions
    """The settings."""

    fluency: FluencyScorer
    """What tells language from gibberish."""

    outcomes: dict[str, Outcome]
    """What the metrics before this one found."""

    @abstractmethod
    def answers(self, name: str, role: Role = "model") -> AnswerScores:
        """What a model says of every token of every answer of a set; of no text where the set is empty."""

    @abstractmethod
    def texts(self, name: str) -> Sequence[str]:
        """The answers of a set, in the order of `answers`."""

    @abstractmethod
    def by_example(self, name: str, values: Sequence[float]) -> list[list[float]]:
        """Values of a set's answers, listed per example: several where there are paraphrases."""

    @abstractmethod
    def generations(self, name: str, role: Role = "model", *, jailbreak: bool = False) -> tuple[str, ...]:
        """Greedy answers to a set's questions."""

    @abstractmethod
    def stacked_states(self, role: Role, layer: int) -> Float[Tensor, "token d_model"]:
        """States of one layer at the scored positions of all examples, float64."""

    @abstractmethod
    def patched_delta(self, role: Role) -> Float[Tensor, "example layer"]:
        """What patching a model's states into `full` costs, nats per token."""

    @abstractmethod
    def lens(self, role: Role) -> Float[Tensor, "example layer"]:
        """Logit Lens of a model's states through the head of `full`, nats per token."""

    @abstractmethod
    def masks(self) -> FisherMasks:
        """Fisher masks of `full` and `retain`."""

    @abstractmethod
    def fisher(self) -> list[Float[Tensor, "_"]]:
        """Fisher information of the model at the masked weights: a tensor per layer."""

    @abstractmethod
    def entity_ids(self) -> list[str]:
        """Identities of the examples that white-box metrics look at."""

    @abstractmethod
    def n_skipped(self) -> int:
        """Examples whose entity could not be located."""

    @abstractmethod
    def n_layers(self) -> int:
        """Layers of the models."""

    def ids(self, name: str) -> list[str]:
        """Identities of a set's examples."""
        return [example.id for example in self.data.examples(name)]

    def value(self, name: str) -> float:
        """Another metric's value.

        Raises:
            Undefined: It is NaN; carries its reason.
        """
        outcome = self.outcomes[name]
        if math.isnan(outcome.value):
            raise Undefined(f"{name} is NaN: {outcome.reason}")
        return outcome.value
