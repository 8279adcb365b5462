"""Read examples from files, tables, the Hub and lists, and draw samples that are spread over subjects.

The functions at the top read rows from files (JSON, JSON lines, CSV, Parquet) without interpreting the cells.
"""

from __future__ import annotations

import csv
import io
import json
import os
import random
import re
import stat
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from uds_lens._compat.huggingface_hub import asking_the_hub, is_reachable
from uds_lens._settings import check_value
from uds_lens._storage import tables
from uds_lens._storage.files import did_you_mean
from uds_lens._storage.tables import LargeTableError, column_names, read_parquet
from uds_lens._types import PositiveInt, Sampling, check_choice
from uds_lens.data._columns import KNOWN, examples_from_list, examples_from_rows, with_rows_read
from uds_lens.data._examples import ForgetExample, named, place, plain, short
from uds_lens.errors import DataError

if TYPE_CHECKING:
    import pandas
    from datasets import Dataset

    ExampleSource: TypeAlias = (
        str | os.PathLike[str] | Sequence[Mapping[str, Any]] | Sequence[ForgetExample] | Dataset | pandas.DataFrame
    )


def parquet_names(path: Path) -> list[str]:
    """Return the names of all columns in a Parquet file."""
    with _readable(path):
        return column_names(path)


def parquet_rows(path: Path, columns: Collection[str] | None = None) -> list[dict[str, Any]]:
    """Read the rows of a Parquet file as dictionaries keyed by column name."""
    names = parquet_names(path)
    if len(set(names)) < len(names):
        raise DataError(f"{place(path)}: column names must be unique; got {named(names, quote='')}.")
    with _readable(path):
        table = read_parquet(path, columns=columns)
        return table.to_pylist() if table.column_names else [{}] * table.num_rows


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except LargeTableError as error:
        raise DataError(
            f"{place(path)}: the columns need more than {tables.MOST_BYTES >> 30} GiB once unpacked, or the file "
            f"has more than {tables.MOST_ROWS} rows. Split the file, or pass a list of rows."
        ) from error
    except Exception as error:  # Arrow's own errors, and ValueError or OverflowError for single cells
        cause = error.__cause__ or error
        raise DataError(
            f"{place(path)}: not a readable Parquet file: {plain(cause)} ({type(cause).__name__})."
        ) from error


Rows = list[Any]

SUFFIXES = (".json", ".jsonl", ".csv", ".parquet")

LARGEST = 1 << 30  # largest file that is read: 1 GiB, far larger than any set of questions


def read_rows(path: Path, *, columns: Collection[str] | None = None) -> Rows:
    """Read the rows of a file, whose suffix determines the format.

    A `.json` file may contain an array of objects, an object with one list, or one object per line.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(
            f"{place(path)}: unknown suffix {plain(path.suffix, 20) or '(none)'}; "
            f"expected one of {', '.join(SUFFIXES)}. "
            "Convert or rename the file."
        )
    _check_file(path)
    if suffix == ".parquet":
        return parquet_rows(path, columns)
    text = _text(path)
    if not text.strip():
        raise DataError(f"{place(path)} is empty: expected at least one row.")
    if suffix == ".csv":
        return _csv(text, path)
    lines = suffix == ".jsonl" and not text.lstrip().startswith("[")
    return _json_lines(text, path) if lines else _json(text, path)


def _check_file(path: Path) -> None:
    """Raise an error for devices and pipes, which may never end, and for huge files, before they are opened."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise DataError(
            f"{place(path)}: expected a regular file; got a device, pipe or socket. Write the data to a file first."
        )
    if status.st_size > LARGEST:
        raise DataError(
            f"{place(path)}: {status.st_size / 2**30:.1f} GiB; a file of examples may be at most 1 GiB. Split the file."
        )


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{place(path)}: not UTF-8 text (byte {error.object[error.start]:#04x} at offset {error.start}). "
            "Save the file as UTF-8."
        ) from error


def _json(text: str, path: Path) -> Rows:
    if text.lstrip().startswith("{") and _one_object_per_line(text):
        return _json_lines(text, path)
    content = _parse(text, path)
    if isinstance(content, list):
        return content
    if not isinstance(content, dict):
        raise DataError(f"{place(path)}: expected a JSON array of objects; got {type(content).__name__}.")
    lists = {name: value for name, value in content.items() if isinstance(value, list)}
    if "question" in content and not isinstance(content["question"], (list, dict)):
        return [content]
    if len(lists) != 1:
        raise DataError(
            f"{place(path)}: a JSON object must contain exactly one list of rows; found {len(lists)} lists "
            f"under the keys {named(content, quote='') or '(none)'}. Write a JSON array of objects instead."
        )
    return next(iter(lists.values()))


def _one_object_per_line(text: str) -> bool:
    """Return whether the first line is a JSON object, and the next non-empty line starts one."""
    first, _, rest = text.strip().partition("\n")
    try:
        return isinstance(json.loads(first), dict) and rest.lstrip().startswith("{")
    except (ValueError, RecursionError):
        return False


def _json_lines(text: str, path: Path) -> Rows:
    lines = text.split("\n")
    return [_parse(line, path, line=number) for number, line in enumerate(lines, start=1) if line.strip()]


def _parse(text: str, path: Path, *, line: int | None = None) -> Any:
    where = place(path) if line is None else f"{place(path)}, line {line}"
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = error.lineno if line is None else line
        what = "JSON" if line is None else "JSON (one object per line)"
        raise DataError(f"{place(path)}, line {at}, column {error.colno}: broken {what}: {error.msg}.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: unreadable JSON: {plain(error)}.") from error


def _csv(text: str, path: Path) -> Rows:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: Rows = []
    try:
        header = [name.strip() for name in next(reader)]
        if len(set(header)) < len(header):
            raise DataError(f"{place(path)}, line 1: column names must be unique; got {named(header, quote='')}.")
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise DataError(
                    f"{place(path)}, line {reader.line_num}: expected {len(header)} cells ({named(header, quote='')}); "
                    f"got {len(cells)}. Quote the cells that contain commas."
                )
            rows.append(dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        if "field limit" in str(error):
            raise DataError(
                f"{place(path)}, line {reader.line_num}: a cell has more than {csv.field_size_limit()} characters, "
                "the limit for CSV. Close any open quote, or save the rows as JSON (.json or .jsonl)."
            ) from error
        raise DataError(f"{place(path)}, line {reader.line_num}: broken CSV: {plain(error)}.") from error
    return rows


ExamplesLike: TypeAlias = str | os.PathLike[str] | Iterable[ForgetExample | Mapping[str, Any]]
"""Anything accepted as examples: a list of `ForgetExample` or of rows, a path, a Hub name, a `Dataset` or a `DataFrame`
(see `as_examples`)."""

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[^:/\\]*){0,2}")


def load_examples(
    source: ExampleSource, *, limit: int | None = None, sample: Sampling = "random", seed: int = 0
) -> list[ForgetExample]:
    """Read unlearning examples from a file, a table, the Hugging Face Hub, or a list.

    Columns: `question` and `answer` are required; `prefix`, `entity`, `id` (or `idx`), `type`, `subject`,
    `paraphrased_question`, `paraphrased_answers` and `perturbed_answers` (or the singular of either, with one text or a
    list) are optional; other columns are ignored. Without an id, the row number is used. In CSV files, lists are
    written as JSON. Texts are read unchanged: whitespace is kept, and nothing is truncated or evaluated.

    Args:
        source: A path ending in .json (an array, an object with one list, or JSON lines), .jsonl, .csv or
            .parquet; a Hugging Face `Dataset`; a pandas `DataFrame`; a list of dicts or of `ForgetExample`;
            a Hub data set as "user/name" or "user/name:config:split" (prefixed with "hf:" if it could be mistaken for a
            local path); or a published data set as "rwku:DIR" or "rwku/level2:DIR" (`load_benchmark`), without DIR to
            download it from the Hub.
        limit: Number of examples to keep; None keeps all. The whole source is checked in either case.
        sample: "random" (spread over subjects; see `sample_examples`) or "first". Files are often sorted by author or
            type, so the first rows may cover only a few authors or types.
        seed: Seed for the random sample.

    Returns:
        The examples in the order of the source. Examples without a usable entity are kept; `encode` reports them as
        skipped.

    Raises:
        DataError: The source is missing, empty or broken, lacks a column or a cell, or repeats an id.
        ConfigError: `limit` is not a positive whole number, or `sample` is unknown.

    Example:
        >>> rows = [{"question": "Who wrote Ash?", "answer": "It was Ada Vey.", "entity": "Ada Vey"}]
        >>> [example.id for example in load_examples(rows)]
        ['0']
    """
    check_value("limit", limit, PositiveInt | None)
    examples = _read(source)
    return examples if limit is None else sample_examples(examples, limit, seed=seed, sample=sample)


def as_examples(source: ExamplesLike) -> list[ForgetExample]:
    """Read examples from anything that `load_examples` accepts, or from any iterable of examples and rows.

    Raises:
        DataError: The source cannot be read as examples, or an id occurs twice.

    Example:
        >>> as_examples({"question": q, "answer": "Ada."} for q in ("Who?", "Whose?"))[1].question
        'Whose?'
    """
    if isinstance(source, ForgetExample) or (isinstance(source, Mapping) and "question" in source):
        raise DataError("expected a list of examples; got a single example. Write [example].")
    if _is_table(source) or isinstance(source, (str, bytes, os.PathLike, Mapping)):
        return _read(source)
    if not isinstance(source, Iterable):
        raise _unreadable(source)
    items = list(source)
    return examples_from_list(items) if items else []


def _read(source: object) -> list[ForgetExample]:
    if isinstance(source, (str, os.PathLike)):
        name = source if isinstance(source, str) else ""  # a path object always means a file
        try:
            if (benchmark := _benchmark(name)) is not None:
                return benchmark
            if (hub_name := _hub_name(name)) is not None:
                return _read_hub(hub_name)
            return _read_path(Path(source).expanduser())
        except DataError:
            raise
        except OSError as error:
            raise DataError(f"{place(source)} cannot be read: {plain(error.strerror or error)}.") from error
        except (ValueError, RuntimeError) as error:
            raise DataError(f"{place(source)} is not a path: {plain(error)}.") from error
    if isinstance(source, (list, tuple)):
        return examples_from_list(source)
    return _read_table(source)


def _is_table(source: object) -> bool:
    """Return whether an object is from pandas or datasets, without importing either package."""
    return type(source).__module__.partition(".")[0] in ("pandas", "datasets")


def _read_table(source: Any) -> list[ForgetExample]:
    room = type(source).__module__.partition(".")[0]
    if room == "pandas" and hasattr(source, "to_dict") and hasattr(source, "columns"):
        if not source.columns.is_unique:
            raise DataError(f"the DataFrame: column names must be unique; got {named(source.columns, quote='')}.")
        return examples_from_rows(source.to_dict("records"), where="the DataFrame", cells="text")
    if room == "datasets" and not isinstance(source, Mapping):
        return _read_dataset(source, where="the Dataset")
    raise _unreadable(source)


def _unreadable(source: object) -> DataError:
    if isinstance(source, Mapping):
        keys = named(source, quote="") or "no key"
        return DataError(f"expected a list of rows, got a {type(source).__name__} with {keys}. Pass one of its values.")
    return DataError(
        "expected a path, a Hub name, a Dataset, a DataFrame, a list of dicts or a list of ForgetExample; "
        f"got {type(source).__name__}."
    )


def _read_dataset(data: Any, *, where: str) -> list[ForgetExample]:
    """Read a `Dataset`, decoding only the known columns."""
    names = data.column_names
    if names is not None and not isinstance(names, Mapping):
        data = data.select_columns([name for name in names if name in KNOWN])

    def rows() -> Iterator[Any]:
        try:
            yield from data
        except Exception as error:  # decoding a cell may raise any error
            raise DataError(f"{where} cannot be read: {plain(error)} ({type(error).__name__}).") from error

    return examples_from_rows(rows(), where=where, columns=names)


def _read_path(path: Path) -> list[ForgetExample]:
    if path.is_dir():
        inside = sorted(entry.name for entry in path.iterdir() if entry.suffix.lower() in SUFFIXES)
        raise DataError(
            f"{place(path)} is a directory; expected one file. "
            f"It contains: {named(inside, quote='') or 'no readable file'}. Choose one of these."
        )
    if not path.exists():
        raise DataError(
            f'{place(path)}: no such file. Check the path; a Hub data set is written "hf:user/name:config:split".'
            f"{did_you_mean(path)}"
        )
    suffix = path.suffix.lower()
    return examples_from_rows(
        read_rows(path, columns=KNOWN),
        where=place(path),
        cells="csv" if suffix == ".csv" else "typed",
        columns=parquet_names(path) if suffix == ".parquet" else None,
    )


def _benchmark(source: str) -> list[ForgetExample] | None:
    """Read a published data set named "rwku:DIR" or "rwku/level2:DIR"; None for any other string."""
    from uds_lens.data._benchmarks import BENCHMARKS, load_benchmark

    head, colon, where = source.partition(":")
    name, _, part = head.partition("/")
    if not colon or name not in BENCHMARKS or Path(source).exists():
        return None
    return load_benchmark(name, where or None, part=part or None)


def _hub_name(source: str) -> str | None:
    """Return the Hub name in a source string, or None if the string means a local path."""
    if source.startswith("hf:"):
        return source[3:]
    path = Path(source)
    if path.exists() or path.suffix.lower() in (*SUFFIXES, ".txt", ".tsv", ".xlsx", ".yaml"):
        return None
    if len(path.parts) == 2 and path.parent.is_dir():  # a misspelt file name rather than a Hub user
        return None
    return source if _HUB_NAME.fullmatch(source) and not source.startswith(".") else None


@contextmanager
def hub_data(name: str, tried: str, check: str, otherwise: str = "") -> Iterator[None]:
    """Wrap a download from the Hub: errors say what was tried, and what to check in addition to the connection."""
    from datasets import config

    try:
        with asking_the_hub():
            yield
    except Exception as error:  # the Hub client has no common base class for its errors
        connection = "the connection" if is_reachable() else "the connection (the Hub cannot be reached)"
        if config.HF_HUB_OFFLINE:
            connection = "that it was downloaded before going offline"
        raise DataError(
            f"{place(name)}: {tried} ({type(error).__name__}: {plain(error)}). "
            f"Check {check} and {connection}{otherwise}."
        ) from error


def _read_hub(source: str) -> list[ForgetExample]:
    if not _HUB_NAME.fullmatch(source):
        raise DataError(
            f'expected "hf:user/name", "hf:user/name:config" or "hf:user/name:config:split"; got {short(source)}.'
        )
    name, config, split = (*source.split(":"), "", "")[:3]
    from datasets import Dataset, load_dataset

    tried, check = "not a local file, and the Hub data set cannot be loaded", 'the name ("user/name:config:split")'
    with hub_data(source, tried, check, otherwise=", or pass a local file"):
        data = load_dataset(name, config or None, split=split or None)
    if not isinstance(data, Dataset):
        if len(data) != 1:
            raise DataError(
                f"{place(source)}: choose a split, one of {named(data, quote='')}; "
                f"for example {plain(f'{name}:{config}:{next(iter(data))}')}."
            )
        data = next(iter(data.values()))
    return _read_dataset(data, where=place(source))


def sample_examples(
    examples: Iterable[ForgetExample | Mapping[str, Any]], limit: int, *, seed: int = 0, sample: Sampling = "random"
) -> list[ForgetExample]:
    """Draw a sample of `limit` examples.

    Subjects, and the examples of each subject, are shuffled and joined into one sequence. Starting at a random
    position, every (N / limit)-th example is taken. Each example is therefore drawn with the same probability, limit /
    N, and a subject with a share s of the examples has s * limit examples in the sample, rounded up or down. Without
    subjects, this is a simple random sample.

    Args:
        examples: All examples, or rows.
        limit: Sample size. If there are at most `limit` examples, all are kept.
        seed: The same seed gives the same examples.
        sample: "random", or "first" for the first examples, which are not representative of a sorted file.

    Returns:
        The sample, in the order of `examples`.

    Raises:
        ConfigError: `limit` is not a positive whole number, or `sample` is unknown.
        DataError: A row cannot be read.

    Example:
        >>> rows = [ForgetExample(str(i), "Who?", "Ada.", subject=f"author {i // 20}") for i in range(100)]
        >>> kept = sample_examples(rows, 10)
        >>> [sum(e.subject == f"author {a}" for e in kept) for a in range(5)]
        [2, 2, 2, 2, 2]
    """
    check_value("limit", limit, PositiveInt)
    check_choice("sample", sample, Sampling)
    examples = with_rows_read(examples)
    if limit >= len(examples):
        return examples
    if sample == "first":
        return examples[:limit]
    chance = random.Random(f"uds_lens sample {seed}")
    by_subject: dict[str | None, list[int]] = defaultdict(list)
    for index, example in enumerate(examples):
        by_subject[example.subject].append(index)
    strata = list(by_subject.values())
    chance.shuffle(strata)
    for stratum in strata:
        chance.shuffle(stratum)
    line = [index for stratum in strata for index in stratum]
    step = len(line) / limit
    start = chance.random() * step
    taken = {line[min(int(start + number * step), len(line) - 1)] for number in range(limit)}
    return [example for index, example in enumerate(examples) if index in taken]


HARDLY_MIXED = 0.1
"""Rows are considered sorted if at most this share of all pairs that could be adjacent are not adjacent."""


def sorted_by(examples: Sequence[ForgetExample]) -> str | None:
    """Return what examples are sorted by: `subject` or `type`, if nearly all rows with equal values are adjacent.

    Return None if the subjects are mixed, and `unknown` if no two examples share a subject, because a file may be
    sorted by subjects that it does not name.

    Example:
        >>> rows = [ForgetExample(str(i), "Who?", "Ada.", subject=name) for i, name in enumerate("aabb")]
        >>> sorted_by(rows), sorted_by(rows[::2] + rows[1::2])
        ('subject', None)
    """
    mixed = False
    for name in ("subject", "type"):
        values = [getattr(example, name) for example in examples]
        runs, kinds = len(list(groupby(values))), len(set(values))
        if None in values or kinds in (1, len(values)):
            continue
        if runs - kinds <= (len(values) - kinds) * HARDLY_MIXED:
            return name
        mixed = mixed or name == "subject"
    return None if mixed else "unknown"
