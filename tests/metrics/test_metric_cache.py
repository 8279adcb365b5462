"""What is kept for the next model is found again for the same model only."""

import json
import shutil
import warnings
from dataclasses import replace

import pytest
from tiny_models import EXAMPLES, load_plain

from uds_lens.data import ForgetExample
from uds_lens.errors import ModelError, UdsLensWarning, forget_warnings
from uds_lens.metrics import MetricCache, MetricData, evaluate
from uds_lens.models import fingerprint, open_model
from uds_lens.patching import WavefrontTarget

from .conftest import RUN, SHORT

WHITE_BOX = ["uds", "logit_lens", "cka", "fisher_masked_0.01"]


def ask(model, data, **options):
    return evaluate(
        model, data.limited(3), **{"options": SHORT, "run": RUN, "fluency": "heuristic", **options}
    )


def test_a_hook_on_a_live_model_counts(trio, data):
    """The weights are those of `full`; what the model computes is not."""
    models, cache = trio("llama"), MetricCache()
    options = {"metrics": ["prob", "uds"], "retain": models.retain, "full": models.full, "cache": cache}
    plain = ask(models.full, data, **options)
    assert plain["uds"].value == 0
    with open_model(models.full, device="cpu") as model:
        handle = model.hf.model.layers[1].register_forward_hook(lambda module, args, output: 0.5 * output)
        halved = ask(model.hf, data, **options)
        handle.remove()
        again = ask(model.hf, data, **options)
    assert halved["uds"].value > 0
    assert halved["prob"].value != plain["prob"].value
    assert again["prob"].value == plain["prob"].value


def test_equal_tokens_of_other_owners_are_told_apart(trio):
    """Whose paraphrase a text is does not show in the tokens."""
    asked, texts = EXAMPLES[0].question, [f"{example.answer} {i}" for i, example in enumerate(EXAMPLES[:3])]
    sets = [
        MetricData(
            forget=[
                ForgetExample(
                    id="a", question=asked, answer="It was.", paraphrased_answers=tuple(texts[:first])
                ),
                ForgetExample(
                    id="b", question=asked, answer="It was.", paraphrased_answers=tuple(texts[first:])
                ),
            ]
        )
        for first in (2, 1)
    ]
    cache, model = MetricCache(), trio("llama").full
    shared = [ask(model, each, metrics=["paraprob"], cache=cache)["paraprob"].per_example for each in sets]
    assert shared == [ask(model, each, metrics=["paraprob"])["paraprob"].per_example for each in sets]
    assert shared[0] != shared[1]


def test_the_base_of_an_adapter_counts(trio, data, tmp_path):
    import peft

    base = shutil.copytree(trio("llama").full, tmp_path / "base")
    model, tokenizer = load_plain(base)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = peft.get_peft_model(
            model, peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"])
        )
        adapted.save_pretrained(tmp_path / "adapter")
    tokenizer.save_pretrained(tmp_path / "adapter")
    cache = MetricCache()
    first = ask(tmp_path / "adapter", data, metrics=["prob"], cache=cache)
    assert ask(tmp_path / "adapter", data, metrics=["prob"], cache=cache).total.forwards == 0
    shutil.copytree(trio("llama").retain, base, dirs_exist_ok=True)
    then = ask(tmp_path / "adapter", data, metrics=["prob"], cache=cache)
    assert then["prob"].value != first["prob"].value
    assert then["prob"].value == ask(trio("llama").retain, data, metrics=["prob"])["prob"].value


def test_a_broken_final_norm_is_refused_by_white_box_metrics_too(trio, data, broken):
    with pytest.raises(ModelError, match="holds NaN or infinite weights"):
        ask(broken, data, metrics=["cka"], retain=trio("llama").retain, full=trio("llama").full)


def test_each_models_weights_are_hashed_once(trio, data, monkeypatch, tmp_path):
    paths = [shutil.copytree(path, tmp_path / path.name) for path in trio("llama")]
    hashed = []
    for module in ("_fingerprint", "_hooked"):
        name = f"uds_lens.models.{module}.fingerprint"
        monkeypatch.setattr(name, lambda model: hashed.append(1) or fingerprint(model))
    full, retain, unlearned = paths
    ask(unlearned, data, metrics=[*WHITE_BOX, "prob"], retain=retain, full=full)
    assert len(hashed) == 3


def test_answers_of_a_model_that_ends_elsewhere_are_not_taken(trio, data, tmp_path):
    """The end tokens of generation_config.json are no part of the weights, and answers depend on them."""
    paths, other = trio("llama"), shutil.copytree(trio("llama").retain, tmp_path / "other")
    told = json.loads((other / "generation_config.json").read_text())
    vocabulary = json.loads((other / "config.json").read_text())["vocab_size"]
    (other / "generation_config.json").write_text(
        json.dumps({**told, "eos_token_id": list(range(vocabulary))})
    )
    cache = MetricCache()
    first = ask(paths.retain, data, metrics=["rouge"], cache=cache)
    assert ask(paths.retain, data, metrics=["rouge"], cache=cache).total.forwards == 0
    second = ask(other, data, metrics=["rouge"], cache=cache)
    assert second.generations == ask(other, data, metrics=["rouge"]).generations != first.generations
    assert ask(paths.retain, data, metrics=["rouge"], cache=cache).generations == first.generations


def test_depth_is_measured_by_one_engine_though_stage_1_was_kept(trio, data, monkeypatch):
    """The fast engine is wrong while the first model is measured, and fails on the second."""
    models, cache, calls = trio("llama"), MetricCache(), []
    options = {"metrics": ["uds"], "retain": models.retain, "full": models.full}
    plainly = ask(models.unlearned, data, run=replace(RUN, engine="naive"), **options)
    true = WavefrontTarget.patched

    def patched(self, *args, **kwargs):
        calls.append(1)
        if len(calls) > 2:  # the check, retain
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
        return true(self, *args, **kwargs) - float(len(calls) > 1)

    monkeypatch.setattr(WavefrontTarget, "patched", patched)
    forget_warnings()
    run = replace(RUN, engine="auto")
    ask(models.full, data, run=run, cache=cache, **options)
    assert len(calls) == 2
    with pytest.warns(UdsLensWarning, match="mat1 and mat2 shapes"):
        found = ask(models.unlearned, data, run=run, cache=cache, **options)
    assert found["uds"].value == pytest.approx(plainly["uds"].value, abs=1e-6)
    again = ask(models.unlearned, data, run=run, cache=cache, **options)
    assert again["uds"].value == found["uds"].value
