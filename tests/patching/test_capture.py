"""States are read where they are said to be, and patches are written where they are said to be."""

import math

import pytest
import torch
from tiny_models import build_model, each_family, load_plain

from uds_lens.errors import PatchError
from uds_lens.models._anatomy import anatomy_of
from uds_lens.patching import (
    SpanCache,
    SpanPatch,
    _readout as readout,
    capture,
    hook_name,
    run_hooked,
    run_patched,
    target_logprobs,
)
from uds_lens.patching._hooks import as_hooked, run_unhooked

from .plain import inputs

PADDED = "uds_lens.patching._blocks"

SITES = ("resid_post", "resid_mid", "attn_out", "mlp_out")


def picked(states, batch):
    return torch.stack([state[window] for state, window in zip(states, batch.window, strict=True)])


@pytest.mark.parametrize("family", each_family())
def test_resid_post_is_what_leaves_each_layer(opened, batch_of, family):
    model, batch = opened(family), batch_of("answer")
    with torch.no_grad():  # embeddings, then every layer, the last one after the final norm
        expected = model.hf(**inputs(batch), output_hidden_states=True).hidden_states
    cache = capture(model, batch)
    assert cache.states.shape == (8, model.n_layers, batch.window.shape[1], 32)
    assert (cache.n_layers, cache.site, cache.name) == (model.n_layers, "resid_post", model.name)
    for layer in range(model.n_layers - 1):
        torch.testing.assert_close(cache[layer], picked(expected[layer + 1], batch))
    normed = capture(model, batch, last_layer="post_norm")
    assert torch.equal(normed.states[:, :-1], cache.states[:, :-1])
    assert torch.allclose(normed[model.n_layers - 1], picked(expected[-1], batch), atol=1e-6)
    assert not torch.allclose(normed[model.n_layers - 1], cache[model.n_layers - 1], atol=1e-2)


def test_a_last_block_that_cannot_run_on_the_window_alone_says_so(opened, batch_of, monkeypatch, caplog):
    model, batch = opened("llama"), batch_of("answer")
    expected = capture(model, batch).states

    def refuse(*args):
        raise PatchError("a tensor cannot be cut")

    monkeypatch.setattr(f"{PADDED}.run_block", refuse)
    with caplog.at_level("INFO", logger=PADDED):
        found = capture(model, batch).states
    assert torch.allclose(found, expected, atol=1e-6)
    (told,) = caplog.messages
    assert told.endswith("running the last block on the whole sequence, because a tensor cannot be cut")


@pytest.mark.parametrize("family", each_family())
def test_every_point_is_what_transformer_lens_caches_there(opened, batch_of, family):
    model, batch = opened(family), batch_of()
    sites = [site for site in SITES if (family, site) != ("neox", "resid_mid")]
    names = [hook_name(site, layer) for site in sites for layer in range(model.n_layers)]
    kept = {}
    hooks = [(name, lambda a, hook, name=name: kept.__setitem__(name, a)) for name in names]
    given = inputs(batch)
    model.bridge.run_with_hooks(given.pop("input_ids"), fwd_hooks=hooks, **given)
    for site in sites:
        cache = capture(model, batch, site=site)
        for layer in range(model.n_layers):
            assert torch.allclose(cache[layer], picked(kept[hook_name(site, layer)], batch), atol=1e-5)


def test_a_plain_model_or_a_bridge_can_be_read(opened, batch_of):
    batch, model = batch_of(), opened("llama")
    expected = capture(model, batch).states
    live = build_model("llama")
    assert torch.equal(capture(live, batch).states, expected)
    assert torch.allclose(capture(model.bridge, batch).states, expected, atol=1e-5)
    assert as_hooked(model) is model
    assert as_hooked(build_model("llama").to(torch.bfloat16)).dtype == torch.bfloat16
    assert not any(module._forward_hooks for module in live.modules())


def test_a_model_that_skips_a_block_is_refused(batch_of):
    model = as_hooked(build_model("llama"))
    model.anatomy.base.config.num_hidden_layers = 3
    model.anatomy.base.layers = model.anatomy.layers[:3]
    with pytest.raises(PatchError, match=r"3 layers were read in one forward pass instead of 4\. The model skips"):
        capture(model, batch_of())


def test_run_patched_leaves_no_hook_and_refuses_what_does_not_fit(opened, batch_of):
    target, batch = opened("llama"), batch_of()
    cache = capture(target, batch)
    for layer in (-1, 4):
        with pytest.raises(PatchError, match="layers must be distinct numbers from 0 to 3"):
            run_patched(target, batch, cache, layer=layer)
    with pytest.raises(PatchError, match="capture the source on the same TokenBatch"):
        run_patched(target, batch_of("all"), cache, layer=0)
    before = run_patched(target, batch, cache, layer=0)
    changed = SpanCache(cache.states + 1.0, cache.site)
    assert not torch.equal(run_patched(target, batch, changed, layer=0), before)
    assert torch.equal(run_patched(target, batch, cache, layer=0), before)


@pytest.fixture(params=["bridge", "plain"])
def hookable(request, opened, monkeypatch):
    """An open model, by TransformerLens's Bridge and as if it had none."""
    model = opened("llama")
    if request.param == "plain":
        monkeypatch.setattr(type(model), "has_bridge", False)
    return model


def test_a_hook_that_only_looks_changes_nothing(hookable, batch_of):
    batch, seen = batch_of(), []

    def look(activation, hook):
        seen.append(tuple(activation.shape))

    plain, name = run_unhooked(hookable, batch), hook_name("resid_post", 1)
    assert torch.equal(run_hooked(hookable, batch, name, look), plain)
    assert torch.equal(run_hooked(hookable, batch, name, lambda activation, hook: activation), plain)
    assert seen == [(*batch.input_ids.shape, 32)]


def test_hooks_that_do_not_fit_are_refused(hookable, batch_of):
    """A shorter value was spread over all positions, and a number added to them, without a word."""
    batch = batch_of()
    shape = r"must return a tensor of shape \(8, \d+, 32\), or None to leave the activation as it is; got "
    for wrong, got in ((lambda a, hook: a[:, :1], r"shape \(8, 1, 32\)"), (lambda a, hook: 3, "int")):
        with pytest.raises(PatchError, match=shape + got):
            run_hooked(hookable, batch, "blocks.2.hook_resid_post", wrong)
    with pytest.raises(PatchError, match=r"no point 'blocks\.99\.hook_resid_post': the blocks of .* are 0 to 3"):
        run_hooked(hookable, batch, "blocks.99.hook_resid_post", lambda activation, hook: None)


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ("blocks.2.hook_atn_out", r"no point 'blocks\.2\.hook_atn_out'.* Did you mean 'blocks\.2\.hook_attn_out'"),
        ("x", r"has no point 'x'\. `model\.bridge\.hook_dict`"),
        ("blocks.0.attn.hook_hidden_states", r"the hook at 'blocks\.0\.attn\.hook_hidden_states' never ran"),
    ],
)
def test_hooks_at_points_that_are_not_there(opened, batch_of, point, words):
    with pytest.raises(PatchError, match=words):
        run_hooked(opened("llama"), batch_of(), point, lambda activation, hook: None)


def test_a_span_patch_writes_the_patched_positions_only_and_counts(batch_of):
    batch = batch_of("boundary")
    patch = SpanPatch(batch, torch.full((8, batch.window.shape[1], 2), 7.0))
    activation = torch.zeros(*batch.input_ids.shape, 2, dtype=torch.float16)
    patched = patch(activation)
    assert patched.dtype == torch.float16 and not activation.any()
    expected = activation.clone()
    expected[torch.arange(8), batch.window[:, 0]] = 7.0
    assert torch.equal(patched, expected)
    assert (patch.fired, patch.changed) == (1, 8)
    patch(patched)
    assert (patch.fired, patch.changed) == (2, 8)
    assert len(repr(patch)) < 200, "TransformerLens prints each hook it adds"


def test_states_are_the_same_only_if_every_patched_entry_is(batch_of):
    batch = batch_of("boundary")
    own = torch.randn(8, 3, batch.window.shape[1], 4)
    source = own.clone()
    source[2, 1, 0, 3] += 1e-7 + own[2, 1, 0, 3].abs() * 1e-6
    source[5, 0, 3:] += 1.0  # not patched in this scope
    same = SpanCache(source, "resid_post").same_as(own, batch.patched_mask)
    expected = torch.ones(8, 3, dtype=torch.bool)
    expected[2, 1] = False
    assert torch.equal(same, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_log_probabilities_do_not_depend_on_tiles_of_the_vocabulary(opened, monkeypatch, family, dtype):
    """Also where the head is more than a linear map: gemma2 caps its logits."""
    model = opened(family, "full", str(dtype).removeprefix("torch."))
    with torch.no_grad():
        states = torch.randn(3, 40, model.d_model, generator=torch.Generator().manual_seed(1)).to(dtype) * 30
        targets = torch.randint(0, 200, (3, 40))
        every = torch.ones(3, 40, dtype=torch.bool)
        whole = target_logprobs(model.anatomy, states, targets, every)
        monkeypatch.setattr("uds_lens.patching._costs.LOGITS_AT_ONCE", {"cpu": 50 * 37})
        monkeypatch.setattr("uds_lens.patching._costs.READOUT_ROWS_AT_ONCE", 50)
        tiled = target_logprobs(model.anatomy, states, targets, every)
    assert readout._linear[model.anatomy.causal_lm][1] is (family != "gemma2")
    torch.testing.assert_close(tiled, whole, atol=1e-5, rtol=1e-5)


def test_tiles_of_large_logits_lose_nothing():
    """The largest logit comes in the first tile, in the last, or anywhere; exponentials of it alone would overflow."""
    head = torch.nn.Linear(16, 101)
    states = torch.randn(64, 16, generator=torch.Generator().manual_seed(0)) * 100
    targets = torch.arange(64)
    with torch.no_grad():
        head.weight.mul_(10)
        tiled = readout._in_tiles(head, states, targets, tile=10)
        torch.set_default_dtype(torch.bfloat16)  # as another thread has it while it opens a model
        try:
            assert torch.equal(readout._in_tiles(head, states, targets, tile=10), tiled)
        finally:
            torch.set_default_dtype(torch.float32)
        exact = head.double()(states.double()).log_softmax(-1).gather(1, targets[:, None])[:, 0]
    assert float(exact.min()) < -200
    torch.testing.assert_close(tiled.double(), exact, atol=5e-3, rtol=1e-6)


def test_a_head_with_a_hook_or_a_forward_in_the_place_of_another_is_asked_whole(trio, monkeypatch):
    """The head's weights alone would give what the model gave before."""
    model, _ = load_plain(trio("llama").full)
    anatomy, states = anatomy_of(model), torch.randn(1, 4, model.config.hidden_size)
    targets, every = torch.zeros(1, 4, dtype=torch.long), torch.ones(1, 4, dtype=torch.bool)
    monkeypatch.setattr("uds_lens.patching._costs.LOGITS_AT_ONCE", {"cpu": 100})

    def logprobs():
        with torch.no_grad():
            return target_logprobs(anatomy, states, targets, every)

    hook = model.lm_head.register_forward_hook(lambda m, a, logits: logits * 0)
    flat = logprobs()
    hook.remove()
    torch.testing.assert_close(flat, torch.full_like(flat, -math.log(anatomy.d_vocab)))
    before, plain = logprobs(), model.forward

    def colder(*args, **kwargs):
        output = plain(*args, **kwargs)
        output.logits = output.logits * 0.25
        return output

    model.forward = colder
    after = logprobs()
    expected = (anatomy.unembed(anatomy.final_norm(states[0])).float()).log_softmax(-1)[:, 0]
    torch.testing.assert_close(after[0], expected)
    assert (after - before).abs().max() > 1e-3
