"""Altered results: read as they were saved, or refused; `benchmarks/fuzz.py results` tries many more."""

import random

import pytest
from altered_results import KINDS, altered, contents, outcome, save_all
from hypothesis import given, settings, strategies as st


@pytest.fixture(scope="module")
def saved(unchecked, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    save_all(folder)
    return folder, {kind: contents(how.load(folder / kind)) for kind, how in KINDS.items()}


@pytest.fixture(scope="module")
def unchecked(monkeypatch_module):
    """The run-time type checker off: it is for tests, and would answer in place of the library."""
    monkeypatch_module.setattr("jaxtyping.config.jaxtyping_disable", True)


@settings(max_examples=60, derandomize=True, database=None)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(sorted(KINDS)))
def test_altered_results_are_refused_or_as_they_were(unchecked, saved, seed, kind):
    folder, original = saved
    place = folder / "copy"
    forged = altered(kind, folder / kind, place, random.Random(seed))
    said = outcome(kind, place, original[kind], forged=forged)
    assert said in ("refused", "same", "forged"), said


def test_contents_are_the_same_every_time(unchecked, saved):
    folder, original = saved
    for kind, how in KINDS.items():
        assert contents(how.load(folder / kind)) == original[kind], kind
