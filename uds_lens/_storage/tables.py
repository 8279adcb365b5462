"""Reading Parquet files within a memory limit, which is checked first.

Parquet stores repeated values once, so a file of two kilobytes can unpack to any number of rows. Therefore row counts
are checked first, only the required columns are read, and rows are read in batches.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uds_lens.errors import ResultFormatError

if TYPE_CHECKING:
    import pyarrow as pa

MOST_BYTES = 1 << 30  # largest unpacked table in bytes, far larger than any question-answering data set
MOST_ROWS = 5_000_000  # largest number of rows


class UnreadableTableError(Exception):
    """The file is not Parquet, or is broken."""


class LargeTableError(Exception):
    """The file would unpack to more than the limit."""


def column_names(source: Path | bytes) -> list[str]:
    """Return the column names of a Parquet file, reading only its footer."""
    return list(_opened(source).schema_arrow.names)


def read_parquet(source: Path | bytes, *, columns: Collection[str] | None = None) -> pa.Table:
    """Read a Parquet file, or some of its columns."""
    import pyarrow as pa

    file = _opened(source)
    names = [name for name in file.schema_arrow.names if columns is None or name in columns]
    if file.metadata.num_rows > MOST_ROWS:
        raise LargeTableError(f"{file.metadata.num_rows} rows")
    # The sizes of column chunks would be more exact, but Arrow aborts the process if a chunk's metadata are broken.
    sizes = [file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups)]
    if columns is None and sum(sizes) > MOST_BYTES:
        raise LargeTableError(f"{sum(sizes)} bytes")
    step = max(1, min(65_536, MOST_BYTES // max(1, *sizes, 1)))
    batches, taken, rows = [], 0, 0
    try:
        for batch in file.iter_batches(batch_size=step, columns=names):
            taken, rows = taken + batch.nbytes, rows + batch.num_rows
            if taken > MOST_BYTES or rows > MOST_ROWS:
                raise LargeTableError(f"more than {MOST_BYTES} bytes or {MOST_ROWS} rows")
            batches.append(batch)
        schema = batches[0].schema if batches else pa.schema([file.schema_arrow.field(n) for n in names])
        return pa.Table.from_batches(batches, schema=schema)
    except LargeTableError:
        raise
    except Exception as error:  # Arrow raises its own errors, and ValueError, OverflowError, UnicodeDecodeError ...
        raise UnreadableTableError(str(error)) from error


def _opened(source: Path | bytes) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(pa.BufferReader(source) if isinstance(source, bytes) else source)
    except Exception as error:  # as above
        raise UnreadableTableError(str(error)) from error


def read_table_rows(content: bytes, *, schema: pa.Schema, where: str) -> list[dict[str, Any]]:
    """Read the rows of a table saved by this library, each as a dictionary keyed by column."""
    try:
        if _opened(content).schema_arrow.remove_metadata() != schema:
            raise ResultFormatError(f"{where} is not a saved table: its columns differ.")
        rows: list[dict[str, Any]] = read_parquet(content).to_pylist()
        return rows
    except LargeTableError as error:
        raise ResultFormatError(
            f"{where} would unpack to more than {MOST_BYTES >> 30} GiB, or {MOST_ROWS} rows."
        ) from error
    except (UnreadableTableError, ValueError, OverflowError, MemoryError) as error:
        if isinstance(error, ResultFormatError):
            raise
        raise ResultFormatError(f"{where} is not a saved table: {str(error)[:160]}.") from error
