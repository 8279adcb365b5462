"""Live models are run as they are handed over, and their fingerprints cover what no weight shows."""

import warnings

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, TaskType, get_peft_model
from tiny_models import build_model, build_tokenizer, load_plain
from transformers import T5Config, T5ForConditionalGeneration

from uds_lens.errors import ModelError
from uds_lens.models import _hooked, open_model
from uds_lens.models._hooked import bridge_on_shared_weights

IDS = torch.tensor([[1, 8, 30, 77]])


def zeros(module, args, output):
    return torch.zeros_like(output)


@pytest.fixture
def live():
    return build_model("llama")


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


def compiled(model):
    with warnings.catch_warnings():  # torch's own, when its compiler is imported for the first time
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.compile(model)


def prompted(model):
    return get_peft_model(model, PromptTuningConfig(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=2))


def of_two_dtypes(model):
    model.model.layers[2].mlp.to(torch.bfloat16)
    return model


def encoder_and_decoder(_):
    return T5ForConditionalGeneration(T5Config(vocab_size=50, d_model=16, d_kv=4, d_ff=16, num_layers=2, num_heads=2))


def change_by_hook(model):
    return model.model.layers[0].register_forward_hook(zeros).remove


def change_by_forward(model):
    model.model.layers[0].mlp.forward = torch.zeros_like
    return lambda: vars(model.model.layers[0].mlp).pop("forward")


@pytest.mark.parametrize("change", [change_by_hook, change_by_forward])
def test_a_changed_model_runs_as_it_is_and_equals_only_itself(live, change):
    plain, before = open_model(live).fingerprint, logits(live)
    undo = change(live)
    first = open_model(live)
    assert first.runs_hooks
    assert not torch.equal(logits(live), before)
    torch.testing.assert_close(logits(first.hf), logits(live))
    assert first.fingerprint != plain
    assert open_model(live).fingerprint == first.fingerprint
    undo()
    assert open_model(live).fingerprint == plain


def test_a_hook_on_an_open_model_counts(trio):
    with open_model(trio("llama").full, device="cpu") as model:
        plain = model.fingerprint
        model.hf.model.norm.register_forward_hook(zeros)
        assert model.fingerprint != plain
        assert [(c.kind, c.place) for c in model.changes] == [("hook", "model.norm")]


def test_permanent_hooks_of_a_bridge_count(live):
    bridge = bridge_on_shared_weights(live, build_tokenizer(), name="tiny")
    plain = open_model(bridge).fingerprint
    assert plain == open_model(live).fingerprint
    bridge.add_perma_hook("blocks.1.hook_resid_post", lambda state, hook: state * 0)
    model = open_model(bridge)
    assert model.runs_hooks
    assert model.fingerprint != plain


def test_an_activation_of_another_class_counts(live):
    plain = open_model(live).fingerprint
    live.model.layers[2].mlp.act_fn = torch.nn.ReLU()
    model = open_model(live)
    assert model.fingerprint != plain
    assert not model.runs_hooks, "its blocks are as good as others"


def test_transformerlens_does_not_wrap_a_changed_model(live):
    live.model.layers[0].self_attn.register_forward_hook(lambda *_: None)
    with pytest.raises(ModelError, match=r"it has a hook at 'model.layers.0.self_attn', which a Bridge might not run"):
        _ = open_model(live).bridge


def adapted(model):
    return get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "down_proj"], init_lora_weights=False))


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_a_live_adapter_is_run_and_fingerprinted_with_its_settings(live):
    plain = logits(live)
    wrapper = adapted(live).eval()
    model = open_model(wrapper)
    assert model.architecture == "LlamaForCausalLM"
    torch.testing.assert_close(logits(model.hf), logits(wrapper))
    assert not torch.allclose(logits(model.hf), plain)
    before = model.fingerprint
    wrapper.base_model.model.model.layers[0].self_attn.q_proj.scaling["default"] *= 2
    assert open_model(wrapper).fingerprint != before


@pytest.mark.parametrize(
    ("wrap", "words"),
    [
        (lambda m: torch.nn.Linear(2, 2), "cannot open Linear as a model: expected a transformers causal"),
        (torch.nn.DataParallel, r"cannot open DataParallel: it wraps a LlamaForCausalLM.*model\.module"),
        (compiled, r"cannot open OptimizedModule: it wraps a LlamaForCausalLM.*model\._orig_mod"),
        (lambda m: m.model, "LlamaModel is not a decoder with the expected parts: it has no inner model"),
        (encoder_and_decoder, "T5"),
        (prompted, "adds learned states before the prompt"),
        (of_two_dtypes, r"mixes dtypes: .*q_proj float32 and model.layers.2.mlp.gate_proj bfloat16"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_other_modules_are_refused_in_words(live, wrap, words):
    with pytest.raises(ModelError, match=words):
        open_model(wrap(live))


def test_a_lent_handle_is_hashed_once(live, hashed):
    opened = open_model(live)
    with opened.lent() as handle:
        assert handle.fingerprint == handle.lent().fingerprint
    assert len(hashed) == 1
    assert opened.fingerprint
    assert len(hashed) == 2, "the caller's own handle is hashed anew: the model may have been trained"


def test_handles_on_one_model_share_its_bridge_and_what_was_found_out_about_it(trio, monkeypatch):
    opened = open_model(load_plain(trio("llama").full)[0])
    looked, true = [], _hooked.module_changes
    monkeypatch.setattr(_hooked, "module_changes", lambda model: looked.append(1) or true(model))
    with opened.lent() as handle, handle.lent() as another:
        assert another.bridge is handle.bridge is opened.bridge
    assert opened.bridge is not None, "it outlives its handles"
    assert looked == []
