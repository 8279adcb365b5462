"""Equal weights have equal fingerprints, in whatever form they come; one bit makes them differ."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tiny_models import build_model, build_tokenizer
from torch import nn

from uds_lens.errors import ModelError
from uds_lens.models import fingerprint, open_model
from uds_lens.models._fingerprint import hashing
from uds_lens.models._hooked import bridge_on_shared_weights
from uds_lens.results._records import open_to_measure
from uds_lens.results._settings import RunOptions


def test_the_file_layout_does_not_matter(trio, tmp_path):
    with open_model(trio("qwen2").full, device="cpu") as model:
        expected = model.fingerprint
        model.hf.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
        model.tokenizer.save_pretrained(tmp_path / "sharded")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    with open_model(tmp_path / "sharded", device="cpu") as model:
        assert model.fingerprint == expected


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.layers.3.mlp.down_proj.weight", "lm_head.weight"])
def test_one_bit_matters(name):
    model = build_model("llama")
    before = fingerprint(model)
    weight = model.get_parameter(name)
    bits = weight.detach().view(torch.int32)
    bits[3, 5] ^= 1
    assert fingerprint(model) != before
    bits[3, 5] ^= 1
    assert fingerprint(model) == before


def test_the_same_numbers_under_other_names_shapes_and_dtypes_differ():
    zeros = torch.zeros(4)
    seen = set()
    for name, tensor in (*(("a", t) for t in (zeros, zeros.reshape(2, 2), zeros.bfloat16(), zeros[:2])), ("b", zeros)):
        module = nn.Module()
        module.register_parameter(name, nn.Parameter(tensor))
        seen.add(fingerprint(module))
    assert len(seen) == 5


def test_memory_layout_device_mode_and_gradients_do_not_matter():
    model = build_model("llama")
    before = fingerprint(model)
    weight = model.lm_head.weight
    weight.data = weight.data.T.contiguous().T
    assert not weight.is_contiguous()
    model.train().requires_grad_(False)
    assert fingerprint(model) == before


@pytest.mark.parametrize("family", ["llama-tied", "gpt2", "gemma2", "mixtral"])
def test_a_wrapped_model_counts_as_the_model_inside(family):
    model = build_model(family)
    before = fingerprint(model)
    bridge = bridge_on_shared_weights(model, build_tokenizer(), name=family)
    assert fingerprint(model) == before
    assert fingerprint(bridge.original_model) == before


def test_weights_that_are_not_at_hand_are_not_guessed():
    with torch.device("meta"):
        layer = nn.Linear(2, 2)
    with pytest.raises(ModelError, match="cannot fingerprint 'bias': it is on the meta device"):
        fingerprint(layer)


def test_a_bridge_computes_what_its_model_computes_and_leaves_it_untouched(trio):
    model = build_model("gemma2", attn_implementation="eager")
    names, hooks = list(model.state_dict()), sum(len(m._forward_hooks) for m in model.modules())
    bridge = bridge_on_shared_weights(model, build_tokenizer(), name="gemma2")
    ids = torch.tensor([[1, 5, 9, 30]])
    with torch.no_grad():
        assert torch.equal(bridge(ids), model(ids).logits)
        model.model.layers[0].mlp.down_proj.weight.mul_(1.5)
        assert torch.equal(bridge(ids), model(ids).logits), "the Bridge has a copy of the weights"
    assert list(model.state_dict()) == names
    assert sum(len(m._forward_hooks) for m in model.modules()) == hooks


def test_an_architecture_that_transformer_lens_cannot_wrap_is_named():
    class Unheard(nn.Module):
        def __init__(self):
            super().__init__()
            self.config = build_model("llama").config
            self.config.architectures = ["UnheardForCausalLM"]
            self.weight = nn.Parameter(torch.zeros(2))

    with pytest.raises(ModelError, match=r"TransformerLens cannot wrap 'x' \(Unheard\): [^\[]+$"):
        bridge_on_shared_weights(Unheard(), build_tokenizer(), name="x")


# Hashed on the way to the device.


@pytest.fixture
def nothing_known(monkeypatch):
    known: dict[object, str] = {}
    for module in ("_hooked", "_fingerprint"):
        monkeypatch.setattr(f"uds_lens.models.{module}.known_fingerprints", known)


@pytest.mark.usefixtures("nothing_known")
@pytest.mark.parametrize("family", ["llama", "llama-tied"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_hashed_where_they_were_loaded(trio, family, dtype, hashed):
    with open_model(trio(family).full, dtype=dtype, device="cpu") as model:
        expected = model.fingerprint
    threads = threading.active_count()
    # on the meta device no byte is left: what is hashed there, or too late, is an error
    with open_to_measure(trio(family).full, dtype=dtype, run=RunOptions(device="meta")) as model:
        assert model.device.type == "meta"
        assert threading.active_count() == threads
        assert model.fingerprint == model.fingerprint == expected
    assert len(hashed) == 2
    with open_to_measure(trio(family).full, dtype=dtype, run=RunOptions(device="cpu")) as model:
        assert model.fingerprint == expected
    assert len(hashed) == 2, "known from the files"


def test_a_model_that_a_caller_may_change_is_hashed_when_asked(trio):
    with open_model(trio("llama").full, device="cpu") as model:
        before = model.fingerprint
        with torch.no_grad():
            model.hf.lm_head.weight.mul_(2)
        assert model.fingerprint != before


def test_the_block_ends_when_all_is_hashed(monkeypatch):
    model, expected = build_model("llama"), fingerprint(build_model("llama"))
    begin = threading.Event()
    in_time = ThreadPoolExecutor.submit

    def late(pool, work, *args):
        return in_time(pool, lambda: begin.wait(10) and work(*args))

    monkeypatch.setattr(ThreadPoolExecutor, "submit", late)
    with hashing(model) as digest:
        model.to("meta")
        assert not digest.done()
        begin.set()
    assert digest.done()
    assert digest.result() == expected


@pytest.mark.usefixtures("nothing_known")
def test_an_error_while_hashing_reaches_the_caller(trio, monkeypatch):
    def fail(item):
        raise RuntimeError(f"cannot read {item[0]}")

    monkeypatch.setattr("uds_lens.models._fingerprint._digest", fail)
    with pytest.raises(RuntimeError, match="cannot read"):
        open_to_measure(trio("llama").full, dtype="float32", run=RunOptions(device="cpu"))
