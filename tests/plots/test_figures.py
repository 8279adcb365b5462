"""What holds for every figure, whatever it draws."""

import dataclasses
import html
import json
import re
from itertools import pairwise

import pandas as pd
import plotly.graph_objects as go
import plotly.io
import pytest
import torch
from synthetic_audits import example, synthetic_audit, with_control

from uds_lens import plots
from uds_lens.errors import ConfigError, DataError
from uds_lens.metrics import LensComparison
from uds_lens.plots._style import apart, legend_height, palette, recolouring
from uds_lens.results import compare_all

from . import meta_frames as made

BAD = made.BAD


def lens_comparison(audit):
    layers = audit.layers_frame()
    s1, s2 = (torch.tensor(layers[f"{part}_mean"].to_numpy()) for part in ("s1", "s2"))
    asked = audit.examples[0] if audit.examples else example(0)
    return LensComparison(example=asked, tau=0.05, lens_s1=s1 / 2, lens_s2=s2 / 8, uds_s1=s1, uds_s2=s2)


def elsewhere(audit):
    """The same audit, said to be measured at another site."""
    return dataclasses.replace(audit, config=dataclasses.replace(audit.config, site="mlp_out"))


OF_AUDITS = {
    "layers": lambda a, **look: a.plot_layers(**look),
    "heatmap": lambda a, **look: a.plot_heatmap(**look),
    "cluster": lambda a, **look: a.plot_heatmap(order="cluster", **look),
    "examples": lambda a, **look: a.plot_examples(**look),
    "example": lambda a, **look: plots.example_profile(
        a.to_frame().head(a.n_layers), tau=0.05, question="Who?", **look
    ),
    "types": lambda a, **look: a.plot_types(**look),
    "length": lambda a, **look: a.plot_length(**look),
    "tau": lambda a, **look: a.plot_tau(**look),
    "clip": lambda a, **look: a.plot_clip(**look),
    "control": lambda a, **look: with_control(a).plot_control(**look),
    "components": lambda a, **look: a.plot_components([elsewhere(a)], **look),
    "comparison": lambda a, **look: a.plot_comparison([a], **look),
    "panels": lambda a, **look: a.plot_comparison([a] * 8, **look),
    "ranking": lambda a, **look: a.plot_ranking([a], **look),
    "differences": lambda a, **look: plots.audit_differences(compare_all([a, a]), **look),
    "lens": lambda a, **look: lens_comparison(a).plot(**look),
    "weights": lambda a, **look: plots.weight_profile(changes(a), a.layers_frame(), **look),
    "utility": lambda a, **look: plots.depth_utility(
        pd.DataFrame({"model": [m.name for m in a.models.values()], "uds": a.uds, "utility": [0.5, 0.9, 1]}), **look
    ),
}


def changes(audit):
    """Changes of the weights, layer by layer."""
    layers = audit.layers_frame()["layer"]
    parts = ("relative_norm", "attention_relative_norm", "mlp_relative_norm")
    return pd.DataFrame({"layer": layers, **dict.fromkeys(parts, layers / 100.0)})


def several(make, names):
    return make(4 * len(names), name=(*names, "")[0])


OF_TABLES = {
    "histogram": lambda n, **look: plots.pool_histogram(
        several(made.models, n), "x", thresholds=made.thresholds(), **look
    ),
    "forest": lambda n, **look: plots.faithfulness_forest(made.faithful(*n), **look),
    "pairs": lambda n, **look: plots.pair_matrix(made.pairs(*n), **look),
    "quantised": lambda n, **look: plots.perturbation_scatter(several(made.points, n), "x", **look),
    "relearned": lambda n, **look: plots.perturbation_scatter(
        several(made.points, n), "x", state="relearned", shift=(0.1, 0.05, 0.15), retain=(0.2, 0.3), **look
    ),
    "summary": lambda n, **look: plots.metric_heatmap(made.summary(*n), **look),
    "slopes": lambda n, **look: plots.filter_dots(made.robustness(*n), **look),
    "dumbbell": lambda n, **look: plots.method_dumbbell(made.ranking(*n), **look),
    "ranks": lambda n, **look: plots.rank_probabilities(made.ranks(*n), **look),
    "published": lambda n, **look: plots.differences_by_metric(made.compared(*n), **look),
    "frontier": lambda n, **look: plots.utility_frontier(
        several(made.models, n), references=made.models(1), min_utility=0.8, **look
    ),
    "elicited": lambda n, **look: plots.elicited_scores(made.elicited(*n), **look),
    "depth": lambda n, **look: plots.depth_elicited(made.depth(*n), probe="cloze", **look),
    "transplants": lambda n, **look: plots.host_depths(made.transplanted(*n), references=n[:1], **look),
    "bands": lambda n, **look: plots.recovered_by_band(made.bands(*n), **look),
    "training": lambda n, **look: plots.depth_by_step(made.steps(*n), **look),
    "budget": lambda n, **look: plots.query_budget(made.budget(*n), probe=(*n, "")[0], **look),
}
FIGURES = OF_AUDITS | OF_TABLES


@pytest.fixture(scope="module")
def inputs(audit, nothing_measurable, nothing_scored):
    """What each figure draws: something, something hostile, and nothing."""
    hostile = synthetic_audit(n=6, questions=[BAD] * 6, name=BAD)
    audits = [audit, hostile, nothing_measurable, nothing_scored]
    names = [("x", "uds", "es"), (BAD, f"{BAD}2", f"{BAD}3"), ()]
    return {name: audits if name in OF_AUDITS else names for name in FIGURES}


@pytest.fixture(scope="module")
def figures(inputs):
    """Each figure once, light."""
    return {name: draw(inputs[name][0]) for name, draw in FIGURES.items()}


def never(constant):
    pytest.fail(f"{constant} is no JSON")


@pytest.mark.parametrize("name", FIGURES)
def test_wears_the_template_and_is_strict_json_of_the_palettes_colours(name, figures, inputs, monkeypatch):
    monkeypatch.setattr(plotly.io, "show", lambda *_, **__: pytest.fail("a figure was shown"))
    before = plotly.io.templates.default, sorted(plotly.io.templates), plotly.io.renderers.default
    dark = FIGURES[name](inputs[name][0], theme="dark")
    assert (plotly.io.templates.default, sorted(plotly.io.templates), plotly.io.renderers.default) == before
    for figure, theme in ((figures[name], "light"), (dark, "dark")):
        assert isinstance(figure, go.Figure) and figure.layout.height >= 200
        assert figure.layout.template.layout.paper_bgcolor == palette(theme).paper
    text = figures[name].to_json()
    json.loads(text, parse_constant=never)
    assert "bdata" not in text, "base64 arrays are unknown to plotly.js before 2.35"
    colours = set(re.findall(r'"(#[0-9a-f]{3,8}|rgba?\([^"]*\))"', text.lower())) - {"rgba(0,0,0,0)"}
    assert colours and colours <= set(recolouring()), "a page swaps them"


@pytest.mark.parametrize("name", FIGURES)
def test_draws_nothing_too_and_hostile_names_letter_by_letter(name, inputs):
    _, hostile, *nothing = inputs[name]
    for empty in nothing:
        json.loads(FIGURES[name](empty).to_json(), parse_constant=never)
    text = FIGURES[name](hostile).to_json()
    assert "\\u003cb\\u003ebold" not in text and "<b>bold" not in text and "$1" not in text
    assert name not in OF_TABLES or "bold" in text


@pytest.mark.parametrize("name", FIGURES)
def test_heading_legend_and_axes(name, figures):
    figure = figures[name]
    assert 10 < len(figure.layout.title.text) < 90
    assert figure.layout.showlegend is False or legend_height(figure, 640) == 29, "one row"
    heat = any(trace.type == "heatmap" for trace in figure.data)
    assert heat or any(axis.title.text for axis in figure.select_xaxes())
    rows = any(isinstance(axis.ticktext, tuple) for axis in figure.select_yaxes())
    assert heat or rows or name == "elicited" or any(axis.title.text for axis in figure.select_yaxes())


@pytest.mark.parametrize(("name", "columns"), [("layers", 1), ("example", 1), ("tau", 1), ("lens", 2)])
def test_panels_above_each_other_share_one_axis_so_that_hovering_shows_all(name, columns, figures):
    figure = figures[name]
    assert len({trace.xaxis for trace in figure.data}) == columns
    assert len({trace.yaxis for trace in figure.data}) == len(list(figure.select_yaxes())) > columns
    assert figure.layout.hovermode == "x unified" and figure.layout.template.layout.hoversubplots == "axis"
    heights = sorted(tuple(axis.domain) for axis in figure.select_yaxes())[::columns]
    assert heights[0][0] == 0 and heights[-1][1] == 1
    assert all(below[1] < above[0] for below, above in pairwise(heights))


@pytest.mark.parametrize("name", ["layers", "components", "example", "lens", "control"])
def test_deltas_are_in_nats_per_token(name, figures):
    assert any("nats/token" in (axis.title.text or "") for axis in figures[name].select_yaxes())


def test_small_multiples_keep_what_each_panel_shows():
    table, names = made.models(12), ("x", "uds")
    single = {name: plots.pool_histogram(table, name, thresholds=made.thresholds()) for name in names}
    figure = plots.small_multiples(single, title="Pools", width=700)
    assert [note.text for note in figure.layout.annotations[:2]] == list(names)
    for place, one in enumerate(single.values()):
        number = str(place + 1) if place else ""
        traces = [trace for trace in figure.data if trace.xaxis == f"x{number}"]
        assert [(t.type, t.x, t.y) for t in traces] == [(t.type, t.x, t.y) for t in one.data]
        assert figure.layout[f"xaxis{number}"].range == one.layout.xaxis.range
        shapes = [shape for shape in figure.layout.shapes if shape.xref == f"x{number}"]
        assert [shape.x0 for shape in shapes] == [shape.x0 for shape in one.layout.shapes]
        assert all(shape.yref == f"y{number} domain" for shape in shapes), "from bottom to top of its panel"
    entries = [trace.name for trace in figure.data if trace.showlegend]
    assert sorted(entries) == ["know (P)", "never saw it (N)"], "one legend for all"
    assert figure.layout.yaxis.title.text == "models" and not figure.layout.xaxis.title.text
    assert plots.small_multiples(single, width=390, columns=1).layout.height > figure.layout.height
    for bad, words in (({}, "got none"), ({"a": go.Figure(go.Heatmap(z=[[1]]))}, "'a' has several pairs of axes")):
        with pytest.raises(DataError, match=words):
            plots.small_multiples(bad)


@pytest.mark.parametrize("name", FIGURES)
def test_takes_title_width_and_height_and_says_what_is_drawn(name, figures, inputs):
    full, *_, nothing = inputs[name]
    assert FIGURES[name](nothing).layout.title.text == figures[name].layout.title.text, "whatever the numbers say"
    own = FIGURES[name](full, title="Mine", width=700, height=333)
    assert (own.layout.title.text, own.layout.width, own.layout.height) == ("Mine", 700, 333)
    bare = FIGURES[name](full, title=None)
    assert not bare.layout.title.text and not bare.layout.title.subtitle.text
    assert bare.layout.height < figures[name].layout.height


@pytest.mark.parametrize("name", FIGURES)
def test_a_narrow_figure_wraps_its_texts_and_makes_room_for_them(name, figures, inputs):
    wide, figure = figures[name], FIGURES[name](inputs[name][0], width=390)
    title = figure.layout.title
    for text, pixels in ((title.text, 9), (title.subtitle.text or "", 6)):
        assert all(len(html.unescape(line)) * pixels <= 358 for line in text.split("<br>"))
    more = f"{title.text}{title.subtitle.text}".count("<br>")
    assert figure.layout.margin.t - wide.layout.margin.t >= 18 * more
    assert figure.layout.height - wide.layout.height >= 18 * more
    for axis in figure.select_yaxes():
        for label in () if axis.showticklabels is False else axis.ticktext or ():
            assert all(len(html.unescape(line)) <= 22 for line in label.split("<br>"))


@pytest.mark.parametrize("name", OF_TABLES)
def test_a_frame_of_another_kind_is_refused(name, monkeypatch):
    makers = ("models", "faithful", "pairs", "summary", "points", "robustness", "ranking", "ranks")
    for maker in (*makers, "elicited", "depth", "budget", "steps", "compared", "transplanted", "bands"):
        monkeypatch.setattr(made, maker, lambda *_, **__: pd.DataFrame({"other": [1]}))
    with pytest.raises(DataError, match="the frame lacks"):
        OF_TABLES[name](("x",))


def test_wrong_calls_name_what_was_expected(audit):
    with pytest.raises(DataError, match=r"lacks ke_share.*audit.layers_frame\(\)"):
        plots.layer_profile(audit.examples_frame().rename(columns={"row": "layer"}))
    with pytest.raises(DataError, match="expected a data frame"):
        plots.type_bars({"type": []})
    with pytest.raises(DataError, match="no scored example has the id 'e99'"):
        audit.plot_example("e99")


def test_components_are_of_one_trio_and_of_several_sites(audit, figures):
    curves = [trace for trace in figures["components"].data if trace.type == "scatter"]
    assert [trace.name for trace in curves if trace.name] == ["resid_post", "mlp_out"]
    frame, (shade, *_) = audit.layers_frame(), curves
    ends = [*(frame["s1_mean"] - frame["s1_std"]), *(frame["s1_mean"] + frame["s1_std"])[::-1]]
    assert shade.y[: 2 * len(frame)] == pytest.approx(ends), "a band of one standard deviation"
    for others in ([], [audit]):
        with pytest.raises(ConfigError, match=r"each at a different site .* got sites resid_post"):
            audit.plot_components(others)
    other_tokens = dataclasses.replace(elsewhere(audit), provenance={"ids_hash": "1" * 32})
    with pytest.raises(ConfigError, match="on the same examples"):
        audit.plot_components([other_tokens])


def test_labels_move_apart_as_little_as_they_must():
    places = apart([0.2, 0.9, 0.91, 0.92], gap=0.1, low=0.0, high=1.0)
    assert places[0] == 0.2 and places[-1] <= 1 + 1e-9
    assert all(after - before >= 0.1 - 1e-9 for before, after in pairwise(places))
