"""Forward passes that an objective may request, and the terms it returns: means whose parts add up over a batch.

The file begins with pure functions: log-probabilities of labelled tokens and of whole answers, and the padded batches
that they are computed on. Logits and labels are unshifted, as a model returns and a batch holds them: the logits at
position p predict the label at p + 1, and a label of -100 is not counted. Everything is in nats, in float32 or better.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from uds_lens._compat.peft import has_adapters, without_wrappers
from uds_lens._compat.transformers import forget_longer_texts
from uds_lens.data._tokens import AnswerSequence
from uds_lens.errors import ConfigError, DataError
from uds_lens.models._anatomy import anatomy_of
from uds_lens.patching._side_by_side import layout_of_config
from uds_lens.unlearning._settings import RetainConfig

IGNORED = -100  # label of a position without a target


def labelled(labels: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch prev"]:
    """Mark the logits that predict a labelled token; entry p belongs to the label at p + 1."""
    kept = labels[:, 1:] != IGNORED
    if not bool(kept.any()):
        raise DataError("no token of the batch has a label: every answer needs at least one token to learn.")
    return kept


def predicting(labels: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch pos"]:
    """Mark the positions whose next token has a label.

    >>> predicting(torch.tensor([[-100, -100, 5, 2]])).tolist()
    [[False, True, True, False]]
    """
    return F.pad(labelled(labels), (0, 1), value=False)


def at_least_float32(logits: Tensor) -> Tensor:
    """Return logits in float32, or unchanged if they are in float64."""
    return logits if logits.dtype == torch.float64 else logits.float()


def label_log_probs(
    logits: Float[Tensor, "batch pos d_vocab"], labels: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch prev"]:
    """Return the log-probability of each labelled token, nats; entry p is for the label at p + 1, or 0."""
    kept = labels[:, 1:] != IGNORED
    log_probs = at_least_float32(logits[:, :-1][kept]).log_softmax(-1)
    chosen = log_probs.gather(-1, labels[:, 1:][kept].unsqueeze(-1)).squeeze(-1)
    return torch.zeros(kept.shape, dtype=chosen.dtype, device=chosen.device).masked_scatter(kept, chosen)


def sequence_log_probs(
    logits: Float[Tensor, "batch pos d_vocab"], labels: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch"]:
    """Return the log-probability of each whole answer, `sum_t log p(y_t | x, y_<t)`.

    Args:
        logits: Unshifted logits.
        labels: Unshifted labels, -100 where not counted.

    Returns:
        Nats per answer, <= 0; 0 for a row without labels.

    Example:
        >>> logits = torch.zeros(1, 3, 4)
        >>> sequence_log_probs(logits, torch.tensor([[-100, 1, 2]])).exp()
        tensor([0.0625])
    """
    return label_log_probs(logits, labels).sum(-1)


def answer_lengths(labels: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch"]:
    """Count the labelled tokens in each row, except at position 0, which nothing predicts."""
    return (labels[:, 1:] != IGNORED).sum(-1)


def negative_log_likelihood(
    logits: Float[Tensor, "batch pos d_vocab"], labels: Int[Tensor, "batch pos"]
) -> Float[Tensor, ""]:
    """Return the mean negative log-likelihood over all labelled tokens of a batch, the retain term of most methods.

    `NLL = -mean_t log p(y_t | x, y_<t)`

    Args:
        logits: Unshifted logits.
        labels: Unshifted labels, -100 where not counted.

    Returns:
        Nats per token, >= 0.

    Raises:
        DataError: No label in the batch.

    Example:
        >>> negative_log_likelihood(torch.zeros(1, 3, 4), torch.tensor([[-100, 1, 2]]))  # log 4
        tensor(1.3863)
    """
    return -label_log_probs(logits, labels).sum() / labelled(labels).sum()


def pad_sequences(sequences: Sequence[AnswerSequence], *, pad_token_id: int) -> dict[str, Tensor]:
    """Pad sequences on the right into one batch.

    Example:
        >>> from uds_lens.data._tokens import AnswerSequence
        >>> batch = pad_sequences([AnswerSequence((1, 5, 6, 2), 2), AnswerSequence((1, 7, 2), 1)], pad_token_id=0)
        >>> batch["labels"].tolist()
        [[-100, -100, 6, 2], [-100, 7, 2, -100]]
    """
    rows = [torch.tensor(sequence.ids) for sequence in sequences]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad_token_id)
    position, prompts = torch.arange(ids.shape[1]), torch.tensor([[sequence.n_prompt] for sequence in sequences])
    mask = position < torch.tensor([[len(row)] for row in rows])
    labels = ids.where(mask & (position >= prompts), IGNORED)
    return {"input_ids": ids, "attention_mask": mask.long(), "labels": labels}


def widened(batch: Mapping[str, Tensor], width: int, *, pad_token_id: int) -> dict[str, Tensor]:
    """Pad one side of a batch further on the right, up to `width` positions.

    Example:
        >>> batch = pad_sequences([AnswerSequence((1, 7, 2), 1)], pad_token_id=0)
        >>> {name: values.tolist() for name, values in widened(batch, 4, pad_token_id=0).items()}
        {'input_ids': [[1, 7, 2, 0]], 'attention_mask': [[1, 1, 1, 0]], 'labels': [[-100, 7, 2, -100]]}
    """
    filler = {"input_ids": pad_token_id, "attention_mask": 0, "labels": IGNORED}
    return {
        name: F.pad(values, (0, width - values.shape[1]), value=filler[name]) if name in filler else values
        for name, values in batch.items()
    }


Side: TypeAlias = Literal["forget", "winner", "retain"]
"""A part of a batch: answers to forget, answers to prefer to them, answers to keep."""

Per: TypeAlias = Literal["token", "answer"]  # unit that a mean weights equally

FILLER = "filler"
"""Marks a pass that a process runs only to keep in step with the others; its rows do not belong to the batch."""

INPUTS = ("input_ids", "attention_mask")  # entries of a batch that a model reads


@dataclass(frozen=True)
class SideTotals:
    """Size of one side of a batch, over all passes and devices."""

    answers: float  # rows
    tokens: float  # labelled tokens that something predicts
    inverse_lengths: float  # sum over rows of 1 / labelled tokens

    @classmethod
    def of(cls, labels: Int[Tensor, "batch pos"]) -> SideTotals:
        """Count one pass.

        >>> SideTotals.of(torch.tensor([[-100, 1, 2], [-100, -100, 3]]))
        SideTotals(answers=2.0, tokens=3.0, inverse_lengths=1.5)
        """
        return cls(*_counts(labels).tolist())

    def count(self, per: Per) -> float:
        """Return the number of tokens, or of answers."""
        return self.tokens if per == "token" else self.answers

    @property
    def mean_inverse_length(self) -> float:
        """Mean over rows of 1 / labelled tokens."""
        return self.inverse_lengths / self.answers


def batch_totals(passes: Sequence[Mapping[str, Mapping[str, Tensor]]]) -> dict[str, Float[Tensor, "3"]]:
    """Add up answers, tokens and inverse lengths of each side over the passes of a batch; fillers count 0."""
    return {
        side: torch.stack([_counts(batch[side]["labels"]) * (FILLER not in batch[side]) for batch in passes]).sum(0)
        for side in (passes[0] if passes else ())
    }


def _counts(labels: Tensor) -> Float[Tensor, "3"]:
    inverse = (1 / (labels != IGNORED).sum(-1).double()).sum()
    return torch.stack([inverse.new_tensor(len(labels)), answer_lengths(labels).sum().double(), inverse])


@dataclass(frozen=True)
class Mean:
    """One term of a loss on one pass: a weighted mean, and the unit it averages over."""

    value: Float[Tensor, ""]
    """The mean over this pass."""

    side: Side
    """The side whose rows or tokens the term averages."""

    per: Per
    """Whether each token counts the same, or each answer."""

    weight: float = 1.0
    """Factor that the loss applies to this term and that `value` does not include."""

    @property
    def weighted(self) -> Tensor:
        """The mean, times its weight."""
        return self.value * self.weight


class Terms(NamedTuple):
    """The terms of a loss, which is their weighted sum."""

    forget: Mean
    """Term on forget data."""

    retain: Mean | None = None
    """Term on retain data, if the method has one."""

    @property
    def total(self) -> Tensor:
        """The loss, if this pass is the whole batch."""
        return self.forget.weighted if self.retain is None else self.forget.weighted + self.retain.weighted


def per_token(side: Side, value: Float[Tensor, ""], *, weight: float = 1.0) -> Mean:
    """Return a term that is a mean over all labelled tokens of a side, times a weight.

    A batch may be split into passes with unequal numbers of tokens. The term of each pass is then weighted by its share
    of the batch's tokens, so that the sum over passes equals the mean over the batch.
    """
    return Mean(value, side, "token", weight)


def per_answer(side: Side, value: Float[Tensor, ""]) -> Mean:
    """Return a term that is a mean over the answers of a side, whatever their length."""
    return Mean(value, side, "answer")


def retained(config: RetainConfig, passes: Passes) -> Mean:
    """Return the retain term of most methods: `alpha NLL_r`, the mean over all tokens of the retain answers."""
    loss = negative_log_likelihood(passes.logits("retain"), passes.labels("retain"))
    return per_token("retain", config.alpha * loss)


def decoder_blocks(model: nn.Module) -> nn.ModuleList:
    """Return the blocks of a causal language model, under the wrappers of PEFT and data-parallel training."""
    return anatomy_of(without_wrappers(model)).layers


def states_after(model: nn.Module, layers: Sequence[int], inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the residual stream after each of some blocks, in ascending order, with its gradient."""
    states: list[Tensor] = []

    def keep(module: nn.Module, args: object, output: Any) -> None:
        states.append(output[0] if isinstance(output, tuple) else output)

    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(decoder_blocks(model)[layer].register_forward_hook(keep))
        model(**inputs, use_cache=False)
    return states


class FrozenModel:
    """The model before training, for objectives that need its whole distribution or its states.

    This is a copy, made once; for a model with adapters, it is the model itself with the adapters switched off.
    """

    def __init__(self, model: nn.Module) -> None:
        self._adapted = has_adapters(model)
        self._model: Any = model if self._adapted else copy.deepcopy(model).eval().requires_grad_(False)

    def to(self, device: torch.device) -> FrozenModel:
        """Move the copy (the trainer moves adapted models)."""
        if not self._adapted:
            self._model.to(device)
        return self

    @contextmanager
    def reading(self) -> Iterator[nn.Module]:
        """Yield the frozen model, in evaluation mode and without gradients."""
        was_training = self._model.training
        with torch.no_grad(), self._model.disable_adapter() if self._adapted else nullcontext():
            self._model.eval()
            try:
                yield self._model
            finally:
                self._model.train(was_training)


class Passes:
    """Forward passes on the sides of one batch, or on the part of it that runs at once."""

    def __init__(
        self,
        model: nn.Module,
        batch: Mapping[str, Mapping[str, Tensor]],
        *,
        frozen: FrozenModel | None = None,
        totals: Mapping[str, SideTotals] | None = None,
        weight: float | None = None,
    ) -> None:
        self._model, self._frozen, self._totals = model, frozen, totals
        self.batch = batch
        self.weight = weight
        """What the objective's `reweigh` returned after the last batch; None before the first."""

    def labels(self, side: str) -> Tensor:
        """Return the labels of a side, -100 where nothing is learned."""
        return self.batch[side]["labels"]

    def logits(self, side: str) -> Tensor:
        """Return the logits of the model in training."""
        return self._model(**self._inputs(side), use_cache=False).logits

    def answer_log_probs(self, side: str) -> Tensor:
        """Return the log-probability of each answer under the model in training, nats."""
        return sequence_log_probs(self.logits(side), self.labels(side))

    def reference(self, side: str) -> Tensor:
        """Return the log-probability of each answer under the model before training, nats (needs `reference`)."""
        return self.batch[side]["reference"]

    def frozen_logits(self, side: str) -> Tensor:
        """Return the logits of the model before training (needs `frozen`)."""
        with self._require_frozen().reading() as model:
            return model(**self._inputs(side), use_cache=False).logits

    def states(self, side: str, layer: int) -> Tensor:
        """Return the residual stream of the model in training after a layer."""
        return self.states_of(side, [layer])[0]

    def states_of(self, side: str, layers: Sequence[int]) -> list[Tensor]:
        """Return the residual stream of the model in training after each of several layers, in ascending order."""
        return states_after(self._model, layers, self._inputs(side))

    def frozen_states(self, side: str, layer: int) -> Tensor:
        """Return the residual stream of the model before training after a layer (needs `frozen`)."""
        return self.frozen_states_of(side, [layer])[0]

    def frozen_states_of(self, side: str, layers: Sequence[int]) -> list[Tensor]:
        """Return the residual stream of the model before training after each of several layers (needs `frozen`)."""
        with self._require_frozen().reading() as model:
            return states_after(model, layers, self._inputs(side))

    @contextmanager
    def adding(self, layer: int, change: Tensor) -> Iterator[None]:
        """Add `change` to the residual stream after a layer, in every pass of the model in training."""

        def add(module: nn.Module, args: object, output: Any) -> Any:
            return (output[0] + change, *output[1:]) if isinstance(output, tuple) else output + change

        with decoder_blocks(self._model)[layer].register_forward_hook(add):
            yield

    def counted(self, side: str) -> SideTotals:
        """Return the size of a side in this pass."""
        return SideTotals.of(self.labels(side))

    def totals(self, side: str) -> SideTotals:
        """Return the size of a side in the whole batch, of which this pass may be a part."""
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


def answer_log_probs(
    model: Any, sequences: Sequence[AnswerSequence], *, pad_token_id: int, batch_size: int = 16
) -> list[float]:
    """Return the log-probability of each answer under a model, nats.

    Args:
        model: The model before training.
        sequences: Prompts with answers.
        pad_token_id: Token for padding.
        batch_size: Sequences per forward pass. Answers are sorted by length first, and sequences whose rotary
            frequencies would depend on the longest row of a batch run separately.
    """
    device = next(model.parameters()).device
    log_probs = [0.0] * len(sequences)
    order = sorted(range(len(sequences)), key=lambda index: len(sequences[index].ids))
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    layout = layout_of_config(model.config)  # padding on the right changes nothing
    handles = forget_longer_texts(model)
    was_training = model.training
    model.eval()
    try:
        for chosen in layout.split(batches, [len(sequence.ids) for sequence in sequences]):
            batch = pad_sequences([sequences[index] for index in chosen], pad_token_id=pad_token_id)
            batch = {name: values.to(device) for name, values in batch.items()}
            with torch.no_grad():
                logits = model(**{name: batch[name] for name in INPUTS}, use_cache=False).logits
                values = sequence_log_probs(logits, batch["labels"]).tolist()
            for index, value in zip(chosen, values, strict=True):
                log_probs[index] = value
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
    return log_probs
