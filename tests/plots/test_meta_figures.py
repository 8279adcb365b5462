"""Figures of many models and of elicitations show the numbers of their frames."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from uds_lens import plots
from uds_lens.errors import DataError

from . import meta_frames as made

NAMES = ("x", "uds", "es")


def test_the_histogram_counts_each_pool_and_marks_the_cuts():
    frame = made.models()
    frame.loc[0, "x"] = np.nan
    frame["knows"] = frame["knows"].astype(object)
    frame.loc[1, "knows"] = None
    figure = plots.pool_histogram(frame, "x", thresholds=made.thresholds())
    bars = [trace for trace in figure.data if trace.type == "bar"]
    assert [sum(trace.y) for trace in bars] == [5, 5]
    ticks = [trace for trace in figure.data if trace.type == "scatter"]
    assert sorted(x for trace in ticks for x in trace.x) == sorted(frame["x"][2:])
    assert [(shape.x0, shape.line.dash) for shape in figure.layout.shapes] == [(0.5, "dash"), (0.52, "dot")]
    assert "No model in the pools" in plots.pool_histogram(frame, "nowhere").layout.annotations[0].text


def test_the_forest_has_the_intervals_of_the_frame():
    figure = plots.faithfulness_forest(made.faithful(*NAMES))
    traces = {trace.name: trace for trace in figure.data}
    assert_allclose([x for x in traces["DeLong, models independent"].x if x is not None], [0.85, 0.95, 0.75, 0.85])
    assert_allclose([x for x in traces["runs as clusters"].x if x is not None], [0.82, 0.98, 0.72, 0.88])
    assert_allclose(traces["one variant left out"].x, [0.88, 0.92, 0.78, 0.82])
    assert figure.layout.annotations[0].text == "no F" and figure.layout.annotations[0].y == 2
    frame = made.faithful(*NAMES)
    new = plots.faithfulness_forest(frame.assign(new_variants_low=frame["auc"] - 0.3, new_variants_high=0.99))
    (line,) = [trace for trace in new.data if trace.name == "new variants"]
    assert_allclose([x for x in line.x if x is not None], [0.6, 0.99, 0.5, 0.99])
    assert "new variants: 0.600 to 0.990" in new.data[-1].customdata[0]
    published = made.faithful(*NAMES)[["metric", "auc", "low", "high"]]
    assert len(plots.faithfulness_forest(published).data) == 2


def test_the_matrix_is_its_own_mirror_and_stars_what_is_decided():
    cells = plots.pair_matrix(made.pairs("a", "b", "c", "d")).data[0]
    values = np.array([[np.nan if v is None else v for v in line] for line in cells.z])
    assert_allclose(values[0, 1:3], [0.1, 0.2])
    assert_allclose(np.nan_to_num(values), -np.nan_to_num(values).T)
    assert cells.text[0][1] == "+0.10" and cells.text[0][2] == "+0.20*" and cells.text[2][0] == "\u22120.20*"
    assert cells.text[0][3] == "", "the last metric has no F"


def test_long_names_that_begin_alike_keep_rows_of_their_own():
    long = "a name with more letters than a label has, number "
    figure = plots.pair_matrix(made.pairs(f"{long}1", f"{long}2", f"{long}3"))
    assert list(figure.data[0].x) == [0, 1, 2] and len(set(figure.layout.xaxis.ticktext)) == 1
    assert "number 2" in figure.data[0].customdata[0][1]


def test_the_scatter_counts_the_kept_models_beside_the_guide_line():
    points = made.points()
    asked = {"state": "relearned", "retain": (0.2, 0.3)}
    figure = plots.perturbation_scatter(points, "x", shift=(0.1, np.nan, np.nan), **asked)
    moved = (points["relearned"] - points["before"] - 0.1)[points["kept"]]
    told = [note.text for note in figure.layout.annotations]
    assert told == [f"{(moved > 0).sum()} above", f"{(moved < 0).sum()} below"]
    assert "6 models after filtering" in figure.layout.title.subtitle.text
    traces = {trace.name: trace for trace in figure.data}
    (line,) = (trace for name, trace in traces.items() if "retain's shift 0.100" in name)
    assert_allclose(np.subtract(line.y, line.x), 0.1)
    assert (traces["retain"].x, traces["retain"].y) == ((0.2,), (0.3,)) and "its interval" not in traces
    figure = plots.perturbation_scatter(points, "x", shift=(0.1, 0.05, 0.15), **asked)
    (band,) = (trace for trace in figure.data if trace.name == "its interval")
    assert_allclose(np.subtract(band.y[:4], band.x[:4]), [0.05, 0.05, 0.15, 0.15])
    title = plots.perturbation_scatter(points, "x", **asked).layout.title.text
    assert title == "x before and after relearning"
    assert plots.perturbation_scatter(points, "x").layout.annotations[0].text == "6 above"


def test_the_heat_map_shows_the_numbers_best_on_top():
    figure = plots.metric_heatmap(made.summary(*NAMES))
    assert figure.layout.yaxis.ticktext == ("uds", "x", "es")
    assert [row[4] for row in figure.data[0].text] == ["0.700", "0.600", "\u2013"]
    assert figure.data[0].customdata[0][0] == "<br>7 models behind Q and R"


def test_dots_are_of_each_metrics_own_models_the_last_filter_first():
    figure = plots.filter_dots(made.robustness(*NAMES))
    assert list(figure.layout.yaxis.ticktext) == ["es", "uds", "x"]
    span, *marks = figure.data
    assert [mark.name for mark in marks] == ["all models", "enough utility", "enough utility, unlearned"]
    for mark, expected, n in zip(marks, (0.5, 0.6, 0.7), ("10", "8", "6"), strict=True):
        row = mark.y.index(1)
        assert mark.x[row] == pytest.approx(expected) and list(mark.customdata[row]) == ["uds", n]
    assert_allclose(span.x[3:5], [0.5, 0.7])
    assert_allclose(plots.filter_dots(made.robustness(*NAMES), value="q").data[1].x, 0.9)
    with pytest.raises(DataError, match="'both'"):
        plots.filter_dots(made.robustness("x").assign(filter="both"))


def test_the_dumbbell_says_which_places_change():
    figure = plots.method_dumbbell(made.ranking("a", "b", "c", "d"))
    ends = {trace.name: list(trace.x) for trace in figure.data}
    assert_allclose(ends["without depth"], [0.9, 0.8, 0.7])
    assert_allclose(ends["with depth"], [0.7, 0.75, 0.5])
    texts = [note.text for note in figure.layout.annotations]
    assert texts == ["<b>1 → 2</b>", "<b>2 → 1</b>", "3", "no score"]
    assert "18 tied" in figure.data[0].customdata[1][2]


def test_rank_probabilities_stand_by_expected_place():
    figure = plots.rank_probabilities(made.ranks("b", "a"))
    assert list(figure.data[0].y) == ["b", "a"]
    assert_allclose(np.sum(figure.data[0].z, axis=1), 1)
    assert list(figure.data[0].text[0]) == ["100", "&lt;1", ""]
    with pytest.raises(DataError, match="select the rows"):
        plots.rank_probabilities(pd.concat([made.ranks("a"), made.ranks("a")]))


def test_no_model_beats_one_on_the_frontier_and_every_other_is_beaten():
    frame = made.models(40)
    figure = plots.utility_frontier(frame, references=made.models(1))
    on = set(figure.data[0].customdata)
    values = frame.set_index("model")[["uds", "utility_rel"]]
    for name, own in values.iterrows():
        beaten = ((values >= own).all(axis=1) & (values > own).any(axis=1)).any()
        assert beaten == (name not in on)
    assert sum(len(trace.x) for trace in figure.data[1:-1]) == 40 and len(figure.data[-1].x) == 1


def test_dots_and_the_interval_stand_where_they_were_measured():
    frame = made.elicited("plain", "aoa")
    by_name = {trace.name: trace for trace in plots.elicited_scores(frame).data}
    assert list(by_name["unlearned"].x) == [0.4, 0.1]
    assert list(by_name["unlearned"].y) == ["plain", "aoa (no power)"]
    assert list(by_name["retain + interval of the difference"].x)[:2] == pytest.approx([0.3, 0.5])
    assert "full" not in {trace.name for trace in plots.elicited_scores(frame.drop(columns="full")).data}
    assert plots.elicited_scores(frame, decoding="sampled").layout.annotations


def test_curves_and_points():
    figure = plots.query_budget(made.budget("plain"), probe="plain")
    assert [trace.name for trace in figure.data] == ["full", "unlearned"]
    assert figure.data[1].y == (0.1, 0.2)
    assert plots.query_budget(made.budget("plain"), probe="aoa").layout.annotations
    figure = plots.depth_elicited(made.depth("Who?"), probe="cloze")
    assert len(figure.data[0].x) == 3 and "\u22121.00 over 3" in figure.layout.title.subtitle.text
    assert plots.depth_elicited(made.depth("Who?"), probe="plain").layout.annotations
