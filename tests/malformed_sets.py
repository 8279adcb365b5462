"""Forget sets that are broken in every way we could think of, from a source of chance: for the fuzz tests."""

import csv
import json
import math
import warnings
from datetime import date

HUGE = "x" * 1_000_000


class NoRepr:
    def __repr__(self):
        raise ValueError("no repr")

    __str__ = __repr__


ODD = (
    None, "", " \n", HUGE, "\ud83d half", "\x00\x1b[31m\u202e", 10**400, -(10**5000), math.inf, math.nan, 0.5, True,
    b"\xff\xfe", [[[HUGE]]], [None], {"a": None}, {HUGE: 1}, NoRepr(), complex(1, 2), date(1, 1, 1), "[" * 50_000,
    "['a', 'b']", range(10**9),
)  # fmt: skip
"""Cells that no reader expects."""

NAMES = (
    *("question", "answer", "entity", "prefix", "id", "idx", "type", "subject", "paraphrased_question"),
    *("paraphrased_answers", "perturbed_answer"),
)


def rows(chance):
    """Rows of which some cells, names or whole rows are wrong."""
    made = [{"question": f"Who {i}?", "answer": f"It was Ada {i}.", "entity": f"Ada {i}"} for i in range(3)]
    for _ in range(chance.randint(1, 3)):
        row, way, odd = chance.choice(made), chance.randrange(8), chance.choice(ODD)
        if not isinstance(row, dict):
            continue
        if way < 4:
            row[chance.choice(NAMES)] = odd
        elif way == 4:
            row[chance.choice([HUGE, "\udc80", 7, None, (1, 2), "", "\n"])] = odd
        elif way == 5:
            row.pop(chance.choice(["question", "answer"]), None)
        elif way == 6:
            for each in [row for row in made if isinstance(row, dict)]:
                each["id"] = chance.choice(["same", HUGE, "\ud83d", 10**400])
        else:
            made[made.index(row)] = chance.choice([odd, {chance.choice(NAMES): odd}])
    return made


def as_json(chance, path):
    def simple(value):
        return type(value).__name__

    try:
        made = [json.dumps(row, default=simple) for row in rows(chance)]
    except (TypeError, ValueError):  # names that JSON has not, and numbers too long to write
        made = ["1" * 5000]
    text = f"[{','.join(made)}]" if chance.random() < 0.5 else "\n".join(made)
    if chance.random() < 0.2:  # the same key again
        text = text.replace('{"question"', '{"question": "Whose?", "question"', 1)
    return damaged(chance, text.encode(), path)


def as_csv(chance, path):
    with path.open("w", newline="", encoding="utf-8", errors="surrogatepass") as file:
        writer = csv.writer(file, quoting=chance.choice([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]))
        writer.writerow(
            [name if chance.random() < 0.95 else chance.choice([HUGE, "question", "", "\n"]) for name in NAMES]
        )
        for row in rows(chance):
            cells = row if isinstance(row, dict) else {}
            writer.writerow(text_of(cells.get(name, "")) for name in NAMES)
    return damaged(chance, path.read_bytes(), path)


def text_of(cell):
    try:
        return str(cell)[:200_000].replace("\x00", "")
    except ValueError:
        return "?"


def as_parquet(chance, path):
    import pyarrow
    import pyarrow.parquet

    texts = pyarrow.array(["Who 0?", "Who 1?"])
    odd = (
        pyarrow.array([2**40, -(2**40)], pyarrow.timestamp("s")),
        pyarrow.array([2**55, 0], pyarrow.date64()),
        pyarrow.array([b"\xff\xfe", b""], pyarrow.binary()),
        pyarrow.Array.from_buffers(
            pyarrow.string(), 2, [None, pyarrow.py_buffer(b"\0\0\0\0\2\0\0\0\2\0\0\0"), pyarrow.py_buffer(b"\xff\xfe")]
        ),
        pyarrow.array([2**62, 0], pyarrow.duration("s")),
        pyarrow.array([[b"\xff"], None], pyarrow.list_(pyarrow.binary())),
        pyarrow.array([[("a", 1)], None], pyarrow.map_(pyarrow.string(), pyarrow.int64())),
        pyarrow.nulls(2),
        pyarrow.array([10**11, 0], pyarrow.time64("us")),
    )
    names = ["question", "answer", chance.choice(["entity", "id", "perturbed_answer", "unknown", "question"])]
    columns = chance.sample([texts, texts, chance.choice(odd)], 3)
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(columns, names=names), path)
    return damaged(chance, path.read_bytes(), path)


def as_frame(chance, _):
    import pandas

    made = [row for row in rows(chance) if isinstance(row, dict)] or [{}]
    try:
        return pandas.DataFrame(made)
    except (ValueError, TypeError, OverflowError):  # pandas itself cannot hold it
        return made


def as_rows(chance, _):
    made = rows(chance)
    return chance.choice([made, tuple(made), {"train": made}, iter(made), HUGE, b"x", None, 3, NoRepr()])


FORMS = {
    "set.json": as_json,
    "set.jsonl": as_json,
    "set.csv": as_csv,
    "set.parquet": as_parquet,
    "frame": as_frame,
    "rows": as_rows,
}


def malformed(chance, folder):
    """One malformed forget set: a path, a table or a list."""
    name = chance.choice(list(FORMS))
    return FORMS[name](chance, folder / name)


def damaged(chance, content, path):
    """Sometimes cut, or with some bytes changed."""
    changed = bytearray(content)
    if chance.random() < 0.25:
        del changed[chance.randrange(len(changed) + 1) :]
    if changed and chance.random() < 0.25:
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
    path.write_bytes(changed)
    return path


def outcome(source):
    """What a reader made of it: "read", "refused", or the fault of the reader as text."""
    from uds_lens.data import load_examples
    from uds_lens.data._readers import as_examples
    from uds_lens.errors import UdsLensError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            (as_examples if hasattr(source, "__next__") else load_examples)(source)
    except UdsLensError as error:
        fit = len(message := str(error)) < 500 and message.isprintable()
        return "refused" if fit else f"a message of {len(message)} characters: {ascii(message)[:300]}"
    except Exception as error:
        return f"raw {type(error).__name__}: {ascii(str(error))[:300]}"
    return "read"
