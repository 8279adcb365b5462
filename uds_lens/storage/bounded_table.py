"""Rows of a saved Parquet table, with the memory they may take bounded before it is taken.

Equal values are stored once, so that a file of two kilobytes can hold any number of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from uds_lens.errors import ResultFormatError, UdsLensError

if TYPE_CHECKING:
    import pyarrow as pa

MOST_BYTES = 1 << 30
"""Bytes of a table once unpacked: far above any set of questions and answers."""

MOST_ROWS = 5_000_000
"""Rows of a table."""


class TableRows(NamedTuple):
    """What a table holds."""

    rows: list[dict[str, Any]]
    """A mapping from column to cell for each row."""

    metadata: Mapping[bytes, bytes]
    """What its schema says beside."""


def read_table_rows(content: bytes, *, schema: pa.Schema, told: str, what: str) -> TableRows:
    """The rows of a Parquet file.

    Args:
        content: Its bytes.
        schema: The columns it must have.
        told: What errors call the file.
        what: What it should be: "table of examples".

    Raises:
        ResultFormatError: It is broken, has other columns, or would not fit once it is unpacked.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(pa.BufferReader(content))
        found = file.schema_arrow
        if found.remove_metadata() != schema:
            raise ResultFormatError(f"{told} is no {what}: it has other columns.")
        return TableRows(_rows(file, told), found.metadata or {})
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        if isinstance(error, UdsLensError):
            raise
        raise ResultFormatError(f"{told} is no {what}: {str(error)[:160]}.") from error


def _rows(file: Any, told: str) -> list[dict[str, Any]]:
    """Rows in pieces, each small enough whatever is stored once in it."""
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    sizes = [group.column(i).total_uncompressed_size for group in groups for i in range(group.num_columns)]
    fits = sum(sizes) <= MOST_BYTES and file.metadata.num_rows <= MOST_ROWS
    step = max(1, min(65_536, MOST_BYTES // max(1, *sizes, 1)))
    rows: list[dict[str, Any]] = []
    taken = 0
    for batch in file.iter_batches(batch_size=step) if fits else ():
        taken += batch.nbytes
        fits = taken <= MOST_BYTES and len(rows) + batch.num_rows <= MOST_ROWS
        if not fits:
            break
        rows += batch.to_pylist()
    if not fits:
        raise ResultFormatError(
            f"{told} would unpack to more than {MOST_BYTES >> 30} GiB, or {MOST_ROWS} rows."
        )
    return rows
