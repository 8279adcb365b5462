"""Parts of PEFT that change; each test names one, and says what to do when it is gone."""

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tiny_models import build_model

from uds_lens._compat import peft as ours
from uds_lens.errors import ModelError


@pytest.fixture
def lora():
    with ours.quiet_wrapping():
        return get_peft_model(build_model("llama"), LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))


@pytest.fixture
def adapter(lora, tmp_path):
    lora.save_pretrained(tmp_path)
    return tmp_path


def test_an_adapter_is_merged(adapter) -> None:
    plain, model = build_model("llama"), ours.merged(build_model("llama"), str(adapter))
    assert type(model) is type(plain)
    assert not torch.equal(model.model.layers[0].self_attn.q_proj.weight, plain.model.layers[0].self_attn.q_proj.weight)
    assert torch.equal(model.model.layers[0].self_attn.k_proj.weight, plain.model.layers[0].self_attn.k_proj.weight)


def test_an_adapter_is_saved_alone_and_names_its_base(lora, tmp_path) -> None:
    ours.save_adapter(lora, tmp_path, base="../base", dtype=torch.bfloat16)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"] == "../base"
    place = "model.layers.0.self_attn.q_proj.weight"
    again = ours.merged(build_model("llama"), str(tmp_path)).get_parameter(place)
    assert torch.equal(again, ours.merge_adapters(lora).get_parameter(place)), (
        "the model is rounded like what was saved"
    )


def test_an_adapter_that_does_not_fit_is_an_error(adapter) -> None:
    file = adapter / "adapter_model.safetensors"
    save_file({name.replace("q_proj", "z_proj"): t for name, t in load_file(file).items()}, file)
    with pytest.raises(UserWarning, match="missing adapter keys"):
        ours.merged(build_model("llama"), str(adapter))
        pytest.fail(
            "PeftModel.from_pretrained no longer warns of 'missing adapter keys': find out how it says that an adapter "
            "does not fit, and raise on that in uds_lens/_compat/peft.py"
        )


def test_an_adapter_that_peft_would_leave_out_is_an_error() -> None:
    """Of trainable tokens and LoRA on the head that is tied to them, PEFT merges one without a word."""
    settings = LoraConfig(r=2, target_modules=["lm_head"], trainable_token_indices=[5], init_lora_weights=False)
    with ours.quiet_wrapping():
        model = get_peft_model(build_model("llama-tied"), settings)
    with pytest.raises(ModelError, match="PEFT cannot merge all adapters: 'lm_head"):
        ours.merge_adapters(model)


@pytest.fixture(scope="module")
def wrapped():
    model = build_model("llama")
    with ours.quiet_wrapping():
        found = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=2, target_modules="all-linear"))
    with torch.no_grad():
        for name, parameter in found.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.1)
    return model, found


def test_adapters_are_switched_off_and_wrappers_taken_away(wrapped) -> None:
    model, found = wrapped
    ids = torch.tensor([[3, 4]])
    assert ours.has_adapters(found), (
        "PeftModel.disable_adapter is gone: it tells a wrapped model, and switches adapters off"
    )
    assert not ours.has_adapters(torch.nn.Linear(1, 1))
    with torch.no_grad():
        on = found(ids).logits
        with found.disable_adapter():
            off = found(ids).logits
    assert not torch.allclose(on, off)
    assert ours.without_wrappers(found) is model, "PeftModel.get_base_model no longer gives the model inside"
    assert ours.without_wrappers(torch.nn.DataParallel(found)) is model
    assert ours.is_adapted(found) and not ours.is_adapted(model), "classes of PEFT no longer live below peft.*"
    assert ours.model_inside(found) is model, (
        "PeftModel.active_peft_config.is_prompt_learning or get_base_model is gone: what tells prompts from layers?"
    )
    states = {ours.adapter_state(module) for module in found.modules()}
    with found.disable_adapter():
        off = {ours.adapter_state(module) for module in found.modules()}
    assert "" in states and len(states) > 1 and states != off, (
        "a tuner layer's active_adapters, merged_adapters, disable_adapters or scaling is gone: audits would not see "
        "that an adapter was switched"
    )
    plain = ours.merge_adapters(found)
    assert type(plain) is type(model), "PeftModel.merge_and_unload no longer gives the plain model"
    with torch.no_grad():
        torch.testing.assert_close(plain(ids).logits, on)
    assert ours.merge_adapters(plain) is plain
