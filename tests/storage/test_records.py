"""A sealed record comes back as it was, or is refused; values of a file fit their class, or are refused."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import given, settings, strategies as st

from uds_lens._storage.files import read_file
from uds_lens._storage.records import checked_record, conform, parse_json, read_with_checksum, with_checksum
from uds_lens._types import FloatOrNaN
from uds_lens.errors import ConfigError, ResultFormatError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
HEAD = {"format": "uds_lens.test", "version": 1}


def opened(content):
    return checked_record(content, where="it", format="uds_lens.test")


@settings(max_examples=40)
@given(VALUES)
def test_every_value_comes_back(value):
    assert opened(with_checksum({**HEAD, "value": value})) == {**HEAD, "value": value}


@settings(max_examples=40)
@given(VALUES, VALUES)
def test_another_value_is_noticed(value, other):
    content = json.loads(with_checksum({**HEAD, "value": value}))
    content["value"] = other
    text = json.dumps(content).encode()
    if json.dumps(value) == json.dumps(other):
        assert opened(text)["value"] == value
    else:
        with pytest.raises(ResultFormatError, match="was altered"):
            opened(text)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(content):
    try:
        parse_json(content, where="it")
    except ResultFormatError as error:
        assert len(str(error)) < 500


def test_a_record_without_its_checksum_is_refused():
    for seal in (b"", b', "sha256": "0"'):
        with pytest.raises(ResultFormatError, match="was altered"):
            opened(b'{"format": "uds_lens.test", "version": 1%s}' % seal)


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"9" * 5000])
def test_numbers_out_of_range_are_refused(number):
    with pytest.raises(ResultFormatError):
        opened(b'{"format": "uds_lens.test", "version": 1, "x": ' + number + b', "sha256": ""}')


def test_only_regular_files_of_bounded_size_are_read(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    assert read_file(tmp_path / "a", most=5) == b"12345"
    for place, words in (
        (tmp_path / "a", "expected at most"),
        (tmp_path, "not a regular"),
        ("/dev/zero", "not a regular"),
    ):
        with pytest.raises(ResultFormatError, match=words):
            read_file(place, most=4)
    with pytest.raises(ResultFormatError, match="cannot be read"):
        read_with_checksum(tmp_path / "none", format="uds_lens.test")


class Cost(NamedTuple):
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Thing:
    name: str
    kind: Literal["a", "b"]
    size: int
    score: FloatOrNaN
    note: str | None = None
    sure: bool = False
    texts: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)
    more: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        if self.size < 0:
            raise ConfigError("size must be >= 0")


PLAIN = {"name": "x", "kind": "a", "size": 1, "score": 0.5}


def test_plain_values_become_the_class():
    found = conform(Thing, {**PLAIN, "texts": ["a"], "counts": {"a": 1}, "cost": {"seconds": 2}}, where="it")
    assert found == Thing(name="x", kind="a", size=1, score=0.5, texts=("a",), counts={"a": 1}, cost=Cost(2.0))
    assert math.isnan(conform(Thing, {**PLAIN, "score": None}, where="it").score)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": 1}, "it.name must be a valid string; got 1"),
        ({"kind": "c"}, "it.kind must be 'a' or 'b'; got 'c'"),
        ({"kind": ["a"]}, "it.kind must be 'a' or 'b'"),
        ({"size": 1.0}, "it.size must be a valid integer; got 1.0"),
        ({"size": True}, "it.size must be a valid integer; got True"),
        ({"size": -1}, "it: size must be >= 0"),
        ({"score": "0.5"}, "it.score must be a valid number"),
        ({"score": 10**400}, "it.score must be a valid number"),
        ({"note": 1}, "it.note must be a valid string"),
        ({"sure": "False"}, "it.sure must be a valid boolean"),
        ({"texts": ["\ud800"]}, "it contains an unpaired surrogate"),
        ({"texts": "a"}, "it.texts must be a valid array"),
        ({"texts": ["a", None]}, r"it.texts\[1\] must be a valid string; got None"),
        ({"counts": {"a": None}}, "it.counts.a must be a valid integer"),
        ({"counts": []}, "it.counts must be an object"),
        ({"cost": {"seconds": 1, "more": 2}}, "it.cost has an unknown member 'more'"),
        ({"colour": 1}, "it has an unknown member 'colour'"),
        ({"name": ...}, "it lacks 'name'"),
        (None, "it must be an object; got"),
    ],
)
def test_what_does_not_fit_or_is_missing_is_named(change, words):
    content = [] if change is None else {name: v for name, v in {**PLAIN, **change}.items() if v is not ...}
    with pytest.raises(ResultFormatError, match=words):
        conform(Thing, content, where="it")
