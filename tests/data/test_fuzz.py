import random

import jaxtyping
import pytest
from hypothesis import given, settings, strategies as st
from malformed_sets import malformed, outcome


@settings(max_examples=150, derandomize=True, database=None)
@given(seed=st.integers(0, 2**32))
def test_malformed_sets_are_read_or_refused_in_words(unchecked_once, tmp_path_factory, seed):
    said = outcome(malformed(random.Random(seed), unchecked_once))
    assert said in ("read", "refused"), said


@pytest.fixture(scope="module")
def unchecked_once(tmp_path_factory):
    """A folder to write to, with the run-time type checker off."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield tmp_path_factory.mktemp("malformed")
    jaxtyping.config.update("jaxtyping_disable", before)
