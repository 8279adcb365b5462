"""Saved elicitations and parts of killed runs: read as they were saved, or refused in one sentence."""

import json
import shutil

import pytest
from pyarrow import parquet
from tiny_models import EXAMPLES

from uds_lens._storage import tables, with_checksum
from uds_lens.elicitation import ElicitationResults, ElicitOptions, elicit
from uds_lens.elicitation._saving import Part, Response, read_part, write_part
from uds_lens.errors import ResultFormatError
from uds_lens.models import open_model

from .conftest import RUN

PART = Part(
    role="retain",
    probe="plain",
    decoding="greedy",
    responses=(
        Response(row=0, prompt="Who?", reference="Ada.", texts=("Ada.", "Bo."), details={"loss": 0.5}),
        Response(row=3, prompt="Where?", reference="Orsk.", texts=("There.",)),
    ),
    prefilled=7,
    seconds=0.25,
)


@pytest.fixture
def file(tmp_path):
    write_part(PART, tmp_path / "part.parquet", key="k")
    return tmp_path / "part.parquet"


@pytest.fixture
def saved(asked, tmp_path):
    asked.save(tmp_path / "saved")
    return tmp_path / "saved"


def rewrite(file, *, rows=None, head=None):
    """The same file with other rows or another head, and the checksum of before."""
    table = parquet.read_table(file)
    metadata = json.loads(table.schema.metadata[b"uds_lens"])
    cells = table.to_pylist()
    if rows is not None:
        rows(cells)
    if head is not None:
        head(metadata)
    changed = type(table).from_pylist(cells, schema=table.schema)
    parquet.write_table(changed.replace_schema_metadata({"uds_lens": json.dumps(metadata)}), file, compression="none")


def test_a_part_comes_back_however_it_is_packed(file):
    assert read_part(file, key="k") == PART
    rewrite(file)
    assert read_part(file, key="k") == PART
    with pytest.raises(ResultFormatError, match="belongs to another run"):
        read_part(file, key="other")


@pytest.mark.parametrize(
    "change",
    [
        {"rows": lambda rows: rows[0]["texts"].reverse()},
        {"rows": lambda rows: rows[1].update(row=2)},
        {"rows": lambda rows: rows.pop()},
        {"head": lambda head: head.update(role="full")},
        {"head": lambda head: head.pop("sha256")},
    ],
)
def test_an_altered_value_is_noticed(file, change):
    rewrite(file, **change)
    with pytest.raises(ResultFormatError, match="was altered after it was saved: ask again"):
        read_part(file, key="k")


@pytest.mark.parametrize(("bound", "most"), [("MOST_BYTES", 50_000), ("MOST_ROWS", 2_999)])
def test_what_a_part_unpacks_to_is_bounded(file, monkeypatch, bound, most):
    """A file of some kilobytes that unpacks to a megabyte: what is equal is stored once."""
    rewrite(file, rows=lambda rows: rows.extend([{**rows[0], "prompt": "x" * 300}] * 2_998))
    assert file.stat().st_size < 50_000
    monkeypatch.setattr(tables, bound, most)
    with pytest.raises(ResultFormatError, match="would unpack to more than"):
        read_part(file, key="k")


def test_texts_of_a_model_that_ends_elsewhere_are_not_taken(trio, tmp_path):
    """The end tokens of generation_config.json are no part of the weights, and texts depend on them."""
    model, out = shutil.copytree(trio("llama").unlearned, tmp_path / "model"), tmp_path / "out"

    def texts(**more):
        options = ElicitOptions(samples=0, max_new_tokens=5)
        found = elicit(model, EXAMPLES[:2], probes=["plain"], options=options, run=RUN, **more)
        return [response.texts for response in found.part("unlearned", "plain").responses]

    before = texts(out=out)
    with open_model(model, device="cpu") as opened:
        words = " ".join(text for (text,) in before)
        ids = sorted({*opened.tokenizer(words, add_special_tokens=False)["input_ids"]})
    config = model / "generation_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "eos_token_id": ids}))
    assert texts(out=out) == texts() != before


def test_saved_and_read_again(asked, saved, tmp_path):
    again = ElicitationResults.load(saved)
    assert again.summary().equals(asked.summary()) and again.to_frame().equals(asked.to_frame())
    assert again.options == asked.options and again.probes == asked.probes
    (saved / "inner").mkdir()
    for name in ("notes.txt", "inner/report.html", "part-x.parquet"):
        (saved / name).write_text("mine")
    (saved / "part-099.parquet").write_text("of an earlier result with more parts")
    asked.save(saved)
    for name in ("notes.txt", "inner/report.html", "part-x.parquet"):
        assert (saved / name).read_text() == "mine"
    assert not (saved / "part-099.parquet").exists()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "notes.txt").write_text("mine")
    with pytest.raises(ResultFormatError, match="choose another directory"):
        asked.save(tmp_path / "foreign")
    part = saved / "part-000.parquet"
    part.write_bytes(part.read_bytes() + b"x")
    with pytest.raises(ResultFormatError, match="altered"):
        ElicitationResults.load(saved)


@pytest.mark.parametrize(
    "alter",
    [
        lambda manifest: "[]",
        lambda manifest: '{"format": "uds_lens.ElicitationResults"}',
        lambda manifest: "{" * 2000,
        lambda manifest: manifest["probes"][0].update(opening=1.5),
        lambda manifest: manifest["probes"][0].update(skipped=[["a"]]),
        lambda manifest: manifest["files"].pop("part-003.parquet") and None,
        lambda manifest: manifest["models"].update(holdout=manifest["models"]["unlearned"]),
    ],
)
def test_a_broken_manifest_is_refused_and_one_with_a_new_checksum_must_still_fit(saved, alter):
    place = saved / "manifest.json"
    manifest = json.loads(place.read_text())
    del manifest["sha256"]
    text = alter(manifest)
    place.write_bytes(with_checksum(manifest) if text is None else text.encode())
    with pytest.raises(ResultFormatError):
        ElicitationResults.load(saved)
