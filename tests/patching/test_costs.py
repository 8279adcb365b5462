"""One cost model: which rows run together, which windows are resumed together, how many variants at once."""

import pytest
from hypothesis import given, strategies as st

from uds_lens.data import make_batch
from uds_lens.data._tokens import TokenSequence
from uds_lens.patching import _costs
from uds_lens.patching._costs import ModelCosts
from uds_lens.patching._recording import cut_row_groups


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), min_size=1, max_size=30),
    st.integers(1, 120),
    st.integers(1, 5),
)
def test_packed_plans_hold_every_row_once_within_the_budget(sizes, budget, n_layers):
    rows = [sequence(length, min(width, length)) for length, width in sizes]
    costs = ModelCosts(n_layers=n_layers, d_model=512, n_heads=8)
    plan = costs.batches(rows, token_budget=budget, packed=True)
    assert sorted(index for batch in plan for index in batch) == list(range(len(rows)))
    for batch in plan:
        lengths = [len(rows[index].ids) for index in batch]
        assert len(batch) == 1 or sum(lengths) <= budget
        assert len(batch) == 1 or len(batch) * max(lengths) <= 1.5 * budget
        widths = [len(rows[index].window) for index in batch]
        assert widths == sorted(widths)


@pytest.mark.parametrize(("seconds", "times"), [(0.001, 8), (0.02, 3), (0.2, 1)])
def test_a_slow_product_is_not_waited_for_eight_times(seconds, times, monkeypatch):
    ticks = (0.5 * seconds * (n + n % 2) for n in range(16))  # a product takes so long, and nothing in between
    told = []
    monkeypatch.setattr(_costs.time, "perf_counter", lambda: told.append(next(ticks)) or told[-1])
    assert _costs.product_rate.__wrapped__("float32", "cpu") == pytest.approx(2 * 512**3 / seconds)
    assert len(told) == 2 * times


def test_wider_windows_and_deeper_models_make_smaller_batches():
    """Every block sees the windows of all variants patched before it."""
    rows = [sequence(40, width) for width in (1, 1, 30, 30)]
    shallow, deep = (ModelCosts(n_layers=n, d_model=2048, n_heads=32) for n in (2, 60))
    assert len(shallow.batches(rows, token_budget=1280)) < len(deep.batches(rows, token_budget=1280))


@pytest.mark.parametrize("packed", [True, False])
def test_windows_of_one_width_are_resumed_together(packed):
    batch = make_batch([sequence(60, width) for width in (2, 2, 2, 40, 40)], pad_token_id=0)
    costs = ModelCosts(n_layers=32, d_model=256, n_heads=4)
    assert cut_row_groups(batch, costs, packed=packed) == [(0, 3), (3, 5)]


@given(st.integers(1, 20), st.integers(0, 200), st.integers(1, 30), st.integers(1, 1 << 22))
def test_variants_at_once_stay_within_their_scores(rows, prefix, width, bound):
    costs = ModelCosts(n_layers=16, d_model=256, n_heads=4)

    def scores(n):
        return rows * costs.n_heads * n * width * (prefix + n * width)

    n = costs.variants_at_once(rows=rows, prefix=prefix, width=width, scores_at_once=bound)
    assert 1 <= n <= 16
    assert n == 1 or scores(n) <= bound
    assert n == 16 or scores(n + 1) > bound


def sequence(length, width):
    places = tuple(range(length - width, length))
    return TokenSequence(ids=(1,) * length, targets=(1,) * width, scored=places, patched=places)
