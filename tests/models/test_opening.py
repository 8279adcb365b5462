"""What can be opened, what is refused, and with which words."""

import gc
import time
import weakref

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import boot, build_model, build_tokenizer, each_family, load_plain, with_config
from transformers import AutoConfig

from uds_lens.errors import ConfigError, ModelError
from uds_lens.models import open_model, read_checkpoint_info
from uds_lens.models._checkpoint import is_finite
from uds_lens.models._hooked import pick_device
from uds_lens.unlearning import quantise


def test_a_directory_opens_in_evaluation_mode_with_eager_attention_and_no_gradients(trio):
    with open_model(str(trio("llama").full), device="cpu") as model:
        assert (model.n_layers, model.d_model, model.d_vocab) == (4, 32, 200)
        assert model.architecture == "LlamaForCausalLM"
        assert (model.dtype, model.device) == (torch.float32, torch.device("cpu"))
        assert not model.hf.training
        assert model.hf.config._attn_implementation == "eager"
        assert not any(p.requires_grad for p in model.hf.parameters())
        assert model.tokenizer.is_fast
        assert "LlamaForCausalLM, 4 layers, d_model 32, float32, cpu" in repr(model)
        assert model.name == str(trio("llama").full)
        assert open_model(model) is model
        with pytest.raises(ModelError, match="is float32, but dtype='bfloat16' was requested"):
            open_model(model, dtype="bfloat16")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_have_the_requested_dtype(trio, dtype):
    with open_model(trio("qwen2").full, dtype=dtype, device="cpu") as model:
        assert {p.dtype for p in model.hf.parameters()} == {getattr(torch, dtype)}
        assert model.bridge.cfg.dtype == getattr(torch, dtype)


def test_leaving_the_block_frees_the_model_and_later_use_is_refused(trio):
    with open_model(trio("llama").full, device="cpu") as model:
        weights = weakref.ref(next(model.hf.parameters()))
        assert model.bridge is model.bridge
    assert weights() is None
    model.close()
    for use in (lambda: model.hf, lambda: model.n_layers, lambda: model.bridge, lambda: model.fingerprint):
        with pytest.raises(ModelError, match="is closed: use the model inside its `with open_model"):
            use()
    assert repr(model).endswith("closed)")
    with pytest.raises(KeyError), open_model(trio("llama").full, device="cpu") as model:
        weights = weakref.ref(next(model.hf.parameters()))
        raise KeyError
    gc.collect()
    assert weights() is None


@pytest.mark.parametrize("family", each_family())
def test_every_weight_of_every_family_is_read(trio, family):
    with open_model(trio(family).full, device="cpu") as model:
        expected = build_model(family).state_dict()
        assert expected.keys() == model.hf.state_dict().keys()
        assert all(torch.equal(value, expected[name]) for name, value in model.hf.state_dict().items())


# What is refused.


def test_what_is_no_checkpoint_is_refused_at_once(trio, tmp_path, monkeypatch):
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)  # as it is for users
    (tmp_path / "ckpt" / "simnpo").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for source, words in (
        (str(tmp_path / "nowhere"), r"no directory '.*/nowhere': pass a checkpoint directory"),
        ("./nowhere", "no directory"),
        ("~/nowhere-at-all", "no directory"),
        ("runs/npo/final", "no directory"),
        ("ckpt/npx", r"no directory 'ckpt/npx'. Because 'ckpt' is a directory here, the name was not looked up"),
        (trio("llama").full / "config.json", r"config.json' is a file: expected a checkpoint directory"),
        (tmp_path, r"has no config.json: expected a directory written by save_pretrained"),
        (tmp_path / "ckpt" / "simnpp", r"no directory .* Did you mean '.*/ckpt/simnpo'\?"),
        (tmp_path / "ckptt" / "simnpo", r"no directory .* Did you mean '.*/ckpt/simnpo'\?"),
        (tmp_path / "ckpt" / "rmu", "^no directory (?!.*Did you mean)"),
        (7, "cannot open int as a model: expected a directory"),
        (None, "cannot open NoneType as a model"),
    ):
        for read in (open_model, read_checkpoint_info):
            with pytest.raises(ModelError, match=words):
                read(source)
    with pytest.raises(ConfigError, match=r"dtype must be one of .*; got 'int8'"):
        open_model(trio("llama").full, dtype="int8")


@pytest.mark.parametrize("offline", [True, False])
def test_a_hub_id_without_network_gives_one_error_soon(offline, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail(f"it waits for {seconds} s and tries again"))
    with pytest.raises(
        ModelError,
        match="no directory 'nobody/no-such-model' here and no downloaded copy, and the Hub is not used offline",
    ) as caught:
        open_model("nobody/no-such-model", offline=offline)
    assert "Check the path, or download the model on a machine with a connection" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_hub_id_that_does_not_exist_is_reported_with_what_was_tried(monkeypatch):
    def refuse(name, **_):
        raise OSError(f"{name} is not a valid model identifier.\nMore about that.")

    monkeypatch.setattr(AutoConfig, "from_pretrained", refuse)
    monkeypatch.setattr("transformers.utils.hub.is_offline_mode", lambda: False)
    monkeypatch.setattr("uds_lens.models._checkpoint.is_reachable", lambda: True)
    with pytest.raises(ModelError) as caught:
        read_checkpoint_info("nobody/no-such-model")
    assert str(caught.value).startswith(
        "there is no directory 'nobody/no-such-model' here, and looking it up on the Hub failed: "
        "nobody/no-such-model is not a valid model identifier. Check the path or the spelling, "
    )
    with pytest.raises(ModelError, match="and the Hub is not used offline"):
        read_checkpoint_info("nobody/no-such-model", offline=True)


def without(name):
    def spoil(folder):
        file = folder / "model.safetensors"
        save_file({k: v for k, v in load_file(file).items() if k != name}, file, metadata={"format": "pt"})

    return spoil


def truncated(folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


LOADING = r"cannot load the checkpoint in '.*copy': "


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (without("model.layers.2.mlp.up_proj.weight"), r"does not fill 1 weights .*mlp\.up_proj.*random"),
        (lambda folder: (folder / "model.safetensors").unlink(), LOADING + ".*model.safetensors"),
        (
            lambda folder: with_config(folder, intermediate_size=64),
            r"does not fill 12 weights .*0\.mlp\.down_proj\.weight: \(32, 48\) instead of \(32, 64\)",
        ),
        (
            lambda folder: with_config(folder, quantization_config={"quant_method": "foo"}),
            "quantised by 'foo', which transformers",
        ),
        (lambda folder: with_config(folder, quantization_config={}), "quantised but not by which method: remove"),
        (truncated, LOADING),
        (lambda folder: (folder / "config.json").write_text("{"), LOADING),
        (lambda folder: (folder / "config.json").write_text("[]"), LOADING),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "no-such-type"}'), LOADING),
    ],
)
def test_broken_checkpoints_are_refused(copy_of, spoil, words):
    folder = copy_of()
    spoil(folder)
    with pytest.raises(ModelError, match=words):
        open_model(folder, device="cpu")


def test_devices():
    assert pick_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(ModelError, match="no device 'gpu': expected 'auto', 'cpu', 'cuda' or 'cuda:N'"):
        pick_device("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ModelError, match="device 'cuda:0' was requested, but torch sees no CUDA device"):
            pick_device("cuda:0")


# Live models.


def test_a_live_model_stays_as_it_was(trio):
    live, tokenizer = load_plain(trio("llama").full, attention="sdpa")
    live.train()
    ids = tokenizer("Who is her rival?", return_tensors="pt").input_ids
    names = list(live.state_dict())
    before = live.eval()(ids).logits
    live.train()
    handle = live.model.layers[0].register_forward_hook(lambda *_: None)
    with open_model(live) as model:
        assert model.hf is not live
        assert all(a is b for a, b in zip(model.hf.parameters(), live.parameters(), strict=True))
        assert all(a is b for a, b in zip(model.hf.buffers(), live.buffers(), strict=True))
        assert not model.hf.training
        assert model.hf.config._attn_implementation == "eager"
        assert len(model.hf.model.layers[0]._forward_hooks) == 1, "it is run as it was passed in"
        model.hf.model.layers[0]._forward_hooks.clear()
        assert model.tokenizer.get_vocab() == tokenizer.get_vocab()
        assert model.name == str(trio("llama").full)
    assert live.training
    assert live.config._attn_implementation == "sdpa"
    assert all(p.requires_grad for p in live.parameters())
    assert len(live.model.layers[0]._forward_hooks) == 1
    handle.remove()
    with open_model(live) as model:
        assert model.bridge.original_model is not live
    assert list(live.state_dict()) == names
    assert torch.equal(live.eval()(ids).logits, before)


def test_a_live_model_without_a_directory_needs_a_tokenizer_from_the_caller():
    live = build_model("llama")
    assert open_model(live).tokenizer is None
    tokenizer = build_tokenizer()
    with open_model(live, tokenizer=tokenizer) as model:
        assert model.tokenizer is tokenizer
        assert model.name == "LlamaForCausalLM"
        assert model.bridge.tokenizer is not tokenizer


# Live Bridges.


@pytest.mark.parametrize("family", ["llama", "gpt2", "phi3"])
def test_a_live_bridge_is_taken_as_it_is(trio, family):
    bridge = boot(trio(family).full)
    with open_model(bridge) as model, open_model(trio(family).full, device="cpu") as plain:
        assert model.bridge is bridge
        assert model.hf is bridge.original_model
        assert model.fingerprint == plain.fingerprint
        # TransformerLens sets its copy to add a start token in any case: not what the checkpoint was trained with.
        assert model.tokenizer is not bridge.tokenizer
        assert model.tokenizer.backend_tokenizer.to_str() == plain.tokenizer.backend_tokenizer.to_str()
    bridge.original_model.name_or_path = "nobody/no-such-model"
    assert open_model(bridge).tokenizer is bridge.tokenizer
    bridge.original_model.name_or_path = ""
    assert open_model(bridge).tokenizer is bridge.tokenizer


def test_bridges_in_other_modes_are_refused(trio):
    bridge = boot(trio("llama").full)
    bridge.train()
    with pytest.raises(ModelError, match=r"training mode.*\.eval\(\)"):
        open_model(bridge)
    assert open_model(bridge.eval()).bridge is bridge
    bridge.enable_compatibility_mode(disable_warnings=True)
    with pytest.raises(ModelError, match=r"compatibility mode.*Boot it without enable_compatibility_mode"):
        open_model(bridge)


def test_a_4_bit_model_of_any_width_runs_on_a_cpu(trio, tmp_path):
    """Where bitsandbytes has a fast format for the CPU, it fails on widths that are no multiple of its blocks."""
    functional = pytest.importorskip("bitsandbytes.functional")
    quantise(trio("llama").full, out=tmp_path / "nf4", device="cpu")
    with open_model(tmp_path / "nf4", device="cpu") as model:
        with torch.no_grad():
            logits = model.hf(torch.tensor([[1, 5, 9, 20]])).logits
        assert logits.isfinite().all()
        layer = model.hf.model.layers[0].mlp.down_proj
        assert (layer.in_features, layer.out_features) == (48, 32)
        weight = functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state).float()
        x = torch.randn(3, 48)
        torch.testing.assert_close(layer(x), x @ weight.T, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_broken_number_is_found_in_every_dtype(dtype, value):
    weight = torch.full((300, 300), 60_000.0, dtype=dtype)  # their sum is beyond float16
    assert is_finite(weight)
    weight[123, 45] = value
    assert not is_finite(weight)
