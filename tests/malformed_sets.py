"""Forget sets that are broken in every way we could think of, from a source of chance: for the fuzz tests."""

import csv
import json
import math
from datetime import date

HUGE = "x" * 1_000_000


class NoRepr:
    def __repr__(self):
        raise ValueError("no repr")

    __str__ = __repr__


def odd_cell(chance):
    """A cell that no reader expects."""
    makers = (
        lambda: None,
        lambda: "",
        lambda: " \n",
        lambda: HUGE,
        lambda: "\ud83d half",
        lambda: "\x00\x1b[31m\u202e",
        lambda: 10 ** chance.choice([20, 400, 5000]),
        lambda: -(10**5000),
        lambda: chance.choice([math.inf, -math.inf, math.nan, 1e308, 0.5]),
        lambda: chance.random() < 0.5,
        lambda: b"\xff\xfe" * chance.choice([1, 100_000]),
        lambda: [odd_cell(chance) for _ in range(chance.randrange(3))],
        lambda: {"a": odd_cell(chance)},
        lambda: NoRepr(),
        lambda: complex(1, 2),
        lambda: date(1, 1, 1),
        lambda: [[[HUGE]]],
        lambda: {HUGE: 1},
        lambda: "[" * 50_000,
        lambda: "['a', 'b']",
        lambda: range(10**9),
    )
    return chance.choice(makers)()


NAMES = (
    *("question", "answer", "entity", "prefix", "id", "idx", "type", "subject", "paraphrased_question"),
    *("paraphrased_answers", "perturbed_answer"),
)


def rows(chance):
    """Rows of which some cells, names or whole rows are wrong."""
    made = [{"question": f"Who {i}?", "answer": f"It was Ada {i}.", "entity": f"Ada {i}"} for i in range(3)]
    for _ in range(chance.randint(1, 3)):
        row = chance.choice(made)
        way = chance.randrange(8)
        if way < 4:
            row[chance.choice(NAMES)] = odd_cell(chance)
        elif way == 4:
            row[chance.choice([HUGE, "\udc80", 7, None, (1, 2), "", "\n"])] = odd_cell(chance)
        elif way == 5:
            row.pop(chance.choice(["question", "answer"]), None)
        elif way == 6:
            for each in made:
                each["id"] = chance.choice(["same", HUGE, "\ud83d", 10**400])
        elif isinstance(row, dict):
            made[made.index(row)] = {chance.choice(NAMES): odd_cell(chance)}
    if chance.random() < 0.1:
        made[chance.randrange(len(made))] = odd_cell(chance)
    return made


def as_json(chance, path):
    def written(value):
        if isinstance(value, dict):
            return {str(name): written(cell) for name, cell in value.items()}
        if isinstance(value, list):
            return [written(cell) for cell in value]
        simple = isinstance(value, str | float | bool | None) or (isinstance(value, int) and abs(value) < 10**4000)
        return value if simple else type(value).__name__

    made = written(rows(chance))
    text = json.dumps(made) if chance.random() < 0.5 else "\n".join(map(json.dumps, made))
    if chance.random() < 0.2:  # the same key again
        text = text.replace('{"question"', '{"question": "Whose?", "question"', 1)
    if chance.random() < 0.1:
        text = text.replace("Who 1?", "1" * 5000).replace('"' + "1" * 5000 + '"', "1" * 5000)
    return _damaged(chance, text.encode(), path)


def as_csv(chance, path):
    with path.open("w", newline="", encoding="utf-8", errors="surrogatepass") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL if chance.random() < 0.5 else csv.QUOTE_MINIMAL)
        names = list(NAMES)
        if chance.random() < 0.3:
            names[chance.randrange(len(names))] = chance.choice([HUGE, "question", "", "\n", "\ud83d"])
        writer.writerow(names)
        for row in rows(chance):
            cells = row if isinstance(row, dict) else {}
            writer.writerow(_csv_text(cells.get(name, "")) for name in names)
    return _damaged(chance, path.read_bytes(), path)


def _csv_text(cell):
    try:
        return str(cell)[:200_000].replace("\x00", "")
    except ValueError:
        return "?"


def as_parquet(chance, path):
    import pyarrow
    import pyarrow.parquet

    texts = pyarrow.array(["Who 0?", "Who 1?"])
    odd = {
        "date": lambda: pyarrow.array([2**40, -(2**40)], pyarrow.timestamp("s")),
        "date64": lambda: pyarrow.array([2**55, 0], pyarrow.date64()),
        "bytes": lambda: pyarrow.array([b"\xff\xfe", b""], pyarrow.binary()),
        "broken text": lambda: pyarrow.Array.from_buffers(
            pyarrow.string(), 2, [None, pyarrow.py_buffer(b"\0\0\0\0\2\0\0\0\2\0\0\0"), pyarrow.py_buffer(b"\xff\xfe")]
        ),
        "duration": lambda: pyarrow.array([2**62, 0], pyarrow.duration("s")),
        "lists": lambda: pyarrow.array([[b"\xff"], None], pyarrow.list_(pyarrow.binary())),
        "map": lambda: pyarrow.array([[("a", 1)], None], pyarrow.map_(pyarrow.string(), pyarrow.int64())),
        "nulls": lambda: pyarrow.nulls(2),
        "time": lambda: pyarrow.array([10**11, 0], pyarrow.time64("us")),
    }
    names = [
        "question",
        "answer",
        chance.choice(["entity", "id", "perturbed_answer", "unknown", "question", HUGE[:99]]),
    ]
    columns = [texts, texts, odd[chance.choice(list(odd))]()]
    if chance.random() < 0.3:
        chance.shuffle(columns)
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(columns, names=names), path)
    return _damaged(chance, path.read_bytes(), path)


def as_frame(chance, _):
    import pandas

    made = [row for row in rows(chance) if isinstance(row, dict)] or [{}]
    try:
        frame = pandas.DataFrame(made)
    except (ValueError, TypeError, OverflowError):  # pandas itself cannot hold it
        return made
    if chance.random() < 0.2:
        frame.columns = [chance.choice(["question", HUGE, None, ("a", "b")]) for _ in frame.columns]
    return frame


def as_rows(chance, _):
    made = rows(chance)
    return chance.choice([made, tuple(made), {"train": made}, iter(made), HUGE, b"x", None, 3, NoRepr()])


def as_json_lines(chance, path):
    return as_json(chance, path)


FORMS = {
    "set.json": as_json,
    "set.jsonl": as_json_lines,
    "set.csv": as_csv,
    "set.parquet": as_parquet,
    "frame": as_frame,
    "rows": as_rows,
}


def malformed(chance, folder):
    """One malformed forget set: a path, a table or a list."""
    name = chance.choice(list(FORMS))
    return FORMS[name](chance, folder / name)


def _damaged(chance, content, path):
    """Sometimes cut, or with some bytes changed."""
    if chance.random() < 0.25:
        content = content[: chance.randrange(len(content) + 1)]
    if content and chance.random() < 0.25:
        changed = bytearray(content)
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        content = bytes(changed)
    path.write_bytes(content)
    return path


def outcome(source):
    """What a reader made of it: "read", "refused", or the fault of the reader as text."""
    import warnings

    from uds_lens.data import as_examples, load_examples
    from uds_lens.errors import UdsLensError

    reader = as_examples if hasattr(source, "__next__") else load_examples
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            reader(source)
    except UdsLensError as error:
        message = str(error)
        if len(message) >= 500:
            return f"a message of {len(message)} characters: {message[:300]}"
        if not message.isprintable():
            return f"a message that cannot be printed: {ascii(message)[:300]}"
        return "refused"
    except Exception as error:
        return f"raw {type(error).__name__}: {ascii(str(error))[:300]}"
    return "read"
