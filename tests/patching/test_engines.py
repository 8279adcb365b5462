"""The wavefront is exact: equal to one hooked forward per layer, for every family, scope, site and padding side."""

import pytest
import torch
from tiny_models import build_model, each_family

from uds_lens.data import make_batch
from uds_lens.data._tokens import TokenSequence
from uds_lens.errors import PatchError, UdsLensWarning
from uds_lens.patching import _window_hooks, capture, open_target, patched_logprobs
from uds_lens.patching._engines import WavefrontTarget, choose_engine, fall_back
from uds_lens.patching._hooks import as_hooked
from uds_lens.patching._states import SpanCache

TOLERANCE = 1e-5
PARALLEL = {"neox"}
FUSED = {"gpt2", "phi3", "neox"}


def gap(opened, family, batch, site="resid_post", last_layer="resid_post"):
    """Largest difference between the engines in nats; also that both mark the same entries as scored."""
    target = opened(family)
    cache = capture(opened(family, "retain"), batch, site=site, last_layer=last_layer)
    fast = patched_logprobs(target, batch, cache, engine="wavefront")
    slow = patched_logprobs(target, batch, cache, engine="naive")
    scored = batch.scored_mask[:, None].expand_as(fast)
    assert torch.equal(~fast.isnan(), scored)
    assert torch.equal(~slow.isnan(), scored)
    unpatched = open_target(target, batch).logprobs[:, None]
    assert (fast - unpatched)[scored].abs().max() > 0.01, "the patch does nothing: the comparison proves nothing"
    return float((fast - slow)[scored].abs().max())


@pytest.mark.parametrize("family", each_family())
def test_wavefront_equals_naive_on_every_scope_and_padding_side(opened, batch_of, family):
    for scope, side in (("entity", "left"), ("boundary", "right"), ("answer", "left"), ("all", "right")):
        assert gap(opened, family, batch_of(scope, side)) <= TOLERANCE, (scope, side)


@pytest.mark.parametrize("family", each_family())
def test_wavefront_equals_naive_on_every_site(opened, batch_of, family):
    batches = {"resid_mid": ("entity", "left"), "attn_out": ("answer", "right"), "mlp_out": ("entity", "right")}
    for site, (scope, side) in batches.items():
        if site != "resid_mid" or family not in PARALLEL:
            assert gap(opened, family, batch_of(scope, side), site=site) <= TOLERANCE, (site, scope, side)


@pytest.mark.parametrize(
    ("family", "scope", "last_layer", "scores"),
    [
        ("llama", "entity", "post_norm", None),
        ("gpt2", "entity", "post_norm", None),
        ("llama", "answer", "resid_post", 1),  # variants ride in several parts
        ("gemma3", "answer", "resid_post", 1),
    ],
)
def test_wavefront_equals_naive_in_other_ways_to_run(opened, batch_of, monkeypatch, family, scope, last_layer, scores):
    if scores:
        monkeypatch.setattr("uds_lens.patching._costs.SCORES_AT_ONCE", scores)
    assert gap(opened, family, batch_of(scope), last_layer=last_layer) <= TOLERANCE


def test_wavefront_equals_naive_where_the_patch_begins_at_the_first_token_and_ends_before_the_score(opened):
    one_token = TokenSequence(ids=(5,), targets=(9,), scored=(0,), patched=(0,))
    ahead = TokenSequence(ids=(5, 6, 7, 8, 9), targets=(10,), scored=(4,), patched=(1, 2))
    behind = TokenSequence(ids=(1, 7, 9), targets=(9, 4, 4), scored=(0, 1, 2), patched=(1,))
    for side in ("left", "right"):
        batch = make_batch([one_token, ahead, behind], pad_token_id=3, padding_side=side)
        assert gap(opened, "llama", batch) <= TOLERANCE
        assert gap(opened, "mistral", batch) <= TOLERANCE


@pytest.mark.parametrize("engine", ["wavefront", "naive"])
@pytest.mark.parametrize("family", each_family(["llama", "phi3", "gemma2", "neox"]))
def test_self_patching_changes_nothing_at_any_layer(opened, batch_of, family, engine):
    batch = batch_of("answer")
    target = open_target(opened(family), batch, engine=engine)
    own = capture(opened(family), batch)
    difference = (target.patched(own) - target.logprobs[:, None]).double().nanmean(-1)
    # The naive engine runs TransformerLens's own attention where a family fuses query, key and value.
    tolerance = 2e-6 if engine == "naive" and family in FUSED else 1e-6
    assert difference.abs().max() <= tolerance
    assert torch.equal(target.states, own.states)


@pytest.mark.parametrize("engine", ["wavefront", "naive"])
def test_layers_that_were_not_asked_for_are_nan(opened, batch_of, engine):
    batch = batch_of()
    target = open_target(opened("llama"), batch, engine=engine)
    cache = capture(opened("llama", "retain"), batch)
    some, everything = target.patched(cache, layers=[3, 1]), target.patched(cache)
    assert some[:, [0, 2]].isnan().all()
    scored = batch.scored_mask[:, None].expand(-1, 2, -1)
    torch.testing.assert_close(some[:, [1, 3]][scored], everything[:, [1, 3]][scored], atol=TOLERANCE, rtol=0)
    assert target.patched(cache, layers=[]).isnan().all()


@pytest.mark.parametrize("engine", ["wavefront", "naive"])
def test_layers_that_do_not_exist_and_caches_of_another_batch_are_refused(opened, batch_of, engine):
    batch, source = batch_of(), opened("llama", "retain")
    target = open_target(opened("llama"), batch, engine=engine)
    for layers in ([-1], [4], [0, 0]):
        with pytest.raises(PatchError, match=r"layers must be distinct numbers from 0 to 3"):
            target.patched(capture(source, batch), layers=layers)
    with pytest.raises(PatchError, match=r"shape \(2, 4, .*capture the source on the same TokenBatch"):
        target.patched(capture(source, batch_of("entity", "left", (0, 1))))


def test_the_naive_engine_says_where_a_patch_has_no_effect(opened, batch_of, monkeypatch):
    batch = batch_of()
    target = open_target(opened("llama"), batch, engine="naive")
    cache = capture(opened("llama", "retain"), batch)
    unpatched = target._logits

    def ignores_the_hook(model, batch, hooks, *, plain):
        ((_, hook),) = hooks
        hook(torch.zeros(*batch.input_ids.shape, model.d_model))
        return unpatched

    monkeypatch.setattr(_window_hooks, "run_with", ignores_the_hook)
    with pytest.raises(PatchError, match=r"blocks\.0\.hook_resid_post changed \d+ positions, but the logits stayed"):
        target.patched(cache)
    monkeypatch.setattr(_window_hooks, "run_with", lambda *_, **__: unpatched)
    with pytest.raises(PatchError, match=r"ran 0 times instead of once"):
        target.patched(cache)


def spoilt(change):
    """The wavefront with a mistake in what it returns."""
    true = WavefrontTarget.patched
    return lambda *args, **kwargs: change(true(*args, **kwargs))


def fail(_):
    raise PatchError("no key-value cache\nsecond line")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda values: values - 0.01, r"log-probabilities differ by 0\.01 nats \(allowed 0\.001\)"),
        (lambda values: values * torch.nan, "NaN with one engine only"),
        (fail, "it failed: PatchError: no key-value cache"),
    ],
)
def test_the_check_falls_back_with_a_warning_where_the_wavefront_is_wrong(opened, batch_of, monkeypatch, change, why):
    monkeypatch.setattr(WavefrontTarget, "patched", spoilt(change))
    with pytest.warns(UdsLensWarning, match=rf"\(LlamaForCausalLM\): the fast engine .*{why}.*naive engine"):
        assert choose_engine(opened("llama"), batch_of("entity", "left", (1, 2))) == "naive"


def test_half_precision_agrees_within_its_own_rounding_and_sources_are_cast_to_it(opened, batch_of):
    batch, target = batch_of(), opened("llama", "full", "bfloat16")
    wide, cache = (capture(opened("llama", "retain", dtype), batch) for dtype in ("float32", "bfloat16"))
    assert cache.states.dtype == torch.bfloat16
    fast, slow = (patched_logprobs(target, batch, cache, engine=engine) for engine in ("wavefront", "naive"))
    assert fast.dtype == slow.dtype == torch.float32
    exact = patched_logprobs(opened("llama"), batch, wide)
    scored = batch.scored_mask[:, None].expand_as(fast)
    # bfloat16 keeps 8 bits: logits near 8 come in steps of 0.06, so single tokens may move by a few steps.
    assert (fast - slow)[scored].abs().mean() < 0.05
    assert (fast - exact)[scored].abs().mean() < 0.1
    narrow = SpanCache(wide.states.bfloat16(), wide.site)
    for engine in ("wavefront", "naive"):
        results = [patched_logprobs(target, batch, each, engine=engine) for each in (wide, narrow)]
        assert torch.equal(*(values.nan_to_num(0.0) for values in results))


def test_each_model_that_falls_back_is_told_of_though_they_share_a_name():
    for scale in (2.0, 3.0):
        live = build_model("llama")
        with torch.no_grad():
            live.model.layers[0].mlp.down_proj.weight.mul_(scale)
        model = as_hooked(live)
        with pytest.warns(UdsLensWarning, match=r"it failed: TypeError: turbo"):
            assert fall_back(model, TypeError("turbo")) == "naive"
        fall_back(model, TypeError("turbo"))  # once for each cause
        with pytest.warns(UdsLensWarning, match="it failed: KeyError"):
            fall_back(model, KeyError("turbo"))
