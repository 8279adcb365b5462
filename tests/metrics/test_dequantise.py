import copy

import pytest
import torch
from tiny_models import EXAMPLES, build_model, build_tokenizer

from uds_lens.data import encode
from uds_lens.errors import ModelError
from uds_lens.metrics import diagonal_fisher
from uds_lens.metrics._fisher import dequantised, is_4bit
from uds_lens.models import HookedModel

bitsandbytes = pytest.importorskip("bitsandbytes")


def in_4bit(model):
    """The model with every linear layer of its blocks in NF4."""
    model = copy.deepcopy(model)
    for block in model.model.layers:
        for part in (block.self_attn, block.mlp):
            for name, child in list(part.named_children()):
                if isinstance(child, torch.nn.Linear):
                    four = bitsandbytes.nn.Linear4bit(
                        child.in_features,
                        child.out_features,
                        bias=False,
                        quant_type="nf4",
                        compute_dtype=torch.float32,
                    )
                    four.load_state_dict({"weight": child.weight.data})
                    setattr(part, name, four.to("cpu"))
    return model.requires_grad_(False)


@pytest.fixture(scope="module")
def quantised():
    plain = build_model("llama", hidden_size=64, intermediate_size=64).requires_grad_(False)
    model = HookedModel(in_4bit(plain), build_tokenizer(), name="four bits", owned=False)
    if model.hf.model.layers[0].mlp.up_proj.weight.quant_state is None:
        pytest.skip("bitsandbytes does not quantise on this machine")
    return model


@pytest.mark.filterwarnings("ignore")
def test_four_bits_become_plain_weights(quantised):
    assert is_4bit(quantised.hf)
    plain = dequantised(quantised)
    assert not is_4bit(plain.hf)
    assert is_4bit(quantised.hf), "the given model stays as it is"
    assert plain.hf.get_input_embeddings().weight is quantised.hf.get_input_embeddings().weight
    ids = torch.tensor([[1, 20, 30, 40]])
    with torch.no_grad():
        assert torch.allclose(plain.hf(ids).logits, quantised.hf(ids).logits, atol=1e-3)


@pytest.mark.filterwarnings("ignore")
def test_fisher_of_a_dequantised_model(quantised):
    rows = encode(EXAMPLES[:1], quantised.tokenizer).rows
    with pytest.raises(ModelError, match="is quantised"):
        diagonal_fisher(quantised, rows, [0], show=False)
    assert float(diagonal_fisher(dequantised(quantised), rows, [0], show=False)[0].sum()) > 0


def test_a_plain_model_is_handed_through(llama):
    assert dequantised(llama()) is llama()
