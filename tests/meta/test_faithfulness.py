"""F, its intervals, what it says where it has none, and two metrics compared by it."""

import inspect
import itertools
import math
import tracemalloc

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from meta.conftest import covariance_by_hand, pools_frame
from scipy.stats import t
from sklearn.metrics import roc_auc_score

from uds_lens import meta
from uds_lens.errors import ConfigError, DataError
from uds_lens.meta import compare, compare_all
from uds_lens.meta._pools import Placements, PoolBootstrap, split_pools
from uds_lens.results import holm

KNOWS = {"x": "knowledge"}

# Few distinct values: ties are the rule.
pool_values = arrays(float, st.integers(3, 12), elements=st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]))


def two_pools(p, n) -> pd.DataFrame:
    return pd.DataFrame({"knows": [True] * len(p) + [False] * len(n), "x": np.concatenate([p, n])})


@given(pool_values, pool_values)
@settings(max_examples=25)
def test_f_is_the_area_under_the_curve(p, n):
    row = meta.faithfulness(frame := two_pools(p, n), direction=KNOWS, n_resamples=2).iloc[0]
    assert row["auc"] == pytest.approx(roc_auc_score([1] * len(p) + [0] * len(n), [*p, *n]), abs=1e-12)
    assert row["standard_error"] ** 2 == pytest.approx(covariance_by_hand(frame, ["x"])[1]["x", "x"], abs=1e-8)
    assert math.isnan(row["low"]) or 0 <= row["low"] <= row["auc"] <= row["high"] <= 1
    assert row["tied_share"] == pytest.approx(np.mean([a == b for a in p for b in n]))


def test_interval_on_the_logit_scale():
    ends = meta.faithfulness(two_pools([1.0, 1.0, 0.4], [0.0, 0.2, 1.0]), direction=KNOWS).iloc[0]
    assert ends["share_at_1"] == pytest.approx(0.5) and ends["share_at_0"] == pytest.approx(1 / 6)
    assert (ends["mean_p"], ends["mean_n"]) == (pytest.approx(0.8), pytest.approx(0.4))
    row = meta.faithfulness(two_pools([0.9, 0.8, 0.3], [0.4, 0.2, 0.1]), direction=KNOWS).iloc[0]
    # V10 = (1, 1, 2/3), V01 = (2/3, 1, 1): variance 2 * (1/27) / 3
    error = math.sqrt(2 / 81)
    assert row["standard_error"] == pytest.approx(error)
    reach = 1.959964 * error / (8 / 9 * 1 / 9)
    assert row["low"] == pytest.approx(1 / (1 + math.exp(reach) / 8), abs=1e-6)
    assert row["high"] == pytest.approx(1 / (1 + math.exp(-reach) / 8), abs=1e-6)


def test_wilson_where_nothing_is_misordered():
    row = meta.faithfulness(two_pools(np.arange(30) + 100.0, np.arange(20.0)), direction=KNOWS).iloc[0]
    assert (row["auc"], row["interval"], row["high"]) == (1.0, "wilson", 1.0)
    assert row["low"] == pytest.approx(20 / (20 + 1.959964**2), abs=1e-6)
    worst = meta.faithfulness(two_pools(np.arange(20.0), np.arange(30) + 100.0), direction=KNOWS).iloc[0]
    assert worst["low"] == 0 and worst["high"] == pytest.approx(1 - row["low"])


def test_bootstrap_of_independent_models_agrees_with_delong(pools, ways):
    table = meta.faithfulness(pools, direction=ways, n_resamples=2).set_index("metric")
    alone = split_pools(pools.assign(variant="all", run=np.arange(len(pools))), "knows", ("variant", "run"))
    for name, points in ways.items():
        m = meta.oriented(pools[name], points).to_numpy()
        draws = PoolBootstrap(alone, 4000, 0).clustered(~np.isnan(m))
        known = pools["knows"].to_numpy(dtype=bool)
        spread = draws.aucs(Placements.of(m[known], m[~known])).std()
        assert spread == pytest.approx(table.loc[name, "standard_error"], rel=0.1)


def peak_mib(work) -> float:
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def test_memory_grows_with_models_and_not_with_their_pairs():
    rng, n = np.random.default_rng(0), 1500
    frame = two_pools(rng.normal(size=n), rng.normal(size=n)).assign(y=rng.normal(size=2 * n))
    ways = {"x": "knowledge", "y": "erasure"}
    given = {"direction": ways, "cluster": (), "n_resamples": 2}
    for work in (meta.faithfulness, meta.compare_all):
        assert peak_mib(lambda work=work: work(frame, **given)) < 5  # all pairs: 17
    assert peak_mib(lambda: meta.thresholds(frame, direction=ways)) < 5
    models = frame.assign(model=[f"m{i}" for i in range(2 * n)], x=rng.uniform(size=2 * n))
    tables = meta.Tables(before=models, quantised=models.assign(x=models["x"] ** 1.1))
    given = {"direction": KNOWS, "min_utility": None}
    assert peak_mib(lambda: meta.robustness(tables, **given)) < 12  # all pairs: 69


def test_snapshots_of_a_run_count_once():
    # Five snapshots that are all alike carry what one carries.
    one = pools_frame(snapshots=1, metrics=1)
    many = pd.concat([one.assign(model=one["model"] + str(copy)) for copy in range(5)])
    ways = {"x0": "knowledge"}
    single, copies = (meta.faithfulness(frame, direction=ways, n_resamples=3000).iloc[0] for frame in (one, many))
    assert copies["n_runs"] == single["n_runs"] == 30
    assert copies["cluster_low"] == pytest.approx(single["cluster_low"], abs=1e-9)
    assert copies["high"] - copies["low"] < 0.6 * (single["high"] - single["low"])
    width = copies["cluster_high"] - copies["cluster_low"]
    assert width > 1.5 * (copies["high"] - copies["low"])


def test_a_variant_of_one_run_has_no_interval_and_variants_of_two_columns_stay_apart(pools, ways):
    """ "a b" of "c" is not "a" of "b c": the first alone has one run, and therefore no interval."""
    one = (pools["variant"] == "P0") & (pools["run"] == "0-0")
    frame = pools[(pools["variant"] != "P0") | one]
    names = frame["variant"].map({"P0": "a b", "P1": "a"}).fillna(frame["variant"])
    frame = frame.assign(kind=names, part=frame["variant"].map({"P0": "c", "P1": "b c"}).fillna("x"))
    row = meta.faithfulness(frame, direction=ways, cluster=("kind", "part", "run"), n_resamples=50).iloc[0]
    assert math.isnan(row["cluster_low"]) and "P 'a b' c" in row["cluster_reason"]
    row = meta.faithfulness(frame, direction=ways, n_resamples=50).iloc[0]
    assert math.isnan(row["cluster_low"]) and "P P0" in row["cluster_reason"]
    assert row["variants_low"] <= row["auc"] <= row["variants_high"]


def test_what_is_missing_has_a_reason(pools, ways):
    frame = pools.assign(x1=0.3, x2=math.nan)
    frame.loc[frame["knows"], "x0"] = math.nan
    gone, constant, nothing = (row for _, row in meta.faithfulness(frame, direction=ways).iterrows())
    assert math.isnan(gone["auc"]) and gone["reason"] == "no model of P has a value" and gone["n_n"] == 30
    assert (constant["auc"], constant["tied_share"]) == (0.5, 1) and math.isnan(constant["low"])
    assert constant["reason"].startswith("constant")
    assert nothing["n_missing"] == 60 and math.isnan(nothing["mean_p"])


@pytest.mark.parametrize("spell", [int, str, lambda knows: str(knows).lower(), float])
def test_pools_can_be_spelt_in_several_ways(pools, ways, spell):
    other = pools.assign(knows=[spell(knows) for knows in pools["knows"]]).astype({"knows": object})
    neither = pd.DataFrame({"model": ["u"], "knows": [None], "x0": [9.0], "x1": [9.0], "x2": [9.0]})
    other = pd.concat([other, neither])  # a model of neither pool does not count
    one, same = (meta.faithfulness(frame, direction=ways, n_resamples=20) for frame in (pools, other))
    pd.testing.assert_frame_equal(one, same)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.drop(columns="knows"), "lacks the column 'knows'"),
        (lambda f: f.assign(knows=True), "0 in N"),
        (lambda f: f.iloc[[0, 1, 59]], "5 in all"),
        (lambda f: f.assign(knows="perhaps"), "must be True, False or empty"),
        (lambda f: f.assign(x0="high"), "must hold numbers"),
        (lambda f: f.assign(x0=math.inf), "infinite"),
        (lambda f: f.drop(columns="x0"), "lacks the column 'x0'"),
        (lambda f: pd.concat([f, f["x0"]], axis=1), "two columns 'x0'"),
    ],
)
def test_tables_that_cannot_be_judged(pools, ways, change, message):
    with pytest.raises(DataError, match=message) as error:
        meta.faithfulness(change(pools), direction=ways)
    assert len(str(error.value)) < 500


def test_directions_come_from_the_declarations_or_from_the_caller():
    frame = pd.DataFrame(0.1, [0], ["es", "uds", "utility_rel", "privacy", "mine", "lr"])
    assert meta.directions(frame) == {"es": "knowledge", "uds": "erasure"}
    assert meta.directions(frame, ["mine", "es"], {"mine": "erasure"}) == {"mine": "erasure", "es": "knowledge"}
    assert meta.directions(frame, direction={"uds": "knowledge"}) == {"uds": "knowledge"}
    with pytest.raises(ConfigError, match="no direction is known for 'mine'"):
        meta.directions(frame, ["mine"])
    with pytest.raises(ConfigError, match="must be one of"):
        inspect.unwrap(meta.directions)(frame, direction={"es": "up"})  # past the type checker of the tests
    with pytest.raises(DataError, match="no metric whose direction is known"):
        meta.directions(frame[["lr"]])
    known = ("es", "em", "prob", "paraprob", "truth_ratio", "rouge", "para_rouge", "jailbreak_rouge")
    attacks = ("mia_loss", "mia_zlib", "mia_min_k", "mia_min_kpp")
    erased = (*(f"s_{name}" for name in attacks), "cka", "fisher_masked_0.001", "logit_lens", "uds")
    paper = {**dict.fromkeys((*known, *attacks), "knowledge"), **dict.fromkeys(erased, "erasure")}
    assert meta.directions(pd.DataFrame(0.5, [0], list(paper))) == paper


def test_variants_pair_by_pair(pools, ways):
    table = meta.variant_table(pools, direction=ways)
    assert len(table) == 3 * 9 and set(table["n_p"]) == {10}
    whole = meta.faithfulness(pools, direction=ways, n_resamples=2).set_index("metric")["auc"]
    # Equal numbers of models: F is the mean of the nine.
    assert table.groupby("metric")["auc"].mean().to_dict() == pytest.approx(whole.to_dict())
    without = [pools[pools["variant"] != variant] for variant in pools["variant"].unique()]
    left = [roc_auc_score(kept["knows"], kept["x0"]) for kept in without]
    row = meta.faithfulness(pools, direction=ways, n_resamples=2).set_index("metric").loc["x0"]
    assert [row["variants_low"], row["variants_high"]] == pytest.approx([min(left), max(left)])
    with pytest.raises(DataError, match="'variant'"):
        meta.variant_table(pools.drop(columns="variant"), direction=ways)


def test_each_pair_of_variants_has_an_interval_over_its_runs(pools, ways):
    table = meta.variant_table(pools, direction=ways).set_index(["metric", "variant_p", "variant_n"])
    row = table.loc[("x0", "P0", "N1")]
    own = pools[pools["variant"].isin(["P0", "N1"])]
    expected = meta.faithfulness(own, direction={"x0": "knowledge"}, n_resamples=10_000).iloc[0]
    if row["auc"] < 1:
        assert [row["low"], row["high"]] == pytest.approx([expected["cluster_low"], expected["cluster_high"]], abs=0.01)
    sure = pools.assign(x0=pools["knows"].astype(float))
    ends = meta.variant_table(sure, direction={"x0": "knowledge"})
    assert ends["low"].tolist() == pytest.approx([5 / (5 + 1.959964**2)] * 9)  # Wilson's, five runs a side
    assert meta.variant_table(pools.drop(columns="run"), direction=ways)["low"].isna().all()


def test_the_interval_for_new_variants_goes_by_variants():
    frame = pools_frame(seed=3, metrics=1)
    frame["x0"] += frame["variant"].map(["P0", "P1", "P2", "N0", "N1", "N2"].index) / 3
    row = meta.faithfulness(frame, direction={"x0": "knowledge"}, n_resamples=2).iloc[0]
    p, n = (frame[frame["knows"] == knows] for knows in (True, False))
    kernel = (p["x0"].to_numpy()[:, None] > n["x0"].to_numpy()[None, :]).astype(float)
    f = kernel.mean()
    means = [
        pd.Series(placements).groupby(side["variant"].tolist()).mean()
        for placements, side in ((kernel.mean(1), p), (kernel.mean(0), n))
    ]
    error = np.sqrt(sum(each.var() / 3 for each in means))
    reach = t.ppf(0.975, 4) * error / (f * (1 - f))
    expected = [1 / (1 + np.exp(-(np.log(f / (1 - f)) + side * reach))) for side in (-1, 1)]
    assert [row["new_variants_low"], row["new_variants_high"]] == pytest.approx(expected)
    assert row["new_variants_high"] - row["new_variants_low"] > row["cluster_high"] - row["cluster_low"]


def test_a_perfect_metric_is_not_sure_of_new_variants(pools):
    sure = pools.assign(x0=pools["knows"].astype(float))
    row = meta.faithfulness(sure, direction={"x0": "knowledge"}, n_resamples=2).iloc[0]
    assert row["new_variants_low"] == pytest.approx(3 / (3 + 1.959964**2)) and row["new_variants_high"] == 1
    one = pools[pools["variant"].isin(["P0", "N0", "N1"])]
    row = meta.faithfulness(one, direction={"x0": "knowledge"}, n_resamples=2).iloc[0]
    assert np.isnan(row["new_variants_low"]) and row["cluster_low"] > 0


def best_by_hand(p, n):
    """All cuts between pool values that separate best, by counting."""
    levels = sorted({*p, *n})
    cuts = [(a + b) / 2 for a, b in itertools.pairwise(levels)]
    j = [np.mean([a > c for a in p]) - np.mean([b > c for b in n]) for c in cuts]
    best = max(j, default=0)
    return [c for c, value in zip(cuts, j, strict=True) if value == pytest.approx(best, abs=1e-9)], best


@given(pool_values, pool_values)
@settings(max_examples=25)
def test_every_best_cut_is_told(p, n):
    table = meta.thresholds(two_pools(p, n), direction=KNOWS)
    cuts, youden = best_by_hand(p, n)
    if youden <= 1e-9:
        assert len(table) == 1 and math.isnan(table["threshold"][0]) and table["reason"][0]
        return
    assert table["threshold"].tolist() == pytest.approx(cuts)
    assert table["youden"].tolist() == pytest.approx([youden] * len(cuts))
    assert table["chosen"].tolist() == [True] + [False] * (len(cuts) - 1)
    assert (table["n_best"] == len(cuts)).all()


def test_cuts_of_erasure_metrics_and_their_models():
    frame = pd.DataFrame({"knows": [1, 1, 1, 0, 0], "x": [0.1, 0.2, 0.3, 0.7, 0.9]})
    models = pd.DataFrame({"x": [0.2, 0.55, 0.8, math.nan]})
    row = meta.thresholds(frame, direction={"x": "erasure"}, models=models).iloc[0]
    assert (row["threshold"], row["value"]) == (pytest.approx(0.5), pytest.approx(0.5))
    assert (row["n_p_below"], row["n_n_below"], row["n_models"]) == (0, 2, 2)


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
