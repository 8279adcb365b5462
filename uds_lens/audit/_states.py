"""States of sources, in CPU memory or (beyond a budget) on disk; their closeness to those of `full`; model checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens._storage.files import IN_TEMPORARY, SpillFolder, writing
from uds_lens._types import HookSite, LastLayer
from uds_lens.data import TokenBatch
from uds_lens.errors import DataError, ModelError, StorageError, warn_once
from uds_lens.models import HookedModel
from uds_lens.models._checkpoint import is_finite
from uds_lens.patching import SpanCache
from uds_lens.results._records import ModelRecord


class StateStore:
    """States by row, each cut to its own window. States that exceed a memory budget are written to safetensors files.

    The files are in a temporary directory that is removed with the store, or by the next run if this one is killed.
    With `kept_in`, all rows are written to that directory instead, which is not removed.
    """

    def __init__(self, *, budget: int, kept_in: Path | None = None) -> None:
        self._rows: dict[int, Float[Tensor, "layer win d_model"]] = {}
        self._files: dict[int, Path] = {}
        self._left = budget
        self._folder: SpillFolder | None = None
        self._kept_in = kept_in
        self.keeps_files = kept_in is not None
        """Whether all rows stored so far are in files in the `kept_in` directory."""

    @property
    def spilled(self) -> int:
        """Number of rows on disk."""
        return len(self._files)

    def put(self, batch: TokenBatch, states: Float[Tensor, "batch layer win d_model"]) -> None:
        """Store the states of a batch's rows."""
        widths = batch.window_mask.sum(1).tolist()
        # Copies are needed: a view would keep the whole padded batch in memory.
        parts = {
            row: states[i, :, :width].to("cpu", copy=True).contiguous()
            for i, (row, width) in enumerate(zip(batch.rows, widths, strict=True))
        }
        size = sum(part.numel() * part.element_size() for part in parts.values())
        if size <= self._left:
            self._left -= size
            self._rows.update(parts)
            if self._kept_in is None:
                return
        elif self._kept_in is None:
            self._left = 0
            self._folder = self._folder or SpillFolder()
        place = self._kept_in or self._folder.path  # type: ignore[union-attr]
        file = place / f"{min(parts)}.safetensors"
        from safetensors.torch import save_file

        try:
            with writing(place, advice=IN_TEMPORARY):
                save_file({str(row): part for row, part in parts.items()}, file)
        except StorageError as error:
            if not parts.keys() <= self._rows.keys():
                raise
            warn_once(f"states are not kept, so this audit has to start from scratch if it is interrupted: {error}")
            self.keeps_files, self._kept_in = False, None
            return
        self._files.update(dict.fromkeys(parts, file))

    def moved_to(self, folder: Path) -> None:
        """Record that the kept files were moved to another directory; temporary files were not."""
        spilled = None if self._folder is None else self._folder.path
        self._files = {row: file if file.parent == spilled else folder / file.name for row, file in self._files.items()}

    @classmethod
    def of_folder(cls, folder: Path) -> StateStore:
        """Make a store from the files that an earlier run kept in a directory."""
        from safetensors import safe_open

        store = cls(budget=0)
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                store._files.update(dict.fromkeys(map(int, file.keys()), path))
        return store

    def get(self, row: int, layers: slice = slice(None)) -> Float[Tensor, "layer win d_model"]:
        """Return the states of one row at all or some layers.

        Raises:
            DataError: The row was never stored.
        """
        if row in self._rows:
            return self._rows[row][layers]
        if row not in self._files:
            raise DataError(f"there are no states for row {row}: read the source with the same plan.")
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self._files[row], framework="pt") as file:
                return file.get_slice(str(row))[layers]
        except (OSError, SafetensorError) as error:
            raise StorageError(
                f"a model's states, which this audit wrote to {str(self._files[row])[-200:]!r}, can no longer be read: "
                "either something cleans that directory or its disk is failing. Set TMPDIR to another directory, and "
                "run the audit again."
            ) from error


@dataclass(frozen=True, eq=False)
class SourceStates:
    """One source's states for every row of a plan, on the CPU."""

    record: ModelRecord
    """The model that the states come from."""

    store: StateStore
    """The states, by row."""

    site: HookSite = "resid_post"
    """Point in the block where the states were read."""

    last_layer: LastLayer = "resid_post"
    """The state used for the last layer."""

    rows: Sequence[int] | None = None
    """For each row of the plan, its row number in the store; None if the numbers are the same."""

    logprobs: Float[Tensor, "row"] | None = None
    """Mean log-probability of the entity's tokens under the source itself, in nats per token, by row; None if not
    measured."""

    def cache(self, batch: TokenBatch, layers: slice = slice(None)) -> SpanCache:
        """Return the states of a batch's rows, each padded to the common width by repeating its last position."""
        width, parts = batch.window.shape[1], []
        for row in batch.rows:
            states = self.store.get(row if self.rows is None else self.rows[row], layers)
            filler = states[:, -1:].expand(-1, width - states.shape[1], -1)
            parts.append(torch.cat([states, filler], dim=1) if filler.shape[1] else states)
        return SpanCache(torch.stack(parts), self.site, self.last_layer, self.record.name)

    def at(self, batch: TokenBatch, layer: int) -> SpanCache:
        """Return the states of a batch's rows at a single layer; see `cache`."""
        return self.cache(batch, slice(layer, layer + 1))


def mean_over_tokens(values: Tensor, batch: TokenBatch) -> Tensor:
    """Average over the scored window positions (last axis) in float64 on the CPU."""
    scored, values = batch.scored_mask.cpu(), values.cpu().double()
    count = scored.sum(-1).reshape(-1, *[1] * (values.ndim - 2))
    return torch.where(scored if values.ndim == 2 else scored[:, None], values, 0.0).sum(-1) / count


def require_finite_head(model: HookedModel) -> None:
    """Raise an error if the final norm or head contains NaN, which the states (read before both) would not reveal.

    Raises:
        ModelError: Names the broken part.
    """
    for what, part in (("final norm", model.anatomy.final_norm), ("head", model.hf.get_output_embeddings())):
        weights = [] if part is None else part.parameters()
        if not all(is_finite(weight) for weight in weights if weight.is_floating_point() and not weight.is_meta):
            raise ModelError(
                f"the {what} of {model.name!r} holds NaN or infinite weights, so the model is broken even if "
                "its hidden states look fine. Check the checkpoint."
            )


def require_same_full(name: str, now: str, expected: str) -> None:
    """Raise `ModelError` if the weights of `full` are not those of stage 1."""
    if now != expected:
        raise ModelError(
            f"{name!r} is not the `full` this baseline was measured with (weights {now}, expected {expected}). Measure "
            "the baseline again, or set its `full`."
        )


def closeness(
    source: Float[Tensor, "batch layer win d_model"],
    replaced: Float[Tensor, "batch layer win d_model"],
    batch: TokenBatch,
) -> tuple[Float[Tensor, "batch layer"], Float[Tensor, "batch layer"]]:
    """Return norm ratio and cosine between patched-in and replaced states, averaged over patched positions."""
    patched = batch.patched_mask[:, None]
    count = patched.sum(-1).cpu()

    def mean(values: list[Tensor]) -> Tensor:
        return torch.where(patched, torch.stack(values, dim=1), 0.0).sum(-1).cpu().double() / count

    ratios, cosines = [], []
    # one layer at a time, because float32 copies of all layers would set an audit's peak memory
    for layer in range(source.shape[1]):
        here, there = source[:, layer].float(), replaced[:, layer].float()
        ratios.append(here.norm(dim=-1) / there.norm(dim=-1))
        cosines.append(torch.nn.functional.cosine_similarity(here, there, dim=-1))
    return mean(ratios), mean(cosines)
