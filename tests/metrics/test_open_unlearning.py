"""The output metrics against Open-Unlearning's labels and a few lines on plain logits, one answer at a time."""

import math
import zlib

import pytest
import torch
from chat_templates import TEMPLATES, chat_tokenizer, open_unlearning_labels
from metrics.conftest import RUN
from tiny_models import build_model

from uds_lens.metrics import MetricOptions, evaluate
from uds_lens.models import HookedModel

ASKED = ["prob", "es", "em", "mia_loss", "mia_zlib", "mia_min_k", "mia_min_kpp"]


@pytest.fixture(scope="module")
def plain():
    return build_model("llama", vocab_size=208)


def by_hand(model, ids, n_prompt, answer):
    """Likelihoods take every label; first choices and Min-K leave the last one out."""
    with torch.no_grad():
        logp = model(torch.tensor([ids])).logits[0, n_prompt - 1 : -1].double().log_softmax(-1)
    labels = torch.tensor(ids[n_prompt:])
    own = logp.gather(-1, labels[:, None])[:, 0]
    mean = (logp.exp() * logp).sum(-1)
    spread = (logp.exp() * logp.square()).sum(-1) - mean.square()
    hits = (logp.argmax(-1) == labels)[:-1].tolist()
    first = next((k for k in range(len(hits)) if all(hits[k:])), len(hits) - 1)

    def lowest(values):
        kept = values[:-1].sort().values
        return -float(kept[: max(1, int(0.4 * len(kept)))].mean())

    return {
        "prob": math.exp(own.mean()),
        "es": 1 - first / len(hits),
        "em": sum(hits) / len(hits),
        "mia_loss": -float(own.mean()),
        "mia_zlib": -float(own.mean()) / len(zlib.compress(answer.encode())),
        "mia_min_k": lowest(own),
        "mia_min_kpp": lowest((own - mean) / spread.sqrt()),
    }


@pytest.mark.parametrize("name", TEMPLATES)
def test_output_metrics_per_example(name, plain, data):
    tokenizer = chat_tokenizer(name)
    options = MetricOptions() if name == "gemma" else MetricOptions.preset("open_unlearning")
    model = HookedModel(plain, tokenizer, name=name, owned=False)
    found = evaluate(model, data, metrics=ASKED, options=options, run=RUN)
    for number, example in enumerate([*data.forget, *data.holdout]):
        ids, n_prompt = open_unlearning_labels(
            tokenizer, example.question, example.answer, system=options.system_prompt, date=options.chat_date
        )
        for metric, value in by_hand(plain, ids, n_prompt, example.answer).items():
            if number >= len(data.forget) and not metric.startswith("mia"):
                continue
            assert found[metric].per_example[number] == pytest.approx(value, abs=2e-5), metric


def test_the_system_turn_and_the_date_change_the_numbers_and_are_recorded(plain, data, tmp_path):
    model = HookedModel(plain, chat_tokenizer("llama-3"), name="m", owned=False)
    values, prompts = [], []
    for options in (MetricOptions(), MetricOptions(chat_date="10 Apr 2025"), MetricOptions.preset("open_unlearning")):
        found = evaluate(model, data.limited(2), metrics=["prob"], options=options, run=RUN)
        found.save(tmp_path / "m.json")
        loaded = type(found).load(tmp_path / "m.json")
        assert loaded.options == options
        values.append(found["prob"].value)
        prompts.append(loaded.provenance["first_prompt"])
    assert len(set(values)) == len(set(prompts)) == 3
