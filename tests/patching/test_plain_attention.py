"""Attention with few passes over its scores: the same as the plain formula, and only where a family's is that."""

import pytest
import torch
from tiny_models import each_family
from torch import nn

from uds_lens.patching import open_target, record
from uds_lens.patching._packing import is_plain, plain_attention
from uds_lens.patching._states import SpanCache

LOWEST = torch.finfo(torch.float32).min


def by_formula(query, key, value, mask, scaling):
    """One row, one query head: softmax(scaling Q K^T + mask) V."""
    return (scaling * query @ key.T + mask).softmax(-1) @ value


@pytest.mark.parametrize("before", [None, 0, 4])
def test_every_copy_sees_the_past_and_itself(before):
    batch, groups, copies, heads, width, d = 2, 2, 3, 2, 5, 8
    random = torch.Generator().manual_seed(0)
    query = torch.randn(batch, groups, copies, heads, width, d, generator=random)
    key, value = (torch.randn(batch, groups, copies * width, d, generator=random) for _ in range(2))
    past = None
    if before is not None:  # a view, as recorded keys are cut to what stands before the window
        past = tuple(torch.randn(batch, groups, before + 2, d, generator=random)[:, :, :before] for _ in "kv")
    keys = (before or 0) + width
    mask = torch.where(torch.rand(batch, 1, width, keys, generator=random) < 0.3, LOWEST, 0.0)
    mask[..., -1] = 0.0
    found = plain_attention(query, key, value, mask, past=past, scaling=0.3)
    for row, group, copy, head in torch.cartesian_prod(*map(torch.arange, (batch, groups, copies, heads))):
        own = slice(int(copy) * width, (int(copy) + 1) * width)
        k, v = (
            torch.cat([past[i][row, group], t[row, group, own]]) if past else t[row, group, own]
            for i, t in enumerate((key, value))
        )
        expected = by_formula(query[row, group, copy, head], k, v, mask[row, 0], 0.3)
        torch.testing.assert_close(found[row, group, copy, head], expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("family", each_family())
def test_a_familys_attention_is_plain_unless_it_caps_its_scores(opened, batch_of, family):
    assert set(record(opened(family), batch_of(), packed=True).plain) == {family != "gemma2"}


def test_in_half_precision_a_familys_own_attention_runs(opened, batch_of):
    assert set(record(opened("llama", "full", "bfloat16"), batch_of(), packed=True).plain) == {False}


def test_a_cap_that_is_set_later_is_seen(opened, batch_of):
    model = opened("gemma3")
    attention = [block.self_attn for block in model.anatomy.layers]
    assert all(record(model, batch_of(), packed=True).plain)
    eager = type(attention[0]).__dict__["forward"].__globals__["eager_attention_forward"]
    heads = (torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 8))
    mask = torch.zeros(1, 1, 3, 3)
    for cap, plain in ((None, True), (50.0, False), (None, True)):
        told = {"scaling": 0.5, "softcap": cap}
        assert is_plain(attention[0], eager, heads, mask, (), told) is plain, cap


def with_sink(module, query, key, value, mask, *, scaling, sink=0.0, **options):
    """Attention with one more place to look at, which has no value."""
    key, value = (t.repeat_interleave(query.shape[1] // t.shape[1], 1) for t in (key, value))
    scores = scaling * query @ key.transpose(2, 3) + mask
    weights = torch.cat([scores, torch.full_like(scores[..., :1], sink)], -1).softmax(-1)[..., :-1]
    return (weights @ value).transpose(1, 2), None


def test_a_sink_is_seen_and_what_the_attention_cannot_take_is_left_to_the_family():
    heads = (torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 8))
    mask, told = torch.zeros(1, 1, 3, 3), {"scaling": 0.5}
    assert not is_plain(nn.Identity(), with_sink, heads, mask, (), told)
    module, none = nn.Identity(), {**told, "sink": -float("inf")}
    assert is_plain(module, with_sink, heads, mask, (), none)
    assert not is_plain(module, with_sink, heads, None, (), none)
    assert not is_plain(module, with_sink, heads, mask.expand(1, 4, 3, 3), (), none)
    assert not is_plain(module, with_sink, heads, mask.double(), (), none)
    assert not is_plain(module, with_sink, heads, mask, (0.1,), none)


def test_masks_of_plain_attention_do_not_grow_with_the_variants(opened, batch_of):
    model = opened("llama")
    target = open_target(model, batch_of(), packed=True)
    recording = target.recording
    target.patched(SpanCache(target.states * 0.9, "resid_post"))
    width = recording.batch.window.shape[1]
    masks = [cut for _, _, group in recording.row_groups for cut in group.cuts.values() if cut.ndim == 4]
    assert masks
    assert all(mask.shape[2] <= width for mask in masks)
