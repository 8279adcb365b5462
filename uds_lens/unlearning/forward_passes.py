"""The forward passes an objective may ask for: of the model in training, and of the model it started from."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from uds_lens.checked_arguments import arguments_checked
from uds_lens.compat.peft import adapters_off, has_adapters
from uds_lens.errors import ConfigError
from uds_lens.unlearning.batch_totals import SideTotals
from uds_lens.unlearning.block_states import states_after
from uds_lens.unlearning.likelihood import sequence_log_probs

INPUTS = ("input_ids", "attention_mask")
"""What of a batch a model reads."""


class FrozenModel:
    """The model before training, for objectives that need its whole distribution or its states.

    It is one copy, made once; where adapters train, it is the model itself with the adapters switched off.
    """

    def __init__(self, model: nn.Module) -> None:
        self._adapted = has_adapters(model)
        self._model: Any = model if self._adapted else copy.deepcopy(model).eval().requires_grad_(False)

    @arguments_checked
    def to(self, device: torch.device) -> FrozenModel:
        """Move the copy (adapted models are moved by whoever trains them)."""
        if not self._adapted:
            self._model.to(device)
        return self

    @property
    def model(self) -> nn.Module:
        """The underlying module."""
        return self._model

    @contextmanager
    def reading(self) -> Iterator[nn.Module]:
        """The frozen model, in evaluation mode and without gradients."""
        was_training = self._model.training
        with torch.no_grad(), adapters_off(self._model) if self._adapted else nullcontext():
            self._model.eval()
            try:
                yield self._model
            finally:
                self._model.train(was_training)


class Passes:
    """Forward passes on the sides of one batch, or of the part of it that is taken at once."""

    def __init__(
        self,
        model: nn.Module,
        batch: Mapping[str, Mapping[str, Tensor]],
        *,
        frozen: FrozenModel | None = None,
        totals: Mapping[str, SideTotals] | None = None,
    ) -> None:
        self._model, self._frozen, self._totals = model, frozen, totals
        self.batch = batch

    @arguments_checked
    def labels(self, side: str) -> Tensor:
        """Labels of a side, -100 where nothing is learnt."""
        return self.batch[side]["labels"]

    @arguments_checked
    def logits(self, side: str) -> Tensor:
        """Logits of the model in training."""
        return self._model(**self._inputs(side), use_cache=False).logits

    @arguments_checked
    def answer_log_probs(self, side: str) -> Tensor:
        """Log-probability of each answer under the model in training, nats."""
        return sequence_log_probs(self.logits(side), self.labels(side))

    @arguments_checked
    def reference(self, side: str) -> Tensor:
        """Log-probability of each answer under the model before training, nats (needs `reference`)."""
        return self.batch[side]["reference"]

    @arguments_checked
    def frozen_logits(self, side: str) -> Tensor:
        """Logits of the model before training (needs `frozen`)."""
        with self._require_frozen().reading() as model:
            return model(**self._inputs(side), use_cache=False).logits

    @arguments_checked
    def states(self, side: str, layer: int) -> Tensor:
        """Residual stream of the model in training after a layer."""
        return states_after(self._model, layer, self._inputs(side))

    @arguments_checked
    def frozen_states(self, side: str, layer: int) -> Tensor:
        """The same of the model before training (needs `frozen`)."""
        with self._require_frozen().reading() as model:
            return states_after(model, layer, self._inputs(side))

    @arguments_checked
    def counted(self, side: str) -> SideTotals:
        """How much this pass holds of a side."""
        return SideTotals.of(self.labels(side))

    @arguments_checked
    def totals(self, side: str) -> SideTotals:
        """How much the whole batch holds, of which this pass may be a part."""
        return self.counted(side) if self._totals is None else self._totals[side]

    def _inputs(self, side: str) -> dict[str, Tensor]:
        return {name: self.batch[side][name] for name in INPUTS}

    def _require_frozen(self) -> FrozenModel:
        if self._frozen is None:
            raise ConfigError(
                "this objective compares with the model before training: declare it with needs=('frozen',), and pass "
                "frozen=FrozenModel(model) where you call it yourself."
            )
        return self._frozen
