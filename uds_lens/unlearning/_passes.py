"""Forward passes for objectives, and the loss terms that objectives return.

The module begins with pure functions for padding and for log-probabilities of tokens and answers. Logits and labels are
unshifted: the logits at position p predict the label at p + 1, and labels of -100 are ignored. All log-probabilities
are in nats, in float32 or better.
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

IGNORED = -100  # label of positions without a target


def labelled(labels: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch prev"]:
    """Return a mask of the logits that predict a labelled token; entry p corresponds to the label at p + 1."""
    kept = labels[:, 1:] != IGNORED
    if not bool(kept.any()):
        raise DataError("the batch has no labelled tokens: every answer needs at least one token to learn.")
    return kept


def predicting(labels: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch pos"]:
    """Return a mask of the positions whose next token has a label.

    >>> predicting(torch.tensor([[-100, -100, 5, 2]])).tolist()
    [[False, True, True, False]]
    """
    return F.pad(labelled(labels), (0, 1), value=False)


def at_least_float32(logits: Tensor) -> Tensor:
    """Convert logits to float32, unless they are float64."""
    return logits if logits.dtype == torch.float64 else logits.float()


def label_log_probs(
    logits: Float[Tensor, "batch pos d_vocab"], labels: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch prev"]:
    """Return labelled tokens' log-probabilities, in nats; entry p is for the label at p + 1 (0 if unlabelled)."""
    if logits.shape[:2] != labels.shape:
        raise DataError(
            f"logits for {tuple(logits.shape[:2])} tokens and labels for {tuple(labels.shape)}: expected unshifted "
            "logits with a label for each position (-100 to ignore it)."
        )
    kept = labels[:, 1:] != IGNORED
    # by number, not by mask: the gradient then takes half the time
    rows = logits.flatten(0, 1).index_select(0, F.pad(kept, (0, 1)).flatten().nonzero()[:, 0])
    log_probs = at_least_float32(rows).log_softmax(-1)
    chosen = log_probs.gather(-1, labels[:, 1:][kept].unsqueeze(-1)).squeeze(-1)
    return torch.zeros(kept.shape, dtype=chosen.dtype, device=chosen.device).masked_scatter(kept, chosen)


def sequence_log_probs(
    logits: Float[Tensor, "batch pos d_vocab"], labels: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch"]:
    """Return each answer's log-probability, `sum_t log p(y_t | x, y_<t)`.

    Args:
        logits: Unshifted logits.
        labels: Unshifted labels; -100 marks positions to ignore.

    Returns:
        Nats per answer, <= 0; 0 for a row without labels.

    Example:
        >>> logits = torch.zeros(1, 3, 4)
        >>> sequence_log_probs(logits, torch.tensor([[-100, 1, 2]])).exp()
        tensor([0.0625])
    """
    return label_log_probs(logits, labels).sum(-1)


def answer_lengths(labels: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch"]:
    """Count the labelled tokens in each row, except at position 0, which is never predicted."""
    return (labels[:, 1:] != IGNORED).sum(-1)


def negative_log_likelihood(
    logits: Float[Tensor, "batch pos d_vocab"], labels: Int[Tensor, "batch pos"]
) -> Float[Tensor, ""]:
    """Return the mean negative log-likelihood over all labelled tokens in a batch, the retain term of most methods.

    `NLL = -mean_t log p(y_t | x, y_<t)`

    Args:
        logits: Unshifted logits.
        labels: Unshifted labels; -100 marks positions to ignore.

    Returns:
        Nats per token, >= 0.

    Raises:
        DataError: The batch has no labels.

    Example:
        >>> negative_log_likelihood(torch.zeros(1, 3, 4), torch.tensor([[-100, 1, 2]]))  # log 4
        tensor(1.3863)
    """
    return -label_log_probs(logits, labels).sum() / labelled(labels).sum()


def pad_sequences(sequences: Sequence[AnswerSequence], *, pad_token_id: int) -> dict[str, Tensor]:
    """Right-pad sequences into one batch.

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
    """Pad one side of a batch on the right to `width` positions.

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
"""Part of a batch: answers to forget, preferred answers, or answers to keep."""

Per: TypeAlias = Literal["token", "answer"]  # unit over which a mean is taken

FILLER = "filler"
"""Marks a pass that a process runs only to stay in sync with other processes; its rows do not belong to the batch."""

INPUTS = ("input_ids", "attention_mask")  # batch entries that are passed to the model


@dataclass(frozen=True)
class SideTotals:
    """Size of one side of a batch, summed over all passes and devices."""

    answers: float  # number of rows
    tokens: float  # number of labelled tokens, except at position 0
    inverse_lengths: float  # sum over rows of 1 / labelled tokens

    @classmethod
    def of(cls, labels: Int[Tensor, "batch pos"]) -> SideTotals:
        """Count one pass.

        >>> SideTotals.of(torch.tensor([[-100, 1, 2], [-100, -100, 3]]))
        SideTotals(answers=2.0, tokens=3.0, inverse_lengths=1.5)
        """
        return cls(*_counts(labels).tolist())

    def count(self, per: Per) -> float:
        """Return the number of tokens or answers."""
        return self.tokens if per == "token" else self.answers

    @property
    def mean_inverse_length(self) -> float:
        """Mean over rows of 1 / labelled tokens."""
        return self.inverse_lengths / self.answers


def batch_totals(passes: Sequence[Mapping[str, Mapping[str, Tensor]]]) -> dict[str, Float[Tensor, "3"]]:
    """Add up each side's answers, tokens and inverse lengths over a batch's passes, without fillers."""
    return {
        side: torch.stack([_counts(batch[side]["labels"]) * (FILLER not in batch[side]) for batch in passes]).sum(0)
        for side in (passes[0] if passes else ())
    }


def _counts(labels: Tensor) -> Float[Tensor, "3"]:
    inverse = (1 / (labels != IGNORED).sum(-1).double()).sum()
    return torch.stack([inverse.new_tensor(len(labels)), answer_lengths(labels).sum().double(), inverse])


@dataclass(frozen=True)
class Mean:
    """One term of a loss on one pass: a weighted mean, and the unit over which it is taken."""

    value: Float[Tensor, ""]
    """The mean over this pass."""

    side: Side
    """Side over whose rows or tokens the mean is taken."""

    per: Per
    """Whether the mean is over tokens or over answers."""

    weight: float = 1.0
    """Factor of this term in the loss, not included in `value`."""

    @property
    def weighted(self) -> Tensor:
        """The mean times its weight."""
        return self.value * self.weight


class Terms(NamedTuple):
    """Terms of a loss, which is their weighted sum."""

    forget: Mean
    """Term on forget data."""

    retain: Mean | None = None
    """Term on retain data, if the method has one."""

    @property
    def total(self) -> Tensor:
        """The loss, if this pass is the whole batch."""
        return self.forget.weighted if self.retain is None else self.forget.weighted + self.retain.weighted


def per_token(side: Side, value: Float[Tensor, ""], *, weight: float = 1.0) -> Mean:
    """Return a term that is a weighted mean over all labelled tokens of a side.

    If a batch is split into passes with unequal numbers of tokens, each pass's term is weighted by its share of the
    batch's tokens, so that the sum over passes equals the mean over the batch.
    """
    return Mean(value, side, "token", weight)


def per_answer(side: Side, value: Float[Tensor, ""]) -> Mean:
    """Return a term that is a mean over the answers of a side, regardless of length."""
    return Mean(value, side, "answer")


def retained(config: RetainConfig, passes: Passes) -> Mean:
    """Return the retain term of most methods, `alpha NLL_r`, averaged over all retain tokens."""
    loss = negative_log_likelihood(passes.logits("retain"), passes.labels("retain"))
    return per_token("retain", config.alpha * loss)


def decoder_blocks(model: nn.Module) -> nn.ModuleList:
    """Return the blocks of a causal language model, unwrapping PEFT and data-parallel wrappers."""
    return anatomy_of(without_wrappers(model)).layers


def states_after(model: nn.Module, layers: Sequence[int], inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the residual stream after each given block (in ascending order), with gradients."""
    states: list[Tensor] = []

    def keep(module: nn.Module, args: object, output: Any) -> None:
        states.append(output[0] if isinstance(output, tuple) else output)

    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(decoder_blocks(model)[layer].register_forward_hook(keep))
        model(**inputs, use_cache=False)
    return states


class FrozenModel:
    """The model before training, for objectives that need its logits or states.

    This is a copy, or, for a model with adapters, the model itself with its adapters disabled.
    """

    def __init__(self, model: nn.Module) -> None:
        self._adapted = has_adapters(model)
        self._model: Any = model if self._adapted else copy.deepcopy(model).eval().requires_grad_(False)

    def to(self, device: torch.device) -> FrozenModel:
        """Move the copy to a device (the trainer moves models with adapters)."""
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
    """Forward passes on the sides of one batch, or of the part of a batch that runs at once."""

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
        """Return value of the objective's `reweigh` after the previous batch; None in the first batch."""

    def labels(self, side: str) -> Tensor:
        """Return the labels of a side, with -100 at positions to ignore."""
        return self.batch[side]["labels"]

    def logits(self, side: str) -> Tensor:
        """Return the logits of the model being trained."""
        return self._model(**self._inputs(side), use_cache=False).logits

    def answer_log_probs(self, side: str) -> Tensor:
        """Return each answer's log-probability under the model being trained, in nats."""
        return sequence_log_probs(self.logits(side), self.labels(side))

    def reference(self, side: str) -> Tensor:
        """Return each answer's log-probability under the model before training, in nats (needs `reference`)."""
        return self.batch[side]["reference"]

    def frozen_logits(self, side: str) -> Tensor:
        """Return the logits of the model before training (needs `frozen`)."""
        with self._require_frozen().reading() as model:
            return model(**self._inputs(side), use_cache=False).logits

    def states(self, side: str, layer: int) -> Tensor:
        """Return the residual stream after a layer of the model being trained."""
        return self.states_of(side, [layer])[0]

    def states_of(self, side: str, layers: Sequence[int]) -> list[Tensor]:
        """Return the residual stream after each given layer (ascending) of the model being trained."""
        return states_after(self._model, layers, self._inputs(side))

    def frozen_states(self, side: str, layer: int) -> Tensor:
        """Return the residual stream after a layer of the model before training (needs `frozen`)."""
        return self.frozen_states_of(side, [layer])[0]

    def frozen_states_of(self, side: str, layers: Sequence[int]) -> list[Tensor]:
        """Return the residual stream after each given layer of the model before training (needs `frozen`)."""
        with self._require_frozen().reading() as model:
            return states_after(model, layers, self._inputs(side))

    @contextmanager
    def adding(self, layer: int, change: Tensor) -> Iterator[None]:
        """Add `change` to the residual stream after a layer in all passes of the model being trained."""

        def add(module: nn.Module, args: object, output: Any) -> Any:
            return (output[0] + change, *output[1:]) if isinstance(output, tuple) else output + change

        with decoder_blocks(self._model)[layer].register_forward_hook(add):
            yield

    def counted(self, side: str) -> SideTotals:
        """Return the size of a side in this pass."""
        return SideTotals.of(self.labels(side))

    def totals(self, side: str) -> SideTotals:
        """Return the size of a side in the whole batch, not only in this pass."""
        return self.counted(side) if self._totals is None else self._totals[side]

    def _inputs(self, side: str) -> dict[str, Tensor]:
        return {name: self.batch[side][name] for name in INPUTS}

    def _require_frozen(self) -> FrozenModel:
        if self._frozen is None:
            raise ConfigError(
                "this objective uses the model before training: declare the objective with needs=('frozen',), or, "
                "when calling the objective yourself, pass frozen=FrozenModel(model)."
            )
        return self._frozen


def answer_log_probs(
    model: Any, sequences: Sequence[AnswerSequence], *, pad_token_id: int, batch_size: int = 16
) -> list[float]:
    """Return each answer's log-probability under a model, in nats.

    Args:
        model: The model to evaluate.
        sequences: Tokenised prompts with answers.
        pad_token_id: Token for padding.
        batch_size: Sequences per forward pass. Sequences are sorted by length first; those whose rotary frequencies
            would depend on the longest row in the batch run alone.
    """
    device = next(model.parameters()).device
    log_probs = [0.0] * len(sequences)
    order = sorted(range(len(sequences)), key=lambda index: len(sequences[index].ids))
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    layout = layout_of_config(model.config)  # padding on the right has no effect
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
