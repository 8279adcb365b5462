"""What was read from one source: its states at every row's window, in memory or, above a budget, on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens.audit.memory import GIB, run_halving
from uds_lens.audit.plan import MeasureAgain, Plan
from uds_lens.compat.torch import is_out_of_memory
from uds_lens.data import TokenBatch
from uds_lens.errors import DataError, ModelBusyError, ModelError, warn_once
from uds_lens.models import HookedModel, ModelSource, open_model
from uds_lens.patching import SpanCache, capture, row_layout
from uds_lens.patching.wavefront import packable
from uds_lens.progress import progress
from uds_lens.results.records import ModelRecord
from uds_lens.results.settings import AuditConfig, RunOptions
from uds_lens.storage import IN_TEMPORARY, SpillFolder, writing
from uds_lens.types import LastLayer, Site


class StateStore:
    """States by row, each cut to its own window; beyond a budget they go to safetensors files.

    The files lie in a temporary directory that is removed with the store, or by the next run if this one is killed.
    """

    def __init__(self, *, budget: int) -> None:
        self._rows: dict[int, Float[Tensor, "layer win d_model"]] = {}
        self._files: dict[int, Path] = {}
        self._left = budget
        self._folder: SpillFolder | None = None

    @property
    def spilled(self) -> int:
        """Number of rows on disk."""
        return len(self._files)

    def put(self, batch: TokenBatch, states: Float[Tensor, "batch layer win d_model"]) -> None:
        """Keep the states of a batch's rows."""
        widths = batch.window_mask.sum(1).tolist()
        parts = {
            row: states[i, :, :width].cpu().contiguous()
            for i, (row, width) in enumerate(zip(batch.rows, widths, strict=True))
        }
        size = sum(part.numel() * part.element_size() for part in parts.values())
        if size <= self._left:
            self._left -= size
            self._rows.update(parts)
            return
        self._left = 0
        self._write(parts)

    def get(self, row: int) -> Float[Tensor, "layer win d_model"]:
        """States of one row.

        Raises:
            DataError: The row was never put.
        """
        if row in self._rows:
            return self._rows[row]
        if row not in self._files:
            raise DataError(f"no states for row {row}: read the source on the same plan.")
        from safetensors import safe_open

        with safe_open(self._files[row], framework="pt") as file:
            return file.get_tensor(str(row))

    def _write(self, parts: dict[int, Tensor]) -> None:
        from safetensors.torch import save_file

        if self._folder is None:
            self._folder = SpillFolder()
        file = self._folder.path / f"{len(self._files)}.safetensors"
        with writing(self._folder.path, advice=IN_TEMPORARY):
            save_file({str(row): part for row, part in parts.items()}, file)
        self._files.update(dict.fromkeys(parts, file))


@dataclass(frozen=True, eq=False)
class SourceStates:
    """One source's states on every row of a plan, on the CPU."""

    record: ModelRecord
    """The model they come from."""

    store: StateStore
    """The states by row."""

    site: Site = "resid_post"
    """Point of the block they were read at."""

    last_layer: LastLayer = "resid_post"
    """What stands for the last layer."""

    def cache(self, batch: TokenBatch) -> SpanCache:
        """The states of a batch's rows, padded to its window by repeating each row's last position."""
        width = batch.window.shape[1]
        parts = [_padded(self.store.get(row), width) for row in batch.rows]
        return SpanCache(torch.stack(parts), self.site, self.last_layer, self.record.name)


def read_source(
    source: ModelSource, plan: Plan, *, role: str, config: AuditConfig, options: RunOptions, share: int = 1
) -> SourceStates:
    """Open a source, keep its states at the windows, close it.

    Args:
        source: The model.
        plan: Rows and batches.
        role: What the progress bar calls it.
        config: What is measured.
        options: How it is run.
        share: How many sources share the memory for states.

    Returns:
        The states.

    Raises:
        ModelError: It produces states that are NaN or infinite; names the first example.
    """
    with opened(source, config, options) as model:
        # Before the first pass: on a CPU, bitsandbytes repacks 4-bit weights then.
        record = ModelRecord.of(model)
        require_finite_head(model)
        read_states = _reader(model, plan, config, options)
        batches, side = plan.batches_for(model), row_layout(model).padding_side

        def read(rows: Sequence[int]) -> None:
            batch = plan.batch_of(rows, side)
            states = read_states(batch)
            plan.require_finite(states.isfinite().all(-1).all(-1).all(-1), rows, model.name, "hidden states")
            store.put(batch, states)

        while True:
            store = StateStore(budget=int(options.memory_gib * GIB / share))
            try:
                for rows in progress(batches, desc=f"read {role}", unit="batch", enabled=options.progress):
                    run_halving(rows, read, about=f"read {model.name} {options.token_budget}")
            except MeasureAgain:  # all rows are read in one way
                continue
            return SourceStates(record, store, config.site, config.last_layer)


def _reader(
    model: HookedModel, plan: Plan, config: AuditConfig, options: RunOptions
) -> Callable[[TokenBatch], Float[Tensor, "batch layer win d_model"]]:
    """Return what reads a batch's states; where the fast way fails, it raises `MeasureAgain` and reads plainly then."""
    packed = runs_packed(model, plan)
    engine = plan.reading(model, site=config.site, packed=packed, engine=options.engine)

    def read(batch: TokenBatch) -> Float[Tensor, "batch layer win d_model"]:
        nonlocal engine
        try:
            return read_by(batch, packed and engine != "naive")
        except Exception as error:
            if engine == "naive" or options.engine != "auto" or config.site != "resid_post":
                raise
            if is_out_of_memory(error) or isinstance(error, ModelBusyError):
                raise
            engine = plan.read_plainly(model, error, packed=packed)
            raise MeasureAgain from error

    def read_by(batch: TokenBatch, packed: bool) -> Float[Tensor, "batch layer win d_model"]:
        cache = capture(
            model, batch, site=config.site, last_layer=config.last_layer, packed=packed, engine=engine
        )
        return cache.states

    return read


def require_finite_head(model: HookedModel) -> None:
    """Raise unless final norm and head hold numbers: states are read before them, and would not show it.

    Raises:
        ModelError: Naming the part.
    """
    for what, part in (("final norm", model.anatomy.final_norm), ("head", model.hf.get_output_embeddings())):
        weights = (
            [] if part is None else [w for w in part.parameters() if w.is_floating_point() and not w.is_meta]
        )
        if not all(bool(weight.sum(dtype=torch.float32).isfinite()) for weight in weights):
            raise ModelError(
                f"the {what} of {model.name!r} holds NaN or infinite weights: the model is broken, whatever its inner "
                "states are. Check the checkpoint."
            )


def runs_packed(model: HookedModel, plan: Plan) -> bool:
    """Whether a model runs on packed rows, as the plan says it does; where it cannot after all, warn."""
    if plan.packed and not packable(model):
        warn_once(
            f"{model.name!r} runs on padded rows, since it has hooks or is a Bridge, and the other models of this "
            "audit on packed ones: where its weights are those of `full`, deltas may be of the size of rounding "
            "instead of exactly 0. Hand it to the same call as the other models.",
            key=f"padded {model.name} {model.fingerprint}",
        )
        return False
    return plan.packed


def opened(
    source: ModelSource, config: AuditConfig, options: RunOptions
) -> AbstractContextManager[HookedModel]:
    """Open one checkpoint the way the audit asks for; one that the caller has open stays open."""
    own = isinstance(source, str | os.PathLike)
    model = open_model(
        source,
        dtype=config.dtype,
        device=options.device,
        device_map=options.device_map,
        revision=options.revision,
        offline=options.offline,
        trust_remote_code=options.trust_remote_code,
    )
    model.keeps_weights = model.keeps_weights or own
    return model.held() if model is source else model  # another thread's hooks would be seen on it


def _padded(states: Float[Tensor, "layer win d_model"], width: int) -> Float[Tensor, "layer wider d_model"]:
    missing = width - states.shape[1]
    if not missing:
        return states
    return torch.cat([states, states[:, -1:].expand(-1, missing, -1)], dim=1)
