"""The examples of a saved result: a Parquet table, as bytes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from uds_lens.data import ForgetExample
from uds_lens.errors import ResultFormatError, UdsLensError
from uds_lens.storage import read_table_rows

if TYPE_CHECKING:
    import pyarrow as pa

_LISTS = ("paraphrased_answers", "perturbed_answers")


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
    found = read_table_rows(content, schema=_schema(), told=told, what="table of examples")
    return tuple(_example(row, told) for row in found.rows)


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
