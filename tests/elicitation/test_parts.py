"""Parts, from which a killed run goes on, vouch for every value in them."""

import json
import shutil

import pytest
from pyarrow import parquet
from tiny_models import EXAMPLES

from uds_lens._storage import tables as bounded_table
from uds_lens.elicitation import ElicitOptions, elicit
from uds_lens.elicitation._parts import Part, Said, part_from_bytes, read_part, write_part
from uds_lens.errors import ResultFormatError
from uds_lens.models import open_model
from uds_lens.results import RunOptions

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


@pytest.mark.parametrize(("bound", "most"), [("MOST_BYTES", 50_000), ("MOST_ROWS", 2_999)])
def test_what_a_part_unpacks_to_is_bounded(file, monkeypatch, bound, most):
    """A file of some kilobytes that unpacks to a megabyte: what is equal is stored once."""
    rewrite(file, rows=lambda rows: rows.extend([{**rows[0], "prompt": "x" * 300}] * 2_998))
    content = file.read_bytes()
    assert len(content) < 50_000
    monkeypatch.setattr(bounded_table, bound, most)
    with pytest.raises(ResultFormatError, match="would unpack to more than"):
        part_from_bytes(content, told="it", key="k", vouched=True)
    monkeypatch.undo()
    with pytest.raises(ResultFormatError, match="was altered after it was saved"):
        part_from_bytes(content, told="it", key="k", vouched=True)


def test_texts_of_a_model_that_ends_elsewhere_are_not_taken(trio, tmp_path):
    """The end tokens of generation_config.json are no part of the weights, and texts depend on them."""
    model, out = shutil.copytree(trio("llama").unlearned, tmp_path / "model"), tmp_path / "out"

    def texts(**options):
        found = elicit(
            model,
            EXAMPLES[:2],
            audits=["plain"],
            options=ElicitOptions(samples=0, max_new_tokens=5),
            run=RunOptions(device="cpu", progress=False),
            **options,
        )
        return [said.texts for said in found.part("unlearned", "plain").said]

    before = texts(out=out)
    with open_model(model, device="cpu") as opened:
        ids = opened.tokenizer(before[0][0], add_special_tokens=False)["input_ids"]
        every = sorted({*ids, *opened.tokenizer(before[1][0], add_special_tokens=False)["input_ids"]})
    told = json.loads((model / "generation_config.json").read_text())
    (model / "generation_config.json").write_text(json.dumps({**told, "eos_token_id": every}))
    assert texts(out=out) == texts() != before
