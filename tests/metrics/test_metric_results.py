import dataclasses
import json
import math

import pytest
import torch

from uds_lens.data import ForgetExample
from uds_lens.errors import ResultFormatError
from uds_lens.metrics import METRICS, MetricData, MetricResults, evaluate
from uds_lens.metrics._evaluation import _subjects
from uds_lens.metrics._results import MetricValue
from uds_lens.results import bootstrap_interval

from .conftest import RUN, SHORT


@pytest.fixture(scope="module")
def results(trio, data):
    names = ["es", "mia_loss", "rouge", "utility_rel", "s_mia_loss"]
    return evaluate(
        trio("llama").full,
        data,
        metrics=names,
        retain=trio("llama").retain,
        options=SHORT,
        run=RUN,
        fluency="heuristic",
    )


def same(a, b):
    return a == pytest.approx(b, nan_ok=True)


def test_round_trip(results, tmp_path):
    results.save(tmp_path / "found" / "metrics.json")
    again = MetricResults.load(tmp_path / "found" / "metrics.json")
    assert same(again.values, results.values)
    assert again.reasons == results.reasons
    assert (again.options, again.models, again.total) == (results.options, results.models, results.total)
    assert dict(again.generations) == dict(results.generations)
    assert again["utility_rel"].high == math.inf
    for metric in results:
        assert same(list(again[metric.name].per_example), list(metric.per_example))
        assert again[metric.name].cost == metric.cost
        assert (again[metric.name].zero, again[metric.name].direction) == (metric.zero, metric.direction)


def test_the_file_is_strict_json(results, tmp_path):
    results.save(tmp_path / "metrics.json")
    text = (tmp_path / "metrics.json").read_text()
    found = json.loads(text, parse_constant=pytest.fail)
    assert {row["name"]: row["value"] for row in found["metrics"]}["utility_rel"] is None
    assert found["provenance"]["versions"]["torch"]


def test_frames(results):
    frame = results.to_frame().set_index("metric")
    assert list(frame.index) == list(results.metrics)
    assert frame.loc["utility_rel", "reason"] == "no full model was given"
    assert frame.loc["es", "n"] == 8
    assert frame.loc["es", "forwards"] > 0
    long = results.examples_frame()
    assert long[long.metric == "es"]["value"].mean() == pytest.approx(results["es"].value)
    assert len(long[long.metric == "mia_loss"]) == 14


def test_intervals_from_few_subjects_are_told(results):
    def of(subjects):
        es = dataclasses.replace(results["es"], subjects=subjects)
        return dataclasses.replace(results, metrics={"es": es}).warnings

    assert not any("subject" in text for text in of(()))
    assert any("Extraction Strength are about 2 subjects only" in text for text in of(["a", "b"] * 4))
    assert any("about 1 subject only" in text and "there are none" in text for text in of(["a"] * 8))


def test_how_it_shows_itself(results):
    assert "es=" in repr(results)
    card = results._repr_html_()
    assert "no full model was given" in card
    assert "Extraction Strength" in card


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no saved result"),
        ('{"format": "other", "version": 1}', "holds a other, expected uds_lens.MetricResults"),
        ('{"format": "uds_lens.MetricResults", "version": 99}', "version 99, this release reads 1 and 2"),
        ('{"format": "uds_lens.MetricResults", "version": 1}', "not complete"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, text, said):
    (tmp_path / "metrics.json").write_text(text)
    with pytest.raises(ResultFormatError, match=said):
        MetricResults.load(tmp_path / "metrics.json")


def test_places_that_are_no_file(results, tmp_path):
    with pytest.raises(ResultFormatError, match="no saved metrics"):
        MetricResults.load(tmp_path / "none.json")
    with pytest.raises(ResultFormatError, match="is a directory"):
        results.save(tmp_path)


def test_intervals_of_metrics_go_by_subject(tmp_path):
    values, subjects = (0.1, 0.2, 0.15, 0.8, 0.9, 0.85), ("Ada", "Ada", "Ada", "Bo", "Bo", "Cy")
    words = {"direction": "knowledge", "low": 0.0, "high": 1.0, "zero": "nothing", "one": "all"}
    plain = MetricValue(
        name="es",
        label="ES",
        group="memorization",
        value=0.5,
        ids=tuple("abcdef"),
        per_example=values,
        **words,
    )
    named = dataclasses.replace(plain, subjects=subjects)
    tensor = torch.tensor(values, dtype=torch.float64)
    assert named.interval == bootstrap_interval(tensor, clusters=subjects, bounds=(0.0, 1.0))
    assert plain.interval == bootstrap_interval(tensor)
    assert named.interval.low < plain.interval.low and named.interval.high > plain.interval.high


def test_subjects_are_those_of_the_set_a_metric_is_about():
    def rows(names, start="q"):
        told = {"answer": "Ada.", "entity": "Ada"}
        return [
            ForgetExample(f"{start}{i}", f"{start} {i}?", subject=name, **told)
            for i, name in enumerate(names)
        ]

    data = MetricData(
        forget=rows(["Ada", None, "Bo"]), retain=rows(["Cy", "Di"], start="r"), holdout=rows([None], "h")
    )
    assert _subjects(METRICS["es"], ("q0", "q1", "q2"), data) == ("Ada", None, "Bo")
    assert _subjects(METRICS["retain_q_prob"], ("r1", "r0"), data) == ("Di", "Cy")
    assert _subjects(METRICS["logit_lens"], ("q2",), data) == ("Bo",)
    assert _subjects(METRICS["es"], (), data) == _subjects(METRICS["es"], ("other",), data) == ()
    assert _subjects(METRICS["es"], ("q1",), data) == ()
