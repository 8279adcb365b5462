"""Paired comparisons of two metrics."""

import math

import pytest
from meta.conftest import covariance_by_hand

from uds_lens.errors import ConfigError
from uds_lens.meta import compare, compare_all
from uds_lens.results import holm


def test_delong_against_the_definition(pools, ways):
    auc, cov = covariance_by_hand(pools, ["x0", "x1"])
    row = compare(pools, "x0", "x1", direction=ways, n_resamples=50)
    error = math.sqrt(cov["x0", "x0"] + cov["x1", "x1"] - 2 * cov["x0", "x1"])
    assert row["difference"] == pytest.approx(auc["x0"] - auc["x1"], abs=1e-12)
    assert row["standard_error"] == pytest.approx(error, abs=1e-8)
    assert row["correlation"] == pytest.approx(cov["x0", "x1"] / math.sqrt(cov["x0", "x0"] * cov["x1", "x1"]))
    assert row["p"] == pytest.approx(math.erfc(abs(row["difference"]) / error / math.sqrt(2)))
    assert (row["low"], row["high"]) == pytest.approx(
        (row["difference"] - 1.959964 * error, row["difference"] + 1.959964 * error), abs=1e-6
    )
    assert row["detectable"] == pytest.approx((1.959964 + 0.841621) * error, abs=1e-6)


def test_the_bootstrap_agrees_where_models_are_independent(pools, ways):
    alone = pools.assign(run=pools["model"], variant="one")
    row = compare(alone, "x0", "x1", direction=ways, n_resamples=4000)
    assert row["cluster_standard_error"] == pytest.approx(row["standard_error"], rel=0.06)


def test_order_does_not_matter(pools, ways):
    one, other = (compare(pools, *names, direction=ways, n_resamples=100) for names in (("x0", "x2"), ("x2", "x0")))
    assert one["difference"] == pytest.approx(-other["difference"])
    for name in ("p", "standard_error", "cluster_p", "cluster_standard_error"):
        assert one[name] == pytest.approx(other[name])


def test_only_models_with_both_values_count(pools, ways):
    frame = pools.copy()
    frame.loc[frame["run"] == "0-0", "x1"] = math.nan
    row = compare(frame, "x0", "x1", direction=ways, n_resamples=50)
    kept = compare(frame[frame["x1"].notna()], "x0", "x1", direction=ways, n_resamples=50)
    assert (row["n_p"], row["n_n"]) == (28, 28)
    assert row["p"] == kept["p"] and row["auc_one"] == kept["auc_one"]


def test_no_test_without_a_difference(pools, ways):
    frame = pools.assign(x1=pools["x0"] * 2, x2=math.nan)
    row = compare(frame, "x0", "x1", direction=ways)
    assert row["difference"] == 0 and math.isnan(row["p"]) and row["reason"] == "both metrics order all pairs alike"
    assert compare(frame, "x0", "x2", direction=ways)["reason"] == "no model of P has values of both metrics"
    with pytest.raises(ConfigError, match="two different metrics"):
        compare(frame, "x0", "x0", direction=ways)


def test_all_pairs_are_adjusted_together(pools, ways):
    table = compare_all(pools, direction=ways, n_resamples=100)
    assert table[["one", "other"]].to_numpy().tolist() == [["x0", "x1"], ["x0", "x2"], ["x1", "x2"]]
    assert table["p_holm"].to_numpy() == pytest.approx(holm(table["p"].tolist()))
    assert (table["cluster_p_holm"] >= table["cluster_p"]).all()
    one = compare_all(pools, direction=ways, against="x2", n_resamples=100)
    assert one[["one", "other"]].to_numpy().tolist() == [["x2", "x0"], ["x2", "x1"]]
    with pytest.raises(ConfigError, match="against"):
        compare_all(pools, direction=ways, against="y")
