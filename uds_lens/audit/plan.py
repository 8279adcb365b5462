"""What an audit runs on: the tokenised forget set in batches, the same for every model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jaxtyping import Bool
from torch import Tensor

from uds_lens.audit.config import AuditConfig, RunOptions
from uds_lens.data import Encoded, ForgetExample, TokenBatch, encode, make_batch, plan_batches
from uds_lens.errors import DataError, ModelError
from uds_lens.models import ModelSource, check_trio, pick_device, read_passport

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_CALL_COST_CUDA = 2048
"""What one more batch costs on a CUDA device beside its tokens, in tokens."""

_ACTIVATION = 1 << 19
"""Tokens x d_model of a batch on a CPU. Four times that in an MLP, twice that again where all variants ride, are
16 MiB in float32: allocators return larger blocks to the system at once, and every page is fetched anew. Wide models
take 1024 tokens nevertheless, since there the pages cost less than reading the weights once more."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The tokenised forget set and its batches."""

    encoded: Encoded
    """Rows, and what was skipped."""

    batches: list[list[int]]
    """Row indices of each batch."""

    pad_token_id: int | None
    """Filler token; masked everywhere."""

    _made: dict[tuple[int, ...], TokenBatch] = field(default_factory=dict, repr=False)
    """Tensors made so far: every model runs on the same."""

    def batch(self, number: int) -> TokenBatch:
        """Tensors of one batch."""
        return self.batch_of(self.batches[number])

    def batch_of(self, rows: Sequence[int]) -> TokenBatch:
        """Tensors of some rows."""
        key = tuple(rows)
        if key not in self._made:
            self._made[key] = make_batch(
                self.encoded.rows, indices=rows, pad_token_id=self.pad_token_id, padding_side="left"
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
        example = self.encoded.rows[rows[int((~finite).nonzero()[0, 0])]].example
        raise ModelError(
            f"{name!r} gives NaN or infinite {what}, first for example {example.id!r} ({example.question[:60]!r}): "
            "its weights are broken, or its dtype overflows. Check the checkpoint, or use dtype='float32'."
        )


def require_examples(examples: Sequence[ForgetExample]) -> None:
    """Raise `DataError` where there is nothing to measure."""
    if not examples:
        raise DataError("no examples: an audit needs at least one row with question, answer and entity.")


def make_plan(
    models: Mapping[str, ModelSource],
    examples: Sequence[ForgetExample],
    *,
    config: AuditConfig,
    options: RunOptions,
) -> Plan:
    """Check that the checkpoints fit together, and tokenise the examples with their tokenizer.

    Raises:
        TrioMismatchError: The checkpoints differ where they must agree.
    """
    where = {"offline": options.offline, "trust_remote_code": options.trust_remote_code}
    passports = {
        role: read_passport(model, revision=options.revision, **where) for role, model in models.items()
    }
    tokenizer: PreTrainedTokenizerFast = check_trio(passports)
    encoded = encode(examples, tokenizer, protocol=config.protocol, scope=config.scope)
    shape = next(iter(passports.values())).shape
    depth, d_model = shape["depth (layers)"], shape["width (d_model)"]
    batches = plan_batches(
        encoded.rows,
        n_layers=depth if isinstance(depth, int) else 16,
        **_batch_size(d_model if isinstance(d_model, int) else 1024, options),
    )
    return Plan(encoded=encoded, batches=batches, pad_token_id=tokenizer.pad_token_id)


def _batch_size(d_model: int, options: RunOptions) -> dict[str, int]:
    """Tokens per batch at most, and what one more batch costs, in tokens.

    A call costs about the same time in every model, a token the more the wider the model is. The constants were
    measured on two CPU cores with models of d_model 192 and 512.
    """
    if pick_device(options.device).startswith("cuda"):
        return {"token_budget": options.token_budget, "call_cost": _CALL_COST_CUDA}
    fits = max(1024, _ACTIVATION // d_model)
    return {"token_budget": min(options.token_budget, fits), "call_cost": 64 + 4_000_000 // d_model**2}
