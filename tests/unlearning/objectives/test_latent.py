"""RR, RMU-LAT and UNDO: equal to their formulas written out, what trains, the adversary, the damage."""

import math

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.unlearning.conftest import EXTRA, Tiny, train, weights
from tests.unlearning.test_all_objectives import passes  # noqa: F401 - a fixture
from uds_lens import unlearning as u
from uds_lens.errors import ConfigError
from uds_lens.unlearning._objectives.rmu import steering_vector
from uds_lens.unlearning._objectives.rmulat import latent_attack
from uds_lens.unlearning._objectives.rr import rerouting, state_norm_distance
from uds_lens.unlearning._objectives.undo import damaged
from uds_lens.unlearning._passes import Passes
from uds_lens.unlearning._registry import objective_named


def hidden(model, batch, layer: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The states after a layer at each position that predicts a label."""
    with torch.no_grad():
        found = model(batch["input_ids"], attention_mask=batch["attention_mask"], output_hidden_states=True)
    labels = batch["labels"]
    places = [(r, p - 1) for r in range(len(labels)) for p in range(1, labels.shape[1]) if labels[r, p] != -100]
    return [found.hidden_states[layer + 1][place] for place in places]


def test_rerouting_on_a_model(passes) -> None:  # noqa: F811
    config, sums = u.RRConfig(layer=1, top_layer=3, alpha=4.0), {}
    for side in ("forget", "retain"):
        each = []
        for layer in (1, 3):
            here, there = (hidden(model, passes.batch[side], layer) for model in (passes._model, passes._frozen._model))
            for h, g in zip(here, there, strict=True):
                cosine = max(0.0, float(h @ g / h.norm() / g.norm()))
                each.append(cosine if side == "forget" else math.sqrt(float(((h - g) ** 2).sum())))
        sums[side] = sum(each) / len(each)
    for weight, share in ((None, 0.0), (0.25, 0.25)):
        now = Passes(passes._model, passes.batch, frozen=passes._frozen, weight=weight)
        with torch.no_grad():
            found = objective_named("rr").terms(config, now)
        assert float(found.forget.weighted) == pytest.approx(4.0 * (1 - share) * sums["forget"], rel=1e-4)
        assert float(found.retain.weighted) == pytest.approx(4.0 * share * sums["retain"], rel=1e-4)
    with pytest.raises(ConfigError, match=r"top_layer=1 is below layer 3"):
        objective_named("rr").prepare(u.RRConfig(layer=3, top_layer=1), passes._model)


def test_rerouting_by_hand() -> None:
    here = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [3.0, 4.0], [9.0, 9.0]]])
    there = torch.tensor([[[-2.0, 0.0], [0.0, 5.0], [6.0, 8.0], [0.0, 0.0]]])
    mask = torch.tensor([[True, True, True, False]])
    assert rerouting(here, there, mask).item() == pytest.approx(1 / 3)
    assert state_norm_distance(here, there, mask).item() == pytest.approx((3 + math.sqrt(26) + 5) / 3)


def test_the_adversary_reaches_the_best_point_of_its_ball() -> None:
    goal = torch.tensor([[[3.0, 4.0], [0.3, 0.4]], [[0.0, 0.0], [-8.0, 0.0]]], dtype=torch.float64)
    found = latent_attack(lambda x: (x - goal).square().sum(), torch.zeros_like(goal), epsilon=1.0, steps=200)
    best = torch.tensor([[[0.6, 0.8], [0.3, 0.4]], [[0.0, 0.0], [-1.0, 0.0]]], dtype=torch.float64)
    torch.testing.assert_close(found, best, rtol=0, atol=0.02)
    untouched = latent_attack(lambda x: x[:, 0].sum(), torch.zeros_like(goal), epsilon=1.0, steps=3)
    assert bool((untouched[:, 1] == 0).all())


def test_the_adversary_brings_answers_back_and_rmu_answers_it(passes) -> None:  # noqa: F811
    config = u.make_config("rmulat", {**EXTRA["rmulat"], "alpha": 3.0})
    lost: list[float] = []
    original, seen = Passes.adding, []

    def spy(self, layer, change):
        seen.append((layer, change.detach()))
        return original(self, layer, change)

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(Passes, "adding", spy)
        found = objective_named("rmulat").terms(config, passes)
        assert {layer for layer, _ in seen} == {2} and len(seen) == 4
        for _, change in seen:
            with original(passes, 2, change):
                lost.append(-float(passes.answer_log_probs("forget").sum()))
    added = seen[-1][1]
    assert lost == sorted(lost, reverse=True) and lost[-1] < lost[0] - 0.1
    assert float(added.norm(dim=-1).max()) <= 0.5 + 1e-5
    assert bool((added[passes.batch["forget"]["attention_mask"] == 0] == 0).all())
    with torch.no_grad():  # the same states, run by hand from the block after the attack
        core, batch = passes._model.model, passes.batch["forget"]
        plain = passes.states("forget", 2) + added
        mask = torch.full((plain.shape[1],) * 2, -torch.inf).triu(1)[None, None]
        spin = core.rotary_emb(plain, torch.arange(plain.shape[1])[None])
        state = core.layers[3](plain, attention_mask=mask, position_embeddings=spin)
        state = state[0] if isinstance(state, tuple) else state
        goal = steering_vector(64, scale=5.0, seed=0)
        at = torch.nn.functional.pad(batch["labels"][:, 1:] != -100, (0, 1))
        expected = ((state - goal) ** 2).mean(-1)[at].mean()
    torch.testing.assert_close(found.forget.value, expected, rtol=1e-4, atol=1e-5)
    rmu = objective_named("rmu").terms(u.RMUConfig(layer=3, scale=5.0, alpha=3.0), passes)
    torch.testing.assert_close(found.retain.value, rmu.retain.value)
    assert not torch.isclose(found.forget.value, rmu.forget.value, rtol=1e-3)


def test_undo_damages_as_it_says_and_distils_where_it_started(tiny: Tiny, passes) -> None:  # noqa: F811
    before = AutoModelForCausalLM.from_pretrained(tiny.full)
    config = u.UNDOConfig(noise_share=0.25, noise_scale=0.5, seed=3)
    models = [AutoModelForCausalLM.from_pretrained(tiny.full) for _ in range(2)]
    for model in models:
        damaged(config, model)
    for (name, old), new, again in zip(before.named_parameters(), *(m.parameters() for m in models), strict=True):
        assert new.equal(again), "one seed, one damage"
        noise = (new - 0.75 * old).detach() / 0.25
        if old.ndim == 1:
            assert float(noise.abs().max()) < 1e-6, name
        else:
            bound = 0.5 * math.sqrt(6 / sum(old.shape))
            assert float(noise.abs().max()) <= bound * (1 + 1e-4)
            assert float(noise.std()) == pytest.approx(bound / math.sqrt(3), rel=0.1), "uniform"
    with torch.no_grad():
        found = objective_named("undo").terms(u.UNDOConfig(alpha=2.0), passes)
        for term, side, weight in ((found.forget, "forget", 1.0), (found.retain, "retain", 2.0)):
            here, there, each = passes.logits(side), passes.frozen_logits(side), []
            for r, p in (passes.labels(side)[:, 1:] != -100).nonzero().tolist():
                full, own = there[r, p].log_softmax(-1), here[r, p].log_softmax(-1)
                each.append(float((full.exp() * (full - own)).sum()))
            assert float(term.weighted) == pytest.approx(weight * sum(each) / len(each), rel=1e-4)
    with pytest.raises(ConfigError, match="train without LoRA"):
        train(tiny, "undo", tiny.full.parent / "undo", lora=u.LoraSettings(rank=2))


def test_what_trains(tiny: Tiny, tmp_path) -> None:
    start = weights(tiny.full)
    for method, trained in (("rr", {0, 1, 2, 3}), ("rmulat", {1, 2, 3})):
        after = weights(train(tiny, method, tmp_path / method))
        moved = {name for name, value in after.items() if not value.equal(start[name])}
        assert {int(name.split(".")[2]) for name in moved if ".layers." in name} == trained
        assert all(".layers." in name for name in moved)
