"""Saved elicitations and parts of killed runs: read as they were saved, or refused in one sentence."""

import json
import shutil

import pytest
from pyarrow import parquet
from tiny_models import EXAMPLES

from uds_lens._storage import tables
from uds_lens._storage.files import sha256_file
from uds_lens._storage.records import with_checksum
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
    write_part(PART, tmp_path / "part.json", key="k")
    return tmp_path / "part.json"


@pytest.fixture
def saved(asked, tmp_path):
    asked.save(tmp_path / "saved")
    return tmp_path / "saved"


def test_a_part_comes_back_and_belongs_to_its_run(file):
    assert read_part(file, key="k") == PART
    with pytest.raises(ResultFormatError, match="belongs to another run"):
        read_part(file, key="other")


@pytest.mark.parametrize(
    "change",
    [
        lambda part: part["texts"][0]["texts"].reverse(),
        lambda part: part["texts"][1].update(row=2),
        lambda part: part["texts"].pop(),
        lambda part: part.update(role="full"),
    ],
)
def test_an_altered_value_is_noticed(file, change):
    whole = json.loads(file.read_text())
    change(whole["values"])
    file.write_text(json.dumps(whole))
    with pytest.raises(ResultFormatError, match="was altered after it was saved"):
        read_part(file, key="k")


@pytest.mark.parametrize(("bound", "most"), [("MOST_BYTES", 50_000), ("MOST_ROWS", 2_999)])
def test_what_texts_unpack_to_is_bounded(saved, monkeypatch, bound, most):
    """A file of some kilobytes that unpacks to a megabyte: what is equal is stored once."""
    file = saved / "texts.parquet"
    table = parquet.read_table(file)
    rows = table.to_pylist()
    more = [{**rows[0], "prompt": "x" * 300}] * 3_000
    parquet.write_table(type(table).from_pylist(rows + more, schema=table.schema), file)
    assert file.stat().st_size < 50_000
    resealed(saved, lambda manifest: manifest["files"].update({file.name: sha256_file(file)}))
    monkeypatch.setattr(tables, bound, most)
    with pytest.raises(ResultFormatError, match="would unpack to more than"):
        ElicitationResults.load(saved)


def resealed(saved, change):
    """Change the manifest like someone who knows how to seal it again."""
    place = saved / "manifest.json"
    manifest = json.loads(place.read_text())
    del manifest["sha256"]
    text = change(manifest)
    place.write_bytes(text.encode() if isinstance(text, str) else with_checksum(manifest))


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
    assert json.loads((saved / "manifest.json").read_text())["cautions"] == list(asked.warnings)
    again = ElicitationResults.load(saved)
    assert again.summary().equals(asked.summary()) and again.to_frame().equals(asked.to_frame())
    assert again.options == asked.options and again.probes == asked.probes
    (saved / "inner").mkdir()
    for name in ("notes.txt", "inner/report.html", "more.parquet"):
        (saved / name).write_text("mine")
    asked.save(saved)
    for name in ("notes.txt", "inner/report.html", "more.parquet"):
        assert (saved / name).read_text() == "mine"
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "notes.txt").write_text("mine")
    with pytest.raises(ResultFormatError, match="choose another directory"):
        asked.save(tmp_path / "foreign")
    texts = saved / "texts.parquet"
    texts.write_bytes(texts.read_bytes() + b"x")
    with pytest.raises(ResultFormatError, match="altered"):
        ElicitationResults.load(saved)


@pytest.mark.parametrize(
    "alter",
    [
        lambda manifest: "[]",
        lambda manifest: '{"format": "uds_lens.ElicitationResults"}',
        lambda manifest: "{" * 2000,
        lambda manifest: manifest["values"]["probes"][0].update(opening=1.5),
        lambda manifest: manifest["values"]["probes"][0].update(skipped=[["a"]]),
        lambda manifest: manifest["values"]["parts"].pop() and None,
        lambda manifest: manifest["files"].pop("texts.parquet") and None,
        lambda manifest: manifest["models"].update(holdout=manifest["models"]["unlearned"]),
    ],
)
def test_a_broken_manifest_is_refused_and_one_with_a_new_checksum_must_still_fit(saved, alter):
    resealed(saved, alter)
    with pytest.raises(ResultFormatError):
        ElicitationResults.load(saved)
