"""Blocks of one model in another: against swaps by plain transformers, what follows from the definition, by hand."""

import copy
import dataclasses
import math

import pytest
import torch
from audit.independent import layers_of, tokens_of
from tiny_models import CORE, EXAMPLES, STRUCTURES, each_family, load_plain, some_now

import uds_lens as ul
from uds_lens.transplants._candidates import candidates_of, passes_of, widths_of
from uds_lens.transplants._running import by_block, by_forward
from uds_lens.transplants._scores import host_depth, least_on_others, taken

CONFIG = ul.AuditConfig(protocol="raw", n_bootstrap=100)
FEW = ul.AuditConfig(n_bootstrap=100)


def said(model, tokenizer, examples):
    """Mean log-probability of each entity, one row at a time."""
    values = []
    for example in examples:
        ids, places = tokens_of(example, tokenizer)
        with torch.no_grad():
            logprobs = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float().log_softmax(-1)
        values.append(sum(float(logprobs[p - 1, ids[p]]) for p in places) / len(places))
    return torch.tensor(values, dtype=torch.float64)


def swapped(host, donor, candidate):
    """A copy of the host with blocks, or attention, of the donor."""
    model = copy.deepcopy(host)
    blocks, others = layers_of(model), layers_of(donor)
    for i in range(candidate.first, candidate.first + candidate.width):
        if candidate.attention:
            name = next(n for n in ("self_attn", "attn", "attention") if hasattr(blocks[i], n))
            setattr(blocks[i], name, getattr(others[i], name))
        else:
            blocks[i] = others[i]
    return model


@pytest.mark.parametrize("family", each_family(["llama", "gpt2"]))
def test_every_mixture_is_the_model_with_its_blocks_swapped_by_hand(trio, family):
    found = ul.transplant(*trio(family), EXAMPLES, config=CONFIG)
    (full, tokenizer), (retain, _), (unlearned, _) = map(load_plain, trio(family))
    a, close = found.answers, {"atol": 1e-5, "rtol": 0}
    examples = found.examples
    for s, model in ((a.s_full, full), (a.s_retain[0], retain), (a.s_unlearned, unlearned)):
        torch.testing.assert_close(s, said(model, tokenizer, examples), **close)
    pairs = [
        (a.full_with_retain[0], full, retain),
        (a.retain_with_full[0], retain, full),
        (a.unlearned_with_retain[0], unlearned, retain),
        (a.unlearned_with_full, unlearned, full),
    ]
    assert found.candidates == candidates_of(len(layers_of(full)))
    for s, host, donor in pairs if family in CORE else pairs[2:3]:
        for number, candidate in enumerate(found.candidates):
            expected = said(swapped(host, donor, candidate), tokenizer, examples)
            torch.testing.assert_close(s[:, number], expected, **close)
            assert (s[:, number] - said(host, tokenizer, examples)).abs().max() > 1e-3


@pytest.mark.parametrize("exact", some_now([True], of=[True, False]))
def test_a_retain_model_has_a_depth_of_1_and_hides_nothing(world, exact):
    config = ul.AuditConfig(exact_noop=exact, n_bootstrap=100)
    found = ul.transplant(world.full, world.retain, world.retain, world.examples[:12], config=config)
    measured = found.host_depth_per_example[~found.host_depth_per_example.isnan()]
    assert len(measured) > 8
    assert set(measured.tolist()) == {1.0}
    assert found.output_depth == found.host_depth == 1.0
    assert found.hidden == 0.0
    assert found.host_depth_interval == (1.0, 1.0)
    assert found.evidence[:3] == (1.0, *found.hidden_interval[:1], 0.1)
    assert found.localisation[0].value == pytest.approx(found.localisation[0].retain)


@pytest.mark.parametrize("exact", some_now([True], of=[True, False]))
def test_full_lost_nothing_so_nothing_is_hidden_and_nothing_comes_back(world, exact):
    config = ul.AuditConfig(exact_noop=exact, n_bootstrap=100)
    found = ul.transplant(world.full, world.retain, world.full, world.examples[:6], config=config)
    assert found.output_depth == found.host_depth == 0.0
    assert math.isnan(found.hidden)
    assert "still answers" in found.hidden_reason
    assert [math.isnan(of.value) and "nothing was lost" in of.reason for of in found.localisation] == [True, True]
    assert not found.answers.left("unlearned_with_full").any()


def test_a_model_that_differs_in_one_band_is_restored_by_it(world, tmp_path):
    model, tokenizer = load_plain(world.full)
    with torch.no_grad():
        for parameter in model.model.layers[3].parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    model.save_pretrained(tmp_path / "noise")
    tokenizer.save_pretrained(tmp_path / "noise")
    examples = world.examples[:12]
    found = ul.transplant(world.full, world.retain, tmp_path / "noise", examples, config=FEW)
    one, two = found.localisation
    assert (one.band, one.value) == ("block 3", pytest.approx(1.0, abs=1e-6))
    assert two.value == pytest.approx(1.0, abs=1e-6)
    assert one.retain < 0.5
    frame = found.candidates_frame()
    restored = frame[(frame["donor"] == "full") & frame["recovered"].gt(1 - 1e-6)]
    assert set(restored["blocks"]) == {"block 3", "blocks 2-3", "blocks 3-4"}
    # with retain's block in that place nothing of the change is left: the host is full
    assert found.output_depth > 0.5
    assert found.host_depth < 0.05


def test_streamed_models_give_the_same_numbers(trio):
    plain, streamed = (
        ul.transplant(*trio("llama"), EXAMPLES, config=CONFIG, control=control(), options=ul.RunOptions(stream=stream))
        for stream in (False, True)
    )
    for name in ("s_full", "s_retain", "unlearned_with_retain", "unlearned_with_full", "retain_with_full"):
        assert torch.equal(getattr(plain.answers, name), getattr(streamed.answers, name)), name
        assert torch.equal(getattr(plain.control, name), getattr(streamed.control, name)), name
    assert {role: of.fingerprint for role, of in plain.models.items()} == {
        role: of.fingerprint for role, of in streamed.models.items()
    }


def control():
    return [
        {"question": f"Kept {e.question}", "answer": e.answer, "prefix": e.prefix, "entity": e.entity}
        for e in EXAMPLES[:3]
    ]


@pytest.mark.parametrize("family", each_family(CORE, STRUCTURES))
def test_blocks_run_apart_as_in_the_models_own_forward(opened, family):
    from uds_lens.data import encode, make_batch

    host, donor = opened(family, "unlearned"), opened(family, "retain")
    rows = encode(EXAMPLES, tokenizer=host.tokenizer, protocol="raw").rows
    batch = make_batch(rows[:3], pad_token_id=0)
    candidates = candidates_of(host.n_layers)
    apart, whole = (run(host, donor, [batch], candidates) for run in (by_block, by_forward))
    torch.testing.assert_close(apart, whole, atol=1e-5, rtol=0)


def test_live_models_stay_as_they_were(trio):
    models = [load_plain(place)[0] for place in trio("llama")]
    tokenizer = load_plain(trio("llama").full)[1]
    before = [{name: value.clone() for name, value in model.state_dict().items()} for model in models]
    live = ul.transplant(*(ul.open_model(m, tokenizer=tokenizer) for m in models), EXAMPLES, config=CONFIG)
    read = ul.transplant(*trio("llama"), EXAMPLES, config=CONFIG)
    assert torch.equal(live.answers.unlearned_with_retain, read.answers.unlearned_with_retain)
    for model, weights in zip(models, before, strict=True):
        assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_counterfactuals_have_no_weights(trio):
    with pytest.raises(ul.errors.ConfigError, match="counterfactuals have no weights"):
        ul.transplant(*trio("llama"), EXAMPLES, config=ul.AuditConfig(stand_in="counterfactual"))


def test_a_saved_transplant_comes_back_whole(trio, tmp_path):
    found = ul.transplant(*trio("llama"), EXAMPLES, config=CONFIG, control=control())
    found.save(tmp_path / "saved")
    again = ul.Transplant.load(tmp_path / "saved")
    assert str(again.summary()) == str(found.summary())  # NaN included
    assert again.candidates == found.candidates
    assert again.candidates_frame().equals(found.candidates_frame())
    assert again.examples_frame().equals(found.examples_frame())
    with open(tmp_path / "saved" / "tensors.safetensors", "r+b") as file:
        file.seek(-3, 2)
        file.write(b"abc")
    with pytest.raises(ul.errors.ResultFormatError, match="altered"):
        ul.Transplant.load(tmp_path / "saved")


@pytest.mark.parametrize("several", some_now([False], of=[False, True]))
def test_a_baseline_keeps_what_depends_on_full_and_retain(trio, tmp_path, monkeypatch, several):
    from uds_lens.transplants import _measuring

    full, retain, unlearned = trio("llama")
    retains, model = ([retain, unlearned], full) if several else (retain, unlearned)
    hosts, run_host = [], _measuring.run_host
    monkeypatch.setattr(
        _measuring, "run_host", lambda *a, what, **more: (hosts.append(what), run_host(*a, what=what, **more))[1]
    )

    def measured(baseline, examples=EXAMPLES, full=full):
        hosts.clear()
        found = ul.transplant(full, retains, model, examples, control=control(), config=CONFIG, baseline=baseline)
        return found, len(hosts)

    baseline = ul.Baseline.measure(full, retains, EXAMPLES, control=control(), config=CONFIG)
    (alone, n_alone), (first, n_first) = measured(None), measured(baseline)
    baseline.save(tmp_path / "baseline")
    (again, n_again), (loaded, n_loaded) = measured(baseline), measured(ul.Baseline.load(tmp_path / "baseline"))
    assert (n_alone, n_first, n_again, n_loaded) == ((6, 6, 0, 0) if several else (4, 4, 2, 2))
    if not several:
        assert again.provenance["passes"] == first.provenance["passes"] / 2
    for found in (first, again, loaded):
        assert str(found.summary()) == str(alone.summary())
        for mine, theirs in ((found.answers, alone.answers), (found.control, alone.control)):
            for field in dataclasses.fields(mine):
                one, other = getattr(mine, field.name), getattr(theirs, field.name)
                assert one is other is None or torch.equal(one.nan_to_num(9), other.nan_to_num(9)), field.name
    with pytest.raises(ul.errors.ConfigError, match="measured with other examples"):
        measured(baseline, EXAMPLES[:3])
    with pytest.raises(ul.errors.ConfigError, match=r"weights of .*full.* differ from those"):
        measured(dataclasses.replace(baseline, models={**baseline.models, "full": baseline.models["retain"]}))
    other = dataclasses.replace(baseline.exchanged, candidates=baseline.exchanged.candidates[:1])
    assert measured(dataclasses.replace(baseline, exchanged=other))[1] == n_first, "of a release with other candidates"
    part = baseline.subset([0, 2], control=[1])
    rows = torch.tensor([0, 2, len(EXAMPLES) + 1])
    assert torch.equal(part.exchanged.s_full, baseline.exchanged.s_full[rows])
    assert torch.equal(part.exchanged.retain_with_full, baseline.exchanged.retain_with_full[:, rows])


@pytest.mark.long
def test_several_retain_models_are_donors_and_show_what_a_retain_model_reaches(world, tmp_path):
    seeds = [world.retain, world.half]  # half stands in for another seed
    config = ul.AuditConfig(n_bootstrap=100)
    found = ul.transplant(world.full, seeds, world.unlearned["rmu"], world.examples[::4], config=config)
    one, two = (
        ul.transplant(world.full, retain, world.unlearned["rmu"], world.examples[::4], config=config)
        for retain in seeds
    )
    assert found.retains == ["retain 1", "retain 2"]
    for k, alone in enumerate((one, two)):
        assert torch.equal(found.answers.unlearned_with_retain[k], alone.answers.unlearned_with_retain[0])
        assert torch.equal(found.chosen[k], alone.chosen[0])
        torch.testing.assert_close(found.host_depth_by_donor[k], alone.host_depth_by_donor[0], equal_nan=True)
    assert found.host_depth_spread.low == pytest.approx(min(one.host_depth, two.host_depth))
    swapped_roles = ul.transplant(world.full, world.retain, world.half, world.examples[::4], config=config)
    reference = found.references[1]
    assert reference.role == "retain 2"
    assert reference[1:] == pytest.approx(
        (swapped_roles.output_depth, swapped_roles.host_depth, swapped_roles.hidden), nan_ok=True
    )
    assert found.hidden_bound == max(0.0, *(of.hidden for of in found.references))
    assert found.hides is True
    assert one.hidden_bound == 0.1
    assert one.references == ()
    found.save(tmp_path / "several")
    assert str(ul.Transplant.load(tmp_path / "several").summary()) == str(found.summary())


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_adapters_on_disk_and_live_equal_their_merged_twins(trio, tmp_path):
    from peft import LoraConfig, get_peft_model

    base, tokenizer = load_plain(trio("llama").full)
    settings = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        adapted = get_peft_model(base, settings).eval()
    adapted.save_pretrained(tmp_path / "adapter")
    full, retain = trio("llama").full, trio("llama").retain
    live = ul.transplant(full, retain, adapted, EXAMPLES, config=CONFIG)
    on_disk = ul.transplant(full, retain, tmp_path / "adapter", EXAMPLES, config=CONFIG)
    merged = copy.deepcopy(adapted).merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    tokenizer.save_pretrained(tmp_path / "merged")
    twin = ul.transplant(full, retain, tmp_path / "merged", EXAMPLES, config=CONFIG)
    for found in (live, on_disk):
        for name in ("s_unlearned", "unlearned_with_retain", "unlearned_with_full"):
            mine, theirs = (getattr(of.answers, name) for of in (found, twin))
            torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=0)
    assert (twin.answers.s_unlearned - twin.answers.s_full).abs().max() > 0.1


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_blocks_of_4_bits_count_as_their_dequantised_twins(tmp_path):
    import transformers
    from bitsandbytes.functional import dequantize_4bit
    from tiny_models import build_model, build_tokenizer

    nf4 = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
    )
    changes = {"hidden_size": 64, "intermediate_size": 128, "num_key_value_heads": 4}

    def save(model, name):
        model.save_pretrained(tmp_path / name)
        build_tokenizer().save_pretrained(tmp_path / name)
        return tmp_path / name

    full, retain, unlearned = (save(build_model("phi3", v, **changes), v) for v in ("full", "retain", "unlearned"))
    four = transformers.AutoModelForCausalLM.from_pretrained(
        unlearned, quantization_config=nf4, dtype=torch.float32, attn_implementation="eager"
    )
    twin, _ = load_plain(unlearned)
    with torch.no_grad():
        for name, layer in four.named_modules():
            if type(layer).__name__ == "Linear4bit":
                weight = dequantize_4bit(layer.weight.data, layer.weight.quant_state)
                twin.get_submodule(name).weight.copy_(weight)
    places = save(four, "four"), save(twin, "twin")
    found, expected = (ul.transplant(full, retain, place, EXAMPLES[:4], config=CONFIG) for place in places)
    # On a CPU bitsandbytes multiplies 4-bit blocks in bfloat16, whatever the compute dtype: not closer than that.
    for name in ("s_unlearned", "unlearned_with_retain", "unlearned_with_full"):
        mine, theirs = (getattr(of.answers, name) for of in (found, expected))
        torch.testing.assert_close(mine, theirs, atol=0.1, rtol=0)
    as_donor = ul.transplant(full, places[0], unlearned, EXAMPLES[:4], config=CONFIG).answers.unlearned_with_retain
    of_twin = ul.transplant(full, places[1], unlearned, EXAMPLES[:4], config=CONFIG).answers.unlearned_with_retain
    torch.testing.assert_close(as_donor, of_twin, atol=0.1, rtol=0)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_a_saved_quantised_model_runs_in_its_own_dtype(tmp_path):
    world = ul.toy.load()
    few, place = world.examples[:8], tmp_path / "nf4"
    ul.unlearning.quantise(world.unlearned["npo"], out=place, device="cpu")
    with pytest.raises(ul.errors.ModelError, match="choose dtype='bfloat16' for all"):
        ul.transplant(world.full, world.retain, place, few, config=CONFIG)
    half = dataclasses.replace(CONFIG, dtype="bfloat16")
    found, plain = (
        ul.transplant(world.full, world.retain, model, few, config=half) for model in (place, world.unlearned["npo"])
    )
    assert found.output_depth == pytest.approx(plain.output_depth, abs=0.1)
    assert found.host_depth == pytest.approx(plain.host_depth, abs=0.1)


def test_models_of_two_dtypes_are_refused(trio):
    half = load_plain(trio("llama").retain, dtype=torch.bfloat16)[0]
    with pytest.raises(ul.errors.ModelError, match="bfloat16"):
        ul.transplant(trio("llama").full, half, trio("llama").unlearned, EXAMPLES, config=CONFIG)


def test_nothing_admitted_is_said(trio):
    found = ul.transplant(*trio("llama"), EXAMPLES, config=CONFIG)
    assert not found.admitted.all()
    if not found.admitted.any():
        assert math.isnan(found.host_depth)
        assert "no candidate is admitted" in found.host_depth_reason
    html = found._repr_html_()
    assert "host depth" in html
    assert found.plot_bands().layout.height > 0
    frame = ul.transplants.transplants_frame({"x": found})
    assert frame["output_depth"].tolist() == [found.output_depth]


NAN = float("nan")


def test_host_depth_counts_from_what_the_blocks_cost_full():
    left = torch.tensor([[2.0, 0.4, 9.0, 0.1], [1.0, 1.0, 1.0, 1.0]])
    cost = torch.tensor([[1.0, 0.5, 0.0, 3.96], [0.0, 0.0, 0.0, 0.0]])
    depth = host_depth(left, cost, torch.tensor([4.0, 0.05]), 0.05)
    expected = torch.tensor([[1 / 3, 0.0, 1.0, NAN], [NAN, NAN, NAN, NAN]])
    torch.testing.assert_close(depth, expected, equal_nan=True)


def test_blocks_are_chosen_on_other_subjects():
    subjects = ["Ada", "Ada", "Bo", "Bo", None]
    left = torch.tensor([[0.0, 5.0, 1.0], [0.0, 5.0, 1.0], [9.0, 0.0, 1.0], [9.0, 0.0, 1.0], [3.0, 3.0, 1.0]])
    # without Ada: 7, 1, 1; without Bo: 1, 4.3, 1; without the last: 4.5, 2.5, 1
    assert least_on_others(left, torch.tensor([True, True, True]), subjects).tolist() == [1, 1, 0, 0, 2]
    assert least_on_others(left, torch.tensor([True, False, True]), subjects).tolist() == [2, 2, 0, 0, 2]
    assert least_on_others(left, torch.tensor([False] * 3), subjects).tolist() == [-1] * 5
    assert least_on_others(left[:1], torch.tensor([True] * 3), ["Ada"]).tolist() == [-1]
    # one subject: each example on the others
    assert least_on_others(left[[0, 2, 2]], torch.tensor([True] * 3), ["Ada"] * 3).tolist() == [1, 2, 2]
    assert taken(left, torch.tensor([1, 1, 0, 0, -1])).nan_to_num(-1).tolist() == [5, 5, 9, 9, -1]


def test_bands_cover_the_model_from_end_to_end():
    assert [widths_of(n) for n in (1, 2, 6, 12, 16, 30, 32)] == [[1], [1], [1, 2], [2, 3], [2, 4], [4, 8], [4, 8]]
    for n in (1, 2, 7, 30):
        bands = [c for c in candidates_of(n) if not c.attention]
        for width in widths_of(n):
            firsts = [c.first for c in bands if c.width == width]
            assert firsts[0] == 0
            assert firsts[-1] == n - width
            assert {layer for c in bands if c.width == width for layer in range(n) if c.holds(layer)} == set(range(n))
    assert passes_of(candidates_of(8), 8) == 1 + 4.5 + 4.375 + 1
