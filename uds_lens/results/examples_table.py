"""The examples of a saved result: a Parquet table, as bytes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from uds_lens.data import ForgetExample
from uds_lens.errors import ResultFormatError, UdsLensError

if TYPE_CHECKING:
    import pyarrow as pa

_LISTS = ("paraphrased_answers", "perturbed_answers")

LARGEST = 1 << 30
"""Bytes of a table once unpacked: far above any set of questions. Equal texts are stored once, so that a file of two
kilobytes can hold more."""


def examples_to_parquet(examples: Sequence[ForgetExample]) -> bytes:
    """One row per example, in order."""
    import pyarrow as pa
    from pyarrow import parquet

    schema = _schema()
    columns = {name: [getattr(example, name) for example in examples] for name in schema.names}
    stream = io.BytesIO()
    parquet.write_table(pa.table(columns, schema=schema), stream)
    return stream.getvalue()


def examples_from_parquet(content: bytes, *, told: str) -> tuple[ForgetExample, ...]:
    """The examples in a file.

    Args:
        content: Its bytes.
        told: What to call it in messages.

    Raises:
        ResultFormatError: It is no such table, or a cell is not what it should be.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(pa.BufferReader(content))
        if file.schema_arrow.remove_metadata() != _schema():
            raise ResultFormatError(f"{told} has other columns than the examples of a saved result.")
        rows = _rows(file, told)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        if isinstance(error, UdsLensError):
            raise
        raise ResultFormatError(f"{told} is no table of examples: {str(error)[:160]}.") from error
    return tuple(_example(row, told) for row in rows)


def _rows(file: Any, told: str) -> list[dict[str, Any]]:
    """Rows in pieces, each small enough whatever is stored once in it."""
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    sizes = [group.column(i).total_uncompressed_size for group in groups for i in range(group.num_columns)]
    step = max(1, min(65_536, LARGEST // max(1, *sizes, 1)))
    rows: list[dict[str, Any]] = []
    taken = sum(sizes) if sum(sizes) > LARGEST else 0
    for batch in file.iter_batches(batch_size=step) if not taken else ():
        taken += batch.nbytes
        if taken > LARGEST:
            break
        rows += batch.to_pylist()
    if taken > LARGEST:
        raise ResultFormatError(f"{told} would unpack to more than {LARGEST >> 30} GiB.")
    return rows


def _example(row: dict[str, Any], told: str) -> ForgetExample:
    if row["row"] is None:
        raise ResultFormatError(f"{told} holds an example without its row.")
    try:
        return ForgetExample(**{**row, **{name: tuple(row[name] or ()) for name in _LISTS}})
    except UdsLensError as error:
        raise ResultFormatError(f"{told}: {str(error)[:300]}") from error


def _schema() -> pa.Schema:
    import pyarrow as pa

    kinds = {"row": pa.int64(), **dict.fromkeys(_LISTS, pa.list_(pa.string()))}
    return pa.schema([(field.name, kinds.get(field.name, pa.string())) for field in fields(ForgetExample)])
