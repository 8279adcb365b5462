"""A small set of questions of every kind, and models without real knowledge, for the mechanics."""

from dataclasses import replace

import pytest
from tiny_models import EXAMPLES
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from uds_lens.metrics import MetricData, MetricOptions, evaluate
from uds_lens.results import AuditConfig, RunOptions

RUN = RunOptions(device="cpu", progress=False, engine="wavefront")
SHORT = MetricOptions(max_new_tokens=6, protocol="raw", fluency="heuristic")
RAW = AuditConfig(protocol="raw")  # as the white-box metrics
WHITE_BOX = ["cka", "logit_lens", "uds", "fisher_masked_0.0001", "fisher_masked_0.001", "fisher_masked_0.01"]


def ask(model, data, metrics=None, **options):
    return evaluate(model, data, metrics=metrics, **{"options": SHORT, "run": RUN, **options})


def total(shapes):
    return sum(rows * columns for rows, columns in shapes)


@pytest.fixture(scope="session")
def data():
    forget = [
        replace(
            example,
            paraphrased_answers=(f"In other words, {example.answer}", f"Well: {example.answer}"),
            perturbed_answers=("It was a ship.", "Her rival.", "The second prize of 1998."),
        )
        for example in EXAMPLES[:5]
    ]
    swapped = [
        replace(e, id=f"h{i}", answer=f"The {e.answer} book", entity=None, prefix=None) for i, e in enumerate(EXAMPLES)
    ]
    return MetricData(
        forget=forget,
        holdout=swapped[:4],
        retain=forget[2:4],
        real_authors=[replace(e, paraphrased_answers=()) for e in forget[:2]],
        world_facts=[replace(e, paraphrased_answers=()) for e in forget[3:]],
    )


@pytest.fixture
def token_layers(monkeypatch):
    """Shapes of the tokens that entered each block of a Llama, padding included."""
    shapes, plain = [], LlamaDecoderLayer.forward

    def counting(self, hidden_states, *args, **kwargs):
        shapes.append(tuple(hidden_states.shape[:2]))
        return plain(self, hidden_states, *args, **kwargs)

    counting.__module__ = plain.__module__
    monkeypatch.setattr(LlamaDecoderLayer, "forward", counting)
    return shapes
