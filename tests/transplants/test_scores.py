"""Scores of a transplant, by hand."""

import torch

from uds_lens.transplants._candidates import candidates_of, passes_of, widths_of
from uds_lens.transplants._scores import host_depth, least_on_others, taken

NAN = float("nan")


def test_host_depth_counts_from_what_the_blocks_cost_full():
    left = torch.tensor([[2.0, 0.4, 9.0, 0.1], [1.0, 1.0, 1.0, 1.0]])
    cost = torch.tensor([[1.0, 0.5, 0.0, 3.96], [0.0, 0.0, 0.0, 0.0]])
    depth = host_depth(left, cost, torch.tensor([4.0, 0.05]), 0.05)
    expected = torch.tensor([[1 / 3, 0.0, 1.0, NAN], [NAN, NAN, NAN, NAN]])
    torch.testing.assert_close(depth, expected, equal_nan=True)


def test_blocks_are_chosen_on_other_subjects():
    subjects = ["Ada", "Ada", "Bo", "Bo", None]
    left = torch.tensor([[0.0, 5.0, 1.0], [0.0, 5.0, 1.0], [9.0, 0.0, 1.0], [9.0, 0.0, 1.0], [3.0, 3.0, 1.0]])
    # without Ada: 7, 1, 1; without Bo: 1, 4.3, 1; without the last: 4.5, 2.5, 1
    assert least_on_others(left, torch.tensor([True, True, True]), subjects).tolist() == [1, 1, 0, 0, 2]
    assert least_on_others(left, torch.tensor([True, False, True]), subjects).tolist() == [2, 2, 0, 0, 2]
    assert least_on_others(left, torch.tensor([False] * 3), subjects).tolist() == [-1] * 5
    assert least_on_others(left[:1], torch.tensor([True] * 3), ["Ada"]).tolist() == [-1]
    # one subject: each example on the others
    assert least_on_others(left[[0, 2, 2]], torch.tensor([True] * 3), ["Ada"] * 3).tolist() == [1, 2, 2]
    assert taken(left, torch.tensor([1, 1, 0, 0, -1])).nan_to_num(-1).tolist() == [5, 5, 9, 9, -1]


def test_bands_cover_the_model_from_end_to_end():
    assert [widths_of(n) for n in (1, 2, 6, 12, 16, 30, 32)] == [[1], [1], [1, 2], [2, 3], [2, 4], [4, 8], [4, 8]]
    for n in (1, 2, 7, 30):
        bands = [c for c in candidates_of(n) if not c.attention]
        for width in widths_of(n):
            firsts = [c.first for c in bands if c.width == width]
            assert firsts[0] == 0
            assert firsts[-1] == n - width
            assert {layer for c in bands if c.width == width for layer in range(n) if c.holds(layer)} == set(range(n))
    assert passes_of(candidates_of(8), 8) == 1 + 4.5 + 4.375 + 1
