import os

import pyarrow
import pyarrow.parquet
import pytest

from uds_lens._storage import tables as parquet
from uds_lens.data import load_examples
from uds_lens.data._readers import read_rows
from uds_lens.errors import DataError

ROW = {"question": "Who?", "answer": "Ada."}
LINE = '{"question": "Who?", "answer": "Ada."}'


@pytest.fixture
def write(tmp_path):
    def write_file(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


@pytest.mark.parametrize(
    ("name", "content", "count"),
    [
        ("a.json", f"[{LINE}, {LINE}]", 2),
        ("a.json", f"\n  [\n{LINE}\n]\n", 1),
        ("a.json", f'{{"version": 1, "rows": [{LINE}]}}', 1),
        ("a.json", '{\n  "question": "Who?",\n  "answer": "Ada."\n}', 1),
        ("a.json", LINE, 1),
        ("a.json", f"{LINE}\n{LINE}\n", 2),
        ("a.json", f"{LINE}\r\n\r\n{LINE}", 2),
        ("a.JSON", f"[{LINE}]", 1),
        ("a.jsonl", f"{LINE}\n\n{LINE}\n", 2),
        ("a.jsonl", f"[\n{LINE}]", 1),
        ("a.csv", "question,answer\nWho?,Ada.\n\nWho?,Ada.\n", 2),
        ("a.csv", 'answer, question\r\n"Ada.",Who?\r\n', 1),
    ],
)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_forms(write, name, content, count, mark):
    assert read_rows(write(name, mark + content.encode())) == [ROW] * count


def test_separators_inside_texts(write):
    text = 'a, "b"\nc\u2028d'
    assert read_rows(write("a.csv", 'question,answer\n"a, ""b""\nc\u2028d",x\n')) == [{"question": text, "answer": "x"}]
    assert read_rows(write("a.jsonl", '{"question": "c\u2028d"}\n')) == [{"question": "c\u2028d"}]


def test_parquet(tmp_path):
    rows = [{**ROW, "perturbed_answer": ["B", "C"], "prefix": None}, {**ROW, "perturbed_answer": None, "prefix": ""}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert read_rows(tmp_path / "a.parquet") == rows


def test_columns_of_a_parquet_file_that_nobody_needs_are_not_read(tmp_path, monkeypatch):
    count, path = 3000, tmp_path / "a.parquet"
    large = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0] * count, pyarrow.int32()), pyarrow.array(["x" * 20_000])
    )
    texts = pyarrow.array([f"text {i}" for i in range(count)])
    pyarrow.parquet.write_table(
        pyarrow.Table.from_arrays([texts, texts, large], names=["question", "answer", "unused"]),
        path,
        compression="zstd",
        store_schema=False,
    )
    monkeypatch.setattr(parquet, "MOST_BYTES", 1_000_000)  # the unused column unpacks to 60 MB
    assert len(read_rows(path, columns={"question", "answer"})) == count
    assert len(load_examples(path)) == count, "what reads examples says which columns it needs"
    with pytest.raises(DataError, match=r"a\.parquet: the columns need more than .* Split the file"):
        read_rows(path)
    monkeypatch.setattr(parquet, "MOST_ROWS", count - 1)
    with pytest.raises(DataError, match=r"a\.parquet: .* more than 2999 rows. Split the file"):
        read_rows(path, columns={"question"})
    monkeypatch.setattr(parquet, "MOST_ROWS", count)
    monkeypatch.setattr(parquet, "MOST_BYTES", 10_000)
    with pytest.raises(DataError, match=r"a\.parquet: the columns need more than .* Split the file"):
        read_rows(path, columns={"question"})


def test_devices_and_huge_files_are_refused_before_they_are_read(tmp_path, monkeypatch):
    endless = tmp_path / "endless.json"
    endless.symlink_to("/dev/zero")
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    for path in (endless, pipe):
        with pytest.raises(DataError, match=r"expected a regular file; got a device, pipe or socket"):
            read_rows(path)
    with (tmp_path / "huge.csv").open("wb") as file:
        file.truncate(2 << 30)
    with pytest.raises(DataError, match=r"huge.csv: 2.0 GiB; a file of examples may be at most 1 GiB"):
        read_rows(tmp_path / "huge.csv")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "", r"a\.json is empty"),
        ("a.csv", " \n ", r"a\.csv is empty"),
        ("a.json", f"[{LINE},\n{LINE},\n]", r"a\.json, line \d, column \d: broken JSON"),
        ("a.json", f"[\n{LINE}\n{LINE}\n]", r"a\.json, line 3, column 1: broken JSON: Expecting ',' delimiter"),
        ("a.json", f"{LINE}\n{{'a': 1}}\n", r"a\.json, line 2, column 2: broken JSON \(one object per line\)"),
        ("a.json", f"{LINE}\nend", r"a\.json, line 2, column 1: broken JSON: Extra data"),
        ("a.jsonl", f"{LINE}\n\n{LINE[:-1]}\n{LINE}", r"a\.jsonl, line 3, column \d+: broken JSON"),
        ("a.json", "[" * 200_000, r"a\.json: unreadable JSON"),
        ("a.json", '[{"id": ' + "1" * 5000 + "}]", r"a\.json: unreadable JSON: Exceeds the limit"),
        ("a.json", "3", "expected a JSON array of objects; got int"),
        ("a.json", "{}", r"exactly one list of rows; found 0 lists under the keys \(none\)"),
        ("a.json", '{"a": [], "b": []}', "found 2 lists under the keys a, b. Write a JSON array"),
        ("a.json", '{"question": ["Who?"], "answer": ["Ada."]}', "found 2 lists under the keys question, answer"),
        ("a.json", b"[\xff]", r"not UTF-8 text \(byte 0xff at offset 1\). Save the file as UTF-8"),
        ("a.csv", "question,answer\na,b\na,b,c\n", r"a\.csv, line 3: expected 2 cells \(question, answer\); got 3"),
        ("a.csv", "question,answer\na\n", r"a\.csv, line 2: expected 2 cells .*; got 1"),
        ("a.csv", 'question,answer\n"a,b\n', r"a\.csv, line \d: broken CSV: unexpected end of data"),
        ("a.csv", f"question,answer\na,{'b' * 200_000}\n", r"a cell has more than 131072 characters.*as JSON \(\.json"),
        ("a.csv", "answer,answer\na,b\n", r"a\.csv, line 1: column names must be unique; got answer, answer"),
        ("a.parquet", b"PAR1 no", r"a\.parquet: not a readable Parquet file"),
        ("a.txt", LINE, r"unknown suffix \.txt; expected one of \.json, \.jsonl, \.csv, \.parquet"),
        ("a", LINE, r"unknown suffix \(none\)"),
    ],
)
def test_broken_files(write, name, content, message):
    with pytest.raises(DataError, match=message):
        read_rows(write(name, content))
