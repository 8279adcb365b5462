"""What the library says of metrics that were in its own study: what the study's table gives, and no more."""

import math
from pathlib import Path

import pandas as pd
import pytest

import uds_lens as ul
from uds_lens.metrics import (
    METRICS,
    MetricOptions,
    MetricResults,
    MetricValue,
    Trust,
    metrics_frame,
    studied,
)

RESULTS = Path(__file__).parents[2] / "studies" / "tofu_small" / "results"


@pytest.mark.skipif(
    not RESULTS.parents[1].is_dir(), reason="the folder of studies does not come with the package"
)
def test_it_is_what_the_table_of_the_study_gives():
    shipped = Path(ul.metrics.__file__).with_name("trust.csv")
    assert shipped.read_text() == (RESULTS / "trust.csv").read_text()
    plan = ul.study.plan(RESULTS.parent / "plan.toml")
    frames = ul.study.frames(pd.read_parquet(RESULTS / "table.parquet"), plan=plan)
    faithful = ul.meta.faithfulness(frames.pools, metrics=tuple(studied())).set_index("metric")
    cells = ul.meta.variant_table(frames.pools, metrics=tuple(studied()))
    assert set(studied()) == set(plan.measure.metrics) <= set(METRICS)
    for name, trust in studied().items():
        found = faithful.loc[name]
        ends = found["cluster_low"], found["cluster_high"]
        if any(map(math.isnan, ends)):  # it tells all apart: every resample is the same
            ends = found["low"], found["high"]
        assert (trust.faithfulness, trust.low, trust.high) == pytest.approx((found["auc"], *ends), abs=1e-4)
        beside = found[["variants_low", "variants_high", "new_variants_low", "new_variants_high"]].tolist()
        told = (trust.variants_low, trust.variants_high, trust.new_low, trust.new_high)
        assert told == pytest.approx(beside, abs=1e-4)
        own = cells[cells["metric"] == name]
        worst = own.loc[own["auc"].idxmin()]
        told = (trust.worst, trust.worst_low, trust.worst_high)
        assert told == pytest.approx(worst[["auc", "low", "high"]].tolist(), abs=1e-4)
        assert trust.worst_pair == f"{worst['variant_p']} against {worst['variant_n']}"
    robust = ul.meta.robustness(frames.tables(), metrics=tuple(studied()), n_resamples=20).set_index("metric")
    for name, trust in studied().items():
        found = robust.loc[name, ["q", "r"]].astype(float).tolist()
        assert [trust.quantisation, trust.relearning] == pytest.approx(found, abs=1e-4, nan_ok=True)


@pytest.mark.parametrize(
    ("low", "high", "doubtful"),
    [
        (0.8, 0.95, False),
        (0.7, 0.75, False),
        (0.7, 0.7499, True),
        (0.5, 0.9, True),
        (0.501, 0.9, False),
        (0.1, 0.5, True),
        (0.1, 0.4, True),
    ],
)
def test_a_metric_is_doubtful_below_three_quarters_or_where_chance_is_not_ruled_out(low, high, doubtful):
    assert Trust((low + high) / 2, low, high, 1.0, math.nan).is_doubtful is doubtful


def results(**values: float) -> MetricResults:
    """Metrics of some model."""
    declared = {name: METRICS[name] for name in values}
    metrics = {
        name: MetricValue(
            name=name,
            label=spec.label,
            group=spec.group,
            value=values[name],
            direction=spec.meaning.direction,
            low=spec.low,
            high=spec.high,
            zero=spec.meaning.zero,
            one=spec.meaning.one,
        )
        for name, spec in declared.items()
    }
    return MetricResults(
        metrics=metrics, models={}, options=MetricOptions(), sizes={}, generations={}, provenance={}
    )


def test_results_warn_of_what_did_not_tell(monkeypatch):
    told = {"es": Trust(0.6, 0.5, 0.7, 1.0, 0.5), "prob": Trust(0.9, 0.8, 0.95, 1.0, 0.5)}
    monkeypatch.setattr("uds_lens.metrics._results.studied", lambda: told)
    (sentence,) = results(es=0.1, prob=0.2, em=0.3).warnings
    told_of = "Extraction Strength (F 0.60, 95 % 0.50 to 0.70 for the kinds of models it had) told models"
    assert told_of in sentence
    assert results(es=math.nan, prob=0.2).warnings == ()
    monkeypatch.setattr("uds_lens.metrics._results.studied", dict)
    assert results(es=0.1, prob=0.2).warnings == ()


@pytest.mark.parametrize(("low", "fails"), [(0.1, True), (0.5, True), (0.501, False), (math.nan, False)])
def test_a_metric_fails_a_pair_where_the_interval_of_the_worst_reaches_chance(low, fails):
    trust = Trust(0.9, 0.8, 0.95, 1.0, 0.5, worst=0.6, worst_low=low, worst_high=0.9)
    assert trust.fails_a_pair is fails and not trust.is_doubtful


def test_results_warn_of_a_metric_whose_worst_pair_of_kinds_reaches_chance():
    (sentence,) = results(es=0.1, truth_ratio=0.2).warnings
    assert "Extraction Strength (0.39, 95 % 0.09 to 0.81)" in sentence and "Truth Ratio" not in sentence
    assert "made after the results were seen" in sentence
    first, second = results(cka=0.1, paraprob=0.2).warnings
    assert "CKA (F 0.54" in first and "for new kinds) told models" in first
    assert "CKA" not in second and "(0.07, 95 % 0.01 to 0.47)" in second
    at_or_below_chance = {name for name, trust in studied().items() if trust.worst <= 0.5}
    assert at_or_below_chance == {
        *("paraprob", "para_rouge", "jailbreak_rouge", "es", "fisher_masked_0.001", "prob", "cka")
    }
    assert all(studied()[name].fails_a_pair for name in at_or_below_chance)


def test_the_table_of_metrics_has_it():
    frame = metrics_frame().set_index("name")
    assert frame.loc["uds", "studied_f"] == studied()["uds"].faithfulness
    assert frame["studied_f"].notna().sum() == len(studied())
    assert (
        frame.loc["uds", "studied_f_new_low"] == studied()["uds"].new_low < frame.loc["uds", "studied_f_low"]
    )
    assert frame.loc["uds", "studied_f_worst"] == studied()["uds"].worst
