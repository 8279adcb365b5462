"""Results: saved and loaded, as frames, their intervals, and the cautions they carry."""

import dataclasses
import json
import math
from pathlib import Path

import pandas as pd
import pytest
import torch

import uds_lens as ul
from uds_lens import metrics as m
from uds_lens.data import ForgetExample
from uds_lens.errors import ResultFormatError
from uds_lens.metrics._catalogue import Trust
from uds_lens.metrics._evaluation import _subjects
from uds_lens.metrics._results import write_metrics_table
from uds_lens.results import bootstrap_interval

from .conftest import ask

STUDY = Path(__file__).parents[2] / "studies" / "tofu_small" / "results"


@pytest.fixture(scope="module")
def results(trio, data):
    names = ["es", "mia_loss", "rouge", "utility_rel", "s_mia_loss"]
    return ask(trio("llama").full, data, names, retain=trio("llama").retain)


def test_round_trip_as_strict_json(results, tmp_path):
    file = tmp_path / "found" / "metrics.json"
    results.save(file)
    saved = json.loads(file.read_text(), parse_constant=pytest.fail)
    assert {row["name"]: row["value"] for row in saved["values"]["metrics"]}["utility_rel"] is None
    assert saved["provenance"]["versions"]["torch"]
    again = m.MetricResults.load(file)
    assert again.values == pytest.approx(results.values, nan_ok=True)
    assert again["utility_rel"].high == math.inf
    for name in ("reasons", "options", "models", "total", "generations"):
        assert getattr(again, name) == getattr(results, name)
    for metric in results:
        assert list(again[metric.name].per_example) == pytest.approx(metric.per_example, nan_ok=True)
        assert again[metric.name].cost == metric.cost
        assert (again[metric.name].zero, again[metric.name].direction) == (metric.zero, metric.direction)


def test_frames_and_card(results):
    frame = results.to_frame().set_index("metric")
    assert list(frame.index) == list(results.metrics)
    assert frame.loc["utility_rel", "reason"] == "no full model was given"
    assert frame.loc["es", "n"] == 5 and frame.loc["es", "forwards"] > 0
    long = results.examples_frame()
    assert long[long.metric == "es"]["value"].mean() == pytest.approx(results["es"].value)
    assert len(long[long.metric == "mia_loss"]) == 9
    assert "es=" in repr(results)
    card = results._repr_html_()
    assert "no full model was given" in card and "Extraction Strength" in card


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ResultFormatError, match="no saved MetricResults"):
        m.MetricResults.load(tmp_path / "metrics.json")
    (tmp_path / "metrics.json").write_text('{"format": "uds_lens.MetricResults", "version": 99}')
    with pytest.raises(ResultFormatError, match="version 99, but this release reads 1"):
        m.MetricResults.load(tmp_path / "metrics.json")


def test_foreign_files_are_not_replaced(results, tmp_path):
    with pytest.raises(ResultFormatError, match="is a directory"):
        results.save(tmp_path)
    place = tmp_path / "table.csv"
    place.write_text("model,es,uds")
    with pytest.raises(ResultFormatError, match="was not written by uds_lens"):
        write_metrics_table({}, place)
    place.unlink()
    for _ in range(2):
        assert write_metrics_table({}, place) == place


def value(name, number, **more):
    spec = m.METRICS[name]
    return m.MetricValue(name=name, label=spec.label, group=spec.group, value=number, **spec.meaning._asdict(), **more)


def of(*values):
    """Metrics of some model."""
    nothing = {name: {} for name in ("models", "sizes", "generations", "provenance")}
    return m.MetricResults(metrics={each.name: each for each in values}, options=m.MetricOptions(), **nothing)


def test_intervals_of_metrics_are_clustered_by_subject():
    values, subjects = (0.1, 0.2, 0.15, 0.8, 0.9, 0.85), ("Ada", "Ada", "Ada", "Bo", "Bo", "Cy")
    plain = value("em", 0.5, ids=tuple("abcdef"), per_example=values)
    named = dataclasses.replace(plain, subjects=subjects)
    tensor = torch.tensor(values, dtype=torch.float64)
    assert named.interval == bootstrap_interval(tensor, clusters=subjects, bounds=(0.0, 1.0))
    assert plain.interval == bootstrap_interval(tensor)
    assert named.interval.low < plain.interval.low and named.interval.high > plain.interval.high


def test_few_subjects_and_examples_are_warned_of():
    plain = value("em", 0.5, ids=tuple("abcd"), per_example=(0.4, 0.6, 0.4, 0.6))
    first, second = of(dataclasses.replace(plain, subjects=("a", "b") * 2)).warnings
    assert first.startswith("Only 2 subjects for Exact Memorization: treat subject-level intervals as rough (10")
    assert second == "Only 4 examples for Exact Memorization: 30 or more examples are needed for reliable intervals."
    one = of(dataclasses.replace(plain, subjects=("a",) * 4)).warnings[0]
    assert one == "Only 1 subject for Exact Memorization: there is no interval."
    assert not any("subject" in text for text in of(plain).warnings)
    assert [dataclasses.replace(plain, subjects=each).n_subjects for each in ("abab", "abcd", ())] == [2, None, None]
    some = value("em", 0.5, ids=tuple("abcd"), per_example=(0.4, math.nan, 0.6, math.nan))
    assert (some.n, some.n_missing, of(some).to_frame()["n_missing"].tolist()) == (2, 2, [2])


def test_subjects_are_those_of_the_set_a_metric_is_about():
    def rows(names, start="q"):
        answer = {"answer": "Ada.", "entity": "Ada"}
        return [ForgetExample(f"{start}{i}", f"{start} {i}?", subject=name, **answer) for i, name in enumerate(names)]

    data = m.MetricData(
        forget=rows(["Ada", None, "Bo"]), retain=rows(["Cy", "Di"], start="r"), holdout=rows([None], "h")
    )
    assert _subjects(m.METRICS["es"], ("q0", "q1", "q2"), data) == ("Ada", None, "Bo")
    assert _subjects(m.METRICS["retain_q_prob"], ("r1", "r0"), data) == ("Di", "Cy")
    assert _subjects(m.METRICS["logit_lens"], ("q2",), data) == ("Bo",)
    assert _subjects(m.METRICS["es"], (), data) == _subjects(m.METRICS["es"], ("other",), data) == ()
    assert _subjects(m.METRICS["es"], ("q1",), data) == ()


# Trust: what the study's table gives, and no more.

PARTS_OF_TRUST = (
    *("faithfulness", "low", "high", "variants_low", "variants_high", "new_low", "new_high"),
    *("worst", "worst_low", "worst_high", "quantisation", "relearning"),
)


@pytest.mark.skipif(not STUDY.parents[1].is_dir(), reason="the folder of studies does not come with the package")
def test_trust_is_what_the_table_of_the_study_gives():
    shipped = Path(ul.metrics.__file__).with_name("trust.csv")
    assert shipped.read_text() == (STUDY / "trust.csv").read_text()
    plan = ul.study.plan(STUDY.parent / "plan.toml")
    frames = ul.study.frames(pd.read_parquet(STUDY / "table_first.parquet"), plan=plan)
    names = tuple(m.studied())
    faithful = ul.meta.faithfulness(frames.pools, metrics=names).set_index("metric")
    cells = ul.meta.variant_table(frames.pools, metrics=names)
    robust = ul.meta.robustness(frames.tables(), metrics=names).set_index("metric")
    assert set(m.studied()) == set(plan.measure.metrics) <= set(m.METRICS)
    for name, trust in m.studied().items():
        row = faithful.loc[name]
        ends = row["cluster_low"], row["cluster_high"]
        if any(map(math.isnan, ends)):  # it tells all apart: every resample is the same
            ends = row["low"], row["high"]
        beside = row[["variants_low", "variants_high", "new_variants_low", "new_variants_high"]]
        pairs = cells[cells["metric"] == name]
        worst = pairs.loc[pairs["auc"].idxmin()]
        found = [row["auc"], *ends, *beside, *worst[["auc", "low", "high"]], *robust.loc[name, ["q", "r"]]]
        shown = [getattr(trust, part) for part in PARTS_OF_TRUST]
        assert shown == pytest.approx(list(map(float, found)), abs=1e-4, nan_ok=True)
        assert trust.worst_pair == f"{worst['variant_p']} against {worst['variant_n']}"


@pytest.mark.parametrize(
    ("low", "high", "doubtful"),
    [(0.8, 0.95, False), (0.7, 0.75, False), (0.7, 0.7499, True), (0.5, 0.9, True), (0.501, 0.9, False)],
)
def test_a_metric_is_doubtful_below_three_quarters_or_where_chance_is_not_ruled_out(low, high, doubtful):
    assert Trust((low + high) / 2, low, high, 1.0, math.nan).is_doubtful is doubtful


def test_results_warn_of_metrics_that_did_not_separate_models(monkeypatch):
    first, second = of(value("cka", 0.1), value("es", 0.1), value("truth_ratio", 0.2)).warnings
    assert "hardly better than chance (0.5)" in first
    assert "CKA (F 0.54, 95% CI 0.33 to 0.74; new kinds of models 0.25 to 0.81). It is unknown" in first
    assert "Extraction Strength (0.39, 95% CI 0.09 to 0.81) (docs: The other metrics)." in second
    assert of(value("cka", math.nan)).warnings == ()
    at_or_below_chance = {name for name, trust in m.studied().items() if trust.worst <= 0.5}
    assert at_or_below_chance == {
        *("paraprob", "para_rouge", "jailbreak_rouge", "es", "fisher_masked_0.001", "prob", "cka")
    }
    assert at_or_below_chance == {name for name, trust in m.studied().items() if trust.fails_a_pair}
    assert sum(trust.worst_low <= 0.5 for trust in m.studied().values()) == 19  # why the interval does not decide
    frame, uds = m.metrics_frame().set_index("name"), m.studied()["uds"]
    columns = ["studied_f", "studied_f_new_low", "studied_f_worst"]
    assert frame.loc["uds", columns].tolist() == [uds.faithfulness, uds.new_low, uds.worst]
    assert frame.loc["uds", "studied_f_new_low"] < frame.loc["uds", "studied_f_low"]
    assert frame["studied_f"].notna().sum() == len(m.studied())
    monkeypatch.setattr("uds_lens.metrics._results.studied", dict)
    assert of(value("cka", 0.1)).warnings == ()
