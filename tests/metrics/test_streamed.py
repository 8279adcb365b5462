"""Metrics of streamed models: the values of models in memory, one reading of each, and a sentence for what cannot."""

import dataclasses

import pytest

import uds_lens as ul
from uds_lens.errors import ConfigError
from uds_lens.metrics import MetricData
from uds_lens.models._by_block import StreamedModel

WORLD = ul.toy.load()
RUN = ul.RunOptions(device="cpu", progress=False)
NAMES = ["prob", "em", "es", "mia_loss", "mia_zlib", "mia_min_k", "mia_min_kpp", "logit_lens", "cka", "uds"]


def measured(names=NAMES, model=None, cache=None, options=None, **run):
    data = MetricData(forget=WORLD.examples[:6], holdout=WORLD.examples[6:10])
    model = next(iter(WORLD.unlearned.values())) if model is None else model
    run = dataclasses.replace(RUN, **run)
    given = {"full": WORLD.full, "retain": WORLD.retain, "run": run, "cache": cache, "options": options}
    return ul.metrics.evaluate(model, data, metrics=names, **given)


@pytest.fixture
def readings(monkeypatch):
    """Name of every model that was streamed, and whether each of its weights was read once."""
    seen = []
    leave = StreamedModel.__exit__

    def spy(model, *error):
        seen.append((model.name, model.bytes_read == model.bytes_stored))
        leave(model, *error)

    monkeypatch.setattr(StreamedModel, "__exit__", spy)
    return seen


def test_teacher_forced_metrics_stream(readings):
    streamed, memory = measured(stream=True), measured()
    for name in NAMES:
        assert streamed[name].value == pytest.approx(memory[name].value, abs=1e-4), name
    assert streamed.models == memory.models
    model = str(next(iter(WORLD.unlearned.values())))
    # the patches of UDS read full once more
    assert readings == [(str(name), True) for name in (WORLD.retain, model, WORLD.full, WORLD.full)]


@pytest.mark.long
def test_two_kinds_of_states_stream_together():
    names, options = ["cka", "logit_lens"], ul.metrics.MetricOptions(cka_scope="answers")
    streamed, memory = (measured(names, options=options, stream=stream) for stream in (True, False))
    for name in names:
        assert streamed[name].value == pytest.approx(memory[name].value, abs=1e-4), name
    assert streamed["cka"].value != measured(["cka"])["cka"].value


@pytest.mark.long
@pytest.mark.parametrize("first_streamed", [True, False])
def test_a_cache_serves_streamed_models(first_streamed, readings):
    """What was measured of `full` and `retain` is not read again; of `full`, the lens needs norm and head alone."""
    cache, names, model = ul.metrics.MetricCache(), ["prob", "logit_lens"], WORLD.unlearned["npo"]
    measured(names, cache=cache, stream=first_streamed)
    readings.clear()
    streamed = measured(names, model, cache, stream=True)
    assert readings == [(str(model), True), (str(WORLD.full), False)]
    expected = measured(names, model)
    for name in names:
        assert streamed[name].value == pytest.approx(expected[name].value, abs=1e-4), name
    generated = measured(["rouge"], model, cache)  # whose end tokens a streamed model does not know
    assert generated["rouge"].value == measured(["rouge"], model)["rouge"].value


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rouge", r"forget \(generations\): generating text would read"),
        ("fisher_masked_0.01", r"fisher_spill \(fisher_spill\): gradients need"),
    ],
)
def test_what_cannot_be_streamed_is_said_before_any_model_is_read(name, said, readings):
    with pytest.raises(ConfigError, match=f"cannot measure {said}"):
        measured(["s_mia_loss", name], stream=True)  # which reads retain first
    assert readings == []
