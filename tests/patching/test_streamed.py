"""Streamed models: the numbers of the model in memory to the last digit, each weight read once, faults in words."""

import json
import shutil
from contextlib import closing
from dataclasses import replace

import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file
from tiny_models import each_family, load_plain, with_config

from uds_lens.errors import ModelError
from uds_lens.models import open_model
from uds_lens.models._by_block import StreamedModel, _folder
from uds_lens.patching import _costs, capture, open_target
from uds_lens.patching._plain import capture_all
from uds_lens.patching._side_by_side import embed_tokens_of, why_not_streamed
from uds_lens.patching._wave import PatchedPass, run_blocks

ROWS = ([0, 1, 2, 3], [4, 5], [6, 7])


def streamed(folder, **options):
    return StreamedModel(folder, **{"dtype": torch.float32, "device": "cpu", **options})


def through(model, batches, caches, *, packed):
    embed_tokens_of(model, batches)
    passes = [
        PatchedPass(model, batch, list(map(by_layer, of_batch)), packed=packed)
        for batch, of_batch in zip(batches, caches, strict=True)
    ]
    run_blocks(model, passes, show=False)
    with model.head():
        return passes, [each.read_out() for each in passes]


def same(left, right):
    return torch.equal(left.nan_to_num(9.0), right.nan_to_num(9.0))


@pytest.mark.parametrize("family", each_family())
def test_streamed_numbers_are_those_of_the_model_in_memory_to_the_last_digit(family, trio, batch_of, monkeypatch):
    monkeypatch.setattr(_costs, "SCORES_AT_ONCE", 3000)  # so that variants of a row run in several waves
    monkeypatch.setitem(_costs.VARIANT_STATES, "cpu", 600)  # and rows in several groups
    paths, packed = trio(family), family != "gpt2"  # gpt2 padded: the other way, once
    batches = [batch_of(indices=rows) for rows in map(tuple, ROWS)]
    with open_model(paths.retain, device="cpu") as model:
        caches = [capture(model, batch, packed=packed) for batch in batches]
    with open_model(paths.full, device="cpu") as model:
        fingerprint = model.fingerprint
        targets = [open_target(model, batch, packed=packed) for batch in batches]
        patched = [target.patched(cache) for target, cache in zip(targets, caches, strict=True)]
        expected = [(target.logprobs, target.states) for target in targets]
    with streamed(paths.retain) as model:
        embed_tokens_of(model, batches)
        for read, cache in zip(capture_all(model, batches, packed=packed, show=False), caches, strict=True):
            assert torch.equal(read.states, cache.states)
    with streamed(paths.full) as model:
        own = [[cache, capture_of(own, cache)] for cache, (_, own) in zip(caches, expected, strict=True)]
        passes, measured = through(model, batches, own, packed=packed)
        for each, found, wanted, (logprobs, states) in zip(passes, measured, patched, expected, strict=True):
            assert same(found[0], wanted)
            assert found[1].isnan().all()  # patching its own states changes nothing
            assert same(each.recording.logprobs, logprobs)
            assert torch.equal(each.recording.states, states)
        assert len(passes[0].groups) > 1
        # numbers of variants grow with the blocks; only those that left the last are still there: all would be many
        for _, group in passes[0].groups if packed else ():
            most, n_layers = group.variants_at_once, model.n_layers
            assert set(group.windows._repeated) <= {min(most, n_layers), n_layers % most}
        assert model.fingerprint == fingerprint
        assert model.bytes_read == model.bytes_stored


def by_layer(cache):
    return lambda layer: replace(cache, states=cache.states[:, layer : layer + 1])


def capture_of(states, like):
    return type(like)(states.clone(), like.site, like.last_layer, "full")


def test_at_most_two_blocks_hold_weights_and_none_afterwards(trio):
    with streamed(trio("llama-tied").full) as model:
        model.embed(torch.arange(5))
        most = 0
        for layer in model.blocks():
            there = [not any(w.is_meta for w in block.parameters()) for block in model.anatomy.layers]
            most = max(most, sum(there))
            assert there[layer]
        assert most <= 2
        assert all(w.is_meta for w in model.anatomy.layers.parameters())


def test_shards_and_another_dtype_give_the_same_fingerprint(trio, tmp_path):
    paths = trio("qwen2")
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(paths.full).save_pretrained(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    with open_model(paths.full, device="cpu", dtype="bfloat16") as model:
        expected = model.fingerprint
    with streamed(tmp_path, dtype=torch.bfloat16) as model:
        assert model.fingerprint == expected


def test_files_that_fail_end_in_a_sentence(trio, tmp_path):
    def copy(name):
        return shutil.copytree(trio("llama").full, tmp_path / name)

    cut = copy("cut") / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-400])
    with pytest.raises(ModelError, match=r"cannot read 'model\.safetensors' of .*Is the file complete"):
        streamed(cut.parent)
    gone = copy("gone")
    (gone / "model.safetensors").unlink()
    (gone / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "b.safetensors"}}))
    with pytest.raises(ModelError, match=r"has no regular file 'b\.safetensors'"):
        streamed(gone)
    outside = copy("outside")
    (outside / "model.safetensors").unlink()
    (outside / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../x.safetensors"}}))
    with pytest.raises(ModelError, match="expected files in the same directory"):
        streamed(outside)
    cut_late = copy("late")
    with streamed(cut_late) as model:
        model.embed(torch.arange(5))
        with open(cut_late / "model.safetensors", "r+b") as file:
            file.truncate(30000)
        with pytest.raises(ModelError, match=r"cannot read 'model\.safetensors' of .*late.*: it ends early\."):
            list(model.blocks())
        (cut_late / "model.safetensors").unlink()
        with pytest.raises(ModelError, match=r"cannot read 'model\.safetensors' of .*late.*No such file"):
            list(model.blocks())
    written = copy("written")
    with streamed(written) as model:
        (written / "model.safetensors").touch()
        with pytest.raises(ModelError, match="were written, moved or removed while they were read"):
            assert model.fingerprint


def test_what_cannot_be_streamed_is_said(trio, tmp_path):
    assert "not one of the families" in why_not_streamed(trio("granite-hybrid").full)
    assert why_not_streamed(trio("llama").full) is None
    assert "in memory" in why_not_streamed(object())
    folder = shutil.copytree(trio("llama").full, tmp_path / "a")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor"):
        streamed(folder)
    weights = load_file(folder / "pytorch_model.bin")
    (folder / "pytorch_model.bin").unlink()
    save_file({**weights, "model.norm.weight": torch.zeros(32, dtype=torch.int8)}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"'model\.norm\.weight' is stored as I8; expected floating point"):
        streamed(folder)
    with_config(folder, transformers_weights="other.safetensors")
    assert "names its weight file (other.safetensors)" in why_not_streamed(folder)
    wide = with_config(shutil.copytree(trio("llama").full, tmp_path / "wide"), intermediate_size=64)
    with pytest.raises(ModelError, match=r"does not fill 12 weights .*weight: \(32, 48\) instead of \(32, 64\)"):
        streamed(wide)
    upcast = shutil.copytree(trio("gpt2").full, tmp_path / "upcast")
    assert why_not_streamed(upcast) is None
    with_config(upcast, reorder_and_upcast_attn=True)  # which packed rows would leave out: other numbers
    assert "its config sets reorder_and_upcast_attn" in why_not_streamed(upcast)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_files_are_those_that_transformers_reads(family, trio, tmp_path):
    """A single file before shards of the same weights; masks of earlier releases are no weights."""
    folder = shutil.copytree(trio(family).full, tmp_path / "whole")
    load_plain(folder)[0].save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    for file in (tmp_path / "shards").glob("model*"):
        shutil.copy(file, folder)
    if family == "gpt2":
        weights = load_file(folder / "model.safetensors")
        weights["transformer.h.0.attn.bias"] = torch.ones(1, 1, 128, 128, dtype=torch.uint8).tril()
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with open_model(folder, device="cpu") as model:
        expected = model.fingerprint
    with streamed(folder) as model:
        assert model.fingerprint == expected
        assert model.bytes_read == model.bytes_stored


def test_of_a_model_on_the_hub_only_what_is_read_is_downloaded(tmp_path, monkeypatch):
    asked = {}
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **given: asked.update(given) or str(tmp_path))
    assert _folder("owner/name", revision=None, offline=True) == tmp_path
    read = ["config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.model"]
    others = ["consolidated.safetensors", "original/consolidated.00.safetensors", "pytorch_model.bin", "onnx/a.json"]
    patterns = {name: asked[name] for name in ("allow_patterns", "ignore_patterns")}
    assert list(filter_repo_objects([*read, *others], **patterns)) == read


def test_where_memory_runs_out_no_weights_stay(trio):
    """The next attempt, with fewer rows, needs their room."""

    def held(model):
        return {name for name, weight in model.hf.named_parameters() if not weight.is_meta}

    with streamed(trio("llama").full) as model:
        model.embed(torch.arange(5))
        around = held(model)
        with closing(model.blocks()) as blocks:
            assert [next(blocks), next(blocks)] == [0, 1]
            assert held(model) > around
        assert held(model) == around
        with pytest.raises(torch.OutOfMemoryError), model.head():
            assert held(model) > around
            raise torch.OutOfMemoryError
        assert held(model) == around
        assert list(model.blocks()) == [0, 1, 2, 3]
