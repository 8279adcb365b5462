"""Whatever fails in the fast engine, in whichever role, the reference measures, and a warning says what failed."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tiny_models import EXAMPLES, load_plain

from uds_lens.audit import _inputs, _runner
from uds_lens.audit._baseline import Baseline
from uds_lens.audit._states import closeness, mean_over_tokens
from uds_lens.audit._two_stage import lost_logprob
from uds_lens.data import encode, make_batch
from uds_lens.data._tokens import TokenSequence
from uds_lens.errors import UdsLensWarning
from uds_lens.patching import _plain, _wave, capture
from uds_lens.patching._blocks import OwnPass
from uds_lens.patching._engines import WavefrontTarget, checked_rows
from uds_lens.patching._plain import capture_all
from uds_lens.results import AuditConfig, DepthAudit, RunOptions

AUTO = RunOptions(device="cpu")


@pytest.fixture(autouse=True)
def expected(audited):
    """What the fast engine gives, measured before anything is made to fail."""
    audited("llama")


def audit(trio):
    return DepthAudit.run(*trio("llama"), EXAMPLES, options=AUTO)


def same(found, expected):
    for name in ("s_full", "s1_delta", "s2_delta", "s2_cosine"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), atol=1e-5, rtol=1e-5)


def test_packed_rows_that_fail_in_every_role(trio, audited, monkeypatch):
    """As with a new release of transformers in which blocks take another argument."""

    def fails(*args, **kwargs):
        raise TypeError("forward() got an unexpected keyword argument 'turbo'")

    monkeypatch.setattr(OwnPass, "run", fails)
    with pytest.warns(UdsLensWarning, match=r"it failed: TypeError: .*unexpected keyword argument 'turbo'"):
        found = audit(trio)
    assert found.provenance["engine"] == "naive"
    same(found, audited("llama"))
    with pytest.raises(TypeError, match="turbo"):  # an engine that was asked for by name fails openly
        DepthAudit.run(*trio("llama"), EXAMPLES, options=replace(AUTO, engine="wavefront"))


def test_packed_rows_that_give_wrong_states(trio, audited, monkeypatch):
    """No error: only a plain forward can tell. The sources are read before `full` is tried."""
    true = _wave.own_passes

    def wrong(*args, **kwargs):
        traces = true(*args, **kwargs)
        for trace in traces:
            trace.states = trace.states.roll(1, dims=1)
        return traces

    for module in (_wave, _plain):
        monkeypatch.setattr(module, "own_passes", wrong)
    with pytest.warns(UdsLensWarning, match="states differ by"):
        found = audit(trio)
    same(found, audited("llama"))


@pytest.fixture
def wrong_then_failing(monkeypatch):
    """The fast engine passes its check, gives wrong values on one batch, and fails on the next."""
    true, calls = WavefrontTarget.patched, []

    def patched(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 1:  # the check
            return true(self, *args, **kwargs)
        if len(calls) <= 3:  # both sources
            return true(self, *args, **kwargs) - 1.0
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(WavefrontTarget, "patched", patched)
    return calls


@pytest.mark.long
def test_what_was_measured_before_the_engine_failed_is_measured_again(trio, audited, wrong_then_failing, monkeypatch):
    """One audit, one engine: values of the fast engine would stand beside those of the reference."""
    with pytest.warns(UdsLensWarning, match="it failed: RuntimeError: mat1 and mat2 shapes"):
        found = DepthAudit.run(*trio("llama"), EXAMPLES, options=replace(AUTO, token_budget=60))
    assert len(wrong_then_failing) == 4
    assert found.provenance["engine"] == "naive"
    assert not any("engine" in warning for warning in found.warnings)
    same(found, audited("llama"))


def test_a_source_that_fails_in_its_second_batch_is_read_again_whole(trio, audited, monkeypatch):
    """And so are the sources before it."""
    calls = []

    def wrong_then_failing(*args, **kwargs):
        calls.append(kwargs["engine"])
        caches = capture_all(*args, **kwargs)
        if kwargs["engine"] == "naive":
            return caches
        if calls.count("wavefront") > 5:  # four batches a source
            raise IndexError("index out of range in self")
        return [replace(cache, states=cache.states * 1.5) for cache in caches]

    monkeypatch.setattr("uds_lens.audit._runner.capture_all", wrong_then_failing)
    with pytest.warns(UdsLensWarning, match="it failed: IndexError: index out of range in self"):
        found = DepthAudit.run(*trio("llama"), EXAMPLES, options=replace(AUTO, token_budget=60))
    assert calls.count("wavefront") == 6
    same(found, audited("llama"))


def test_models_that_were_checked_are_checked_again_only_with_other_weights_or_longer_rows(trio, monkeypatch):
    checks = []
    for module, name in ((_runner, "choose_engine"), (_inputs, "choose_reading")):
        true = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, true=true, name=name, **k: checks.append(name) or true(*a, **k))
    live = [load_plain(path)[0] for path in trio("llama")]

    def checked(examples=EXAMPLES[:3], config=None):
        checks.clear()
        DepthAudit.run(*live, examples, config=config, options=AUTO)
        return sorted(checks)

    assert checked() == ["choose_engine", "choose_reading"]
    assert checked() == checked(EXAMPLES[:2]) == []
    assert checked([replace(e, question=f"{e.question} {e.question}") for e in EXAMPLES[:3]]) == [
        "choose_engine",
        "choose_reading",
    ]
    assert checked(config=AuditConfig(scope="all")) == ["choose_engine", "choose_reading"]  # wider windows
    with torch.no_grad():
        live[0].lm_head.weight.mul_(1.1)
    assert checked() == ["choose_engine"]  # states are read of all kinds alike: the first source is the same


@pytest.fixture
def by_reference(trio):
    """Stage 1, measured by the naive engine."""
    options = replace(AUTO, engine="naive")
    return Baseline.measure(trio("llama").full, trio("llama").retain, EXAMPLES, options=options)


@pytest.mark.parametrize("kept_open", [True, False])
def test_stage_2_takes_the_engine_of_stage_1(trio, kept_open, by_reference, wrong_then_failing):
    if kept_open:
        with by_reference.recorded(options=AUTO) as recorded:
            found = recorded.audit(trio("llama").unlearned)
    else:
        found = by_reference.audit(trio("llama").unlearned, options=AUTO)
    assert found.provenance["engine"] == found.provenance["stage_1"]["engine"] == "naive"
    assert wrong_then_failing == []


def test_stages_of_two_engines_are_cautioned_of(trio, by_reference, wrong_then_failing):
    """Stage 1 was measured while the fast engine worked; the retain model is not there to measure it again."""
    baseline = replace(by_reference, provenance={**by_reference.provenance, "engine": "wavefront"})
    with pytest.warns(UdsLensWarning, match="mat1 and mat2 shapes"):
        found = baseline.audit(trio("llama").unlearned, options=replace(AUTO, token_budget=60))
    assert found.provenance["engine"] == "naive"
    assert any("Stage 1 was measured with the wavefront engine and stage 2 with the naive" in x for x in found.warnings)


class OnApple(torch.Tensor):
    """A tensor on a device that, like Apple's GPU, knows no float64; `cpu()` brings it to one that does."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.cpu:
            return args[0].as_subclass(torch.Tensor)
        found = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(found, OnApple) and found.dtype == torch.float64:
            raise TypeError("the MPS framework doesn't support float64")
        return found


def test_scores_are_put_together_off_a_device_without_float64(opened, unchecked):
    model = opened("llama")
    batch = make_batch(encode(EXAMPLES, model.tokenizer).rows, pad_token_id=3)
    states = capture(model, batch).states
    values = torch.randn(batch.window.shape)
    moved = {k: v.as_subclass(OnApple) for k, v in vars(batch).items() if isinstance(v, torch.Tensor)}
    apple = type(batch)(**{**vars(batch), **moved})
    with pytest.raises(TypeError, match="float64"):
        values.as_subclass(OnApple).double()
    there = values.as_subclass(OnApple)
    assert torch.equal(mean_over_tokens(there, apple), mean_over_tokens(values, batch))
    other = states.roll(1, dims=1)
    on_batch = SimpleNamespace(
        batch=apple, logprobs=there, patched=lambda cache, layers, wanted=None: there[:, None].expand(-1, 4, -1) - 0.5
    )
    nowhere = torch.zeros(states.shape[:2], dtype=torch.bool)
    cache = SimpleNamespace(same_as=lambda own, mask: nowhere.as_subclass(OnApple))
    lost = lost_logprob(on_batch, cache, states, exact_noop=True)
    torch.testing.assert_close(lost, torch.full_like(lost, 0.5))
    assert (lost.dtype, type(lost)) == (torch.float64, torch.Tensor)
    found = closeness(other.as_subclass(OnApple), states.as_subclass(OnApple), apple)
    for one, two in zip(found, closeness(other, states, batch), strict=True):
        assert type(one) is torch.Tensor
        assert torch.equal(one, two)


def sized(*sizes):
    """Rows of so many tokens, with windows of so many."""
    return [
        TokenSequence(ids=(1,) * tokens, targets=(1,) * window, scored=places, patched=places)
        for tokens, window in sizes
        for places in [tuple(range(tokens - window, tokens))]
    ]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (sized((9, 2), (30, 3), (20, 7), (5, 1)), [1, 2]),  # the longest, the widest
        (sized((9, 2), (30, 7), (20, 3), (5, 1)), [1, 3]),  # one row is both: the shortest
        (sized((20, 2), (20, 5), (8, 1)), [1, 2]),  # the widest is among the longest: it pads nothing
        (sized((20, 2), (20, 2), (20, 2)), [0, 1]),  # all alike: two rows all the same
        (sized((20, 2)), [0]),
    ],
)
def test_the_self_check_takes_a_row_that_is_padded(rows, expected):
    assert checked_rows(rows) == expected
