"""What an audit runs on: the tokenised forget set in batches, the same for every model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxtyping import Bool
from torch import Tensor

from uds_lens.audit.config import AuditConfig, RunOptions
from uds_lens.data import Encoded, ForgetExample, TokenBatch, encode, make_batch, plan_batches
from uds_lens.errors import DataError, ModelError
from uds_lens.models import ModelSource, check_trio, pick_device, read_passport

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_CALL_COST = {False: 256, True: 2048}
"""What one more batch costs beside its tokens, in tokens: on a CPU, and on a CUDA device."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The tokenised forget set and its batches."""

    encoded: Encoded
    """Rows, and what was skipped."""

    batches: list[list[int]]
    """Row indices of each batch."""

    pad_token_id: int | None
    """Filler token; masked everywhere."""

    def batch(self, number: int) -> TokenBatch:
        """Tensors of one batch."""
        return self.batch_of(self.batches[number])

    def batch_of(self, rows: Sequence[int]) -> TokenBatch:
        """Tensors of some rows."""
        return make_batch(
            self.encoded.rows, indices=rows, pad_token_id=self.pad_token_id, padding_side="left"
        )

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
    depth = next(iter(passports.values())).shape["depth (layers)"]
    batches = plan_batches(
        encoded.rows,
        token_budget=options.token_budget,
        n_layers=depth if isinstance(depth, int) else 16,
        call_cost=_CALL_COST[pick_device(options.device).startswith("cuda")],
    )
    return Plan(encoded=encoded, batches=batches, pad_token_id=tokenizer.pad_token_id)
