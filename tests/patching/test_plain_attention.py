"""Attention with few passes over its scores: the same as the plain formula, and only where a family's is that."""

import pytest
import torch
from tiny_models import each_family
from torch import nn

from uds_lens.patching import open_target, record
from uds_lens.patching._packing import is_plain
from uds_lens.patching._states import SpanCache


@pytest.mark.parametrize("family", each_family())
def test_a_familys_attention_is_plain_unless_it_caps_its_scores(opened, batch_of, family):
    assert set(record(opened(family), batch_of(), packed=True).plain) == {family != "gemma2"}


def test_in_half_precision_a_familys_own_attention_runs(opened, batch_of):
    assert set(record(opened("llama", "full", "bfloat16"), batch_of(), packed=True).plain) == {False}


def heads_and_mask():
    """Query, key and value of three tokens, two query heads to a key head, and a mask that hides nothing."""
    return (torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 8)), torch.zeros(1, 1, 3, 3)


def test_a_cap_that_is_set_later_is_seen(opened, batch_of):
    model = opened("gemma3")
    attention = model.anatomy.layers[0].self_attn
    assert all(record(model, batch_of(), packed=True).plain)
    eager = type(attention).__dict__["forward"].__globals__["eager_attention_forward"]
    for cap, plain in ((None, True), (50.0, False), (None, True)):
        assert is_plain(attention, eager, *heads_and_mask(), (), {"scaling": 0.5, "softcap": cap}) is plain, cap


def with_sink(module, query, key, value, mask, *, scaling, sink=0.0, **options):
    """Attention with one more place to look at, which has no value."""
    key, value = (t.repeat_interleave(query.shape[1] // t.shape[1], 1) for t in (key, value))
    scores = scaling * query @ key.transpose(2, 3) + mask
    weights = torch.cat([scores, torch.full_like(scores[..., :1], sink)], -1).softmax(-1)[..., :-1]
    return (weights @ value).transpose(1, 2), None


def test_a_sink_is_seen_and_what_the_attention_cannot_take_is_left_to_the_family():
    (heads, mask), module = heads_and_mask(), nn.Identity()
    assert not is_plain(module, with_sink, heads, mask, (), {"scaling": 0.5})
    none = {"scaling": 0.5, "sink": -float("inf")}
    assert is_plain(module, with_sink, heads, mask, (), none)
    for other in (None, mask.expand(1, 4, 3, 3), mask.double()):
        assert not is_plain(module, with_sink, heads, other, (), none)
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
