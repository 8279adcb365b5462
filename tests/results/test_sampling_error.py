"""How far a sample lies from the full set: against the spread of many samples, and against formulas by hand."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from uds_lens.data import ForgetExample, sample_examples
from uds_lens.results._intervals import sample_error

from .conftest import made

NAN = float("nan")
UNEQUAL = [18, 20, 14, 20, 19, 11, 20, 17, 20, 20]


def population(sizes, between, seed=0, missing=0.1):
    """Rows of subjects of these sizes whose levels differ; some cannot be measured."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    level = np.where(rng.uniform(size=len(sizes)) < 0.4, 0.5 + between / 2, 0.5 - between / 2)
    values = np.clip(level[owner] + rng.normal(0, 0.04, len(owner)), 0, 1)
    values[rng.uniform(size=len(owner)) < missing] = NAN
    rows = [ForgetExample(str(i), "Who?", "Ada.", subject=f"s{g}") for i, g in enumerate(owner)]
    return rows, values


def drawn(rows, values, limit, draws=200, **ask):
    means, errors, held = [], [], []
    for seed in range(draws):
        kept = [int(each.id) for each in sample_examples(rows, limit, seed=seed)]
        some = torch.tensor(values[kept])
        found = sample_error(some, of=len(rows), drawn=limit, subjects=[rows[i].subject for i in kept], **ask)
        means.append(float(some.nanmean()))
        errors.append(found.standard_error)
        held.append(found.interval.low <= np.nanmean(values) <= found.interval.high)
    return np.std(means, ddof=1), math.sqrt(np.mean(np.square(errors))), np.mean(held)


@pytest.mark.parametrize(
    ("sizes", "limit", "between"), [([20] * 10, 60, 0.8), (UNEQUAL, 30, 0.8), (UNEQUAL, 60, 0.0), (UNEQUAL, 120, 0.8)]
)
def test_the_error_matches_the_spread_of_samples(sizes, limit, between):
    rows, values = population(sizes, between)
    spread, error, held = drawn(rows, values, limit)
    assert error == pytest.approx(spread, rel=0.17)  # the spread of 200 samples is known to 5%
    assert held > 0.88


def test_with_one_row_a_subject_it_is_an_upper_bound():
    rows, values = population([20] * 20, 0.8)
    spread, error, held = drawn(rows, values, 20)
    assert error > spread and held > 0.97
    some = torch.tensor(values[::20])
    assert sample_error(some, of=400, drawn=20, subjects=[f"s{i}" for i in range(20)]).words.endswith(
        " at most for all 400 examples"
    )


def test_by_hand():
    values = torch.tensor([0.1, 0.3, 0.6, NAN, 0.8])
    residuals = np.array([0.1, 0.3, 0.6, 0.45, 0.8]) - 0.45
    expected = math.sqrt((1 - 5 / 20) * 5 * (residuals**2).sum() / 4) / 4
    assert sample_error(values, of=20, drawn=5).standard_error == pytest.approx(expected)
    assert sample_error(values, of=5, drawn=5).standard_error == 0
    first = sample_error(values, of=20, drawn=5, random=False)
    assert math.isnan(first.standard_error) and first.words == "unknown for all 20 examples"
    assert math.isnan(sample_error(values[:1], of=20, drawn=1).interval.low)


def test_an_audit_has_both_and_says_which_is_which():
    whole = made([[1.0]] * 40, [[i % 10 / 10] for i in range(40)])
    assert whole.sample_error is None
    assert whole.summary()["sample_standard_error"] == 0 and whole.summary()["sample_of"] == 40
    sample = {"limit": 40, "of": 400, "sample": "random", "seed": 0}
    part = dataclasses.replace(whole, provenance={**whole.provenance, "sample": sample})
    found = part.sample_error
    assert found.interval.low < part.uds < found.interval.high
    assert part.summary()["sample_standard_error"] == found.standard_error
    assert (part.summary()["sample_low"], part.summary()["sample_high"]) == found.interval
    assert any("next to the interval; the interval shows how" in text for text in part.warnings)
    assert found.words in part._repr_html_()
