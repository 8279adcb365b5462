"""Every family's parts are found, and its head can be asked alone."""

import pytest
import torch
from tiny_models import D_VOCAB, SHAPE, build_model, each_family
from torch import nn
from transformers import (
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaForSequenceClassification,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from uds_lens.errors import ModelError
from uds_lens.models import open_model
from uds_lens.models._anatomy import anatomy_of

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


class Inner(PreTrainedModel):
    """A decoder as somebody writes one: linear blocks, a norm."""

    config_class = PreTrainedConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(D_VOCAB, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, D_VOCAB)
        self.post_init()

    def get_input_embeddings(self):
        return self.embed

    def get_output_embeddings(self):
        return self.head


class Outer(PreTrainedModel):
    config_class = PreTrainedConfig
    base_model_prefix = "model"

    def __init__(self, config):
        super().__init__(config)
        self.model = Inner(config)
        self.post_init()

    def get_input_embeddings(self):
        return self.model.embed

    def get_output_embeddings(self):
        return self.model.head


SIZED = {"hidden_size": 8, "num_hidden_layers": 2, "vocab_size": D_VOCAB}


def of(outer=Outer, **sizes):
    config = PreTrainedConfig()
    for name, size in {**SIZED, **sizes}.items():
        if size is not None:
            setattr(config, name, size)
    return outer(config)


def test_a_model_of_ones_own_is_read_where_it_has_the_expected_form():
    parts = anatomy_of(of())
    assert (parts.n_layers, type(parts.base), type(parts.final_norm)) == (2, Inner, nn.LayerNorm)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: of(Inner), "it has no inner model"),
        (lambda: of(hidden_size=None), "its config does not define hidden_size"),
        (lambda: of(vocab_size=None, num_hidden_layers=None), "does not define num_hidden_layers and vocab_size"),
        (lambda: of(num_hidden_layers=3), r"its inner model \(Inner\) has no list of 3 blocks with a final norm"),
        (lambda: build_model("llama").model, "it has no inner model"),
        (lambda: LlamaForSequenceClassification(build_model("llama").config), "it has no language-model head"),
        (lambda: MambaForCausalLM(MambaConfig(**SIZED)), r"\(MambaModel\) has no list of 2 blocks with a final norm"),
    ],
)
def test_a_model_of_another_form_is_told_what_it_lacks_and_what_it_must_have(make, why):
    needs = "inner model, .*ModuleList of num_hidden_layers blocks.*norm.*head.*hidden_size"
    with pytest.raises(ModelError, match=f"{why}. Expected: .*{needs}"):
        open_model(make())


def test_a_decoder_without_a_norm_is_refused():
    model = build_model("llama")
    del model.model.norm
    with pytest.raises(ModelError, match="has no list of 4 blocks with a final norm"):
        anatomy_of(model)


def test_a_model_whose_class_names_a_prefix_that_it_does_not_have_is_read():
    sizes = {"head_dim": 8, "num_local_experts": 2, "intermediate_size_mlp": 48}
    model = Llama4ForCausalLM(Llama4TextConfig(**SHAPE, **sizes))
    assert not hasattr(model, model.base_model_prefix)
    assert anatomy_of(model).base is model.model
