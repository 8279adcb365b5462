"""Memory: states that spill, batches that halve, recordings that are kept or not, and the estimate before a run."""

import logging
from dataclasses import replace

import pytest
import torch
from tiny_models import EXAMPLES, GEMMA3N, GEMMA4, build_model, load_plain
from transformers import CTRLConfig, Gemma3nTextConfig, Gemma4TextConfig, LlavaConfig, MambaConfig, RwkvConfig

from uds_lens.audit import Baseline, _runner
from uds_lens.audit._inputs import make_plan
from uds_lens.audit._memory import GIB, MemoryEstimate, estimate_memory, run_halving, weight_sizes
from uds_lens.audit._runner import StateStore
from uds_lens.errors import ModelError, UdsLensWarning
from uds_lens.patching import open_target
from uds_lens.results import AuditConfig, DepthAudit, RunOptions

CPU = RunOptions(device="cpu", engine="wavefront", progress=False)
CONFIG = AuditConfig()
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 200}


@pytest.fixture(scope="module")
def plan(trio):
    return make_plan({"full": trio("llama").full}, EXAMPLES, config=CONFIG, options=CPU)


@pytest.fixture(scope="module")
def baseline(trio):
    return Baseline.measure(trio("llama").full, trio("llama").retain, EXAMPLES, options=CPU)


@pytest.mark.parametrize("budget", [0.0, 4.0])
def test_states_beyond_the_budget_go_to_disk_and_the_numbers_stay(audited, trio, tmp_path, monkeypatch, budget):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    put, seen = StateStore.put, []

    def spy(store, batch, states):
        put(store, batch, states)
        seen.append(store.spilled)

    monkeypatch.setattr(StateStore, "put", spy)
    audit = DepthAudit.run(*trio("llama"), EXAMPLES, options=replace(CPU, memory_gib=budget))
    assert torch.equal(audit.s2_delta, audited("llama").s2_delta)
    assert max(seen) == (0 if budget else len(EXAMPLES) - len(audit.skipped))
    assert list(tmp_path.glob("uds_lens-states-*")) == []


def failing(limit, log, error=None):
    def work(rows):
        if len(rows) > limit:
            raise error or torch.OutOfMemoryError("CUDA out of memory")
        log.append(rows)

    return work


def test_a_batch_that_does_not_fit_is_halved_until_it_does():
    log = []
    with pytest.warns(UdsLensWarning, match="batches are halved, which does not change results"):
        run_halving([5, 1, 4, 2, 3], failing(2, log))
    assert log == [[5, 1], [4], [2, 3]]
    for about in ("read full 4096", "read full 2048"):  # another run says so too
        with pytest.warns(UdsLensWarning, match="batches are halved"):
            run_halving([1, 2], failing(1, []), about=about)
        run_halving([1, 2], failing(1, []), about=about)  # said already
    with pytest.raises(RuntimeError, match="size mismatch"):
        run_halving([1, 2], failing(0, [], RuntimeError("size mismatch")))


def test_a_single_row_that_does_not_fit_is_an_error_with_the_ways_out():
    with (
        pytest.warns(UdsLensWarning),
        pytest.raises(ModelError, match=r"memory ran out on a single example: .*device_map"),
    ):
        run_halving([1, 2], failing(0, []))


def one_row_at_a_time(monkeypatch, name):
    """Let a step of the runner take one row and no more; return the sizes that it was asked for."""
    true, tried = getattr(_runner, name), []

    def small(model, batch, **options):
        tried.append(len(batch) if name == "open_target" else sum(map(len, batch)))
        if tried[-1] > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return true(model, batch, **options)

    monkeypatch.setattr(_runner, name, small)
    return tried


@pytest.mark.parametrize("step", ["capture_all", "open_target"])
def test_running_out_of_memory_on_a_batch_changes_no_result(audited, trio, monkeypatch, step):
    expected = audited("llama")
    one_row_at_a_time(monkeypatch, step)
    with pytest.warns(UdsLensWarning, match="memory ran out on a batch"):
        audit = DepthAudit.run(*trio("llama"), EXAMPLES, options=CPU)
    torch.testing.assert_close(audit.s2_delta, expected.s2_delta, atol=1e-5, rtol=0)
    assert not audit.s2_delta.isnan().any()


def test_a_recorded_baseline_gives_the_same_audits(audited, baseline, trio):
    paths = trio("llama")
    with baseline.recorded(options=CPU) as recorded:
        audits = [recorded.audit(model) for model in (paths.unlearned, paths.full, paths.retain, paths.unlearned)]
        with pytest.raises(ModelError, match="are incompatible"):
            recorded.audit(trio("qwen2").unlearned)
    assert torch.equal(audits[0].s2_delta, audited("llama").s2_delta)
    assert torch.equal(audits[3].s2_delta, audits[0].s2_delta)
    assert (audits[1].uds, audits[2].uds) == (0.0, 1.0)


@pytest.mark.parametrize(("gib", "recordings"), [(4.0, 1), (0.0, 3)])
def test_batches_are_recorded_once_within_the_budget(baseline, trio, monkeypatch, gib, recordings):
    true, made = _runner.open_target, []
    monkeypatch.setattr(_runner, "open_target", lambda *a, **k: made.append(1) or true(*a, **k))
    with baseline.recorded(options=replace(CPU, memory_gib=gib)) as recorded:
        n_batches = len(recorded.plan.batches)
        for _ in range(3):
            recorded.audit(trio("llama").unlearned)
    assert len(made) == recordings * n_batches


def test_the_estimate_counts_weights_states_and_batches(plan):
    model = build_model("llama")
    weights = sum(p.numel() for p in model.parameters()) * 4
    windows = sum(len(row.window) for row in plan.encoded.rows)

    def of(**changes):
        settings = {"n_sources": 2, "dtype": "float32", "device": "cpu", "states_budget": GIB, **changes}
        return estimate_memory(model.config, plan, **settings)

    assert of().weights == weights
    assert of().states == 2 * windows * 4 * 32 * 4
    assert of(states_budget=100).states == 100
    assert of(dtype="bfloat16").weights == weights // 2
    assert of().available > 0


@pytest.mark.parametrize("packed", [True, False])
def test_the_estimate_of_kept_recordings_is_what_they_hold(plan, opened, packed):
    model, plan = opened("llama"), replace(plan, packed=packed)
    held = sum(
        open_target(model, plan.batch_of(rows), packed=packed).recording.nbytes for rows in plan.batches_for(model)
    )
    given = {"n_sources": 0, "dtype": "float32", "device": "cpu", "states_budget": GIB}
    estimate = estimate_memory(model.hf.config, plan, keep=True, **given)
    assert 0.5 < estimate.states / held < 2
    assert estimate_memory(model.hf.config, plan, **given).states == 0


def test_the_estimate_of_a_streamed_model_holds_a_block_and_the_bytes_of_the_next(plan):
    def weights(dtype, **changes):
        config = build_model("llama", **changes).config
        config.dtype = torch.bfloat16  # as its files hold it
        settings = {"n_sources": 2, "dtype": dtype, "device": "cpu", "states_budget": GIB, "streamed": True}
        return estimate_memory(config, plan, **settings).weights

    model = build_model("llama", intermediate_size=4096)
    block = sum(p.numel() for p in model.model.layers[0].parameters())
    norm = model.model.norm.weight.numel()
    assert weights("float32", intermediate_size=4096) == block * (4 + 2) + norm * 4
    assert weights("bfloat16", intermediate_size=4096) == block * (2 + 2) + norm * 2
    assert weights("float32", vocab_size=100_000) == 100_000 * 32 * 4 + norm * 4  # the head alone is more
    # a tied head is the embedding, and stays beside the blocks
    tied = weights("float32", intermediate_size=4096, tie_word_embeddings=True)
    assert tied == block * (4 + 2) + (model.config.vocab_size * 32 + norm) * 4


def test_blocks_of_different_sizes_count_as_the_largest(plan):
    def of(config):
        given = {"n_sources": 2, "dtype": "float32", "device": "cpu", "states_budget": GIB, "keep": True}
        found = estimate_memory(config, plan, **given)
        return found.states, found.batch

    assert of(Gemma4TextConfig(**GEMMA4)) == of(Gemma4TextConfig(**{**GEMMA4, "head_dim": 16}))
    sizes = ([64, 64, 64, 96], [96] * 4)
    differ, same = (Gemma3nTextConfig(**{**GEMMA3N, "intermediate_size": size}) for size in sizes)
    assert of(differ) == of(same)


@pytest.mark.parametrize("config", [MambaConfig(**SMALL), RwkvConfig(**SMALL), CTRLConfig(**SMALL)])
def test_a_model_that_cannot_be_audited_is_told_so_before_its_memory(plan, config):
    given = {"n_sources": 2, "dtype": "float32", "device": "cpu", "states_budget": GIB}
    with pytest.raises(ModelError, match="is not a decoder with the expected parts"):
        estimate_memory(config, plan, **given)


def test_a_config_of_no_language_model_ends_in_a_sentence():
    config = LlavaConfig(text_config=build_model("llama").config)
    with pytest.raises(ModelError, match=r"no causal language model can be built from a LlavaConfig: .*text model"):
        weight_sizes(config, 4)


def test_an_audit_that_cannot_fit_is_refused_before_any_work_unless_nobody_checks(trio, monkeypatch, caplog):
    full, retain, unlearned = trio("llama")
    monkeypatch.setattr("uds_lens.audit._memory.free_bytes", lambda device: 1000)
    unchecked = replace(CPU, check_memory=False)
    assert DepthAudit.run(full, retain, retain, EXAMPLES[:2], options=unchecked).uds == 1.0
    monkeypatch.setattr("uds_lens.audit._runner.capture_all", lambda *a, **k: pytest.fail("work was done"))
    with (
        caplog.at_level(logging.INFO, "uds_lens"),
        pytest.raises(ModelError, match=r"the audit needs about .* GiB free\. Use dtype='bfloat16'"),
    ):
        DepthAudit.run(full, retain, unlearned, EXAMPLES, options=CPU)
    assert "needs about" in caplog.text


def test_an_estimate_reads_as_a_sentence():
    estimate = MemoryEstimate(weights=2 * GIB, states=GIB, batch=GIB // 4, available=4 * GIB, program=GIB // 4)
    shares = "weights 2.00, states 1.00, batch 0.25, program 0.25"
    assert str(estimate) == f"needs about 3.50 GiB ({shares}) of 4.00 GiB free"
    estimate.require()


def test_kept_recordings_are_given_back_when_memory_runs_out(baseline, trio, monkeypatch):
    """Room for one recording only: what is kept gives way, and nothing has to be halved."""
    held, true = [], _runner.open_target

    def small(*args, **options):
        if recorded.target._kept:
            raise torch.OutOfMemoryError("CUDA out of memory")
        held.append(len(args[1]))
        return true(*args, **options)

    with baseline.recorded(options=replace(CPU, token_budget=40)) as recorded:
        planned = [len(rows) for rows in recorded.plan.batches]
        assert len(planned) > 1
        monkeypatch.setattr(_runner, "open_target", small)
        first = recorded.audit(trio("llama").unlearned)
        assert held == planned
        assert torch.equal(recorded.audit(trio("llama").unlearned).s2_delta, first.s2_delta)
        assert held == planned * 2


def test_pieces_that_fitted_are_taken_for_the_next_model(baseline, trio, monkeypatch):
    tried = one_row_at_a_time(monkeypatch, "open_target")
    with baseline.recorded(options=replace(CPU, memory_gib=0)) as recorded:
        with pytest.warns(UdsLensWarning, match="memory ran out on a batch"):
            recorded.audit(trio("llama").unlearned)
        tried.clear()
        recorded.audit(trio("llama").unlearned)
        assert set(tried) == {1}
        assert recorded.target._scores_at_once < 1 << 26


def test_a_live_full_that_is_trained_while_it_is_recorded_is_refused(trio):
    paths = trio("llama")
    live, _ = load_plain(paths.full)
    baseline = Baseline.measure(live, paths.retain, EXAMPLES, options=CPU)
    with baseline.recorded(options=CPU) as recorded:
        recorded.audit(paths.unlearned)
        with torch.no_grad():
            live.model.layers[1].mlp.down_proj.weight.add_(0.1)
        with pytest.raises(ModelError, match="is not the `full` this baseline was measured with"):
            recorded.audit(paths.unlearned)
