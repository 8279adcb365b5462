"""The forward passes an objective may ask for: of the model in training, and of the model it started from."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from uds_lens._compat.peft import adapters_off, has_adapters, without_wrappers
from uds_lens._compat.transformers import forget_longer_texts
from uds_lens.data import AnswerSequence
from uds_lens.errors import ConfigError
from uds_lens.models import anatomy_of
from uds_lens.patching._side_by_side import layout_of_config
from uds_lens.unlearning._likelihood import IGNORED, answer_lengths, pad_sequences, sequence_log_probs

# The residual stream after one block, with its gradient.


def states_after(model: nn.Module, layer: int, inputs: Mapping[str, Tensor]) -> Tensor:
    """Output of block `layer` in a forward pass, with its gradient."""
    found: list[Tensor] = []

    def keep(module: nn.Module, args: object, output: Any) -> None:
        found.append(output[0] if isinstance(output, tuple) else output)

    handle = decoder_blocks(model)[layer].register_forward_hook(keep)
    try:
        model(**inputs, use_cache=False)
    finally:
        handle.remove()
    return found[0]


def decoder_blocks(model: nn.Module) -> nn.ModuleList:
    """Blocks of a causal language model, through the wrappers of PEFT and of data-parallel training."""
    return anatomy_of(without_wrappers(model)).layers


# How much a whole batch holds, so that a pass over some of its rows knows its share.

Side: TypeAlias = Literal["forget", "winner", "retain"]
"""A part of a batch: answers to forget, answers to prefer to them, answers to keep."""

Per: TypeAlias = Literal["token", "answer"]
"""What a mean runs over."""

FILLER = "filler"
"""Marks a pass that a process runs only to keep step with the others: its rows are no part of the batch."""


@dataclass(frozen=True)
class SideTotals:
    """One side of a batch, over all passes and devices."""

    answers: float
    """Rows."""

    tokens: float
    """Labelled tokens that something predicts."""

    inverse_lengths: float
    """Sum over rows of 1 / labelled tokens."""

    @classmethod
    def of(cls, labels: Int[Tensor, "batch pos"]) -> SideTotals:
        """Count one pass.

        >>> SideTotals.of(torch.tensor([[-100, 1, 2], [-100, -100, 3]]))
        SideTotals(answers=2.0, tokens=3.0, inverse_lengths=1.5)
        """
        return cls(*_counts(labels).tolist())

    def count(self, per: Per) -> float:
        """How many of what a mean runs over."""
        return self.tokens if per == "token" else self.answers

    @property
    def mean_inverse_length(self) -> float:
        """Mean over rows of 1 / labelled tokens."""
        return self.inverse_lengths / self.answers


def batch_totals(passes: Sequence[Mapping[str, Mapping[str, Tensor]]]) -> dict[str, Float[Tensor, "3"]]:
    """Counts of each side, added over the passes of a batch: answers, tokens, sum of inverse lengths; fillers are 0."""
    sides = passes[0].keys() if passes else ()
    return {side: torch.stack([_counts_of(batch[side]) for batch in passes]).sum(0) for side in sides}


def _counts_of(side: Mapping[str, Tensor]) -> Tensor:
    counts = _counts(side["labels"])
    return torch.zeros_like(counts) if FILLER in side else counts


def _counts(labels: Tensor) -> Tensor:
    labelled = (labels != IGNORED).sum(-1).double()
    return torch.stack(
        [
            torch.tensor(float(len(labels)), dtype=torch.float64, device=labels.device),
            answer_lengths(labels).sum().double(),
            (1 / labelled).sum(),
        ]
    )


INPUTS = ("input_ids", "attention_mask")
"""What of a batch a model reads."""


class FrozenModel:
    """The model before training, for objectives that need its whole distribution or its states.

    It is one copy, made once; where adapters train, it is the model itself with the adapters switched off.
    """

    def __init__(self, model: nn.Module) -> None:
        self._adapted = has_adapters(model)
        self._model: Any = model if self._adapted else copy.deepcopy(model).eval().requires_grad_(False)

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

    def labels(self, side: str) -> Tensor:
        """Labels of a side, -100 where nothing is learnt."""
        return self.batch[side]["labels"]

    def logits(self, side: str) -> Tensor:
        """Logits of the model in training."""
        return self._model(**self._inputs(side), use_cache=False).logits

    def answer_log_probs(self, side: str) -> Tensor:
        """Log-probability of each answer under the model in training, nats."""
        return sequence_log_probs(self.logits(side), self.labels(side))

    def reference(self, side: str) -> Tensor:
        """Log-probability of each answer under the model before training, nats (needs `reference`)."""
        return self.batch[side]["reference"]

    def frozen_logits(self, side: str) -> Tensor:
        """Logits of the model before training (needs `frozen`)."""
        with self._require_frozen().reading() as model:
            return model(**self._inputs(side), use_cache=False).logits

    def states(self, side: str, layer: int) -> Tensor:
        """Residual stream of the model in training after a layer."""
        return states_after(self._model, layer, self._inputs(side))

    def frozen_states(self, side: str, layer: int) -> Tensor:
        """The same of the model before training (needs `frozen`)."""
        with self._require_frozen().reading() as model:
            return states_after(model, layer, self._inputs(side))

    def counted(self, side: str) -> SideTotals:
        """How much this pass holds of a side."""
        return SideTotals.of(self.labels(side))

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


# How probable the model before training finds each answer: computed once, then a constant.


def answer_log_probs(
    model: Any, sequences: Sequence[AnswerSequence], *, pad_token_id: int, batch_size: int = 16
) -> list[float]:
    """Log-probability of each answer under a model, nats.

    Args:
        model: The model before training.
        sequences: Prompts with answers.
        pad_token_id: Filler.
        batch_size: Sequences per forward pass; they are sorted by length first, and those whose rotary frequencies
            depend on the longest of a batch are kept apart.

    Returns:
        One number per sequence, in their order.
    """
    device = next(model.parameters()).device
    found = [0.0] * len(sequences)
    order = sorted(range(len(sequences)), key=lambda index: len(sequences[index].ids))
    layout = layout_of_config(model.config)  # padding stands on the right, where it changes nothing
    handles = forget_longer_texts(model)
    was_training = model.training
    model.eval()
    try:
        batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
        for chosen in layout.split(batches, [len(each.ids) for each in sequences]):
            batch = pad_sequences([sequences[index] for index in chosen], pad_token_id=pad_token_id)
            batch = {name: values.to(device) for name, values in batch.items()}
            with torch.no_grad():
                logits = model(**{name: batch[name] for name in INPUTS}, use_cache=False).logits
                values = sequence_log_probs(logits, batch["labels"]).tolist()
            for index, value in zip(chosen, values, strict=True):
                found[index] = value
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
    return found
