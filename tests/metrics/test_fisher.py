"""Fisher diagonals against `.backward`, masks against full vectors, rows side by side, 4-bit weights as plain ones."""

import copy

import pytest
import torch
from tiny_models import EXAMPLES, build_model, build_tokenizer, load_plain

from uds_lens.data import encode
from uds_lens.errors import ModelError
from uds_lens.metrics import _fisher
from uds_lens.metrics._definitions.white_box import FRACTIONS
from uds_lens.metrics._fisher import FisherMasks, diagonal_fisher, fisher_erasure, fisher_masks, masked_fisher
from uds_lens.models import HookedModel

ROOMY, TIGHT = 1.0, 1e-9


@pytest.fixture(scope="module")
def rows(opened):
    return encode(EXAMPLES[:4], opened("llama").tokenizer).rows


def by_backward(folder, rows, layer):
    """Squares of `.grad` of the mean entity NLL, one example after the other, on the plain model."""
    model, _ = load_plain(folder)
    named = sorted(model.model.layers[layer].named_parameters())
    total = 0
    for row in rows:
        model.zero_grad()
        logits = model(torch.tensor([row.ids])).logits[0, list(row.scored)]
        torch.nn.functional.cross_entropy(logits, torch.tensor(row.targets)).backward()
        total = total + torch.cat([p.grad.reshape(-1) for _, p in named]) ** 2
    return total / len(rows)


@pytest.fixture(scope="module")
def diagonals(opened, rows):
    versions = ("full", "retain", "unlearned")
    return {v: diagonal_fisher(opened("llama", v), rows, range(4), show=False) for v in versions}


@pytest.fixture(scope="module")
def masks(opened, rows):
    spilled = _fisher.spill_fisher(opened("llama", "retain"), rows, memory_gb=ROOMY, show=False)
    return fisher_masks(opened("llama"), spilled, rows, memory_gb=ROOMY, show=False)


def test_diagonal_against_backward(trio, opened, rows, diagonals):
    for layer in (0, 3):
        expected = by_backward(trio("llama").full, rows, layer)
        largest = float(expected.max())
        assert torch.allclose(diagonals["full"][layer], expected, rtol=1e-3, atol=largest * 1e-5)
    assert not any(parameter.requires_grad for parameter in opened("llama").hf.parameters())
    assert all(parameter.grad is None for parameter in opened("llama").hf.parameters())


def test_erasure_against_full_vectors(opened, rows, diagonals, masks):
    found = masked_fisher(opened("llama", "unlearned"), rows, masks, memory_gb=ROOMY, show=False)
    for fraction in FRACTIONS:
        erasure, weights = fisher_erasure(masks, found, fraction)
        for layer in range(4):
            ret, full, unl = (diagonals[v][layer].double() for v in ("retain", "full", "unlearned"))
            order = (ret - full).clamp(min=0).argsort(descending=True)[: max(1, int(fraction * len(ret)))]
            e = (ret[order] - full[order]).mean()
            expected = 1 - float(((ret[order] - unl[order]).mean() / e).clamp(0, 1))
            assert float(erasure[layer]) == pytest.approx(expected, abs=1e-4)
            assert float(weights[layer]) == pytest.approx(float(e), rel=1e-4)


@pytest.mark.parametrize(("version", "expected", "memory"), [("retain", 1.0, TIGHT), ("full", 0.0, ROOMY)])
def test_identities_measured_again(opened, rows, masks, version, expected, memory):
    found = masked_fisher(opened("llama", version), rows, masks, memory_gb=memory, show=False)
    for fraction in FRACTIONS:
        erasure, _ = fisher_erasure(masks, found, fraction)
        assert torch.allclose(erasure, torch.full_like(erasure, expected), atol=1e-4)


def test_with_little_memory_one_layer_at_a_time_is_held(opened, rows, monkeypatch):
    model, held, whole = opened("llama"), [], _fisher.diagonal_fisher
    assert [len(turn) for turn in _fisher.layer_turns(model, ROOMY)] == [4]
    assert _fisher.layer_turns(model, TIGHT) == [[0], [1], [2], [3]]
    monkeypatch.setattr(
        _fisher, "diagonal_fisher", lambda m, r, layers, **o: held.append(len(layers)) or whole(m, r, layers, **o)
    )
    spilled = _fisher.spill_fisher(opened("llama", "retain"), rows[:1], memory_gb=TIGHT, show=False)
    fisher_masks(model, spilled, rows[:1], memory_gb=TIGHT, show=False)
    assert held == [1] * 8
    spilled.close()
    assert not spilled.path.exists()


def test_layers_without_a_mask_have_no_weight():
    none, one = torch.empty(0), torch.tensor([2.0])
    masks = FisherMasks((none.long(), torch.tensor([0])), (none, one), (none, one / 2), (10, 10))
    erasure, weights = fisher_erasure(masks, [none, one], 0.01)
    assert erasure.isnan().tolist() == [True, False]
    assert weights.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "qwen3", "neox", "mixtral"])
def test_gradients_side_by_side_are_those_of_each_alone(opened, family, monkeypatch):
    model, ran, loss = opened(family), [], _fisher._loss
    rows = encode(EXAMPLES[:4], model.tokenizer).rows
    monkeypatch.setattr(_fisher, "_loss", lambda *args: ran.append(args) or loss(*args))
    together = diagonal_fisher(model, rows, [0, 3], show=False)
    assert (len(ran) <= len(rows)) == (family != "mixtral"), "experts see the tokens of all rows at once"
    monkeypatch.setattr(_fisher, "_may_run_together", lambda *args: False)
    alone = diagonal_fisher(model, rows, [0, 3], show=False)
    for layer in (0, 3):
        assert torch.allclose(together[layer], alone[layer], rtol=1e-3, atol=float(alone[layer].max()) * 1e-5)


@pytest.mark.parametrize("memory", [1, 1 << 28])
def test_memory_decides_how_many_run_side_by_side(llama, monkeypatch, memory):
    rows, sizes, run = encode(EXAMPLES, llama().tokenizer).rows, [], _fisher._side_by_side
    monkeypatch.setattr(_fisher, "_GRAPH_BYTES", memory)
    monkeypatch.setattr(
        _fisher, "_side_by_side", lambda m, r, indices, *rest: sizes.append(len(indices)) or run(m, r, indices, *rest)
    )
    diagonal_fisher(llama(), rows, [2], show=False)
    assert (max(sizes[1:]) == 1) == (memory == 1), "the first two are a trial"


@pytest.mark.parametrize("wrong", ["_module_gradients", "_scales_by_token"])
def test_gradients_that_differ_side_by_side_are_not_taken(llama, monkeypatch, wrong):
    """Those of the norms' scales too, which are small beside those of the linear maps."""
    rows, right = encode(EXAMPLES[:3], llama().tokenizer).rows, getattr(_fisher, wrong)
    expected = diagonal_fisher(llama(), rows, [1], show=False)[1]
    monkeypatch.setattr(
        _fisher, wrong, lambda *args: None if (f := right(*args)) is None else [(name, 1.1 * g) for name, g in f]
    )
    assert torch.allclose(diagonal_fisher(llama(), rows, [1], show=False)[1], expected, rtol=1e-3)


def in_4bit(model, bitsandbytes):
    """The model with every linear layer of its blocks in NF4."""
    model = copy.deepcopy(model)
    for block in model.model.layers:
        for part in (block.self_attn, block.mlp):
            for name, child in list(part.named_children()):
                if isinstance(child, torch.nn.Linear):
                    four = bitsandbytes.nn.Linear4bit(
                        child.in_features, child.out_features, bias=False, quant_type="nf4", compute_dtype=torch.float32
                    )
                    four.load_state_dict({"weight": child.weight.data})
                    setattr(part, name, four.to("cpu"))
    return model.requires_grad_(False)


@pytest.mark.filterwarnings("ignore")
def test_four_bits_become_plain_weights_that_have_gradients(llama):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    tiny = build_model("llama", hidden_size=64, intermediate_size=64).requires_grad_(False)
    quantised = HookedModel(in_4bit(tiny, bitsandbytes), build_tokenizer(), name="four bits", owned=False)
    if quantised.hf.model.layers[0].mlp.up_proj.weight.quant_state is None:
        pytest.skip("bitsandbytes does not quantise on this machine")
    plain, ids = _fisher.dequantised(quantised), torch.tensor([[1, 20, 30, 40]])
    assert type(plain.hf.model.layers[0].mlp.up_proj) is torch.nn.Linear
    assert type(quantised.hf.model.layers[0].mlp.up_proj) is not torch.nn.Linear, "the given model stays as it is"
    assert plain.hf.get_input_embeddings().weight is quantised.hf.get_input_embeddings().weight
    with torch.no_grad():
        assert torch.allclose(plain.hf(ids).logits, quantised.hf(ids).logits, atol=1e-3)
    rows = encode(EXAMPLES[:1], quantised.tokenizer).rows
    with pytest.raises(ModelError, match="is quantised"):
        diagonal_fisher(quantised, rows, [0], show=False)
    assert float(diagonal_fisher(plain, rows, [0], show=False)[0].sum()) > 0
    assert _fisher.dequantised(llama()) is llama()
