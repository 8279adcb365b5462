"""Audits of streamed models: the numbers of models in memory, each weight read once, and what was read is not lost."""

import dataclasses
import json
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import EXAMPLES, build_model, build_tokenizer, some_now

from uds_lens.audit import Baseline, _kept, _memory, _runner
from uds_lens.audit._inputs import make_plan
from uds_lens.audit._memory import MemoryEstimate, memory_of_audit
from uds_lens.errors import ModelError, StorageError, UdsLensWarning, forget_warnings
from uds_lens.models._by_block import StreamedModel
from uds_lens.results import AuditConfig, DepthAudit, RunOptions

STREAMED = RunOptions(device="cpu", stream=True, progress=False)
IN_MEMORY = dataclasses.replace(STREAMED, stream=False)
NUMBERS = (
    "s_full",
    "s_unlearned",
    "s_retain",
    "s1_delta",
    "s2_delta",
    "s1_norm_ratio",
    "s1_cosine",
    "s2_norm_ratio",
    "s2_cosine",
)


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """A temporary directory of its own, in which states are kept."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def readings(monkeypatch):
    """Name, bytes read and bytes stored of every model, when it is closed."""
    seen = []
    leave = StreamedModel.__exit__

    def spy(model, *error):
        seen.append((model.name, model.bytes_read, model.bytes_stored))
        leave(model, *error)

    monkeypatch.setattr(StreamedModel, "__exit__", spy)
    return seen


def kept(folder):
    return [place.name for place in folder.glob("uds_lens-kept-*/*")] or [x.name for x in folder.glob("uds_lens-*")]


@pytest.mark.parametrize("config", [AuditConfig(), AuditConfig(last_layer="post_norm", exact_noop=False)])
def test_an_audit_is_that_of_models_in_memory_and_reads_each_weight_once(config, trio, readings, temporary):
    paths = trio("llama")
    audits = [DepthAudit.run(*paths, EXAMPLES, config=config, options=options) for options in (IN_MEMORY, STREAMED)]
    for number in NUMBERS:
        assert torch.equal(*(getattr(audit, number) for audit in audits)), number
    assert audits[0].models == audits[1].models
    assert [name for name, _, _ in readings] == [str(paths.retain), str(paths.unlearned), str(paths.full)]
    assert all(read == stored for _, read, stored in readings)
    assert kept(temporary) == []


@pytest.mark.long
@pytest.mark.parametrize("stored", ["head differs", "both alike", "head alone"])
def test_a_tied_head_that_is_stored_is_the_same_model_as_in_memory(stored, trio):
    paths = trio("llama-tied")
    for folder in paths:
        weights = load_file(folder / "model.safetensors")
        embedding = weights["model.embed_tokens.weight"]
        weights["lm_head.weight"] = embedding * 1.5 if stored == "head differs" else embedding.clone()
        if stored == "head alone":
            del weights["model.embed_tokens.weight"]
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    baseline = Baseline.measure(paths.full, paths.retain, EXAMPLES, options=IN_MEMORY)
    streamed, plain = (baseline.audit(paths.unlearned, options=options) for options in (STREAMED, IN_MEMORY))
    assert torch.equal(streamed.s2_delta, plain.s2_delta)
    assert streamed.models == plain.models


def test_an_adapter_is_refused_before_anything_is_read(trio, readings, tmp_path):
    paths, adapter = trio("llama"), tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(paths.full)}))
    with pytest.raises(ModelError, match=r"'.*adapter' cannot be streamed: it is an adapter: merge it into its base"):
        DepthAudit.run(paths.full, paths.retain, adapter, EXAMPLES, options=STREAMED)
    assert readings == []


@pytest.mark.long
def test_full_is_read_once_for_several_models(trio, readings):
    paths = trio("llama")
    baseline = Baseline.measure(paths.full, paths.retain, EXAMPLES, options=STREAMED)
    readings.clear()
    audits = baseline.audit_all([paths.unlearned, paths.retain, paths.full], options=STREAMED)
    assert [name for name, _, _ in readings] == list(map(str, (paths.unlearned, paths.retain, paths.full, paths.full)))
    assert all(read == stored for _, read, stored in readings)
    assert [audit.uds for audit in audits[1:]] == [1.0, 0.0]
    other = dataclasses.replace(baseline, full=paths.unlearned)
    with pytest.raises(ModelError, match="is not the `full` this baseline was measured with"):
        other.audit(paths.unlearned, options=STREAMED)


@pytest.fixture
def stop(monkeypatch):
    """Begin an audit that is stopped when its sources were read; of a killed one the same is left."""

    def begin(*given, **named):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(_runner.Target, "run_batches", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            DepthAudit.run(*given, **named)

    return begin


def test_an_audit_that_was_stopped_goes_on_from_the_sources_read(trio, readings, temporary, stop):
    models = trio("llama")
    expected = DepthAudit.run(*models, EXAMPLES, options=STREAMED)
    stop(*models, EXAMPLES, options=STREAMED)
    assert len(kept(temporary)) == 2
    forgotten = next(temporary.glob("uds_lens-kept-*")) / "forgotten"
    forgotten.mkdir()
    os.utime(forgotten, (0, 0))
    readings.clear()
    audit = DepthAudit.run(*models, EXAMPLES, options=STREAMED)
    assert [name for name, _, _ in readings] == [str(models.full)]
    assert torch.equal(audit.s2_delta, expected.s2_delta)
    assert audit.models == expected.models
    assert kept(temporary) == []


def harmed(folder, how):
    """States of one source with a file gone, or altered in the middle."""
    file = min(folder.glob("uds_lens-kept-*/*/states/*.safetensors"))
    if how == "gone":
        file.unlink()
        return
    content = bytearray(file.read_bytes())
    content[-100:-90] = bytes(10)
    file.write_bytes(content)


@pytest.mark.long
@pytest.mark.parametrize("how", ["gone", "altered"])
def test_kept_states_that_were_harmed_are_read_again(how, trio, readings, temporary, stop):
    models, options = trio("llama"), dataclasses.replace(STREAMED, token_budget=24)  # several files of states
    expected = DepthAudit.run(*models, EXAMPLES, options=options)
    stop(*models, EXAMPLES, options=options)
    harmed(temporary, how)
    readings.clear()
    audit = DepthAudit.run(*models, EXAMPLES, options=options)
    assert len(readings) == 2  # full, and the source whose states were harmed
    assert torch.equal(audit.s2_delta, expected.s2_delta) and torch.equal(audit.s1_delta, expected.s1_delta)
    assert kept(temporary) == []


def test_states_that_vanish_meanwhile_end_in_a_sentence(trio, temporary, monkeypatch):
    paths, options = trio("llama"), dataclasses.replace(STREAMED, memory_gib=1e-9)  # so that states are on disk alone
    run = _runner.Target.run_batches

    def cleaned(*given):
        for file in temporary.glob("uds_lens-kept-*/*/states/*.safetensors"):
            file.unlink()
        run(*given)

    monkeypatch.setattr(_runner.Target, "run_batches", cleaned)
    with pytest.raises(
        StorageError, match=r"can no longer be read: either something cleans that directory.*Set TMPDIR"
    ):
        DepthAudit.run(paths.full, paths.retain, paths.unlearned, EXAMPLES, options=options)


def test_states_that_cannot_be_kept_may_still_be_spilled(trio, readings, monkeypatch):
    paths, options = trio("llama"), dataclasses.replace(STREAMED, memory_gib=1e-9)

    def refused(place):
        raise StorageError("cannot write there.")

    monkeypatch.setattr(_kept, "atomic_directory", refused)
    forget_warnings()
    with pytest.warns(UdsLensWarning, match=r"states are not kept.*cannot write there"):
        audit = DepthAudit.run(paths.full, paths.retain, paths.unlearned, EXAMPLES, options=options)
    assert audit.n_measured and len(readings) == 3


@pytest.mark.long
def test_identical_audits_at_once_do_not_take_states_from_each_other(trio, readings, temporary, monkeypatch):
    models, options = trio("llama"), dataclasses.replace(STREAMED, memory_gib=1e-9)  # so that states are on disk alone
    audits, run = [], _runner.Target.run_batches

    def meet_another(*given):
        if not audits:
            audits.append(None)
            with ThreadPoolExecutor() as beside:
                audits[0] = beside.submit(DepthAudit.run, *models, EXAMPLES, options=options).result()
        run(*given)

    monkeypatch.setattr(_runner.Target, "run_batches", meet_another)
    audits.append(DepthAudit.run(*models, EXAMPLES, options=options))
    assert torch.equal(*(audit.s2_delta for audit in audits))
    assert len(readings) == 6  # neither took what the other is about to remove
    assert kept(temporary) == []


@pytest.mark.parametrize("at", some_now(["os.fsync"], of=["safetensors.torch.save_file", "os.mkdir", "os.fsync"]))
def test_a_full_disk_costs_the_kept_states_and_not_the_audit(at, trio, monkeypatch):
    """Wherever it refuses: at the directory, the states, their record, or when all are flushed to it."""
    Path(tempfile.gettempdir(), f"uds_lens-kept-{os.getuid()}").mkdir()

    def full(*given, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(at, full)
    with pytest.warns(UdsLensWarning, match="states are not kept.*No space left"):
        audit = DepthAudit.run(*trio("llama"), EXAMPLES, options=STREAMED)
    assert audit.n_measured


def test_auto_streams_what_does_not_fit_and_says_what_it_costs(trio, readings, monkeypatch):
    paths = trio("llama")
    auto = dataclasses.replace(STREAMED, stream="auto")
    DepthAudit.run(paths.full, paths.retain, paths.retain, EXAMPLES[:2], options=auto)
    assert readings == []
    monkeypatch.setattr(MemoryEstimate, "fits", property(lambda estimate: estimate.streamed))
    told = "are read one block at a time, which takes about .* The results do not change"
    with pytest.warns(UdsLensWarning, match=told):
        DepthAudit.run(paths.full, paths.retain, paths.retain, EXAMPLES[:2], options=auto)
    assert len(readings) == 2  # the states of one source serve both roles
    hybrid = trio("granite-hybrid")
    with pytest.raises(ModelError, match="It cannot be streamed: 'granitemoehybrid' is not one of the families"):
        DepthAudit.run(hybrid.full, hybrid.retain, hybrid.retain, EXAMPLES[:2], options=auto)
    with pytest.raises(ModelError, match="cannot be streamed: 'mlp_out' is inside a block"):
        DepthAudit.run(paths.full, *[paths.retain] * 2, EXAMPLES, config=AuditConfig(site="mlp_out"), options=STREAMED)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_what_will_be_read_is_what_the_files_hold(stored, tmp_path, monkeypatch):
    llama = build_model("llama").to(stored)
    llama.save_pretrained(tmp_path / "full")
    build_tokenizer().save_pretrained(tmp_path / "full")
    config, options = AuditConfig(dtype="float32"), dataclasses.replace(STREAMED, stream="auto")
    plan = make_plan({"full": tmp_path / "full"}, EXAMPLES, config=config, options=options)
    monkeypatch.setattr(MemoryEstimate, "fits", property(lambda estimate: estimate.streamed))
    monkeypatch.setattr(_memory, "GIB", 1000)  # so that the number in the sentence says something of a tiny model
    forget_warnings()
    size = sum(p.numel() for p in llama.parameters()) * stored.itemsize / 1000
    with pytest.warns(UdsLensWarning, match=rf"reads the weights of each model \({size:.1f} GiB\) from disk once"):
        _memory.settled(tmp_path / "full", plan, n_sources=2, config=config, options=options)


def test_rows_whose_states_do_not_fit_take_turns(trio, readings, monkeypatch, caplog):
    paths, options = trio("llama"), dataclasses.replace(STREAMED, token_budget=24)
    whole = DepthAudit.run(*paths, EXAMPLES, options=options)
    assert readings.pop()[1:] == (readings[0][2],) * 2
    plan = make_plan({"full": paths.full}, EXAMPLES, config=whole.config, options=options)
    free = memory_of_audit(paths.full, plan, n_sources=2, config=whole.config, options=options, streamed=True).total
    monkeypatch.setattr(_memory, "free_bytes", lambda device: free - 1)
    with caplog.at_level("INFO"):
        in_turns = DepthAudit.run(*paths, EXAMPLES, options=options)
    for number in NUMBERS:
        assert torch.equal(getattr(whole, number), getattr(in_turns, number)), number
    name, read, stored = readings[-1]
    assert name == str(paths.full) and 1.5 < read / stored < 2
    assert "weights are read 2 times" in caplog.text
