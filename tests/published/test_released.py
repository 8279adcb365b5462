"""Run folders of the released script: read, cut off by a kill, and hostile."""

import json
import math

import pytest

from uds_lens.errors import DataError, ResultFormatError
from uds_lens.published import read_released

MODEL = "open-unlearning/unlearn_tofu_Llama-3.2-1B-Instruct_forget10_NPO_lr2e-05_beta0.1_alpha1_epoch5"
FULL = "open-unlearning/tofu_Llama-3.2-1B-Instruct_full"


def score_of(s1, s2, tau=0.05):
    """UDS from the definition."""
    kept = [(one, min(max(two / one, 0), 1)) for one, two in zip(s1, s2, strict=True) if one > tau]
    return sum(one * ratio for one, ratio in kept) / sum(one for one, _ in kept) if kept else math.nan


def record(idx, s1, s2, uds=...):
    score = score_of(s1, s2)
    return {
        "idx": idx,
        "question": "Who?",
        "uds": (None if math.isnan(score) else score) if uds is ... else uds,
        "s1_deltas": s1,
        "s2_deltas": s2,
        "layer_records": [{"layer": layer} for layer in (0, 8, 15)],
    }


RECORDS = [
    record(3, [1.0, 0.5, 0.01], [0.5, 1.0, 0.0]),
    record(7, [0.0, 0.01, 0.02], [0.4, 0.1, 0.1]),
    record(9, [2.0, 0.0, 1.0], [-1.0, 0.0, 0.25]),
]


@pytest.fixture
def folder(tmp_path):
    """What the script leaves behind."""
    place = tmp_path / "runs" / "0412_101500_tf_npo_lr2e5_b01_a1_ep5_layer"
    place.mkdir(parents=True)
    (place / "results.json").write_text(json.dumps(RECORDS, indent=2))
    scores = [each["uds"] for each in RECORDS if each["uds"] is not None]
    summary = {
        "source_model_id": MODEL,
        "full_model": FULL,
        "dtype": "bfloat16",
        "delta_threshold": 0.05,
        "avg_uds": sum(scores) / len(scores),
        "skipped_indices": [11],
    }
    (place / "summary.json").write_text(json.dumps(summary))
    return place


def test_reads_a_run(folder):
    runs = read_released(folder.parent)
    (row,) = runs.frame.to_dict("records")
    assert (row["model"], row["method"], row["n_measured"]) == ("npo_lr2e5_b01_a1_ep5", "npo", 2)
    assert row["uds"] == pytest.approx((2 / 3 + 0.25 / 3) / 2)
    assert runs.examples["value"].isna().tolist() == [False, True, False]
    assert runs.layers["layer"].tolist() == [0, 8, 15] * 3 and runs.layers["s2_delta"].iloc[6] == -1.0
    (own,) = runs.settings.to_dict("records")
    assert (own["source"], own["full"], own["n_examples"], own["n_skipped"]) == (MODEL, FULL, 3, 1)


def test_a_killed_run_is_named(folder):
    (folder / "summary.json").unlink()
    with pytest.raises(ResultFormatError, match=r"no file at '.*summary.json'"):
        read_released(folder.parent)


def test_no_measurable_example_is_nan_and_not_the_0_that_the_script_writes(folder):
    (folder / "results.json").write_text(json.dumps([RECORDS[1]]))
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "avg_uds": 0.0}))
    runs = read_released(folder)
    assert math.isnan(runs.frame["uds"].iloc[0])
    assert runs.reasons["reason"].tolist() == ["no example is measurable (the script writes 0)"]


def one(**cells):
    return json.dumps([{"idx": 1, **cells}])


HOSTILE = {
    "not JSON": ("results.json", "[" * 100_000, "is not JSON"),
    "no list": ("results.json", "{}", "expected a list of examples"),
    "no object": ("results.json", "[3]", r"\[0\] is a number"),
    "no id": ("results.json", one(idx=True, s1_deltas=[], s2_deltas=[]), "'idx' must be a number or text"),
    "no deltas": ("results.json", one(uds=0.5), "'s1_deltas' must be a list; got null"),
    "text": ("results.json", one(s1_deltas=["x"], s2_deltas=[1]), "must be a number or null"),
    "infinite": ("results.json", '[{"idx": 1, "s1_deltas": [1e999], "s2_deltas": [1]}]', "must be finite"),
    "uneven": ("results.json", one(s1_deltas=[1], s2_deltas=[]), "1 values of S1 and 0 of S2"),
    "another score": (
        "results.json",
        json.dumps([record(1, [1.0], [0.5], 0.9)]),
        "layers give a UDS of 0.5, but the file states 0.9",
    ),
    "a score of nothing": ("results.json", one(uds=7, s1_deltas=[], s2_deltas=[]), "UDS of nan, but the file states 7"),
    "a layer twice": (
        "results.json",
        one(**{**RECORDS[0], "layer_records": [{"layer": 3}] * 3}),
        "expected numbers for 3 layers",
    ),
    "twice": ("results.json", json.dumps([RECORDS[0], RECORDS[0]]), "an example occurs twice"),
    "another mean": ("summary.json", json.dumps({"source_model_id": MODEL, "avg_uds": 0.7}), "'avg_uds' is 0.7"),
    "summary of something": ("summary.json", "[]", "holds a list"),
    "bytes": ("results.json", b"\xff\xfe\x00", "is not JSON"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_one_sentence(folder, name):
    file, content, words = HOSTILE[name]
    (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ResultFormatError, match=words) as refused:
        read_released(folder)
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize("name", [["x"], 3])
def test_what_no_model_can_be_called_is_refused(folder, name):
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "source_model_id": name}))
    with pytest.raises(ResultFormatError, match="'source_model_id' must be text"):
        read_released(folder)


def test_two_runs_of_one_model(folder, tmp_path):
    twin = tmp_path / "runs" / "twin"
    twin.mkdir()
    for file in folder.iterdir():
        (twin / file.name).write_bytes(file.read_bytes())
    with pytest.raises(DataError, match="several runs of 'npo_lr2e5_b01_a1_ep5'"):
        read_released(tmp_path)
