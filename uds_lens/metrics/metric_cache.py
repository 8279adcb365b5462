"""What was measured on `full` and `retain`, kept for the next model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from uds_lens.checked_arguments import arguments_checked
from uds_lens.data import ChatStyle
from uds_lens.generation import answer_end_ids
from uds_lens.models import CheckpointFiles, HookedModel, ModelSource, checkpoint_files, checkpoint_folders
from uds_lens.results.records import ModelRecord
from uds_lens.types import Protocol


@dataclass(frozen=True)
class PassResult:
    """The result of one pass with its cost."""

    value: Any
    """What was measured."""

    seconds: float
    """Wall time."""

    forwards: int
    """Forward passes of the model, one per batch (and per generated token); at least 1."""


class MetricCache:
    """Measurements by what they depend on: fingerprints of weights, hash of the input tokens, settings.

    Pass one cache to several `evaluate` calls and the passes over `full` and `retain` run once. It lives in memory
    and holds their states at the entities (examples x layers x tokens x d_model numbers per model) if a white-box
    metric was asked for; `clear` empties it.
    """

    def __init__(self) -> None:
        self._measured: dict[tuple[Any, ...], PassResult] = {}
        self._fingerprints: dict[tuple[Any, ...], str] = {}
        self._records: dict[str, ModelRecord] = {}
        self._ends: dict[tuple[Any, ...], frozenset[int]] = {}

    def __len__(self) -> int:
        return len(self._measured)

    def __repr__(self) -> str:
        return f"MetricCache({len(self)} measurements of {len(self._records)} models)"

    def clear(self) -> None:
        """Forget everything."""
        self._measured.clear()
        self._fingerprints.clear()
        self._records.clear()
        self._ends.clear()

    @arguments_checked
    def get(self, key: tuple[Any, ...]) -> PassResult | None:
        """A measurement, if it was made."""
        return self._measured.get(key)

    @arguments_checked
    def put(self, key: tuple[Any, ...], measured: PassResult) -> None:
        """Keep a measurement."""
        self._measured[key] = measured

    @arguments_checked
    def record_of(self, source: ModelSource, dtype: str) -> ModelRecord | None:
        """Who a source is, if that is known without opening it: a directory whose files have not changed."""
        if isinstance(source, HookedModel):
            return self.remember(source, dtype, source)
        identity = _files(source)
        return None if identity is None else self._records.get(self._fingerprints.get((identity, dtype), ""))

    @arguments_checked
    def remember(self, source: ModelSource, dtype: str, model: HookedModel) -> ModelRecord:
        """Note who an opened source is."""
        record = ModelRecord.of(model)
        self._records[record.fingerprint] = record
        identity = _files(source)
        if identity is not None:
            self._fingerprints[(identity, dtype)] = record.fingerprint
        return record

    @arguments_checked
    def ends_of(
        self, source: ModelSource, protocol: Protocol, chat: ChatStyle | None
    ) -> frozenset[int] | None:
        """Tokens at which a source's answers end, if that is known without opening it.

        Its generation config names some of them, and is no part of the fingerprint.
        """
        if isinstance(source, HookedModel):
            return answer_end_ids(source, protocol=protocol, chat=chat)
        identity = _files(source)
        return None if identity is None else self._ends.get((identity, protocol, chat))

    @arguments_checked
    def remember_ends(
        self, source: ModelSource, protocol: Protocol, chat: ChatStyle | None, model: HookedModel
    ) -> frozenset[int]:
        """Note at which tokens the answers of an opened source end."""
        ends = answer_end_ids(model, protocol=protocol, chat=chat)
        identity = _files(source)
        if identity is not None:
            self._ends[(identity, protocol, chat)] = ends
        return ends


def _files(source: ModelSource) -> CheckpointFiles | None:
    """Files of a local checkpoint, and of an adapter's base; None for live models and Hub ids."""
    if not isinstance(source, str | os.PathLike):
        return None
    return checkpoint_files(*checkpoint_folders(source))
