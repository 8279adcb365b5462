"""Rows end to end in one packed row: the same numbers as padded rows, in every family whose blocks allow it."""

import gc
import weakref

import pytest
import torch
from tiny_models import EXAMPLES, build_tokenizer, each_family

from uds_lens.data import encode, make_batch
from uds_lens.data._tokens import TokenSequence
from uds_lens.errors import UdsLensWarning
from uds_lens.patching import open_target
from uds_lens.patching._blocks import run_block
from uds_lens.patching._engines import choose_engine
from uds_lens.patching._packing import PackedAttention
from uds_lens.patching._plain import capture
from uds_lens.patching._side_by_side import PACKED_FAMILIES, may_be_packable, packable
from uds_lens.patching._states import SpanCache
from uds_lens.patching._wave import own_passes


@pytest.mark.parametrize("family", each_family())
def test_the_wavefront_gives_the_same_on_packed_and_on_padded_rows(opened, batch_of, family):
    model = opened(family)
    assert packable(model)
    assert model.hf.config.get_text_config().model_type in PACKED_FAMILIES
    for batch in (
        batch_of(),
        batch_of(side="right"),
        batch_of(indices=(2,)),
        begun_alike("left"),
        begun_alike("right"),
    ):
        cache = probe(model, batch)
        packed, padded = (open_target(model, batch, packed=packed) for packed in (True, False))
        assert (packed.recording.windows is None, padded.recording.windows is None) == (False, True)
        torch.testing.assert_close(packed.states, padded.states, atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(packed.patched(cache), padded.patched(cache), atol=1e-5, rtol=1e-5, equal_nan=True)
        torch.testing.assert_close(packed.logprobs, padded.logprobs, atol=1e-5, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize(("family", "packed"), [("llama", False), ("gemma2", True)])
def test_rows_resumed_in_groups_give_the_same(opened, batch_of, family, packed, monkeypatch):
    model, batch = opened(family), batch_of()
    found, groups = {}, {}
    monkeypatch.setattr("uds_lens.patching._costs.CALL", {"cpu": (1e9, 0)})
    for room in (1 << 30, 1):
        monkeypatch.setattr("uds_lens.patching._costs.VARIANT_STATES", {"cpu": room})
        target = open_target(model, batch, packed=packed)
        groups[room] = [(start, stop) for start, stop, _ in target.recording.row_groups]
        found[room] = target.patched(probe(model, batch))
    assert groups == {1 << 30: [(0, len(batch))], 1: [(i, i + 1) for i in range(len(batch))]}
    torch.testing.assert_close(found[1], found[1 << 30], atol=1e-5, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("cut", [False, True], ids=["", "in groups"])
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("family", each_family(["gemma2", "neox"]))
def test_a_recording_counts_what_resuming_will_hold(opened, batch_of, family, packed, cut, monkeypatch):
    if cut:
        monkeypatch.setattr("uds_lens.patching._costs.VARIANT_STATES", {"cpu": 1})
    model, batch = opened(family), batch_of()
    target = open_target(model, batch, packed=packed)
    assert (len(target.recording.row_groups) > 1) == cut
    counted = target.recording.nbytes
    before = held(target.recording)
    target.patched(probe(model, batch))
    assert counted == target.recording.nbytes
    assert before < held(target.recording) <= counted <= 1.25 * held(target.recording)


def held(recording):
    """Bytes of all tensors that a recording and its groups refer to, each storage once."""
    found, seen, left = {}, set(), [recording, *(group for _, _, group in recording.row_groups)]
    while left:
        each = left.pop()
        if id(each) in seen or each is recording.anatomy or each is recording.batch:
            continue
        seen.add(id(each))
        if isinstance(each, torch.Tensor):
            found[each.untyped_storage().data_ptr()] = each.untyped_storage().nbytes()
        elif isinstance(each, dict):
            left += each.values()
        elif isinstance(each, list | tuple):
            left += each
        elif type(each).__module__.startswith("uds_lens.patching"):
            left += vars(each).values()
    return sum(found.values())


@pytest.mark.parametrize("packed", [True, False])
def test_a_recording_is_freed_with_its_last_reference(opened, batch_of, packed):
    """Not when garbage is next collected: it holds the keys and values of a batch."""
    model = opened("llama")
    target = open_target(model, batch_of(), packed=packed)
    target.patched(probe(model, batch_of()))
    alive = weakref.ref(target.recording)
    gc.disable()
    del target
    freed = alive() is None
    gc.enable()
    assert freed


def test_models_that_may_count_on_padded_rows_are_not_packed(opened, monkeypatch):
    model = opened("llama")
    hook = model.hf.model.layers[1].mlp.register_forward_hook(lambda m, a, out: None)
    found = packable(model), may_be_packable(model, "llama")
    hook.remove()
    assert found == (False, False)
    assert packable(model)
    assert may_be_packable(model, "llama")
    assert not may_be_packable("a/checkpoint", "deepseek_v32")
    assert not may_be_packable(model.bridge, "llama")
    monkeypatch.setattr(model.hf.config, "_attn_implementation", "sdpa")
    assert not packable(model)


def test_the_self_check_sees_packed_rows_that_are_wrong(opened, batch_of, monkeypatch):
    model, batch, true = opened("llama"), batch_of(), PackedAttention.require_once
    assert choose_engine(model, batch, packed=True) == "wavefront"

    def wrong(self):
        true(self)
        for index in (self.packing.order, *self.packing._indices.values()):
            index.copy_(index.flip(0))

    monkeypatch.setattr(PackedAttention, "require_once", wrong)
    with pytest.warns(UdsLensWarning, match="does not reproduce"):
        assert choose_engine(model, batch, packed=True) == "naive"


def begun_alike(side):
    """Rows behind one beginning, longer than any sliding window; one row ends in another, two are the same text."""
    rows = encode(EXAMPLES[:4], build_tokenizer()).rows
    begun = [
        TokenSequence(
            ids=(1, *range(20, 31), *row.ids),
            targets=row.targets,
            scored=tuple(12 + place for place in row.scored),
            patched=tuple(12 + place for place in row.patched),
        )
        for row in rows
    ]
    first, whole = begun[0], begun[2]
    part = TokenSequence(ids=whole.ids[:20], targets=(9,), scored=(19,), patched=(18, 19))
    other = TokenSequence(ids=first.ids, targets=first.targets[:1], scored=first.scored[:1], patched=first.patched[:1])
    return make_batch([*begun, part, other], pad_token_id=3, padding_side=side)


@pytest.mark.parametrize("side", ["left", "right"])
def test_what_rows_begin_with_is_run_once(opened, side):
    model, batch, tokens = opened("llama"), begun_alike(side), set()
    hook = model.anatomy.layers[1].mlp.register_forward_hook(lambda block, args, out: tokens.add(args[0].shape[1]))
    own_passes(model, [batch], keep_prefix=False, packed=True)
    hook.remove()
    texts = [ids[mask.bool()].tolist() for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True)]
    assert tokens == {len({tuple(text[: end + 1]) for text in texts for end in range(len(text))})}


def test_attention_is_as_it_was_after_an_error(opened, batch_of, monkeypatch):
    model, batch = opened("llama"), batch_of()

    def breaks(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(model.anatomy.layers[2].mlp, "forward", breaks)
    with pytest.raises(KeyboardInterrupt):
        capture(model, batch, packed=True)
    assert model.hf.config._attn_implementation == "eager"
    assert all("forward" not in vars(block) for block in model.anatomy.layers)


def probe(model, batch):
    own = capture(model, batch)
    return SpanCache(states=own.states.roll(1, dims=1) * 0.9, site="resid_post", name="probe")


def test_a_variant_runs_only_the_rows_that_want_its_layer(opened, batch_of, monkeypatch):
    model, batch = opened("llama"), batch_of()
    wanted = torch.zeros(len(batch), model.n_layers, dtype=torch.bool)
    wanted[2, 0] = wanted[:2, 1] = True
    monkeypatch.setattr("uds_lens.patching._costs.CALL", {"cpu": (1e9, 0)})  # so that all rows are one group
    cache, tokens = probe(model, batch), []
    true = run_block
    monkeypatch.setattr("uds_lens.patching._wave.run_block", lambda *a: tokens.append(a[2].shape[1]) or true(*a))
    target = open_target(model, batch, packed=True)
    found, widths = target.patched(cache, wanted=wanted), batch.window_mask.sum(1)
    assert tokens == [int(widths[2]), *[int(widths[:3].sum())] * (model.n_layers - 2)]
    expected = target.patched(cache).masked_fill(~wanted[..., None], torch.nan)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5, equal_nan=True)
