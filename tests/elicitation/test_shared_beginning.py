"""What candidates have in common is read once, and the losses stay what they are."""

import pytest
import torch

from uds_lens.elicitation._gcg import SharedBeginning, target_loss

TARGET = (5, 9, 7)
CURRENT = [1, 11, 12, 13, 14, 15, 16, 17, 18, 19]
START = 3
SWAPS = [(7, 20), (3, 21), (5, 22), (8, 23), (3, 24), (5, 25), (4, 26)]
"""Place and token, from the suffix's first token on."""


def _rows():
    return [[*CURRENT[:place], token, *CURRENT[place + 1 :]] for place, token in SWAPS]


def _counted(model, run):
    """Tokens that went through the first block."""
    read = []
    handle = model.anatomy.layers[0].register_forward_pre_hook(
        lambda module, args, kwargs: read.append(
            (args[0] if args else kwargs["hidden_states"]).shape[:2].numel()
        ),
        with_kwargs=True,
    )
    try:
        run()
    finally:
        handle.remove()
    return sum(read)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
@pytest.mark.parametrize("rows_at_once", [1, 3, 64])
def test_losses_are_those_of_whole_prompts(opened, family, rows_at_once):
    model = opened(family)
    shared = SharedBeginning(model, TARGET, rows_at_once=rows_at_once)
    with torch.no_grad():
        for current, rows in (
            (CURRENT, [CURRENT]),
            (CURRENT, _rows()),
            (_rows()[2], [_rows()[2]]),
            ([2, *CURRENT[1:]], [[2, *row[1:]] for row in _rows()]),  # another beginning is read anew
        ):
            expected = target_loss(model, torch.tensor(rows), TARGET)
            found = shared.losses(rows, current, START)
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_each_row_reads_only_what_follows_its_swap(opened):
    model = opened("llama")
    shared = SharedBeginning(model, TARGET, rows_at_once=1)
    after = sum(len(CURRENT) - place + len(TARGET) for place, _ in SWAPS)
    last = max(place for place, _ in SWAPS)
    assert _counted(model, lambda: shared.losses(_rows(), CURRENT, START)) == after + last
    again = _counted(model, lambda: shared.losses(_rows(), CURRENT, START))
    assert again == after + last - START, "what stands before the suffix was read a second time"


def test_a_batch_shares_what_stands_before_its_first_swap(opened):
    model = opened("llama")
    shared = SharedBeginning(model, TARGET, rows_at_once=3)
    whole = len(CURRENT) + len(TARGET)
    batches = [(3, 3), (3, 5), (1, 8)]  # rows, and the first swap among them: 3 3 4, 5 5 7, 8
    expected = sum(rows * (whole - first) for rows, first in batches) + 8
    assert _counted(model, lambda: shared.losses(_rows(), CURRENT, START)) == expected
    plain = SharedBeginning(model, TARGET, rows_at_once=3, cached=False)
    assert _counted(model, lambda: plain.losses(_rows(), CURRENT, START)) == len(SWAPS) * whole
