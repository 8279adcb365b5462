import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from transformers import AutoTokenizer

from uds_lens import data
from uds_lens.data import batch_from_texts, make_batch, positions_of
from uds_lens.data._batches import cheapest_cuts, plan_batches
from uds_lens.data._tokens import TokenSequence
from uds_lens.errors import ConfigError, DataError

LONG = TokenSequence(ids=(1, 4, 5, 6, 7), targets=(7, 8), scored=(3, 4), patched=(3, 4))
SHORT = TokenSequence(ids=(1, 9, 3), targets=(2,), scored=(2,), patched=(1,))


def test_left_padding_by_hand():
    batch = make_batch([LONG, SHORT], pad_token_id=3)
    assert batch.input_ids.tolist() == [[1, 4, 5, 6, 7], [3, 3, 1, 9, 3]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4], [0, 0, 0, 1, 2]]
    assert batch.window.tolist() == [[3, 4], [3, 4]]
    assert batch.patched_mask.tolist() == [[True, True], [True, False]]
    assert batch.scored_mask.tolist() == [[True, True], [False, True]]
    assert batch.targets.tolist() == [[7, 8], [-100, 2]]
    assert batch.rows == (0, 1)
    assert len(batch) == 2


def test_short_windows_repeat_their_last_position():
    one = TokenSequence(ids=(1, 2, 3), targets=(4,), scored=(2,), patched=(2,))
    for side, last in (("left", 4), ("right", 2)):
        batch = make_batch([LONG, one], pad_token_id=0, padding_side=side)
        assert batch.window[1].tolist() == [last, last]
        assert batch.window_mask.tolist() == [[True, True], [True, False]]
        assert batch.targets[1].tolist() == [4, -100]
        assert not batch.patched_mask[1, 1] and not batch.scored_mask[1, 1]


def test_faults():
    with pytest.raises(ConfigError, match="a batch needs at least one row; got none"):
        make_batch([LONG], indices=[], pad_token_id=0)
    with pytest.raises(ConfigError, match="token_budget must be a whole number >= 1; got 0"):
        plan_batches([LONG], token_budget=0)


def test_to_moves_every_tensor():
    batch = make_batch([LONG, SHORT], pad_token_id=0).to("meta")
    tensors = [value for value in vars(batch).values() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 8
    assert all(tensor.device.type == "meta" for tensor in tensors)
    assert batch.rows == (0, 1)


@st.composite
def sequences(draw):
    n = draw(st.integers(1, 12))
    first = draw(st.integers(0, n - 1))
    scored = tuple(range(first, n))
    start = draw(st.integers(0, first))
    patched = tuple(range(start, draw(st.integers(start + 1, n))))
    ids = tuple(draw(st.lists(st.integers(0, 50), min_size=n, max_size=n)))
    return {"ids": ids, "targets": (*ids[first + 1 :], 51), "scored": scored, "patched": patched}


@given(st.lists(sequences(), min_size=1, max_size=5))
def test_padding_sides_agree_and_positions_point_at_the_rows(cells):
    rows, order = [TokenSequence(**cell) for cell in cells], tuple(reversed(range(len(cells))))
    left, right = (make_batch(rows, indices=order, pad_token_id=0, padding_side=side) for side in ("left", "right"))
    assert left.rows == right.rows == order
    assert (left.padding_side, right.padding_side) == ("left", "right")
    for name in ("window_mask", "patched_mask", "scored_mask", "targets"):
        assert torch.equal(getattr(left, name), getattr(right, name))
    for name in ("input_ids", "position_ids", "attention_mask"):
        values = [getattr(batch, name).gather(1, batch.window) for batch in (left, right)]
        assert torch.equal(*values)
    for batch in (left, right):
        assert bool(batch.attention_mask.gather(1, batch.window).all())
        positions = batch.position_ids.gather(1, batch.window)
        for index, row in enumerate(rows[i] for i in order):
            real = positions[index]
            assert tuple(real[batch.patched_mask[index]].tolist()) == row.patched
            assert tuple(real[batch.scored_mask[index]].tolist()) == row.scored
            assert tuple(batch.targets[index][batch.scored_mask[index]].tolist()) == row.targets
            assert tuple(batch.input_ids[index][batch.attention_mask[index].bool()].tolist()) == row.ids


@given(st.lists(sequences(), max_size=30), st.integers(1, 60))
def test_plans_hold_every_row_once_within_the_budget(cells, token_budget):
    rows = [TokenSequence(**cell) for cell in cells]
    plan = plan_batches(rows, token_budget=token_budget)
    assert sorted(index for batch in plan for index in batch) == list(range(len(rows)))
    longest = [max(len(rows[index].ids) for index in batch) for batch in plan]
    assert longest == sorted(longest)
    for batch in plan:
        widths = [len(rows[index].window) for index in batch]
        assert widths == sorted(widths)
        lengths = [len(rows[index].ids) for index in batch]
        assert len(batch) == 1 or len(batch) * max(lengths) <= token_budget


def _rows(*cells):
    """Rows of (length, window width)."""
    return [TokenSequence(ids=(1,) * n, targets=(1,), scored=(n - 1,), patched=(n - w,)) for n, w in cells]


def test_plans_split_where_padding_costs_more_than_one_more_batch():
    by_length = _rows((10, 1), (90, 1), (10, 1))
    assert plan_batches(by_length, batch_cost=159) == [[0, 2], [1]]
    assert plan_batches(by_length, batch_cost=161) == [[0, 1, 2]]
    by_width = _rows((20, 1), (20, 11), (20, 1))
    assert plan_batches(by_width, window_weight=2, batch_cost=39) == [[0, 2], [1]]
    assert plan_batches(by_width, window_weight=2, batch_cost=41) == [[0, 2, 1]]
    assert plan_batches(by_width, batch_cost=0) == [[0, 2, 1]]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=7), st.integers(1, 30))
def test_cuts_cost_the_least_of_all_that_fit(lengths, budget):
    """Against every way to cut a short sequence."""
    values = np.array(lengths, dtype=float)

    def cost(count, longest, widest):
        return 3.0 + count * longest**2 * 0.1 + widest

    def price(cuts):
        groups = [values[start:stop] for start, stop in cuts]
        return sum(float(cost(len(group), group.max(), group.max())) for group in groups)

    n = len(values)
    every = []
    for bits in range(1 << (n - 1)):
        edges = [0, *[i + 1 for i in range(n - 1) if bits >> i & 1], n]
        cuts = list(itertools.pairwise(edges))
        if all(stop - start == 1 or values[start:stop].sum() <= budget for start, stop in cuts):
            every.append(price(cuts))
    found = cheapest_cuts(values, values, values, budget=budget, cost=cost)
    assert price(found) == pytest.approx(min(every))


def test_plan_of_the_real_forget_set_pads_little(shared_dir):
    tokenizer = AutoTokenizer.from_pretrained(shared_dir / "models" / "tofu-small" / "full")
    rows = data.encode(data.load_examples(shared_dir / "data" / "tofu" / "forget10_filtered.json"), tokenizer).rows
    padded = sum(len(batch) * max(len(rows[i].ids) for i in batch) for batch in plan_batches(rows))
    assert padded < 1.2 * sum(len(row.ids) for row in rows)


def test_texts(words):
    batch = batch_from_texts(words, ["Ada Vey wrote Ash", "It was Ada"], positions=2)
    assert batch.input_ids.tolist() == [[1, 11, 12, 16, 17], [3, 1, 9, 10, 11]]
    assert batch.window.tolist() == [[3, 4], [3, 4]]
    assert batch.patched_mask.all()
    assert batch.scored_mask.tolist() == [[True, False], [True, False]]
    assert batch.targets.tolist() == [[17, -100], [11, -100]]


def test_texts_with_a_run_each(words):
    batch = batch_from_texts(
        words,
        ["Ada Vey wrote Ash", "It was Ada"],
        positions=[[0, 1], range(-1, 0)],
        add_special_tokens=False,
        padding_side="right",
    )
    assert batch.input_ids.tolist() == [[11, 12, 16, 17], [9, 10, 11, 3]]
    assert batch.window.tolist() == [[0, 1, 2, 3], [2, 2, 2, 2]]
    assert batch.patched_mask.tolist() == [[True, True, False, False], [True, False, False, False]]
    assert batch.scored_mask.sum(1).tolist() == [3, 0]


@pytest.mark.parametrize(
    ("texts", "positions", "message"),
    [
        ([], 1, "texts must be a non-empty list of strings"),
        (["Ada Vey"], 4, r"text 0 has 3 tokens: positions must be increasing within 0..2; got 4"),
        (["Ada Vey"], 0, "must be increasing"),
        (["Ada Vey"], [[2, 0]], r"got \[2, 0\]"),
        (["Ada Vey"], [[1, 1]], r"got \[1, 1\]"),
        (["Ada Vey"], [[2, 3]], r"got \[2, 3\]"),
        (["Ada Vey"], [[-4]], r"got \[-4\]"),
        (["Ada Vey"], [[0], [0]], "one sequence per text: 1 texts, 2 sequences"),
    ],
)
def test_wrong_texts(words, texts, positions, message):
    with pytest.raises(ConfigError, match=message):
        batch_from_texts(words, texts, positions=positions)


def test_positions_of_all_mentions(words):
    text = "Ada Vey wrote Ash It was Ada"
    assert positions_of(words, text, "Ada") == (1, 7)
    assert positions_of(words, text, "Ada Vey") == (1, 2)
    assert positions_of(words, words(text)["input_ids"], "Ada") == (1, 7)
    for absent in ("Ad", "Nobody"):
        with pytest.raises(DataError, match=f"'{absent}' is not mentioned in '.*Ada Vey wrote Ash"):
            positions_of(words, text, absent)
    batch = batch_from_texts(words, [text], positions=[positions_of(words, text, "Ada")])
    assert batch.window.tolist() == [[1, 2, 3, 4, 5, 6, 7]]
    assert batch.patched_mask.tolist() == [[True, *[False] * 5, True]]
    assert batch.scored_mask.sum() == 6
