"""SoftGCG: the embeddings of a suffix are optimised, so that the model begins with an affirmative phrase.

Reference: Chen et al. 2025 (arXiv 2505.23270); Schwinn et al. 2024 for attacks in embedding space.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uds_lens._progress import progress
from uds_lens._settings import validated
from uds_lens._types import PositiveFloat, PositiveInt
from uds_lens.elicitation._asking import Answers, Ask, Asking, changed_output, groups_of_one_length
from uds_lens.elicitation._gcg import TARGET, Slot, SuffixProbe, first_suffix, frozen, replacing, token_logprobs
from uds_lens.elicitation._probes import name_with_settings
from uds_lens.elicitation._prompts import Skip
from uds_lens.models import HookedModel
from uds_lens.patching import row_layout


class Padded(NamedTuple):
    """Prompts with their targets, as one batch; padding on the right does not change what precedes it."""

    ids: Int[Tensor, "row pos"]  # prompt, target, padding
    says: Bool[Tensor, "row pos"]  # where the next token is one of the target's


def padded(prompts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], device: torch.device) -> Padded:
    """Make one batch of prompts and what is to follow each; all targets hold a token at least.

    Example:
        >>> padded([[1, 2], [1]], [[3], [4, 5, 6]], torch.device("cpu")).ids.tolist()
        [[1, 2, 3, 0], [1, 4, 5, 6]]
    """
    width = max(len(prompt) + len(target) for prompt, target in zip(prompts, targets, strict=True))
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    says = torch.zeros(len(prompts), width, dtype=torch.bool)
    for row, (prompt, target) in enumerate(zip(prompts, targets, strict=True)):
        ids[row, : len(prompt) + len(target)] = torch.tensor([*prompt, *target])
        says[row, len(prompt) - 1 : len(prompt) + len(target) - 1] = True
    return Padded(ids.to(device), says.to(device))


def padded_loss(
    model: HookedModel, batch: Padded, places: Sequence[slice], embeddings: Float[Tensor, "row suffix d_model"]
) -> Float[Tensor, "row"]:
    """Return `target_loss` of each row, with its suffix's embeddings replaced; nats per token of its target."""
    embed = model.hf.get_input_embeddings()
    with changed_output(embed, replacing(places, embeddings), length=batch.ids.shape[1]):
        states = model.anatomy.base(input_ids=batch.ids).last_hidden_state
    logp = token_logprobs(model, states[batch.says], batch.ids[:, 1:][batch.says[:, :-1]])
    rows = batch.says.nonzero()[:, 0]
    sums = torch.zeros(len(batch.ids), dtype=logp.dtype, device=logp.device).index_add(0, rows, -logp)
    return sums / batch.says.sum(-1)


class Effort(NamedTuple):
    """Effort of `SoftGCG`."""

    tokens: int  # length of the suffix
    steps: int  # of Adam
    learning_rate: float  # in units of the embedding


_USUAL = Effort(20, 100, 0.005)
_FOR_ANSWERS = Effort(60, 300, 0.02)
"""For a whole answer, which is longer and less likely than an affirmative beginning."""


@validated
@dataclass(frozen=True, kw_only=True, repr=False)
class SoftGCG(SuffixProbe):
    """Optimise a suffix in embedding space; needs gradients.

    With `target="answer"` the optimiser is given the answer itself: that measures what a model can be made to say, not
    what it knows, and stays out of summaries.

    Example:
        >>> SoftGCG().effort
        Effort(tokens=20, steps=100, learning_rate=0.005)
        >>> SoftGCG(target="answer", steps=50).effort
        Effort(tokens=60, steps=50, learning_rate=0.02)

    Raises:
        ConfigError: A value is outside its range.
    """

    tokens: PositiveInt | None = None
    """Length of the suffix; None is 20, and 60 where the answer is the target."""

    steps: PositiveInt | None = None
    """Steps of Adam; None is 100, and 300 where the answer is the target."""

    learning_rate: PositiveFloat | None = None
    """Of Adam, in units of the embedding; None is 0.005, and 0.02 where the answer is the target."""

    target: str = TARGET
    """Text that the model is to begin with; "answer" is the reference itself."""

    rows_at_once: PositiveInt = 16
    """Questions in a batch."""

    @property
    def name(self) -> str:
        """Its word, with the settings that differ from the default."""
        usual = {"rows_at_once": self.rows_at_once, **self._usual._asdict()}
        return name_with_settings("softgcg", self, unnamed=[n for n, v in usual.items() if getattr(self, n) == v])

    def __repr__(self) -> str:
        """All settings, with what follows from the target filled in: finished parts are looked up by it."""
        whole = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        whole |= self.effort._asdict()
        return f"SoftGCG({', '.join(f'{name}={value!r}' for name, value in whole.items())})"

    @property
    def effort(self) -> Effort:
        """The given effort, else what suits the target."""
        given = {name: getattr(self, name) for name in Effort._fields}
        return self._usual._replace(**{name: value for name, value in given.items() if value is not None})

    @property
    def _usual(self) -> Effort:
        return _FOR_ANSWERS if self.target == "answer" else _USUAL

    def extra_tokens(self, asks: Sequence[Ask]) -> tuple[float, float]:
        """Estimate tokens and passes of the optimisation; a backward pass counts twice."""
        tokens, steps, _ = self.effort
        batches = -(-len(asks) // self.rows_at_once)
        return 3.0 * steps * sum(self.expected_length(ask, tokens) for ask in asks), 3.0 * steps * batches

    def answer(self, model: HookedModel, asks: Sequence[Ask], asking: Asking) -> Answers:
        """Optimise a suffix for each question, then generate after it."""
        texts: list[tuple[str, ...]] = [()] * len(asks)
        details: list[dict[str, object]] = [{}] * len(asks)
        prompts = [ask.rendered.text for ask in asks]
        slots: dict[int, Slot] = {}
        ids: dict[int, list[int]] = {}
        places: dict[int, slice] = {}
        for row, ask in enumerate(asks):
            slot = self.slot(model, ask, asking)
            try:
                suffix = first_suffix(model, slot, self.effort.tokens)
            except Skip as why:
                details[row] = {"skipped": str(why)}
                continue
            slots[row], prompts[row] = slot, slot.text(suffix)
            ids[row], places[row] = slot.ids_and_place(model, suffix)
        lengths = {row: len(ids[row]) + len(slots[row].target) for row in ids}
        ordered = sorted(ids, key=lengths.__getitem__)  # little to pad
        batches = row_layout(model).split(
            [ordered[n : n + self.rows_at_once] for n in range(0, len(ordered), self.rows_at_once)], lengths
        )
        prefilled = 0
        for rows in progress(batches, desc=f"{asking.desc}: optimising", unit="batch", enabled=asking.show):
            suffixes, losses = self.optimise(
                model, [ids[r] for r in rows], [slots[r].target for r in rows], [places[r] for r in rows]
            )
            nearest = _nearest(model, suffixes)
            for some in groups_of_one_length(model, [ids[row] for row in rows], asking.options):
                these = [rows[n] for n in some]
                with changed_output(
                    model.hf.get_input_embeddings(),
                    replacing([places[row] for row in these], suffixes[some]),
                    length=len(ids[these[0]]),
                ):
                    new = asking.generate(model, [asks[row] for row in these], [ids[row] for row in these])
                prefilled += new.prefilled
                for n, row, text, endless in zip(some, these, new.texts, new.endless, strict=True):
                    texts[row] = text
                    details[row] = {
                        "first_loss": losses[0][n],
                        "loss": losses[-1][n],
                        "steps": len(losses) - 1,
                        "nearest_tokens": nearest[n],
                        "endless": endless,
                    }
        return Answers(prompts, texts, details, prefilled)

    def optimise(
        self,
        model: HookedModel,
        prompts: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        places: Sequence[slice],
    ) -> tuple[Float[Tensor, "row suffix d_model"], list[list[float]]]:
        """Return the embeddings after the last step, and the losses before each step and at the end."""
        batch = padded(prompts, targets, model.device)
        with torch.no_grad():
            embedded = model.hf.get_input_embeddings()(batch.ids)
        suffixes = torch.stack([row[place] for row, place in zip(embedded, places, strict=True)]).detach()
        suffixes = suffixes.float().clone().requires_grad_(True)
        adam = torch.optim.Adam([suffixes], lr=self.effort.learning_rate)
        losses = []
        with frozen(model):
            for _ in range(self.effort.steps):
                loss = padded_loss(model, batch, places, suffixes)
                losses.append(loss.detach().tolist())
                adam.zero_grad()
                loss.sum().backward()
                adam.step()
        with torch.no_grad():
            losses.append(padded_loss(model, batch, places, suffixes).tolist())
        return suffixes.detach(), losses


@torch.no_grad()
def _nearest(model: HookedModel, embeddings: Tensor) -> list[str]:
    """Return the texts of the vocabulary's nearest embeddings: what a suffix looks like, not what it is."""
    table = model.hf.get_input_embeddings().weight.float()
    flat = embeddings.flatten(0, 1).to(table)
    nearest = torch.cdist(flat, table).argmin(-1).unflatten(0, embeddings.shape[:2])
    assert model.tokenizer is not None
    return [model.tokenizer.decode(row) for row in nearest.tolist()]
