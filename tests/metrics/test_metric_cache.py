"""What metrics, answers or models share runs once; what is kept is reused for the same model only."""

import json
import shutil
import warnings
from dataclasses import replace

import pytest
from tiny_models import EXAMPLES, load_plain

import uds_lens as ul
from uds_lens.data import ForgetExample, answer_sequences
from uds_lens.errors import UdsLensWarning, forget_warnings
from uds_lens.metrics import MetricCache, MetricData
from uds_lens.models import open_model
from uds_lens.patching._engines import WavefrontTarget

from .conftest import RAW, RUN, ask as ask_all, total


def ask(model, data, metrics, **options):
    return ask_all(model, data.limited(3), metrics, **options)


def test_one_forward_serves_all_metrics_that_can_share_it(trio, data):
    model, shared = trio("llama").full, ["es", "em", "prob"]
    together, alone = ask(model, data, shared), ask(model, data, ["prob"])
    assert together.total.forwards == alone.total.forwards == together["es"].cost.forwards > 0
    more = ask(model, data, [*shared, "mia_loss", "mia_min_kpp", "mia_zlib"])
    assert more.total.forwards == more["mia_loss"].cost.forwards
    rouge, both = ask(model, data, ["rouge"]), ask(model, data, ["rouge", "para_rouge", "fluency"])
    assert both.total.forwards == rouge.total.forwards


def test_sets_with_the_same_questions_run_together(trio, data, token_layers):
    """Prompt, paraphrases and wrong answers: no question runs a second time."""
    few, (_, tokenizer) = data.limited(1), load_plain(trio("llama").full)
    found = ask(trio("llama").full, few, ["prob", "paraprob", "truth_ratio"])
    (one,) = few.forget
    answers = [one.answer, *one.paraphrased_answers, *one.perturbed_answers]
    rows = [each.scored for each in answer_sequences(tokenizer, [(one.question, each) for each in answers])]
    prompt = rows[0].scored[0] + 1
    assert [shape for shape in token_layers if shape[1] == prompt] == [(1, prompt)] * 4
    assert all(columns <= max(len(row.ids) for row in rows) - prompt for _, columns in token_layers[4:])
    cost = {name: found[name].cost.seconds for name in found.metrics}
    assert found.total.seconds == pytest.approx(cost["prob"] + cost["truth_ratio"])
    assert 0 < cost["paraprob"] < cost["truth_ratio"]


def test_references_that_were_scored_begin_the_generations(trio, data, monkeypatch):
    passed = {}

    def watched(model, questions, *, start, known, **options):
        passed[bool(start)] = known
        return ["text"] * len(questions)

    texts = [ask(trio("llama").full, data, metrics).generations for metrics in (["rouge"], ["es", "rouge"])]
    assert texts[0] == texts[1]
    monkeypatch.setattr("uds_lens.metrics._passes.generate_answers", watched)
    ask(trio("llama").full, data, ["rouge", "jailbreak_rouge"])
    assert passed == {False: None, True: None}
    ask(trio("llama").full, data, ["es", "rouge", "jailbreak_rouge"])
    assert passed[True] is None
    prompts = [f"Question: {example.question}\nAnswer:" for example in data.limited(3).forget]
    _, tokenizer = load_plain(trio("llama").full)
    assert [each.prompt for each in passed[False]] == [tuple(ids) for ids in tokenizer(prompts)["input_ids"]]
    assert all(each.tokens for each in passed[False])


def test_uds_as_a_metric_runs_what_an_audit_runs(trio, data, token_layers):
    models, few = trio("llama"), data.limited(3)
    ask(models.unlearned, few, ["uds"], retain=models.retain, full=models.full)
    as_metric = total(token_layers)
    token_layers.clear()
    ul.DepthAudit.run(*models, few.with_entities, config=RAW, options=RUN)
    assert as_metric == total(token_layers) > 0


def test_the_cache_looks_at_weights_not_at_names(trio, data, tmp_path):
    models, cache, place = trio("llama"), MetricCache(), tmp_path / "retain"
    first = ask(models.full, data, ["s_mia_loss"], retain=models.retain, cache=cache)
    shutil.copytree(models.retain, place)
    again = ask(models.full, data, ["s_mia_loss"], retain=place, cache=cache)
    assert again.total.reference_forwards == 0
    assert again.values == first.values
    shutil.copy(models.unlearned / "model.safetensors", place)
    other = ask(models.full, data, ["s_mia_loss"], retain=place, cache=cache)
    assert other.total.reference_forwards > 0
    assert other.models["retain"].fingerprint != first.models["retain"].fingerprint
    cache.clear()
    assert len(cache) == 0


def test_other_data_is_measured_again(trio, data):
    cache, model = MetricCache(), trio("llama").full
    first = ask_all(model, data, ["prob"], cache=cache)
    fewer = ask(model, data, ["prob"], cache=cache)
    assert fewer.total.forwards > 0
    known = dict(zip(first["prob"].ids, first["prob"].per_example, strict=True))
    assert fewer["prob"].per_example == pytest.approx([known[name] for name in fewer["prob"].ids])


def test_a_hook_on_a_live_model_counts(trio, data):
    """The weights are those of `full`; what the model computes is not."""
    models, cache = trio("llama"), MetricCache()
    options = {"metrics": ["prob", "uds"], "retain": models.retain, "full": models.full, "cache": cache}
    plain = ask(models.full, data, **options)
    assert plain["uds"].value == 0
    with open_model(models.full, device="cpu") as model:
        with model.hf.model.layers[1].register_forward_hook(lambda module, args, output: 0.5 * output):
            halved = ask(model.hf, data, **options)
        again = ask(model.hf, data, **options)
    assert halved["uds"].value > 0
    assert halved["prob"].value != plain["prob"].value
    assert again["prob"].value == plain["prob"].value


def test_equal_tokens_of_other_owners_are_told_apart(trio):
    """Whose paraphrase a text is does not show in the tokens."""
    asked, texts = EXAMPLES[0].question, [f"{example.answer} {i}" for i, example in enumerate(EXAMPLES[:3])]

    def owned(name, paraphrases):
        return ForgetExample(id=name, question=asked, answer="It was.", paraphrased_answers=tuple(paraphrases))

    sets = [MetricData(forget=[owned("a", texts[:n]), owned("b", texts[n:])]) for n in (2, 1)]
    cache, model = MetricCache(), trio("llama").full
    shared = [ask(model, each, ["paraprob"], cache=cache)["paraprob"].per_example for each in sets]
    assert shared == [ask(model, each, ["paraprob"])["paraprob"].per_example for each in sets]
    assert shared[0] != shared[1]


def test_the_base_of_an_adapter_counts(trio, data, tmp_path):
    import peft

    base = shutil.copytree(trio("llama").full, tmp_path / "base")
    model, tokenizer = load_plain(base)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"])
        peft.get_peft_model(model, config).save_pretrained(tmp_path / "adapter")
    tokenizer.save_pretrained(tmp_path / "adapter")
    cache = MetricCache()
    first = ask(tmp_path / "adapter", data, ["prob"], cache=cache)
    assert ask(tmp_path / "adapter", data, ["prob"], cache=cache).total.forwards == 0
    shutil.copytree(trio("llama").retain, base, dirs_exist_ok=True)
    then = ask(tmp_path / "adapter", data, ["prob"], cache=cache)
    assert then["prob"].value != first["prob"].value
    assert then["prob"].value == ask(trio("llama").retain, data, ["prob"])["prob"].value


def test_each_models_weights_are_hashed_once(trio, data, hashed, tmp_path):
    full, retain, unlearned = (shutil.copytree(path, tmp_path / path.name) for path in trio("llama"))
    metrics = ["uds", "logit_lens", "cka", "fisher_masked_0.01", "prob"]
    ask(unlearned, data.limited(1), metrics, retain=retain, full=full)
    assert len(hashed) == 3


def test_answers_of_a_model_that_ends_elsewhere_are_not_reused(trio, data, tmp_path):
    """The end tokens of generation_config.json are no part of the weights, and answers depend on them."""
    retain, other = trio("llama").retain, shutil.copytree(trio("llama").retain, tmp_path / "other")
    config = json.loads((other / "generation_config.json").read_text())
    vocabulary = json.loads((other / "config.json").read_text())["vocab_size"]
    ends = {**config, "eos_token_id": list(range(vocabulary))}
    (other / "generation_config.json").write_text(json.dumps(ends))
    cache = MetricCache()
    first = ask(retain, data, ["rouge"], cache=cache)
    assert ask(retain, data, ["rouge"], cache=cache).total.forwards == 0
    second = ask(other, data, ["rouge"], cache=cache)
    assert second.generations == ask(other, data, ["rouge"]).generations != first.generations
    assert ask(retain, data, ["rouge"], cache=cache).generations == first.generations


def test_depth_is_measured_by_one_engine_though_stage_1_was_kept(trio, data, monkeypatch):
    """The fast engine is wrong while the first model is measured, and fails on the second."""
    models, cache, calls, few = trio("llama"), MetricCache(), [], data.limited(1)
    options = {"metrics": ["uds"], "retain": models.retain, "full": models.full}
    plainly = ask(models.unlearned, few, run=replace(RUN, engine="naive"), **options)
    true = WavefrontTarget.patched

    def patched(self, *args, **kwargs):
        calls.append(1)
        if len(calls) > 2:  # the check, retain
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
        return true(self, *args, **kwargs) - float(len(calls) > 1)

    monkeypatch.setattr(WavefrontTarget, "patched", patched)
    forget_warnings()
    run = replace(RUN, engine="auto")
    ask(models.full, few, run=run, cache=cache, **options)
    assert len(calls) == 2
    with pytest.warns(UdsLensWarning, match="mat1 and mat2 shapes"):
        found = ask(models.unlearned, few, run=run, cache=cache, **options)
    assert found["uds"].value == pytest.approx(plainly["uds"].value, abs=1e-6)
    again = ask(models.unlearned, few, run=run, cache=cache, **options)
    assert again["uds"].value == found["uds"].value


def test_a_model_read_from_disk_is_freed_without_a_garbage_collection(trio, data, monkeypatch):
    """A handle that outlives its block would keep the weights while the next model is loaded."""
    ask(trio("llama").full, data, ["prob"])  # the first import of a family may hold frames, and they the model
    collected = []
    monkeypatch.setattr("uds_lens.models._hooked.gc.collect", lambda: collected.append(True))
    ask(trio("llama").full, data, ["prob"])
    assert not collected
