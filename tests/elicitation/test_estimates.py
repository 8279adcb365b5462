"""Best of k and leak at k against all subsets."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uds_lens.elicitation import GCG, ElicitOptions, Prompt, SoftGCG
from uds_lens.elicitation._probes import Ask
from uds_lens.elicitation._prompts import Rendered
from uds_lens.elicitation._registry import Asked
from uds_lens.elicitation._run import estimate_hours
from uds_lens.elicitation._scoring import best_of, budgets, leak_at

scores = st.lists(st.floats(0, 1), min_size=1, max_size=8)


@given(scores, st.integers(1, 8))
def test_best_of_k_is_the_mean_maximum_over_all_subsets(values, k):
    found = float(best_of(np.array(values), k))
    if k > len(values):
        assert np.isnan(found)
    else:
        assert found == pytest.approx(np.mean([max(some) for some in combinations(values, k)]), abs=1e-9)


@given(scores, st.integers(1, 8), st.floats(0.01, 1))
def test_leak_at_k_is_the_share_of_subsets_that_reach_the_threshold(values, k, threshold):
    found = float(leak_at(np.array(values), k, threshold=threshold))
    if k > len(values):
        assert np.isnan(found)
    else:
        subsets = [any(value >= threshold for value in some) for some in combinations(values, k)]
        assert found == pytest.approx(np.mean(subsets), abs=1e-9)


def test_rows_stand_side_by_side_and_a_row_without_scores_has_no_value():
    table = np.array([[0.0, 1.0, 0.5], [np.nan, np.nan, np.nan]])
    assert best_of(table, 3).tolist()[0] == 1.0
    assert np.isnan(best_of(table, 2)[1]) and np.isnan(leak_at(table, 2, threshold=0.5)[1])


def test_budgets_are_powers_of_two_and_all():
    assert budgets(8) == (1, 2, 4, 8) and budgets(1) == (1,) and budgets(0) == ()


def test_hours_go_by_device_dtype_and_models():
    prompt = Prompt(question="Who?", reference="Ada.")
    asks = (Ask(0, "0", None, Rendered(prompt, "Question: Who?", [1, 2, 3])),)
    shape = {"depth (layers)": 16, "width (d_model)": 2048, "vocabulary size": 128256}

    def hours(device, dtype="float32", n_models=1):
        options = ElicitOptions(samples=0, dtype=dtype)
        return estimate_hours(
            [Asked(GCG(), asks, {})], options, n_models=n_models, shape=shape, device=device
        )

    assert hours("cpu") > 50 * hours("cuda:0") > 100 * hours("cuda", "bfloat16") > 0
    assert hours("cuda", n_models=3) == pytest.approx(3 * hours("cuda"))


def test_an_estimate_knows_what_candidates_share_and_how_long_the_target_is():
    rendered = Rendered(Prompt(question="Who?", reference="Ada " * 30), "Question: Who?", [1] * 300)
    ask = Ask(0, "0", None, rendered)

    def tokens(audit):
        return audit.extra_tokens([ask])[0]

    assert tokens(GCG(cached=False)) > 9 * tokens(GCG()) > tokens(GCG(rows_at_once=8))
    assert tokens(SoftGCG(target="answer")) > 3 * tokens(SoftGCG())
    assert SoftGCG(rows_at_once=2).extra_tokens([ask] * 5)[1] == 3 * 100 * 3
