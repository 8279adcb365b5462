"""Each figure shows the numbers of its frame: read back from the traces."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose
from synthetic_audits import synthetic_audit, with_control

from uds_lens import plots
from uds_lens.errors import DataError
from uds_lens.metrics import LensComparison
from uds_lens.plots._examples import rank_correlation, row_order
from uds_lens.results import length_correlation


def named(figure, start: str):
    return next(trace for trace in figure.data if (trace.name or "").startswith(start))


def drawn(figure, start: str) -> np.ndarray:
    return np.asarray(named(figure, start).y, dtype=float)


def test_curves_of_layers(audit):
    controlled = with_control(audit)
    for frame, figure, columns in (
        (
            audit.layers_frame(),
            audit.plot_layers(),
            {"S1": "s1_mean", "S2": "s2_mean", "LER": "ler_mean", "answers encoded": "ke_share"},
        ),
        (
            controlled.control_layers_frame(),
            controlled.plot_control(),
            {
                "forget facts": "forget_mean",
                "retained facts, retain's": "control_retain_mean",
                "retained facts": "control_mean",
            },
        ),
    ):
        for start, column in columns.items():
            assert_allclose(drawn(figure, start), frame[column])


@pytest.mark.parametrize("order", ["input", "uds", "cluster"])
def test_heatmap_rows_are_the_examples_in_the_asked_order(order, audit):
    row = [example.entity for example in audit.examples]
    figure = audit.plot_heatmap(order=order)
    cells, labels = figure.data[0], figure.layout.yaxis.ticktext
    places = [row.index(text.split("</b>")[0].removeprefix("<b>")) for text in labels]
    assert sorted(places) == list(range(len(audit.examples)))
    assert_allclose(cells.z, audit.ler[places].numpy().round(4))
    deltas = np.asarray(cells.customdata)
    assert_allclose(deltas[..., 0], audit.s1_delta[places].numpy().round(4))
    assert_allclose(deltas[..., 1], audit.s2_delta[places].numpy().round(4))
    if order == "uds":
        scores = audit.uds_per_example[places].numpy()
        assert np.isnan(scores[-1]) and (np.diff(scores[:-1]) >= 0).all()
    if order == "input":
        assert places == sorted(places)
    assert list(figure.layout.yaxis2.ticktext) == [audit.examples[place].question for place in places]


def test_heatmap_tells_nothing_there_from_zero(audit):
    figure = audit.plot_heatmap()
    scale = {colour for _, colour in figure.data[0].colorscale}
    assert figure.layout.plot_bgcolor not in scale
    assert named(figure, "no knowledge").marker.color == figure.layout.plot_bgcolor
    texts = np.asarray(figure.data[0].text)
    shares = np.asarray(figure.data[0].z)
    absent = np.isnan(shares)
    assert absent.any() and (texts[absent] == "no knowledge, LER undefined").all()
    told = [float(text.removeprefix("LER ")) for text in texts[~absent]]
    assert_allclose(told, shares[~absent], atol=0.0051)


def test_heatmap_clusters_like_rows_together():
    ler = np.array([[0.0, 0.0], [1.0, 1.0], [0.1, 0.0], [0.9, 1.0], [np.nan, np.nan]])
    order = row_order(ler, np.zeros(5), "cluster").tolist()
    assert abs(order.index(0) - order.index(2)) == 1 and abs(order.index(1) - order.index(3)) == 1


def test_many_rows_are_ordered_without_all_their_pairs():
    groups = np.random.default_rng(0).permutation(np.repeat(np.arange(4), 1500))
    tracemalloc.start()
    order = row_order(np.stack([groups / 3, 1 - groups / 3], axis=1), np.zeros(6000), "cluster")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sorted(order) == list(range(6000)) and (np.diff(groups[order]) != 0).sum() == 3
    assert peak < 40e6, "6,000 rows have 144 MB of pairs"


def test_a_scatter_of_many_examples_draws_a_sample_and_says_so(monkeypatch, audit):
    monkeypatch.setattr("uds_lens.plots._examples.MOST_POINTS", 10)
    figure = audit.plot_length()
    assert len(figure.data[0].x) == 10 and sum(figure.data[1].customdata) > 10
    assert "over 23 measurable examples. Points: a sample of 10." in figure.layout.title.subtitle.text


def test_heatmap_refuses_frames_of_two_audits(audit):
    with pytest.raises(DataError, match="pass two frames of one audit"):
        plots.ler_heatmap(audit.to_frame(), audit.examples_frame().iloc[:-1])


def test_distribution_counts_every_measurable_example(audit):
    figure = audit.plot_examples()
    assert sum(figure.data[0].y) == audit.n_measured
    assert "23 measured, 1 not measurable" in figure.layout.title.subtitle.text
    assert figure.layout.annotations[0].text == f"mean {audit.uds:.2f}"


def test_type_bars_carry_interval_and_n(audit):
    frame, figure = audit.types_frame(), audit.plot_types()
    bars = figure.data[0]
    assert_allclose(bars.x, frame["uds"])
    assert_allclose(np.add(bars.x, bars.error_x.array), frame["uds_high"])
    assert_allclose(np.subtract(bars.x, bars.error_x.arrayminus), frame["uds_low"])
    texts = [note.text for note in figure.layout.annotations]
    assert "6" in texts and "5 of 6" in texts


def test_length_says_the_rank_correlation_of_the_audit(audit):
    rho = rank_correlation(audit.examples_frame())
    assert rho == pytest.approx(length_correlation(audit).rho)
    assert f"{abs(rho):.2f} over 23" in audit.plot_length().layout.title.subtitle.text


def test_tau_marks_the_threshold_of_the_audit(audit):
    sweep = audit.tau_sweep()
    figure = audit.plot_tau()
    assert_allclose(drawn(figure, "UDS"), sweep["uds"])
    assert list(named(figure, "UDS").customdata) == sweep["tau"].tolist()
    assert list(named(figure, "measured").y) == sweep["n_measured"].tolist()
    assert figure.layout.shapes[0].x0 == sweep["tau"].tolist().index(0.05)
    assert not plots.tau_curve(sweep).layout.shapes


def test_clip_shows_both_sides(audit):
    frame, figure = audit.layers_frame(), audit.plot_clip()
    over, negative = figure.data
    assert_allclose(over.y, frame["over_share"])
    assert_allclose(negative.y, -frame["negative_share"])
    low, high = figure.layout.yaxis.range
    assert low <= -frame["negative_share"].max() and high >= frame["over_share"].max()


def test_components_show_each_site_and_its_mean():
    sites = {
        site: synthetic_audit(seed=i, layers=4 + i).layers_frame() for i, site in enumerate(("resid_post", "mlp_out"))
    }
    figure = plots.component_profile(sites)
    means = {trace.y[0]: trace.x[0] for trace in figure.data if trace.type == "bar"}
    assert means == {site: pytest.approx(frame["s1_mean"].mean()) for site, frame in sites.items()}
    with pytest.raises(DataError, match="got none"):
        plots.component_profile({})


@pytest.mark.parametrize("value", ["ler", "s2"])
def test_comparison_names_each_line_at_its_end(value):
    frames = {f"m{i}": synthetic_audit(seed=i).layers_frame() for i in range(8)}
    figure = plots.compare_layers(frames, value=value)
    assert len({(trace.line.color, trace.line.dash) for trace in figure.data}) == 8
    for trace in figure.data:
        assert_allclose(np.asarray(trace.y, dtype=float), frames[trace.name][f"{value}_mean"])
    ends = {note.text: (note.y, note.ay) for note in figure.layout.annotations}
    assert {name: y for name, (y, _) in ends.items()} == {t.name: t.y[-1] for t in figure.data}
    low, high = figure.layout.yaxis.range
    gaps = np.diff(sorted(place for _, place in ends.values()))
    assert gaps.min() >= 15 / 300 * (high - low)


def test_comparison_puts_the_chosen_model_before_the_others_and_references_behind():
    frames = {f"m{i}": synthetic_audit(seed=i).layers_frame() for i in range(4)}
    figure = plots.compare_layers(frames, chosen="m1", references=["m3"])
    looks = {trace.name: (trace.line.color, trace.line.dash, trace.line.width) for trace in figure.data}
    assert looks["m0"] == looks["m2"] and len(set(looks.values())) == 3
    assert looks["m1"][2] > looks["m0"][2] and looks["m3"][1] == "dot"
    with pytest.raises(DataError, match="'m9' is not one of the models"):
        plots.compare_layers(frames, references=["m9"])


def test_comparison_of_many_gives_each_a_panel():
    frames = {f"m{i}": synthetic_audit(seed=i, erased=i / 12).layers_frame() for i in range(12)}
    figure = plots.compare_layers(frames, references=["m0", "m11"], chosen="m4")
    own = {trace.meta["place"]: trace for trace in figure.data if trace.meta}
    assert sorted(own) == list(range(1, 11)) and len({trace.xaxis for trace in own.values()}) == 10
    for place, trace in own.items():
        assert_allclose(trace.y, frames[f"m{place}"]["ler_mean"])
    dotted = [trace for trace in figure.data if trace.line.dash == "dot"]
    values = [*frames["m0"]["ler_mean"], None, *frames["m11"]["ler_mean"], None]
    assert len(dotted) == 10
    assert_allclose(np.asarray(dotted[0].y, dtype=float), np.asarray(values, dtype=float), atol=5.1e-5)
    (mark,) = figure.layout.shapes
    assert mark.xref.split()[0] == own[4].xaxis
    domains = {
        (axis.domain, other.domain) for axis, other in zip(figure.select_xaxes(), figure.select_yaxes(), strict=True)
    }
    assert len(domains) == 10, "no panel on another"
    assert all(axis.showticklabels is None for axis in figure.select_xaxes()), "ticks in every row"
    names = [axis.title.text or "" for axis in figure.select_yaxes()]
    assert names == ["mean LER", "", "", "", "mean LER", "", "", "", "mean LER", ""]
    narrow = figure.layout.meta["narrow"]
    assert narrow["height"] > figure.layout.height and narrow["xaxis3"]["domain"] == narrow["xaxis"]["domain"]


def test_comparison_of_very_many_has_their_range_in_each_panel():
    frames = {f"m{i}": synthetic_audit(seed=i, erased=i / 26).layers_frame() for i in range(26)}
    frames["m3"]["ler_mean"] = np.nan
    figure = plots.compare_layers(frames, references=["m0"])
    spans = [trace for trace in figure.data if trace.fill == "toself"]
    own = {trace.meta["place"]: trace for trace in figure.data if trace.meta}
    assert len(spans) == len(own) == 25 and sum(bool(trace.showlegend) for trace in spans) == 1
    values = np.array([frames[f"m{i}"]["ler_mean"] for i in range(1, 26) if i != 3])
    edge = [x for x in (*values.min(axis=0), *values.max(axis=0)[::-1]) if x == x]
    for trace in spans:
        assert_allclose([y for y in trace.y if y is not None], edge, atol=5.1e-5)
        assert trace.name == "range of all models"
    assert len({tuple(trace.x) for trace in spans}) == 1


def test_ranking_orders_by_score_and_keeps_those_without():
    rows = [("a", 0.1, 0.0, 0.2, 5), ("b", np.nan, np.nan, np.nan, 0), ("c", 0.7, 0.6, 0.8, 5)]
    frame = pd.DataFrame(rows, columns=["model", "uds", "uds_low", "uds_high", "n_measured"])
    figure = plots.ranking(frame)
    assert figure.layout.yaxis.ticktext == ("c", "a", "b")
    assert [list(trace.x) for trace in figure.data] == [[0.6, 0.8], [0.7], [0.0, 0.2], [0.1]]
    assert figure.layout.annotations[0].text == "not measurable"
    grey = plots.ranking(frame, references=["a"]).data
    assert grey[3].marker.color == grey[2].line.color != grey[1].marker.color


def test_pointing_at_a_layer_shows_the_interval_of_its_mean(audit):
    frame = audit.layers_frame()
    for figure, start, column in (
        (audit.plot_layers(), "S2", "s2"),
        (audit.plot_layers(), "LER", "ler"),
        (audit.plot_comparison([audit]), "", "ler"),
    ):
        trace = named(figure, start) if start else figure.data[0]
        assert "%{customdata}" in trace.hovertemplate
        low, high = frame[f"{column}_low"][2], frame[f"{column}_high"][2]
        assert trace.customdata[2] == f" ({low:.3f} to {high:.3f})"
    shade = next(trace for trace in audit.plot_layers().data if trace.fill and trace.legendgroup.startswith("S1"))
    n = len(frame)
    assert_allclose(shade.y[: 2 * n], [*frame["s1_low"], *frame["s1_high"][::-1]], err_msg="the interval of the mean")
    plain = {"a": frame.drop(columns=[name for name in frame if name.endswith(("_low", "_high"))])}
    assert "customdata" not in plots.compare_layers(plain).data[0].hovertemplate
    drawn = {trace.line.color for trace in audit.plot_comparison([audit] * 3).data}
    assert len(drawn) == 4, "a colour for each model"


def test_logit_lens_stands_beside_uds(audit):
    s1, s2 = audit.s1_delta[1], audit.s2_delta[1]
    lens = {"lens_s1": s1 / 2, "lens_s2": torch.flip(s2, (0,)) / 8}
    compared = LensComparison(example=audit.examples[1], tau=0.05, uds_s1=s1, uds_s2=s2, **lens)
    frame, figure = compared.to_frame(), compared.plot(theme="dark")
    columns = [f"{view}_{part}" for view in ("uds", "lens") for part in ("s1_delta", "s2_delta", "ler")]
    for trace, column in zip(figure.data, columns, strict=True):
        assert_allclose(trace.y, frame[column], err_msg=column)
    words = [note.text for note in figure.layout.annotations]
    assert f"{compared.uds_score:.2f}: states" in words[0] and f"{compared.lens_score:.2f}: states" in words[1]
    assert figure.layout.title.subtitle.text == audit.examples[1].question
    assert {shape.y0 for shape in figure.layout.shapes} == {0.05}
    assert (figure.layout.yaxis3.matches, figure.layout.yaxis4.matches) == ("y", "y2")
