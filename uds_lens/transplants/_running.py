"""Run a host with every candidate from a donor: block by block from the start of each band, or in full passes.

The host's own pass is run once. Each candidate branches off at its first block, from the states that enter this block,
and continues separately to the head. The outer loop is therefore over blocks: for one batch at a time, or, if the
models are streamed, for all batches, so that only one block of the host and the same block of the donor are in memory
at a time. If the blocks of a family cannot be run separately, the donor's blocks are put into the host's list of
blocks, and the host's own forward pass is run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from uds_lens._compat.torch import is_out_of_memory
from uds_lens._progress import progress
from uds_lens.audit._inputs import Plan
from uds_lens.audit._memory import free_bytes, run_halving
from uds_lens.audit._runner import is_streamed, opened
from uds_lens.audit._states import mean_over_tokens, require_finite_head
from uds_lens.data import TokenBatch
from uds_lens.errors import ModelError, warn_once
from uds_lens.models import HookedModel
from uds_lens.models._hooked import ModelSource
from uds_lens.patching import row_layout
from uds_lens.patching._blocks import learn_calls
from uds_lens.patching._engines import checked_rows
from uds_lens.patching._hooks import first_tensor, run_decoder
from uds_lens.patching._readout import target_logprobs
from uds_lens.patching._side_by_side import embed_tokens_of, is_tested_family, runs_plainly
from uds_lens.patching._states import at_window
from uds_lens.results import AuditConfig, ModelRecord, RunOptions
from uds_lens.transplants._candidates import Candidate, candidates_of, have_attention, with_attention

_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.5, torch.float16: 0.1}
"""Largest allowed difference between a candidate run block by block and in a full forward pass, in nats."""


class HostScores(NamedTuple):
    """Mean log-probability of each entity's tokens under a host, float64, nats per token."""

    own: Float[Tensor, "row"]
    """With the host's own blocks."""

    mixed: Float[Tensor, "row candidate"]
    """With each candidate taken from the donor."""

    candidates: tuple[Candidate, ...]
    """The parts that were replaced."""

    record: ModelRecord
    """The record of the host."""

    donor: ModelRecord
    """The record of the donor."""


@contextmanager
def kept_open(source: ModelSource, plan: Plan, config: AuditConfig, options: RunOptions) -> Iterator[ModelSource]:
    """Keep a model open for several runs; a streamed model is opened anew for each run instead."""
    if is_streamed(source, options):
        yield source
        return
    with opened(source, config, options, plan.tokenizer) as model:
        model.fingerprint  # noqa: B018 - before the first pass, in which bitsandbytes repacks 4-bit weights on a CPU
        yield model


def run_host(
    host: ModelSource, donor: ModelSource, plan: Plan, *, what: str, config: AuditConfig, options: RunOptions
) -> HostScores:
    """Run a host on all rows, with its own blocks and with every candidate from a donor.

    Args:
        host: The model whose blocks are replaced; it keeps its embedding, final norm and head.
        donor: The model whose blocks are put in.
        plan: Rows and batches.
        what: Description of host and donor, for the progress bar.
        config: What to measure.
        options: How to run it.

    Raises:
        ModelError: A model produces NaN, the two models cannot run together, or one of them cannot be streamed.
    """
    own = torch.full((len(plan.rows),), torch.nan, dtype=torch.float64)
    with ExitStack() as stack:
        model, other = (
            stack.enter_context(opened(source, config, options, plan.tokenizer)) for source in (host, donor)
        )
        _require_alike(model, other)
        candidates = candidates_of(model.n_layers, attention=have_attention(model.anatomy.layers))
        mixed = torch.full((len(plan.rows), len(candidates)), torch.nan, dtype=torch.float64)
        require_finite_head(model)
        plan.require_embedded(model)
        batches, side = plan.batches_for(model), row_layout(model).padding_side
        by_blocks = _by_blocks(model, other, plan, candidates)
        embed_tokens_of(model, [plan.batch_of(rows, side) for rows in batches])

        def put(rows: list[int], values: Float[Tensor, "candidate_and_own batch"]) -> None:
            finite = values.isfinite()
            plan.require_finite(finite[0], rows, model.name, "log-probabilities")
            plan.require_finite(finite.all(0), rows, other.name, "log-probabilities with its blocks in another model")
            own[rows], mixed[rows] = values[0], values[1:].T

        def run(part: list[list[int]]) -> None:
            measure = by_block if by_blocks else by_forward
            values = measure(model, other, [plan.batch_of(rows, side) for rows in part], candidates)
            for rows, of_batch in zip(part, values, strict=True):
                put(rows, of_batch)

        stack.enter_context(model.running())
        stack.enter_context(other.running())
        both_stay = model.is_resident and other.is_resident
        parts = [[rows] for rows in batches] if both_stay else _parts(model, plan, batches, candidates)
        for part in progress(parts, desc=what, unit="batch" if both_stay else "reading", enabled=options.progress):
            run_halving(part, run, about=f"transplant {model.name} {options.token_budget}")
        return HostScores(own, mixed, candidates, ModelRecord.of(model), ModelRecord.of(other))


@torch.no_grad()
def by_block(
    host: HookedModel, donor: HookedModel, batches: Sequence[TokenBatch], candidates: Sequence[Candidate]
) -> list[Float[Tensor, "candidate_and_own batch"]]:
    """Run a host block by block; return each row's mean log-probability, for the host itself, then each candidate."""
    made = [_Rows(host, batch, candidates) for batch in batches]
    with closing(host.blocks()) as blocks, closing(donor.blocks()) as others:
        for layer, _ in zip(blocks, others, strict=True):
            for rows in made:
                rows.run(layer, donor.anatomy.layers[layer])
    with host.head():
        return [rows.read_out() for rows in made]


def by_forward(
    host: HookedModel, donor: HookedModel, batches: Sequence[TokenBatch], candidates: Sequence[Candidate]
) -> list[Float[Tensor, "candidate_and_own batch"]]:
    """Return the same as `by_block`, from full forward passes of the host with the donor's blocks in its list."""
    return [_by_forward(host, donor, batch.to(host.device), candidates) for batch in batches]


@torch.no_grad()
def _by_forward(
    host: HookedModel, donor: HookedModel, batch: TokenBatch, candidates: Sequence[Candidate]
) -> Float[Tensor, "candidate_and_own batch"]:
    layers, anatomy = host.anatomy.layers, host.anatomy
    values = []
    for candidate in (None, *candidates):
        with ExitStack() as stack:
            for layer in range(host.n_layers):
                if candidate is None or not candidate.holds(layer):
                    continue
                if candidate.attention:
                    stack.enter_context(with_attention(layers[layer], donor.anatomy.layers[layer]))
                else:
                    stack.callback(layers.__setitem__, layer, layers[layer])
                    layers[layer] = donor.anatomy.layers[layer]
            states = run_decoder(anatomy, batch, use_cache=False).last_hidden_state
        window = at_window(states, batch.window)
        logprobs = target_logprobs(anatomy, window, batch.targets, batch.scored_mask, normed=True)
        values.append(mean_over_tokens(logprobs, batch))
    return torch.stack(values)


class _Rows:
    """Whole rows passing through a host's blocks, with a copy for each candidate from its first block on."""

    def __init__(self, host: HookedModel, batch: TokenBatch, candidates: Sequence[Candidate]) -> None:
        self._anatomy, self._batch, self._candidates = host.anatomy, batch.to(host.device), candidates
        with torch.no_grad():
            self._hidden, self._calls = learn_calls(host.anatomy, self._batch, None)
        self._mixed: dict[int, Tensor] = {}

    @torch.no_grad()
    def run(self, layer: int, donor: nn.Module) -> None:
        """Run the next block on the host's own states, and on the states of every candidate that has branched off."""
        host, (args, kwargs) = self._anatomy.layers[layer], self._calls[layer]
        for number, candidate in enumerate(self._candidates):
            if candidate.first > layer:
                continue
            entered = self._mixed.get(number, self._hidden)
            if not candidate.holds(layer):
                self._mixed[number] = first_tensor(host(entered, *args, **kwargs))
            elif candidate.attention:
                with with_attention(host, donor) as block:
                    self._mixed[number] = first_tensor(block(entered, *args, **kwargs))
            else:
                self._mixed[number] = first_tensor(donor(entered, *args, **kwargs))
        self._hidden = first_tensor(host(self._hidden, *args, **kwargs))

    @torch.no_grad()
    def read_out(self) -> Float[Tensor, "candidate_and_own batch"]:
        """Return the mean log-probability of each row, for the host itself, then for each candidate."""
        batch, values = self._batch, []
        for states in (self._hidden, *(self._mixed[number] for number in range(len(self._candidates)))):
            window = at_window(states, batch.window)
            logprobs = target_logprobs(self._anatomy, window, batch.targets, batch.scored_mask)
            values.append(mean_over_tokens(logprobs, batch))
        return torch.stack(values)


def _by_blocks(host: HookedModel, donor: HookedModel, plan: Plan, candidates: Sequence[Candidate]) -> bool:
    """Return whether blocks can be run separately; for families that the test suite does not cover, test two rows."""
    if not (host.is_resident and donor.is_resident):
        return True
    if not (runs_plainly(host) and runs_plainly(donor)):
        return False
    if not plan.rows or (is_tested_family(host.hf) and is_tested_family(donor.hf)):
        return True
    batch = plan.batch_to_try(host, checked_rows(plan.rows))
    few = [candidates[0], *candidates[-2:]]
    with host.running(), donor.running():
        try:
            [apart], [whole] = by_block(host, donor, [batch], few), by_forward(host, donor, [batch], few)
            gap = float((apart - whole).abs().max())
            why = f"log-probabilities differ by {gap:.2g} nats"
            if gap <= _TOLERANCE.get(host.dtype, 1e-3):
                return True
        except Exception as error:
            if is_out_of_memory(error):
                raise
            why = f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else 'no message'}"
    warn_once(
        f"the blocks of {host.architecture} cannot be run separately from its forward pass ({why}): transplants run "
        "full forward passes, which takes about twice as long.",
        key=f"transplant {host.architecture} {host.dtype}",
    )
    return False


def _require_alike(host: HookedModel, donor: HookedModel) -> None:
    """Raise `ModelError` unless the donor's blocks accept the host's states without conversion."""
    for what, of_host, of_donor in (
        ("dtype", host.dtype, donor.dtype),
        ("device", host.device.type, donor.device.type),
    ):
        if of_host != of_donor:
            way = f"Open both models with the same {what}, or pass their directories."
            fixed = [model for model in (host, donor) if getattr(model.hf, "is_quantized", False)]
            if what == "dtype" and fixed:
                dtype = str(fixed[0].dtype).removeprefix("torch.")
                way = f"A quantised model computes in the dtype given in its config: choose dtype={dtype!r} for all."
            raise ModelError(
                f"blocks of {donor.name!r} cannot be put into {host.name!r}: their {what} differs ({of_donor} and "
                f"{of_host}). {way}"
            )


def _parts(
    host: HookedModel, plan: Plan, batches: Sequence[list[int]], candidates: Sequence[Candidate]
) -> list[list[list[int]]]:
    """Group batches so that the states of a group, which wait for the next block, fit into half of the free memory."""
    room, size = free_bytes(str(host.device)) // 2, host.dtype.itemsize
    parts: list[list[list[int]]] = []
    left = 0
    for rows in batches:
        tokens = len(rows) * max(plan.lengths[row] for row in rows)
        needed = tokens * host.d_model * size * (len(candidates) + 2)
        if not parts or needed > left:
            parts.append([])
            left = room
        parts[-1].append(rows)
        left -= needed
    return parts
