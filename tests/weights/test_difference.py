"""Differences of weights: identities, hand-computed values, what cannot be compared."""

import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import load_plain, save_trio

from uds_lens.errors import IncompatibleModelsError, ModelError
from uds_lens.weights import difference
from uds_lens.weights._difference import _EXACT, spectral_norm


def test_a_model_does_not_differ_from_itself_and_retains_change_has_cosine_1(trio):
    full, retain, _ = trio("llama")
    same = difference(full, full, retain=retain, show_progress=False)
    assert all(t.difference_norm == 0 and math.isnan(t.cosine) and math.isnan(t.stable_rank) for t in same.tensors)
    changed = difference(full, retain, retain=retain, show_progress=False).tensors
    assert len(changed) == 4 * 9 + 3 and all(t.cosine == pytest.approx(1, abs=1e-6) for t in changed)


def test_values_are_those_of_dense_algebra(world):
    found = difference(world.full, world.unlearned["npo"], retain=world.retain, show_progress=False)
    places = (world.full, world.unlearned["npo"], world.retain)
    full, npo, retain = (load_file(place / "model.safetensors") for place in places)
    w, w_npo, w_retain = (each["model.layers.3.mlp.down_proj.weight"].double() for each in (full, npo, retain))
    d, r = w_npo - w, w_retain - w
    (row,) = [t for t in found.tensors if (t.layer, t.component) == (3, "mlp.down_proj")]
    values = torch.linalg.svdvals(d)
    assert row.relative_norm == pytest.approx(float(d.norm() / w.norm()), rel=1e-6)
    assert row.spectral_norm == pytest.approx(float(values[0]), rel=1e-6)
    assert row.stable_rank == pytest.approx(float((values**2).sum() / values[0] ** 2), rel=1e-5)
    assert row.cosine == pytest.approx(float((d * r).sum() / d.norm() / r.norm()), abs=1e-6)
    layers = found.layers_frame().set_index("layer")
    own = [n for n in full if n.startswith("model.layers.3.")]
    change, size = (
        math.sqrt(sum(float(x.double().norm()) ** 2 for x in tensors))
        for tensors in ([npo[n].float() - full[n].float() for n in own], [full[n] for n in own])
    )
    assert layers.loc[3, "relative_norm"] == pytest.approx(change / size, rel=1e-6)


def test_the_iterative_norm_is_the_largest_singular_value():
    torch.manual_seed(0)
    matrix = torch.randn(_EXACT + 40, _EXACT + 8)
    assert spectral_norm(matrix) == pytest.approx(float(torch.linalg.matrix_norm(matrix, ord=2)), rel=1e-4)


def test_rmu_touches_the_layers_it_trains_and_no_others(world):
    found = difference(world.full, world.unlearned["rmu"], show_progress=False)
    assert {t.layer for t in found.tensors if t.difference_norm} == {2, 3, 4}, "built with layer 4"
    assert [x > 0 for x in found.layers_frame()["relative_norm"]] == [layer in (2, 3, 4) for layer in range(8)]


def test_rounding_to_the_other_dtype_is_no_change(trio, tmp_path):
    full = tmp_path / "half"
    shutil.copytree(trio("llama").full, full)
    tensors = load_file(full / "model.safetensors")
    save_file({name: t.bfloat16() for name, t in tensors.items()}, full / "model.safetensors", {"format": "pt"})
    assert not any(t.difference_norm for t in difference(trio("llama").full, full, show_progress=False).tensors)


@pytest.mark.parametrize("family", ["llama-tied", "qwen2", "gpt2", "gemma3"])
def test_the_head_of_an_untied_copy_is_compared_with_the_embedding(family, tmp_path):
    save_trio(family, tmp_path)
    model, _ = load_plain(tmp_path / "full")
    head = model.get_output_embeddings()
    assert head.weight is model.get_input_embeddings().weight
    change = torch.zeros_like(head.weight)
    change[3, :2] = torch.tensor([3.0, 4.0])
    head.weight = torch.nn.Parameter(head.weight + change)
    model.config.tie_word_embeddings = False
    model.save_pretrained(tmp_path / "untied")
    for before, after in (("full", "untied"), ("untied", "full")):
        found = difference(tmp_path / before, tmp_path / after, show_progress=False).tensors
        assert {t.component: t.difference_norm for t in found if t.difference_norm} == {"lm_head": pytest.approx(5.0)}
    found = difference(tmp_path / "full", tmp_path / "untied", retain=tmp_path / "retain", show_progress=False)
    embedding = difference(tmp_path / "full", tmp_path / "retain", show_progress=False)
    names = {"lm_head", "model.embed_tokens", "transformer.wte"}
    (own,) = [t for t in found.tensors if t.component == "lm_head"]
    (theirs,) = [t for t in embedding.tensors if t.component in names]
    assert own.retain_norm == theirs.difference_norm, "of a tied retain model too, the head is the embedding"


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.float8_e4m3fn])
def test_quantised_weights_are_refused(trio, tmp_path, dtype):
    shutil.copytree(trio("llama").full, tmp_path / "full")
    file = tmp_path / "full" / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.0.attention.bias"] = torch.ones(1, 1, 8, 8, dtype=torch.uint8)
    save_file(tensors, file, {"format": "pt"})
    difference(tmp_path / "full", tmp_path / "full", show_progress=False)  # a mask, as old checkpoints hold it
    tensors["model.layers.0.mlp.up_proj.weight"] = tensors["model.layers.0.mlp.up_proj.weight"].to(dtype)
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(ModelError, match=r"is quantised \('model.layers.0.mlp.up_proj.weight' is stored as"):
        difference(trio("llama").full, tmp_path / "full")


def test_says_what_cannot_be_compared(trio, tmp_path):
    with pytest.raises(IncompatibleModelsError, match="does not have the same tensors as"):
        difference(trio("llama").full, trio("llama-tied").full)
    with pytest.raises(ModelError, match="no downloaded copy"):
        difference(trio("llama").full, "nobody/nothing")
    broken = tmp_path / "broken"
    shutil.copytree(trio("llama").full, broken)
    file = broken / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ModelError, match="no complete safetensors weights"):
        difference(trio("llama").full, broken)
    (broken / "adapter_config.json").write_text(json.dumps({}))
    with pytest.raises(ModelError, match="is an adapter"):
        difference(trio("llama").full, broken)
