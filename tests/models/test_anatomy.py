"""Every family's parts are found, and its head can be asked alone."""

import pytest
import torch
from tiny_models import build_model, each_family

from uds_lens.errors import ModelError
from uds_lens.models import anatomy_of

IDS = torch.tensor([[1, 9, 33, 120, 7, 4]])


@pytest.mark.parametrize("family", each_family())
@torch.no_grad()
def test_reading_out_the_last_block_gives_the_models_own_logits(opened, family):
    model = opened(family).hf
    parts = anatomy_of(model)
    assert parts.n_layers == model.config.num_hidden_layers
    kept = []
    handle = parts.layers[-1].register_forward_hook(
        lambda module, args, output: kept.append(output if isinstance(output, torch.Tensor) else output[0])
    )
    logits = model(input_ids=IDS).logits[0]
    handle.remove()
    assert torch.allclose(parts.unembed(parts.final_norm(kept[0][0])), logits, atol=1e-6, rtol=0)
    assert parts.d_vocab == logits.shape[-1]
    assert "forward" not in parts.base.__dict__
    assert torch.equal(model(input_ids=IDS).logits[0], logits)


def test_the_head_is_restored_after_an_error():
    parts = anatomy_of(build_model("llama"))
    with pytest.raises(RuntimeError):
        parts.unembed(torch.zeros(2, 5))
    assert "forward" not in parts.base.__dict__


def test_a_decoder_of_another_form_is_refused():
    model = build_model("llama")
    del model.model.norm
    with pytest.raises(ModelError, match="found no list of 4 blocks followed by a final norm"):
        anatomy_of(model)
