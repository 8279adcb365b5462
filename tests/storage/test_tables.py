"""Parquet: what is broken or too large ends in a sentence, never in the process."""

import os
import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from uds_lens._storage.tables import LargeTableError, UnreadableTableError, column_names, read_parquet
from uds_lens.data import load_examples
from uds_lens.errors import DataError

ROWS = [{"question": f"Who is {i}?", "answer": "Ada", "others": ["a", "b"]} for i in range(6)]


@pytest.fixture
def content():
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.Table.from_pylist(ROWS), sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def test_rows_and_columns(content, tmp_path):
    (tmp_path / "a.parquet").write_bytes(content)
    for source in (content, tmp_path / "a.parquet"):
        assert column_names(source) == ["question", "answer", "others"]
        assert read_parquet(source).to_pylist() == ROWS
        assert read_parquet(source, columns=["answer"]).column_names == ["answer"]
        assert read_parquet(source, columns=[]).num_rows == 6


def test_a_file_over_which_arrow_ends_the_process():
    """Its footer has a histogram of the wrong length."""
    file = Path(__file__).with_name("wrong_histogram.parquet")
    with pytest.raises(
        DataError, match=r"wrong_histogram\.parquet: not a readable Parquet file: .*histogram size mismatch"
    ):
        load_examples(file)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="another process")
def test_altered_files_are_read_or_refused(content):
    draw, child = random.Random(0), os.fork()
    if not child:
        for _ in range(400):
            broken = bytearray(content)
            for _ in range(draw.randrange(1, 4)):
                broken[draw.randrange(len(broken))] = draw.randrange(256)
            try:
                read_parquet(bytes(broken))
            except (UnreadableTableError, LargeTableError):
                pass
            except BaseException:
                os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
