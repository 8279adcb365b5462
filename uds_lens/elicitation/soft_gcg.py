"""SoftGCG: the embeddings of a suffix are optimised, so that the model begins with an affirmative phrase.

Reference: Chen et al. 2025 (arXiv 2505.23270); Schwinn et al. 2024 for attacks in embedding space.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from uds_lens.checked_arguments import arguments_checked
from uds_lens.elicitation.audits import Answers, Ask, Asking
from uds_lens.elicitation.prompt import Skip, name_with_settings
from uds_lens.elicitation.prompt_states import changed_output
from uds_lens.elicitation.suffixes import (
    TARGET,
    Slot,
    SuffixAudit,
    first_suffix,
    loss_from_embeddings,
    replacing,
    slot_of,
)
from uds_lens.errors import ConfigError, Setting
from uds_lens.models import HookedModel
from uds_lens.progress import progress

_EFFORT = (100, 0.005)
_EFFORT_ANSWER = (300, 0.05)
"""Steps and learning rate for an affirmative beginning, and for a whole answer, which is longer and less likely."""


@arguments_checked
@dataclass(frozen=True, kw_only=True, repr=False)
class SoftGCG(SuffixAudit):
    """A suffix in embedding space; needs gradients.

    With `target="answer"` the optimiser is given the answer itself: that measures what a model can be made to say, not
    what it knows, and stays out of summaries.

    Example:
        >>> SoftGCG().effort, SoftGCG(target="answer").effort, SoftGCG(target="answer", steps=50).effort
        ((100, 0.005), (300, 0.05), (50, 0.05))

    Raises:
        ConfigError: A value is outside its range.
    """

    tokens: int = 20
    """Length of the suffix."""

    steps: int | None = None
    """Steps of Adam; None is 100, and 300 where the answer is the target."""

    learning_rate: float | None = None
    """Of Adam, in units of the embedding; None is 0.005, and 0.05 where the answer is the target."""

    target: str = TARGET
    """What the model is to begin with; "answer" is the reference itself."""

    rows_at_once: int = 16
    """Questions side by side."""

    def __post_init__(self) -> None:
        for name in ("tokens", "steps", "rows_at_once"):
            value = getattr(self, name)
            open_ = name == "steps" and value is None
            if not open_ and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigError(Setting(name), f" must be a whole number of at least 1; got {value!r}.")
        rate = self.learning_rate
        if rate is not None and (not isinstance(rate, int | float) or not rate > 0):
            raise ConfigError(Setting("learning_rate"), f" must be a number > 0; got {rate!r}.")
        self.require_target()

    @property
    def name(self) -> str:
        """Its word, with the settings that differ from the default."""
        steps, rate = self._usual
        usual = {"rows_at_once": self.rows_at_once, "steps": steps, "learning_rate": rate}
        untold = [name for name, value in usual.items() if getattr(self, name) == value]
        return name_with_settings("softgcg", self, untold=untold)

    def __repr__(self) -> str:
        """All settings, with what follows from the target filled in: finished parts are found by it."""
        steps, rate = self.effort
        whole = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        whole |= {"steps": steps, "learning_rate": rate}
        return f"SoftGCG({', '.join(f'{name}={value!r}' for name, value in whole.items())})"

    @property
    def effort(self) -> tuple[int, float]:
        """Steps and learning rate: those given, else what suits the target."""
        steps, rate = self._usual
        return (
            steps if self.steps is None else self.steps,
            rate if self.learning_rate is None else self.learning_rate,
        )

    @property
    def _usual(self) -> tuple[int, float]:
        return _EFFORT_ANSWER if self.target == "answer" else _EFFORT

    @arguments_checked
    def extra_tokens(self, asks: Sequence[Ask]) -> tuple[float, float]:
        """Tokens and passes of the optimisation, for the estimate: a backward pass counts twice."""
        steps, _ = self.effort
        alike = Counter((len(ask.rendered.ids), self.wanted(ask)) for ask in asks)
        batches = sum(-(-count // self.rows_at_once) for count in alike.values())
        return 3.0 * steps * sum(map(self.expected_length, asks)), 3.0 * steps * batches

    @arguments_checked
    def answer(self, model: HookedModel, asks: Sequence[Ask], asking: Asking) -> Answers:
        """Optimise a suffix for each question, then generate after it."""
        texts: list[tuple[str, ...]] = [()] * len(asks)
        told: list[dict[str, object]] = [{}] * len(asks)
        shown = [ask.rendered.text for ask in asks]
        slots: dict[int, Slot] = {}
        suffixes: dict[int, str] = {}
        for row, ask in enumerate(asks):
            slots[row] = slot_of(model, ask, asking, self.wanted(ask))
            try:
                suffixes[row] = first_suffix(model, slots[row], self.tokens)
                shown[row] = slots[row].text(suffixes[row])
            except Skip as why:
                told[row] = {"skipped": str(why)}
        ids = {row: slots[row].ids(model, suffix) for row, suffix in suffixes.items()}
        groups = _groups(ids, slots, self.rows_at_once)
        prefilled = 0
        for rows in progress(groups, desc=f"{asking.desc}: optimise", unit="batch", enabled=asking.show):
            places = [_place(model, slots[row], suffixes[row]) for row in rows]
            prompts = torch.tensor([ids[row] for row in rows], device=model.device)
            found, losses = self.optimise(model, prompts, slots[rows[0]].target, places)
            with changed_output(
                model.hf.get_input_embeddings(), replacing(places, found), length=prompts.shape[1]
            ):
                some = asking.generate(model, [asks[row] for row in rows], [ids[row] for row in rows])
            prefilled += some.prefilled
            nearest = _nearest(model, found)
            for n, row in enumerate(rows):
                texts[row] = some.texts[n]
                told[row] = {
                    "first_loss": losses[0][n],
                    "loss": losses[-1][n],
                    "steps": len(losses) - 1,
                    "nearest_tokens": nearest[n],
                    "endless": some.endless[n],
                }
        return Answers(shown, texts, told, prefilled)

    @arguments_checked
    def optimise(
        self,
        model: HookedModel,
        prompts: Tensor,
        target: Sequence[int],
        places: Sequence[slice],
    ) -> tuple[Tensor, list[list[float]]]:
        """Embeddings `[row, suffix, d_model]` after the last step, and the losses before each step and at the end."""
        with torch.no_grad():
            embedded = model.hf.get_input_embeddings()(prompts)
        own = torch.stack([row[place] for row, place in zip(embedded, places, strict=True)]).detach()
        own = own.float().clone().requires_grad_(True)
        steps, rate = self.effort
        adam = torch.optim.Adam([own], lr=rate)
        losses = []
        frozen = [p for p in model.hf.parameters() if p.requires_grad]
        for parameter in frozen:
            parameter.requires_grad_(False)
        try:
            for _ in range(steps):
                loss = loss_from_embeddings(model, prompts, target, places, own)
                losses.append(loss.detach().tolist())
                adam.zero_grad()
                loss.sum().backward()
                adam.step()
            with torch.no_grad():
                losses.append(loss_from_embeddings(model, prompts, target, places, own).tolist())
        finally:
            for parameter in frozen:
                parameter.requires_grad_(True)
        return own.detach(), losses


def _place(model: HookedModel, slot: Slot, suffix: str) -> slice:
    place = slot.place(model, suffix)
    assert place is not None  # first_suffix saw to it
    return place


def _groups(ids: Mapping[int, Sequence[int]], slots: Mapping[int, Slot], size: int) -> list[list[int]]:
    """Questions of one length with one target, so that nothing is padded."""
    alike: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for row, each in ids.items():
        alike.setdefault((len(each), slots[row].target), []).append(row)
    return [rows[first : first + size] for rows in alike.values() for first in range(0, len(rows), size)]


@torch.no_grad()
def _nearest(model: HookedModel, embeddings: Tensor) -> list[str]:
    """The texts of the vocabulary's nearest embeddings: what a suffix looks like, not what it is."""
    table = model.hf.get_input_embeddings().weight.float()
    flat = embeddings.flatten(0, 1).to(table)
    nearest = torch.cdist(flat, table).argmin(-1).unflatten(0, embeddings.shape[:2])
    assert model.tokenizer is not None
    return [model.tokenizer.decode(row) for row in nearest.tolist()]
