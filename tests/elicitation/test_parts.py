"""Parts, from which a killed run goes on, vouch for every value in them."""

import json

import pytest
from pyarrow import parquet

from uds_lens.elicitation.parts import Part, Said, part_from_bytes, read_part, write_part
from uds_lens.errors import ResultFormatError

PART = Part(
    role="retain",
    audit="plain",
    decoding="greedy",
    said=(
        Said(row=0, prompt="Who?", reference="Ada.", texts=("Ada.", "Bo."), told={"loss": 0.5}),
        Said(row=3, prompt="Where?", reference="Orsk.", texts=("There.",)),
    ),
    prefilled=7,
    seconds=0.25,
)


@pytest.fixture
def file(tmp_path):
    write_part(PART, tmp_path / "part.parquet", key="k")
    return tmp_path / "part.parquet"


def rewrite(file, *, rows=None, head=None):
    """The same file with other rows or another head, as somebody does who does not seal it again."""
    table = parquet.read_table(file)
    told = json.loads(table.schema.metadata[b"uds_lens"])
    cells = table.to_pylist()
    if rows is not None:
        rows(cells)
    if head is not None:
        head(told)
    changed = type(table).from_pylist(cells, schema=table.schema)
    metadata = {"uds_lens": json.dumps(told)}
    parquet.write_table(changed.replace_schema_metadata(metadata), file, compression="none")


def test_a_part_comes_back_however_it_is_packed(file):
    assert read_part(file, key="k") == PART
    rewrite(file)
    assert read_part(file, key="k") == PART


@pytest.mark.parametrize(
    "change",
    [
        {"rows": lambda rows: rows[0]["texts"].reverse()},
        {"rows": lambda rows: rows[1].update(row=2)},
        {"rows": lambda rows: rows[1].update(reference="Lund.")},
        {"rows": lambda rows: rows[0].update(told='{"loss": 0.25}')},
        {"rows": lambda rows: rows.pop()},
        {"head": lambda head: head.update(seconds=0.5)},
        {"head": lambda head: head.update(role="full")},
        {"head": lambda head: head.pop("sha256")},
    ],
)
def test_a_value_that_was_altered_is_noticed(file, change):
    rewrite(file, **change)
    with pytest.raises(ResultFormatError, match="was altered after it was saved: ask again"):
        read_part(file, key="k")


def test_parts_of_before_are_read_where_a_manifest_vouches_for_them(file):
    def older(head):
        head.pop("sha256")
        head["version"] = 1

    rewrite(file, head=older)
    assert part_from_bytes(file.read_bytes(), told="it", key="k", vouched=True) == PART
    with pytest.raises(ResultFormatError, match="no part of an elicitation that this release reads"):
        read_part(file, key="k")
    with pytest.raises(ResultFormatError, match="belongs to another run"):
        part_from_bytes(file.read_bytes(), told="it", key="other", vouched=True)
