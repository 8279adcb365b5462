"""Q and R, model by model and over models: filters, the shift of retain, and metrics that do not move."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import beta, norm, t

from uds_lens import meta
from uds_lens.errors import DataError
from uds_lens.meta._columns import ROBUSTNESS
from uds_lens.meta._perturbation import retain_shift
from uds_lens.meta._pools import clustered_mean, dominated_by
from uds_lens.meta._robustness import as_cuts

WAYS = {"x": "knowledge", "d": "erasure"}
NAMES = [f"m{i}" for i in range(6)]
NAN = math.nan
BEFORE = pd.DataFrame(
    {
        "model": NAMES,
        "x": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
        "d": [0.9, 0.8, 0.6, 0.5, 0.2, 0.1],
        "utility_rel": [0.9, 0.5, 1.0, 0.85, 0.95, math.nan],
    }
)
QUANTISED = BEFORE.assign(x=BEFORE["x"] * 1.5, d=BEFORE["d"] - 0.05)
RELEARNED = BEFORE.assign(x=BEFORE["x"] + [0.2, 0.1, 0.4, 0.2, -0.1, 0.2], d=BEFORE["d"] - 0.1)
RETAIN = pd.DataFrame({"x": [0.1], "d": [0.95]})
RETAIN_AFTER = pd.DataFrame({"x": [0.28, 0.30, 0.32], "d": [0.84, 0.85, 0.86]})
AFTER = {"quantised": QUANTISED, "relearned": RELEARNED, "retain_before": RETAIN, "retain_relearned": RETAIN_AFTER}
CUTS = {"x": 0.35, "d": 0.45}


def tables_of(**changes):
    return meta.Tables(**{"before": BEFORE, **AFTER, **changes})


def row_of(metric="x", min_utility=0.8, symmetric=True, **changes):
    table = meta.robustness(tables_of(**changes), direction=WAYS, min_utility=min_utility, symmetric=symmetric)
    assert list(table.columns) == list(ROBUSTNESS)
    return table.set_index("metric").loc[metric]


def by_filter(tables, ways=WAYS):
    table = meta.robustness_by_filter(tables, direction=ways)
    return table.set_index(["filter", "models", "metric"])


def test_means_over_the_models_that_pass():
    row = row_of(thresholds=CUTS)
    kept = [0, 2]  # useful and at or below 0.35
    x, q, r = (frame["x"].to_numpy()[kept] for frame in (BEFORE, QUANTISED, RELEARNED))
    dr = 0.2
    expected_q = np.mean(1 - np.abs(q - x) / (q + x))
    expected_r = np.mean(1 - np.abs(r - x - dr) / (np.abs(r - x) + dr))
    assert (row["n"], row["filter"], row["threshold"]) == (2, "utility+threshold", 0.35)
    assert row["q"] == pytest.approx(expected_q) and row["r"] == pytest.approx(expected_r)
    assert row["rob"] == pytest.approx(2 / (1 / expected_q + 1 / expected_r))
    assert row["shift"] == pytest.approx(dr) and row["n_shift"] == 3
    assert "only 2 models" in row["caution"]


def test_erasure_metrics_are_turned():
    row = row_of("d", thresholds=CUTS)
    points = meta.perturbation_points(tables_of(thresholds=CUTS), direction=WAYS)
    own = points[(points["metric"] == "d") & points["kept"]]
    assert own["model"].tolist() == ["m0", "m2"]  # 1 - d <= 0.45, and useful
    assert own["before"].tolist() == pytest.approx([0.1, 0.4])
    assert own["quantised"].tolist() == pytest.approx([0.15, 0.45])
    assert own["change"].tolist() == own["shift"].tolist() == pytest.approx([0.1, 0.1])
    assert row["q"] == pytest.approx(own["q"].mean())
    assert row["r"] == pytest.approx(own["r"].mean()) == 1.0


def test_one_directional():
    row = row_of(symmetric=False, min_utility=None)
    assert row["q"] == pytest.approx(1 / 1.5)  # all rise by half
    assert row["r"] == pytest.approx(np.mean([1, 1, 0.5, 1, 1, 1]))


def test_all_settings_side_by_side():
    table = by_filter(tables_of(thresholds=CUTS))
    n = table["n"]
    assert len(table) == 4 * 2 * 2
    assert (n["none", "own", "x"], n["utility", "own", "x"], n["threshold", "own", "x"]) == (6, 4, 3)
    assert (n["threshold", "own", "d"], n["utility+threshold", "common", "x"]) == (3, 2)
    assert (n.xs("common", level="models").groupby("filter").nunique() == 1).all()
    alone, both = row_of(thresholds=CUTS), table.loc[("utility+threshold", "own", "x")]
    assert both["q"] == alone["q"] and both["r"] == alone["r"]
    assert set(by_filter(tables_of()).index.get_level_values("filter")) == {"none", "utility"}


def test_a_metric_without_a_cut_does_not_shrink_the_common_models():
    at = by_filter(tables_of(thresholds={"x": 0.35}))
    assert at.loc[("threshold", "common", "x"), "n"] == 3
    assert at.loc[("threshold", "own", "d"), "q_reason"] == "there is no threshold for this metric"
    assert math.isnan(at.loc[("threshold", "own", "d"), "q"])
    # where each metric lets others pass, no model is common
    before = BEFORE.assign(d=1 - BEFORE["d"].to_numpy())  # what x forgot, d knows
    row = by_filter(meta.Tables(before=before, quantised=QUANTISED, thresholds={"x": 0.25, "d": 0.15}))
    row = row.loc[("threshold", "common", "x")]
    assert row["n"] == 0 and row["q_reason"].endswith("each metric lets different models pass")


@pytest.mark.parametrize(
    ("cuts", "named"),
    [
        ({"x": 0.01, "d": 0.05}, "none passes the filters of x, d"),
        ({"x": 0.35, "d": 0.05, "y": 0.5}, "none passes the filters of d"),
    ],
)
def test_a_metric_that_lets_no_model_pass_leaves_no_common_model(cuts, named):
    frames = {name: frame.assign(y=0.5 + 0.01 * frame["x"]) for name, frame in AFTER.items()}
    before, ways = BEFORE.assign(y=math.nan), {**WAYS, "y": "knowledge"}
    at = by_filter(meta.Tables(before=before, **frames, thresholds=cuts), ways)
    assert at.loc[("threshold", "own", "x"), "n"] == (3 if cuts["x"] > 0.1 else 0)
    for metric in WAYS:
        row = at.loc[("threshold", "common", metric)]
        assert (row["n"], math.isnan(row["q"]), math.isnan(row["rob"])) == (0, True, True)
        assert row["q_reason"] == row["r_reason"] and row["q_reason"].endswith(named)
    assert at.loc[("utility", "common", "x"), "n"] == 4  # y has no value, and takes no part


def test_the_shift_of_retain_has_an_interval():
    shift = retain_shift(RETAIN, RETAIN_AFTER, "x", direction="knowledge")
    reach = 4.302653 * 0.02 / math.sqrt(3)  # t with 2 degrees of freedom
    assert (shift.mean, shift.low, shift.high) == pytest.approx((0.2, 0.2 - reach, 0.2 + reach), abs=1e-6)
    row = row_of(min_utility=None)
    assert row["r_shift_low"] <= row["r_at_shift"] <= row["r_shift_high"]
    change = np.array([0.2, 0.1, 0.4, 0.2, -0.1, 0.2])
    for at in np.linspace(shift.low, shift.high, 7):
        mean = np.mean(1 - np.abs(change - at) / (np.abs(change) + at))
        assert row["r_shift_low"] - 1e-9 <= mean <= row["r_shift_high"] + 1e-9


def test_the_interval_of_the_shift_is_carried_into_r_of_many_models():
    rng, n = np.random.default_rng(0), 1000  # not every turning point is looked at
    before = pd.DataFrame({"model": [f"m{i}" for i in range(n)], "x": 0.2})
    after = before.assign(x=0.2 + rng.choice([0.15, 0.2, 0.25], n) + rng.normal(0, 0.01, n))
    table = meta.robustness(
        meta.Tables(before=before, relearned=after, retain_before=RETAIN, retain_relearned=RETAIN_AFTER),
        direction={"x": "knowledge"},
        min_utility=None,
    )
    change = (after["x"] - 0.2).to_numpy()[:, None]
    shifts = np.linspace(table["shift_low"][0], table["shift_high"][0], 4000)
    means = (1 - np.abs(change - shifts) / (np.abs(change) + shifts)).mean(0)
    ends = table[["r_shift_low", "r_shift_high"]].to_numpy()[0]
    assert ends == pytest.approx([means.min(), means.max()], abs=1e-4)


def test_several_retain_models_are_the_unit():
    before = pd.DataFrame({"model": ["a", "b"], "x": [0.1, 0.2]})
    after = pd.DataFrame({"model": ["a", "a", "b"], "x": [0.3, 0.5, 0.3]})
    shift = retain_shift(before, after, "x", direction="knowledge")
    assert (shift.mean, shift.n, len(shift.shifts)) == (pytest.approx(0.2), 3, 2)
    assert shift.high - shift.mean == pytest.approx(12.7062 * 0.1, rel=1e-4)  # means 0.3 and 0.1
    with pytest.raises(DataError, match="'model'"):
        retain_shift(before, after.drop(columns="model"), "x", direction="knowledge")


def test_r_is_undefined_where_retain_may_not_move():
    still = pd.DataFrame({"x": [0.05, 0.12, 0.2]})
    row = row_of(retain_relearned=still)
    assert math.isnan(row["r"]) and math.isnan(row["rob"]) and "contains 0" in row["r_reason"]
    assert row["r_at_shift"] > 0
    assert row["r_shift_low"] == pytest.approx(0, abs=1e-6)  # at 0, and beyond, R is 0
    exactly = row_of(retain_relearned=RETAIN)
    assert math.isnan(exactly["r"]) and "single relearning" in exactly["r_reason"]
    row = row_of(retain_relearned=RETAIN_AFTER.iloc[:1])  # a single one that moves is used with a caution
    assert row["r"] == row["r_at_shift"] and math.isnan(row["shift_low"])
    assert "single relearning" in row["caution"]


def test_a_constant_metric_is_not_praised():
    still = {name: AFTER[name].assign(x=0.5) for name in ("quantised", "relearned")}
    row = row_of(before=BEFORE.assign(x=0.5), **still)
    assert math.isnan(row["q"]) and row["q_reason"].startswith("constant")
    assert row["unmoved_q"] == row["n_q"] == 4
    assert math.isnan(row["r"]) and row["r_reason"].startswith("constant")
    copied = row_of(quantised=BEFORE)  # different values, none of which moves
    assert copied["q"] == 1 and "does not change the metric for 4 of 4" in copied["caution"]


def test_beside_q_stand_its_unit_and_ranks():
    faithful = pd.DataFrame({"metric": ["x"], "mean_p": [0.9], "mean_n": [0.4]})
    row = row_of(faithful=faithful, min_utility=None)
    assert row["relative_move"] == pytest.approx(0.5 * 0.35 / 0.5)
    assert row["above_r"] == 1
    assert math.isnan(row["q_low"]) and row["interval_reason"] == "all models have the same mean"
    other = row_of("d", min_utility=None)
    assert other["q_low"] < other["q"] < other["q_high"]
    assert row["clusters"] == "model" and row["n_clusters"] == 6


def grouped(sizes, *, seed=0, alike=0.15):
    """Unlearned models of several methods, two epochs a run, and the same ones quantised: methods differ in Q."""
    rng = np.random.default_rng(seed)
    rows = []
    for method, runs in enumerate(sizes):
        of_method = rng.normal(0, alike)
        for run in range(runs):
            of_run = rng.normal(0, alike / 2)
            for epoch in (1, 2):
                own = {"model": f"{method}-{run}-{epoch}", "method": f"method{method}", "run": f"run{run}"}
                rows.append({**own, "x": 0.4, "after": 0.4 * np.exp(0.5 + of_method + of_run)})
    before = pd.DataFrame(rows)
    return before.drop(columns="after"), before.assign(x=before["after"])


def q_of(before, after, **options):
    tables = meta.Tables(before=before, quantised=after, **options)
    return meta.robustness(tables, min_utility=None, direction={"x": "knowledge"}).iloc[0]


def test_intervals_of_q_keep_methods_and_runs_together():
    before, after = grouped([6] * 8)
    row = q_of(before, after)
    assert (row["clusters"], row["n_clusters"]) == ("method", 8)
    q = 1 - (after["x"] - 0.4) / (after["x"] + 0.4)

    def by_hand(groups):  # clusters of one size: the t interval of their means, on the logit scale
        means = q.groupby(groups.tolist()).mean()
        low, high = t.interval(0.95, len(means) - 1, 0, means.sem())
        centre, slope = np.log(q.mean() / (1 - q.mean())), 1 / (q.mean() * (1 - q.mean()))
        return [float(1 / (1 + np.exp(-(centre + slope * end)))) for end in (low, high)]

    assert [row["q_low"], row["q_high"]] == pytest.approx(by_hand(before["method"]))
    runs = before["method"] + before["run"]  # runs of the same name in two methods are two
    assert [row["q_runs_low"], row["q_runs_high"]] == pytest.approx(by_hand(runs))
    independent = q_of(before, after, cluster=())
    assert [independent["q_low"], independent["q_high"]] == pytest.approx(by_hand(before["model"]))
    by_method, by_run = (row[f"q{level}_high"] - row[f"q{level}_low"] for level in ("", "_runs"))
    assert by_method > 1.5 * by_run > 1.5 * 1.2 * (independent["q_high"] - independent["q_low"])


@pytest.mark.parametrize("methods", [3, 4])
def test_fewer_than_five_methods_have_no_interval_but_for_their_runs(methods):
    row = q_of(*grouped([6] * methods))
    assert math.isnan(row["q_low"]) and row["interval_reason"] == f"{methods} methods; an interval needs 5"
    assert row["q_runs_low"] < row["q"] < row["q_runs_high"]
    one = q_of(*grouped([6]))  # a single method cannot be a cluster: runs are
    assert one["clusters"] == "run" and one["q_low"] == one["q_runs_low"] > 0


def test_one_method_that_makes_the_mean_is_named_with_an_honest_interval():
    before, _ = grouped([6] * 8)
    row = q_of(before, before.assign(x=0.401 + 0.02 * (before["method"] == "method3")))
    hits = 8 * row["q"]  # as if methods were all or nothing
    low, high = beta.ppf(0.025, hits, 9 - hits), beta.ppf(0.975, hits + 1, 8 - hits)
    assert row["caution"] == (
        "75% of the distance of Q from 1 comes from method method3: the interval may be too short; if another method "
        f"could lie anywhere between 0 and 1, the interval would be {low:.2f} to {high:.2f}"
    )
    assert q_of(before, before.assign(x=0.41 + 0.001 * np.arange(len(before))))["caution"] is None
    still = before.assign(x=[0.1 + 0.01 * i for i in range(len(before))])  # no spread at all: the bound of a share
    row = q_of(still, still)
    assert (row["q"], row["q_high"]) == (1, 1) and row["q_low"] == pytest.approx(0.025 ** (1 / 8))


@pytest.mark.parametrize(
    ("sizes", "share", "level"),
    [
        ([2] * 5, 0.3, 0.7),
        ([2] * 8, 0.3, 0.7),
        ([12] * 8, 0.1, 0.95),
        ([12] * 8, 1.0, 0.5),
        ([2] * 5, 1.0, 0.5),
        ([2, 4, 4, 8, 10], 1.0, 0.5),
    ],
)
def test_means_of_few_models_hold_what_they_promise_or_say_so(sizes, share, level):
    """Values are 0 but for a share of models, which are alike within clusters."""
    rng = np.random.default_rng(0)
    clusters, held, honest, worlds = np.repeat(np.arange(len(sizes)), sizes), 0, [], 300

    def values(z):
        above = (norm.cdf(z) - (1 - share)) / share
        return np.where(above > 0, beta.ppf(np.clip(above, 0, 1), 2 * (1 - level), 2 * level), 0.0)

    truth = values(norm.ppf((np.arange(20_000) + 0.5) / 20_000)).mean()
    of_cluster, own = rng.normal(size=(worlds, len(sizes))), rng.normal(size=(worlds, len(clusters)))
    for row in values(0.8 * of_cluster[:, clusters] + 0.6 * own):
        interval, _ = clustered_mean(row, clusters, 0.95)
        most = dominated_by(row, clusters, 0.95)
        held += most is not None or interval.low <= truth <= interval.high
        if most is not None:
            honest.append(most.interval.low <= truth <= most.interval.high)
    assert held >= 0.925 * worlds and np.mean(honest or 1) >= 0.95
    if share == 1:
        assert len(honest) < 0.25 * worlds  # a caution on everything says nothing


def test_several_equally_good_cuts_are_told():
    pools = pd.DataFrame({"knows": [1, 1, 1, 0, 0, 0], "x": [0.9, 0.8, 0.3, 0.4, 0.2, 0.1]})
    cuts = meta.thresholds(pools, direction={"x": "knowledge"})
    assert cuts["threshold"].tolist() == pytest.approx([0.25, 0.6])
    row = row_of(thresholds=cuts)
    assert "2 thresholds separate the pools equally well (0.25 to 0.6; the lowest is used)" in row["caution"]


def test_seeds_of_a_model_are_averaged_and_missing_ones_are_told():
    twice = pd.concat([RELEARNED, RELEARNED.assign(x=RELEARNED["x"] + 0.2)])[["model", "x"]]
    points = meta.perturbation_points(meta.Tables(before=BEFORE, relearned=twice), direction=WAYS)
    own = points[points["metric"] == "x"]
    assert own["relearned"].tolist() == pytest.approx((RELEARNED["x"] + 0.1).tolist())
    row = row_of(quantised=QUANTISED.iloc[1:])
    assert row["n"] == 4 and row["n_q"] == 3 and "1 models have no quantised value" in row["caution"]
    assert row_of(quantised=None)["q_reason"] == "no quantised models were given"
    assert row_of(retain_before=None)["r_reason"] == "R needs retain before and after relearning"
    row = row_of("d", retain_relearned=RETAIN_AFTER[["x"]])
    assert row["r_reason"] == "no relearned retain model has a value for 'd'"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantised": QUANTISED.assign(model="other")}, "'other', which is not in the table 'before'"),
        ({"quantised": QUANTISED.drop(columns="model")}, "'quantised' lacks the column 'model'"),
        ({"before": BEFORE.drop(columns="utility_rel")}, "min_utility=None"),
        ({"before": BEFORE.assign(model="m0")}, "twice"),
        ({"retain_before": RETAIN.iloc[:0]}, "is empty"),
    ],
)
def test_tables_that_do_not_fit(changes, message):
    with pytest.raises(DataError, match=message):
        row_of(**changes)


def test_cuts_in_a_table():
    table = pd.DataFrame({"metric": ["x", "x"], "threshold": [0.1, 0.6], "chosen": [True, False]})
    assert as_cuts(table) == {"x": 0.1}
    with pytest.raises(DataError, match="two thresholds for 'x'"):
        as_cuts(table.drop(columns="chosen"))


values = st.lists(st.floats(0, 1), min_size=4, max_size=4)


@given(values, values, values, st.floats(0.01, 1), st.booleans())
@settings(max_examples=15)
def test_everything_lies_between_0_and_1(before, quantised, relearned, shift, symmetric):
    names = list("abcd")
    frames = [pd.DataFrame({"model": names, "x": column}) for column in (before, quantised, relearned)]
    roles = ("before", "quantised", "relearned")
    retain = {"retain_before": pd.DataFrame({"x": [0.0]}), "retain_relearned": pd.DataFrame({"x": [shift]})}
    tables = meta.Tables(**dict(zip(roles, frames, strict=True)), **retain)
    row = meta.robustness(tables, min_utility=None, symmetric=symmetric, direction={"x": "knowledge"}).iloc[0]
    for name in ("q", "r", "rob", "r_at_shift", "q_low", "r_high"):
        assert math.isnan(row[name]) or -1e-12 <= row[name] <= 1 + 1e-12
    low, high = min(row["q"], row["r"]) - 1e-9, max(row["q"], row["r"]) + 1e-9
    assert math.isnan(row["rob"]) or low <= row["rob"] <= high


def one(form, first, second):
    """The symmetric or one-directional form of one model."""
    values = [np.array([second])] if form.endswith("quantisation") else [second]
    return float(getattr(meta, form)(np.array([first]), *values)[0])


@pytest.mark.parametrize(
    ("kind", "first", "second", "symmetric", "directed"),
    [
        ("quantisation", 0.2, 0.4, 2 / 3, 0.5),
        ("quantisation", 0.4, 0.2, 2 / 3, 1.0),
        ("quantisation", 0.0, 0.0, 1.0, 1.0),  # by the 1e-10
        ("quantisation", 0.0, 0.3, 0.0, 0.0),
        ("quantisation", 0.3, 0.0, 0.0, 1.0),
        ("quantisation", NAN, 0.3, NAN, NAN),
        ("quantisation", 0.3, NAN, NAN, NAN),
        ("quantisation", -0.1, 0.3, 0.0, NAN),  # a ratio of negative values has no meaning
        ("relearning", 0.4, 0.2, 2 / 3, 0.5),
        ("relearning", 0.1, 0.2, 2 / 3, 1.0),
        ("relearning", 0.0, 0.0, 1.0, 1.0),  # by the 1e-10
        ("relearning", 0.0, 0.2, 0.0, 1.0),
        ("relearning", 0.2, 0.2, 1.0, 1.0),
        ("relearning", 0.2, 0.0, 0.0, 0.0),
        ("relearning", 0.2, -0.1, 0.0, 0.0),  # learns although retain does not
        ("relearning", -0.2, 0.1, 0.0, 1.0),  # does not learn at all
        ("relearning", -0.2, -0.1, 2 / 3, 1.0),
        ("relearning", NAN, 0.1, NAN, NAN),
        ("relearning", 0.1, NAN, NAN, NAN),
    ],
)
def test_corners(kind, first, second, symmetric, directed):
    assert one(f"symmetric_{kind}", first, second) == pytest.approx(symmetric, abs=1e-8, nan_ok=True)
    assert one(f"one_directional_{kind}", first, second) == pytest.approx(directed, nan_ok=True)
