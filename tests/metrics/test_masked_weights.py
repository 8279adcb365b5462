import pytest
import torch
from tiny_models import EXAMPLES, load_plain

from uds_lens.data import encode
from uds_lens.errors import ModelError
from uds_lens.metrics import (
    FisherMasks,
    diagonal_fisher,
    fisher_erasure,
    fisher_masks,
    masked_fisher,
)
from uds_lens.metrics import (
    _fisher as fisher_diagonals,
)
from uds_lens.metrics import _fisher as module
from uds_lens.metrics._definitions.fisher_masked import FRACTIONS
from uds_lens.metrics._fisher import SpilledFisher, layer_turns, mask_size, spill_fisher

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
    return {
        v: diagonal_fisher(opened("llama", v), rows, range(4), show=False)
        for v in ("full", "retain", "unlearned")
    }


@pytest.fixture(scope="module")
def masks(opened, rows):
    spilled = spill_fisher(opened("llama", "retain"), rows, memory_gb=ROOMY, show=False)
    return fisher_masks(opened("llama"), spilled, rows, memory_gb=ROOMY, show=False)


@pytest.mark.parametrize("layer", [0, 3])
def test_diagonal_against_backward(trio, rows, diagonals, layer):
    expected = by_backward(trio("llama").full, rows, layer)
    assert torch.allclose(diagonals["full"][layer], expected, rtol=1e-3, atol=float(expected.max()) * 1e-5)


def test_masks_hold_the_largest_excess(diagonals, masks):
    for layer in range(4):
        excess = (diagonals["retain"][layer] - diagonals["full"][layer]).clamp(min=0)
        assert masks.n_weights[layer] == len(excess)
        for fraction in FRACTIONS:
            size = masks.size(layer, fraction)
            assert size == mask_size(len(excess), fraction)
            assert torch.allclose(
                excess[masks.indices[layer][:size]], excess.sort(descending=True).values[:size]
            )
        assert torch.allclose(masks.full[layer].float(), diagonals["full"][layer][masks.indices[layer]])


def erasure_by_hand(diagonals, layer, fraction):
    ret, full, unl = (diagonals[v][layer].double() for v in ("retain", "full", "unlearned"))
    order = (ret - full).clamp(min=0).argsort(descending=True)[: max(1, int(fraction * len(ret)))]
    e = (ret[order] - full[order]).mean()
    return 1 - float(((ret[order] - unl[order]).mean() / e).clamp(0, 1)), float(e)


@pytest.mark.parametrize("fraction", FRACTIONS)
def test_erasure_against_full_vectors(opened, rows, diagonals, masks, fraction):
    own = masked_fisher(opened("llama", "unlearned"), rows, masks, memory_gb=ROOMY, show=False)
    erasure, weights = fisher_erasure(masks, own, fraction)
    for layer in range(4):
        e, w = erasure_by_hand(diagonals, layer, fraction)
        assert float(erasure[layer]) == pytest.approx(e, abs=1e-4)
        assert float(weights[layer]) == pytest.approx(w, rel=1e-4)


@pytest.mark.parametrize(("version", "expected"), [("retain", 1.0), ("full", 0.0)])
def test_identities_measured_again(opened, rows, masks, version, expected):
    own = masked_fisher(opened("llama", version), rows, masks, memory_gb=ROOMY, show=False)
    for fraction in FRACTIONS:
        erasure, _ = fisher_erasure(masks, own, fraction)
        assert torch.allclose(erasure, torch.full_like(erasure, expected), atol=1e-4)


def test_less_memory_more_turns_same_numbers(opened, rows, masks):
    model = opened("llama")
    assert [len(turn) for turn in layer_turns(model, ROOMY)] == [4]
    assert layer_turns(model, TIGHT) == [[0], [1], [2], [3]]
    own = [masked_fisher(model, rows, masks, memory_gb=gb, show=False) for gb in (ROOMY, TIGHT)]
    for a, b in zip(*own, strict=True):
        assert torch.allclose(a, b, rtol=1e-4)


def test_never_more_than_one_turn_of_squares(opened, rows, monkeypatch):
    """With little memory a layer's squares are gone before the next layer's are made."""
    alive = []
    whole = module.diagonal_fisher

    def watched(model, rows, layers, **options):
        alive.append(len(layers))
        return whole(model, rows, layers, **options)

    for place in (module, fisher_diagonals):
        monkeypatch.setattr(place, "diagonal_fisher", watched)
    spilled = spill_fisher(opened("llama", "retain"), rows[:1], memory_gb=TIGHT, show=False)
    fisher_masks(opened("llama"), spilled, rows[:1], memory_gb=TIGHT, show=False)
    assert alive == [1] * 8


def test_spilled_files_go_with_their_owner():
    spilled = SpilledFisher()
    spilled[2] = torch.arange(3.0)
    place = spilled._folder.path
    assert spilled[2].tolist() == [0, 1, 2]
    assert place.is_dir()
    spilled.close()
    assert not place.exists()


def test_parameters_stay_as_they_were(opened, rows):
    model = opened("llama")
    diagonal_fisher(model, rows[:1], [1], show=False)
    assert not any(parameter.requires_grad for parameter in model.hf.parameters())
    assert all(parameter.grad is None for parameter in model.hf.parameters())


def test_layers_without_a_mask_have_no_weight():
    none, one = torch.empty(0), torch.tensor([2.0])
    masks = FisherMasks((none.long(), torch.tensor([0])), (none, one), (none, one / 2), (10, 10))
    erasure, weights = fisher_erasure(masks, [none, one], 0.01)
    assert erasure.isnan().tolist() == [True, False]
    assert weights.tolist() == [0.0, 1.0]


def test_a_broken_model_is_refused(broken, rows):
    from uds_lens.models import open_model

    with (
        open_model(broken, device="cpu") as model,
        pytest.raises(ModelError, match="first for 'Who"),
    ):
        diagonal_fisher(model, rows, [0], show=False)
