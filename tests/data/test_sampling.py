from collections import Counter

import pytest

from uds_lens.data import ForgetExample, sample_examples
from uds_lens.errors import ConfigError


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
