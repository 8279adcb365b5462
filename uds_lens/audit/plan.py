"""What an audit runs on: the tokenised forget set in batches, the same for every model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jaxtyping import Bool
from torch import Tensor

from uds_lens.data import Encoded, ForgetExample, TokenBatch, TokenRow, encode, make_batch
from uds_lens.errors import ModelError, Setting
from uds_lens.models import HookedModel, ModelSource, check_compatible, pick_device, read_checkpoint_info
from uds_lens.patching import ModelCosts, choose_reading, fall_back, row_layout
from uds_lens.patching.wavefront import may_be_packable
from uds_lens.results.settings import AuditConfig, RunOptions
from uds_lens.types import Engine, PaddingSide, Site

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class MeasureAgain(Exception):  # noqa: N818 - a signal, not an error
    """Raised in the middle of a pass whose engine has given way to another: all of the pass is repeated."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The tokenised forget set, the control facts where there are any, and their batches."""

    encoded: Encoded
    """The forget set: rows, and what was skipped."""

    batches: list[list[int]]
    """Row indices of each batch."""

    pad_token_id: int | None
    """Filler token; masked everywhere."""

    control: Encoded | None = None
    """Control facts: rows, and what was skipped; None without a control."""

    packed: bool = False
    """Whether all models run on packed rows (see `uds_lens.patching.wavefront.rows_layout`)."""

    _made: dict[tuple[PaddingSide, tuple[int, ...]], TokenBatch] = field(default_factory=dict, repr=False)
    """Tensors made so far: every model runs on the same."""

    _readings: dict[tuple[object, ...], Engine] = field(default_factory=dict, repr=False)
    """How models of one kind are read, decided once for each."""

    fallen: list[str] = field(default_factory=list, repr=False)
    """Models whose fast reading failed after it was chosen, in the order in which that happened."""

    @cached_property
    def rows(self) -> list[TokenRow]:
        """All rows that are run, those of the forget set first; batches count these."""
        return [*self.encoded.rows, *(self.control.rows if self.control else ())]

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens of each row."""
        return [len(row.ids) for row in self.rows]

    def reading(self, model: HookedModel, *, site: Site, packed: bool, engine: Engine) -> Engine:
        """Engine that reads the model's states; where `engine` is `auto`, tried on two rows first."""
        if engine != "auto" or site != "resid_post" or not self.rows:
            return "naive" if engine == "naive" else "wavefront"
        kind = _kind(model, packed)
        if kind not in self._readings:
            rows = sorted({self.lengths.index(max(self.lengths)), self.lengths.index(min(self.lengths))})
            self._readings[kind] = choose_reading(model, self.tried(model, rows), packed=packed)
        return self._readings[kind]

    def read_plainly(self, model: HookedModel, why: Exception, *, packed: bool) -> Engine:
        """From now on, since the fast way failed after all; warns."""
        self._readings[_kind(model, packed)] = engine = fall_back(model, why)
        self.fallen.append(model.name)
        return engine

    def batches_for(self, model: HookedModel) -> list[list[int]]:
        """Row indices of each batch, cut where rows of the model give other numbers side by side than alone."""
        return row_layout(model).split(self.batches, self.lengths)

    def tried(self, model: HookedModel, rows: Sequence[int]) -> TokenBatch:
        """Tensors of those of some rows that may stand beside the first."""
        layout = row_layout(model)
        return self.batch_of(layout.split([rows], self.lengths)[0], layout.padding_side)

    def batch(self, number: int) -> TokenBatch:
        """Tensors of one batch."""
        return self.batch_of(self.batches[number])

    def batch_of(self, rows: Sequence[int], side: PaddingSide = "left") -> TokenBatch:
        """Tensors of some rows, padded on a side."""
        key = (side, tuple(rows))
        if key not in self._made:
            self._made[key] = make_batch(
                self.rows, indices=rows, pad_token_id=self.pad_token_id, padding_side=side
            )
        return self._made[key]

    def require_finite(
        self, finite: Bool[Tensor, "batch"], rows: Sequence[int], name: str, what: str
    ) -> None:
        """Raise unless all rows are finite.

        Raises:
            ModelError: Naming the model, what is not finite, and the first such example.
        """
        if bool(finite.all()):
            return
        example = self.rows[rows[int((~finite).nonzero()[0, 0])]].example
        raise ModelError(
            f"{name!r} gives NaN or infinite {what}, first for example {example.id!r} ({example.question[:60]!r}): "
            "its weights are broken, or its dtype overflows. Check the checkpoint, or use ",
            Setting("dtype", "float32"),
            ".",
        )


def _kind(model: HookedModel, packed: bool) -> tuple[object, ...]:
    """Models alike in this are read by the same code."""
    return (type(model.hf), model.dtype, model.device.type, packed, model.is_wrapped, model.runs_hooks)


def make_plan(
    models: Mapping[str, ModelSource],
    examples: Sequence[ForgetExample],
    *,
    control: Sequence[ForgetExample] | None = None,
    config: AuditConfig,
    options: RunOptions,
) -> Plan:
    """Check that the checkpoints fit together, and tokenise the examples with their tokenizer.

    Args:
        models: Models by role, `full` first.
        examples: The forget set.
        control: Facts that were to be kept, or None.
        config: What is measured.
        options: How it is run.

    Raises:
        IncompatibleModelsError: The checkpoints differ where they must agree.
    """
    where = {"offline": options.offline, "trust_remote_code": options.trust_remote_code}
    infos = {
        role: read_checkpoint_info(model, revision=options.revision, **where)
        for role, model in models.items()
    }
    tokenizer: PreTrainedTokenizerFast = check_compatible(infos)
    how: dict[str, Any] = {"protocol": config.protocol, "scope": config.scope, "chat": config.chat}
    encoded = encode(examples, tokenizer, **how)
    facts = None if control is None else encode(control, tokenizer, **how)
    full = next(iter(infos.values()))
    plain = not options.trust_remote_code and options.device_map is None and options.engine != "naive"
    packed = plain and config.site == "resid_post"
    packed = packed and all(may_be_packable(m, full.shape["architecture"]) for m in models.values())
    costs = ModelCosts.of(full.config, pick_device(options.device))
    rows = [*encoded.rows, *(facts.rows if facts else ())]
    batches = costs.batches(rows, token_budget=options.token_budget, packed=packed)
    return Plan(
        encoded=encoded, control=facts, batches=batches, pad_token_id=tokenizer.pad_token_id, packed=packed
    )
