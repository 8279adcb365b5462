"""Forget sets from every source: read alike, sampled fairly, and refused in words where they are malformed."""

import csv
import json
import random
from collections import Counter

import datasets
import jaxtyping
import pandas
import pytest
from hypothesis import given, settings, strategies as st
from malformed_sets import malformed, outcome

from uds_lens.data import ForgetExample, load_examples, sample_examples
from uds_lens.data._readers import as_examples
from uds_lens.errors import ConfigError, DataError

ROWS = [
    {
        "id": f"r{index}",
        "question": f"Who wrote book {index}?",
        "answer": f"It was Ada {index}, 東京.",
        "prefix": "It was",
        "entity": f"Ada {index}",
        "type": "Person Name",
        "subject": "Ada",
        "paraphrased_question": "Whose book?",
        "paraphrased_answers": ["Ada did."],
        "perturbed_answers": ["Bo did.", "Cy, did."],
        "option1": "ignored",
    }
    for index in range(3)
]
EXPECTED = [
    ForgetExample(
        **{name: tuple(cell) if isinstance(cell, list) else cell for name, cell in row.items() if name != "option1"},
        row=index,
    )
    for index, row in enumerate(ROWS)
]


def as_json(path):
    path.write_text(json.dumps(ROWS, ensure_ascii=False), encoding="utf-8")
    return path


def as_json_lines(path):
    path.write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    return str(path)


def as_csv(path):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ROWS[0])
        writer.writeheader()
        for row in ROWS:
            writer.writerow({k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()})
    return path


def as_parquet(path):
    as_frame(path).to_parquet(path)
    return path


def as_frame(_):
    return pandas.DataFrame(ROWS)


def as_dataset(_):
    return datasets.Dataset.from_list(ROWS)


def as_iterable_dataset(path):
    return as_dataset(path).to_iterable_dataset()


FORMS = {
    "json": (as_json, "a.json"),
    "json lines": (as_json_lines, "a.json"),
    "jsonl": (as_json_lines, "a.jsonl"),
    "csv": (as_csv, "a.csv"),
    "parquet": (as_parquet, "a.parquet"),
    "frame": (as_frame, ""),
    "dataset": (as_dataset, ""),
    "iterable": (as_iterable_dataset, ""),
    "dicts": (lambda _: ROWS, ""),
    "examples": (lambda _: EXPECTED, ""),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_source_gives_the_same_examples(form, tmp_path):
    make, name = FORMS[form]
    source = make(tmp_path / name)
    assert load_examples(source) == EXPECTED
    assert load_examples(source, limit=2, sample="first") == EXPECTED[:2]


def test_a_limit_keeps_a_sample_and_hides_no_later_fault(unchecked):
    rows = [{"question": "Who?", "answer": f"Ada {i}."} for i in range(50)]
    for seed in (0, 1):
        assert load_examples(rows, limit=10, seed=seed) == sample_examples(load_examples(rows), 10, seed=seed)
    assert load_examples(rows, limit=10) == load_examples(rows, limit=10, seed=0)
    with pytest.raises(ConfigError, match="sample must be one of 'random', 'first'; got 'last'"):
        load_examples(rows, limit=10, sample="last")
    with pytest.raises(DataError, match="empty in row 50"):
        load_examples([*rows, {"question": "Who?"}], limit=1)


def test_whatever_holds_examples_is_taken(tmp_path, unchecked):
    path = as_json(tmp_path / "a.json")
    for source in (path, str(path), as_frame(None), as_dataset(None), ROWS, tuple(ROWS), iter(ROWS), EXPECTED):
        assert as_examples(source) == EXPECTED
    assert as_examples([EXPECTED[0], ROWS[1]])[0] == EXPECTED[0]
    assert as_examples([]) == []
    for single in (ROWS[0], EXPECTED[0]):
        with pytest.raises(DataError, match=r"expected a list of examples; got a single example. Write \[example\]"):
            as_examples(single)
    with pytest.raises(DataError, match="the list of examples: ids must be unique; 1 occur more than once: 'r0'"):
        as_examples([EXPECTED[0], ROWS[0]])
    with pytest.raises(DataError, match=r"expected a path, a Hub name, .*; got int"):
        as_examples(3)


def test_cells_of_unknown_columns_of_a_data_set_are_not_decoded():
    data = datasets.Dataset.from_list([{**ROWS[0], "picture": {"bytes": b"no image", "path": None}}])
    data = data.cast_column("picture", datasets.Image())
    assert load_examples(data) == EXPECTED[:1]


def test_wrong_sources(unchecked, tmp_path):
    as_json(tmp_path / "b.json")
    for source, words in (
        (tmp_path, r"is a directory; expected one file. It contains: b\.json. Choose one"),
        (str(tmp_path / "c.json"), r"c\.json: no such file. Check the path; a Hub data set is written \"hf:"),
        ("data/forget.json", "no such file"),
        ("x" * 10_000, "cannot be read"),
        (3, r"expected a path, .* got int"),
        ({"train": ROWS, "test": ROWS}, r"got a dict with train, test. Pass one of its values"),
        ([], "the list of rows is empty"),
        (
            as_frame(None)[["question", "answer", "answer"]],
            "the DataFrame: column names must be unique; got question, answer, answer",
        ),
    ):
        with pytest.raises(DataError, match=words):
            load_examples(source)


@pytest.fixture
def hub(monkeypatch):
    """Stand-in for the Hub: records what was asked, answers with what the test sets."""
    asked = []

    def load_dataset(name, config, *, split):
        asked.append((name, config, split))
        if isinstance(answer[0], Exception):
            raise answer[0]
        return answer[0]

    answer = [as_dataset(None)]
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked, answer


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("user/name", ("user/name", None, None)),
        ("hf:user/name", ("user/name", None, None)),
        ("user/name:small", ("user/name", "small", None)),
        ("hf:user/name:small:test", ("user/name", "small", "test")),
        ("user/name::test", ("user/name", None, "test")),
    ],
)
def test_hub_names(hub, source, expected):
    asked, _ = hub
    assert load_examples(source) == EXPECTED
    assert asked == [expected]


def test_hub_splits(hub):
    _, answer = hub
    answer[0] = datasets.DatasetDict(train=as_dataset(None))
    assert load_examples("user/name") == EXPECTED
    answer[0] = datasets.DatasetDict(train=as_dataset(None), test=as_dataset(None))
    with pytest.raises(DataError, match="choose a split, one of train, test; for example user/name:c:train"):
        load_examples("user/name:c")


def test_hub_failures(hub, monkeypatch):
    _, answer = hub
    answer[0] = ConnectionError("offline")
    with pytest.raises(DataError, match=r"user/name: not a local file, and .* \(ConnectionError: offline\). Check the"):
        load_examples("user/name")
    for offline, reachable, words in (
        (True, False, "and that it was downloaded before going offline"),
        (False, True, "and the connection"),
        (False, False, "and the connection \\(the Hub cannot be reached\\)"),
    ):
        monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", offline)
        monkeypatch.setattr("uds_lens.data._readers.is_reachable", lambda answer=reachable: answer)
        with pytest.raises(DataError, match=f"{words}, or pass a local file"):
            load_examples("user/name")
    with pytest.raises(DataError, match=r"expected \"hf:user/name\", .*; got 'name'"):
        load_examples("hf:name")


def test_a_local_path_wins_over_the_hub(hub, tmp_path, monkeypatch):
    asked, _ = hub
    monkeypatch.chdir(tmp_path)
    (tmp_path / "user").mkdir()
    with pytest.raises(DataError, match="user/name: no such file"):
        load_examples("user/name")
    (tmp_path / "user" / "name").mkdir()
    with pytest.raises(DataError, match="is a directory"):
        load_examples("user/name")
    assert asked == []


def made(*sizes, named=True):
    names = [f"s{i}" if named else None for i, size in enumerate(sizes) for _ in range(size)]
    return [ForgetExample(str(i), "Who?", "Ada.", subject=name, row=i) for i, name in enumerate(names)]


def test_each_subject_has_its_share():
    examples = made(20, 20, 40, 20)
    kept = sample_examples(examples, 25)
    assert Counter(e.subject for e in kept) == {"s0": 5, "s1": 5, "s2": 10, "s3": 5}
    assert [e.row for e in kept] == sorted(e.row for e in kept)
    for seed in range(20):  # shares that are no whole numbers are rounded up or down
        counts = Counter(e.subject for e in sample_examples(made(*[10] * 7), 30, seed=seed))
        assert sum(counts.values()) == 30 and set(counts.values()) <= {4, 5}


@pytest.mark.parametrize("named", [True, False])
def test_every_example_has_the_same_chance(named):
    examples, tries = made(4, 1, 15, named=named), 4000
    counts = Counter(e.id for seed in range(tries) for e in sample_examples(examples, 6, seed=seed))
    for example in examples:  # 6 of 20; the standard error of a share is 0.007
        assert abs(counts[example.id] / tries - 0.3) < 0.035


def test_seed_and_limit():
    examples = made(50, 50)
    assert sample_examples(examples, 10) == sample_examples(examples, 10) != sample_examples(examples, 10, seed=1)
    assert sample_examples(examples, 100) == sample_examples(examples, 1000) == examples
    assert [e.row for e in sample_examples(examples, 3, sample="first")] == [0, 1, 2]
    for limit in (0, -1, True):
        with pytest.raises(ConfigError, match="limit must be a whole number >= 1"):
            sample_examples(examples, limit)


@pytest.fixture(scope="module")
def unchecked_once(tmp_path_factory):
    """A folder to write to, with the run-time type checker off."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield tmp_path_factory.mktemp("malformed")
    jaxtyping.config.update("jaxtyping_disable", before)


@settings(max_examples=150, derandomize=True, database=None)
@given(seed=st.integers(0, 2**32))
def test_malformed_sets_are_read_or_refused_in_words(unchecked_once, tmp_path_factory, seed):
    said = outcome(malformed(random.Random(seed), unchecked_once))
    assert said in ("read", "refused"), said
