"""GCG, SoftGCG and ActPert on tiny models: gradients, round trips, identities, controls."""

import copy
import dataclasses
from contextlib import ExitStack
from functools import partial

import pytest
import torch
from central_differences import gradient_entries
from tiny_models import EXAMPLES

from uds_lens.elicitation import GCG, ActPert, Context, ElicitOptions, Skip, SoftGCG, _gcg, elicit
from uds_lens.elicitation._act_pert import subject_positions
from uds_lens.elicitation._asking import Ask, Asking, changed_output
from uds_lens.elicitation._probes import first_prompt, keyed_seed, rendered
from uds_lens.elicitation._run import chosen_probes
from uds_lens.errors import ConfigError
from uds_lens.models import HookedModel
from uds_lens.patching._hooks import first_tensor

from .conftest import RUN

OPTIONS = ElicitOptions(samples=0, max_new_tokens=6)
ASKING = Asking(decoding="greedy", options=OPTIONS, protocol="raw", ends=frozenset(), show=False)
SUBJECT = EXAMPLES[0].question.split()[1]


@pytest.fixture(scope="module")
def model(opened):
    from tokenizers.decoders import ByteLevel

    given = opened("llama")
    tokenizer = copy.deepcopy(given.tokenizer)
    tokenizer.backend_tokenizer.decoder = ByteLevel()  # else a decoded text is not the one that was coded
    return HookedModel(given.hf, tokenizer, name="tiny", owned=False)


@pytest.fixture(scope="module")
def asks(model):
    return [
        Ask(n, row.id, SUBJECT, rendered(first_prompt(row), model.tokenizer, protocol="raw"))
        for n, row in enumerate(EXAMPLES)
        if SUBJECT in row.question
    ]


def _slot(model, ask):
    slot = GCG().slot(model, ask, ASKING)
    return slot, _gcg.first_suffix(model, slot, 4)


def test_the_slot_stands_after_the_question(model, asks):
    slot, suffix = _slot(model, asks[0])
    question = asks[0].rendered.prompt.question
    assert slot.text(suffix) == f"Question: {question}{suffix}\nAnswer:"
    ids, place = slot.ids_and_place(model, suffix)
    assert place.stop - place.start == 4
    assert model.tokenizer.decode(ids[place]).strip() == suffix.strip()
    assert model.tokenizer.decode(slot.target) == " Sure, the answer is"


def test_the_gradient_is_that_of_central_differences(model, asks, opened):
    # Llama's norm computes in float32 whatever its weights are; GPT-2's does not.
    double = HookedModel(copy.deepcopy(opened("gpt2").hf).double(), model.tokenizer, name="double", owned=False)
    slot, suffix = _slot(double, asks[0])
    for measured, gradient, size in gradient_entries(double, slot, suffix, entries=50):
        assert abs(measured - gradient) <= 1e-5 * max(abs(measured), size)


def test_gcg_never_gets_worse_and_what_it_finds_can_be_typed(model, asks):
    probe = GCG(tokens=4, steps=6, candidates=24, top_k=12)
    slot, _ = _slot(model, asks[0])
    found = probe.optimise(model, slot, seed=1)
    assert all(after <= before for before, after in zip(found.losses, found.losses[1:], strict=False))
    assert found.losses[-1] < found.losses[0] and 0 < found.live <= 1
    ids, place = slot.ids_and_place(model, found.suffix)
    with torch.no_grad():
        again = float(_gcg.target_loss(model, torch.tensor([ids]), slot.target))
    assert again == pytest.approx(found.losses[-1], abs=1e-5)
    assert _gcg.writable_tokens(model)[ids[place]].all()
    assert probe.optimise(model, slot, seed=1) == found
    plain = dataclasses.replace(probe, cached=False).optimise(model, slot, seed=1)
    assert plain.suffix == found.suffix and plain.losses == pytest.approx(found.losses, abs=1e-5)


def test_gcg_that_takes_every_step_may_get_worse(model, asks):
    slot, _ = _slot(model, asks[0])
    # One candidate leaves no choice: that none of 16 is worse than what it replaces is next to impossible.
    found = GCG(tokens=4, steps=16, candidates=1, top_k=12, accept="always").optimise(model, slot, seed=0)
    assert any(after > before for before, after in zip(found.losses, found.losses[1:], strict=False))


def test_softgcg_lowers_the_loss_of_each_question_as_if_it_were_alone(model, asks):
    probe = SoftGCG(tokens=4, steps=8, learning_rate=0.05)
    before = [parameter.requires_grad for parameter in model.hf.parameters()]
    together = probe.answer(model, asks, ASKING)
    assert all(one["loss"] < one["first_loss"] for one in together.details)
    alone = dataclasses.replace(probe, rows_at_once=1).answer(model, asks, ASKING)
    losses = [[one["loss"] for one in answers.details] for answers in (alone, together)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    assert alone.texts == together.texts
    few = dataclasses.replace(ASKING, options=dataclasses.replace(OPTIONS, rows_at_once=1))
    assert probe.answer(model, asks, few).texts == together.texts
    assert [parameter.requires_grad for parameter in model.hf.parameters()] == before


def test_effort_follows_from_the_target_and_is_named_where_it_differs():
    assert SoftGCG(tokens=20, steps=100, learning_rate=0.005).name == "softgcg"
    answer = dataclasses.replace(SoftGCG(), target="answer")
    assert answer.effort == (60, 300, 0.02) and answer.name == "softgcg(target=answer)"
    assert dataclasses.replace(answer, steps=100).name == "softgcg(steps=100, target=answer)"
    assert "tokens=60, steps=300, learning_rate=0.02" in repr(answer)  # finished parts are looked up by it


def test_softgcg_that_does_not_step_changes_nothing(model, asks):
    still = SoftGCG(tokens=4, steps=1, learning_rate=1e-12).answer(model, asks, ASKING)
    slots = [_slot(model, ask) for ask in asks]
    ids = [slot.ids_and_place(model, suffix)[0] for slot, suffix in slots]
    assert list(still.texts) == ASKING.generate(model, asks, ids)[0]


def _by_hand(model, ask, probe, seed):
    """ActPert in few lines: deltas by whole forwards, generation by feeding everything again."""
    ids = torch.tensor([ask.rendered.ids])
    at = subject_positions(model, ask)
    with torch.no_grad():
        embedded = model.hf.get_input_embeddings()(ids)
        generator = torch.Generator().manual_seed(keyed_seed(seed, ask.id, "actpert"))
        eta = torch.randn(probe.copies // (1 + probe.antithetic), *embedded.shape[1:], generator=generator)
        eta = (*eta, *-eta) if probe.antithetic else eta
        kept = [[] for _ in model.anatomy.layers]  # of each block, the true residual stream of the last one too
        hooks = [
            block.register_forward_hook(lambda m, args, out, layer=layer: layer.append(first_tensor(out)[0]))
            for layer, block in zip(kept, model.anatomy.layers, strict=True)
        ]
        for each in (embedded, *(embedded + probe.gamma * noise * at[:, None] for noise in eta)):
            model.hf(inputs_embeds=each)
        for hook in hooks:
            hook.remove()
    return torch.stack([clean - torch.stack(noisy).mean(0) for clean, *noisy in kept])


@pytest.mark.parametrize("antithetic", [True, False])
def test_actpert_equals_a_few_lines(model, asks, antithetic):
    probe = ActPert(layer="all", gamma=0.3, copies=4, antithetic=antithetic)
    delta, rms = probe.delta(model, asks[0], seed=0)
    expected = _by_hand(model, asks[0], probe, 0)
    assert len(delta) == model.n_layers
    torch.testing.assert_close(delta, expected, atol=1e-5, rtol=1e-4)
    one, _ = dataclasses.replace(probe, layer=1).delta(model, asks[0], seed=0)
    torch.testing.assert_close(one, expected[1:2], atol=1e-5, rtol=1e-4)
    assert rms > 0 and one.abs().max() > 1e-4


@pytest.mark.parametrize("layer", [1, "all"])
def test_actpert_added_once_is_as_if_every_step_read_the_prompt_again(model, asks, layer):
    probe = ActPert(layer=layer, gamma=2.0, copies=4)
    ask = asks[0]
    delta, _ = probe.delta(model, ask, seed=0)
    (texts,) = probe.answer(model, [ask], ASKING).texts
    ids = list(ask.rendered.ids)

    def steer(module, args, output, by):
        states = output if isinstance(output, torch.Tensor) else output[0]
        states = states.clone()
        states[0, : len(by)] += by
        return states if isinstance(output, torch.Tensor) else (states, *output[1:])

    blocks = range(model.n_layers) if layer == "all" else [layer]
    with torch.no_grad(), ExitStack() as steered:
        for block, by in zip(blocks, delta, strict=True):
            steered.enter_context(model.anatomy.layers[block].register_forward_hook(partial(steer, by=by)))
        for _ in range(OPTIONS.max_new_tokens):
            ids.append(int(model.hf(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    again = model.tokenizer.decode(ids[len(ask.rendered.ids) :], skip_special_tokens=True).strip()
    assert texts == (again,)


def test_actpert_without_noise_is_the_identity_and_controls_have_its_norm(model, asks):
    still = ActPert(layer=1, gamma=0.0).answer(model, asks, ASKING)
    assert list(still.texts) == ASKING.generate(model, asks, [ask.rendered.ids for ask in asks])[0]
    probe = ActPert(layer=1, gamma=0.1)
    delta, _ = probe.delta(model, asks[0], seed=0)
    minus, random = (control.delta(model, asks[0], seed=0)[0] for control in probe.controls)
    assert torch.equal(minus, -delta)
    torch.testing.assert_close(random.norm(dim=-1), delta.norm(dim=-1))
    assert not torch.allclose(random, delta)


def test_antithetic_copies_agree_where_plain_ones_are_noise(model, asks):
    def agreement(antithetic):
        probe = ActPert(layer=1, gamma=0.02, copies=8, antithetic=antithetic)
        one, other = (probe.delta(model, asks[0], seed=seed)[0].flatten() for seed in (1, 2))
        return float(torch.cosine_similarity(one, other, dim=0))

    assert agreement(True) > agreement(False) + 0.2


def test_optimised_probes_run_beside_the_others(opened):
    rows = [dataclasses.replace(row, subject=SUBJECT) for row in EXAMPLES[:3]]
    soft = SoftGCG(tokens=3, steps=1, target="answer")
    given = {"retain": opened("llama", "retain"), "probes": ["plain", ActPert(layer=1), soft]}
    found = elicit(opened("llama", "unlearned"), rows, options=OPTIONS, run=RUN, **given)
    row = dataclasses.replace(rows[0], subject="Nobody Known")
    with pytest.raises(Skip, match="does not name the subject"):
        ActPert().prompt(first_prompt(row), Context(example=row))
    steered = ["actpert(layer=1)", "actpert(layer=1, sign=-1)", "actpert(layer=1, direction=random)"]
    assert [probe.name for probe in found.probes] == ["plain", *steered, soft.name]
    assert soft.name not in set(found.summary()["probe"])
    assert set(found.capacity_frame()["probe"]) == {soft.name}
    assert any("gives the answer away" in sentence for sentence in found.warnings)
    assert found.ledger().set_index("probe").loc["plain", "access"] == "text"


def test_settings_out_of_range(model, asks):
    for cls, wrong in (
        (GCG, {"steps": 0}),
        (GCG, {"accept": "maybe"}),
        (SoftGCG, {"learning_rate": 0.0}),
        (SoftGCG, {"target": " "}),
        (ActPert, {"copies": 3, "antithetic": True}),
        (ActPert, {"gamma": -1.0}),
        (ActPert, {"layer": -1}),
    ):
        with pytest.raises(ConfigError, match=f"^{next(iter(wrong))} "):
            cls(**wrong)
    with pytest.raises(ConfigError, match="must be below"):
        ActPert(layer=99).answer(model, asks, ASKING)


CURRENT = [1, 11, 12, 13, 14, 15, 16, 17, 18, 19]
START, WANTED = 3, (5, 9, 7)
SWAPS = [(7, 20), (3, 21), (5, 22), (8, 23), (3, 24), (5, 25), (4, 26)]
"""Place and token, from the suffix's first token on."""
SWAPPED = [[*CURRENT[:place], token, *CURRENT[place + 1 :]] for place, token in SWAPS]


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_losses_of_candidates_are_those_of_whole_prompts(opened, family):
    model = opened(family)
    for rows_at_once in (1, 3):
        shared = _gcg.SharedBeginning(model, WANTED, rows_at_once=rows_at_once)
        for current, rows in (
            (CURRENT, [CURRENT]),
            (CURRENT, SWAPPED),
            ([2, *CURRENT[1:]], [[2, *row[1:]] for row in SWAPPED]),  # another beginning is read anew
        ):
            with torch.no_grad():
                expected = _gcg.target_loss(model, torch.tensor(rows), WANTED)
            found = shared.losses(rows, current, START)
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_each_batch_reads_only_what_follows_its_first_swap(opened):
    model = opened("llama")
    read = []

    def count(module, args, kwargs):
        read.append((args[0] if args else kwargs["hidden_states"]).shape[:2].numel())

    def tokens(shared):
        read.clear()
        shared.losses(SWAPPED, CURRENT, START)
        return sum(read)

    with model.anatomy.layers[0].register_forward_pre_hook(count, with_kwargs=True):
        whole, last = len(CURRENT) + len(WANTED), max(place for place, _ in SWAPS)
        alone = _gcg.SharedBeginning(model, WANTED, rows_at_once=1)
        after = sum(whole - place for place, _ in SWAPS)
        assert tokens(alone) == after + last
        assert tokens(alone) == after + last - START, "what precedes the suffix was read a second time"
        batches = [(3, 3), (3, 5), (1, 8)]  # rows, and the first swap among them: 3 3 4, 5 5 7, 8
        expected = sum(rows * (whole - first) for rows, first in batches) + last
        assert tokens(_gcg.SharedBeginning(model, WANTED, rows_at_once=3)) == expected
        assert tokens(_gcg.SharedBeginning(model, WANTED, rows_at_once=3, cached=False)) == len(SWAPS) * whole


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_padded_rows_have_the_loss_and_the_gradient_they_have_alone(opened, family):
    model = opened(family)
    embed = model.hf.get_input_embeddings()
    prompts = ([1, 11, 12, 13, 14], [1, 15, 16], [1, 17, 18, 19, 20, 21, 22])
    targets, places = ((5, 9, 7), (8, 6, 5, 9, 4, 3, 10), (7,)), (slice(2, 4), slice(1, 3), slice(4, 6))
    generator = torch.Generator().manual_seed(0)
    own = torch.randn(3, 2, embed.weight.shape[1], generator=generator).mul(0.1).requires_grad_(True)
    together = _gcg.padded_loss(model, _gcg.padded(prompts, targets, torch.device("cpu")), places, own)
    (gradient,) = torch.autograd.grad(together.sum(), own)
    for row, (prompt, target, place) in enumerate(zip(prompts, targets, places, strict=True)):
        alone = own.detach()[row : row + 1].requires_grad_(True)
        with changed_output(embed, _gcg.replacing([place], alone), length=len(prompt) + len(target)):
            loss = _gcg.target_loss(model, torch.tensor([prompt]), target)
        torch.testing.assert_close(together[row : row + 1], loss, atol=1e-5, rtol=1e-5)
        (expected,) = torch.autograd.grad(loss.sum(), alone)
        torch.testing.assert_close(gradient[row : row + 1], expected, atol=1e-5, rtol=1e-3)


def test_algorithm_1_is_the_default_and_other_settings_are_named():
    published = ActPert(layer="all", gamma=0.01, antithetic=False)
    assert ActPert() == published and ActPert().name == "actpert"
    paired = "actpert(layer=3, antithetic=True)"
    chosen = chosen_probes(["actpert(layer=all, antithetic=False)", paired, "gcg(steps=3)"])
    assert chosen[0] == published and chosen[3] == ActPert(layer=3, antithetic=True) and chosen[-1] == GCG(steps=3)
    assert [probe.name for probe in chosen[:4]] == ["actpert", "actpert(sign=-1)", "actpert(direction=random)", paired]
    grid = [ActPert(layer=layer, gamma=gamma) for layer in (0, 1) for gamma in (0.01, 0.02)]
    assert len(chosen_probes(grid)) == 3 * len(grid)
    with pytest.raises(ConfigError, match="layer"):
        chosen_probes(["actpert(layer=some)"])
