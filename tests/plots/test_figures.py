"""What holds for every figure, whatever it draws."""

import dataclasses
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
from uds_lens.plots._style import apart, legend_rows, palette, recolouring, shown
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
    "layers": lambda a, t: a.plot_layers(theme=t),
    "heatmap": lambda a, t: a.plot_heatmap(theme=t),
    "cluster": lambda a, t: a.plot_heatmap(order="cluster", theme=t),
    "examples": lambda a, t: a.plot_examples(theme=t),
    "example": lambda a, t: plots.example_profile(a.to_frame().head(a.n_layers), tau=0.05, question="Who?", theme=t),
    "types": lambda a, t: a.plot_types(theme=t),
    "length": lambda a, t: a.plot_length(theme=t),
    "tau": lambda a, t: a.plot_tau(theme=t),
    "clip": lambda a, t: a.plot_clip(theme=t),
    "control": lambda a, t: with_control(a).plot_control(theme=t),
    "components": lambda a, t: a.plot_components([elsewhere(a)], theme=t),
    "comparison": lambda a, t: a.plot_comparison([a], theme=t),
    "panels": lambda a, t: a.plot_comparison([a] * 8, theme=t),
    "ranking": lambda a, t: a.plot_ranking([a], theme=t),
    "differences": lambda a, t: plots.audit_differences(compare_all([a, a]), theme=t),
    "lens": lambda a, t: lens_comparison(a).plot(theme=t),
    "weights": lambda a, t: plots.weight_profile(changes(a), a.layers_frame(), theme=t),
    "utility": lambda a, t: plots.depth_utility(
        pd.DataFrame({"model": [m.name for m in a.models.values()], "uds": a.uds, "utility": [0.5, 0.9, 1]}), theme=t
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
    "histogram": lambda n, t: plots.pool_histogram(several(made.models, n), "x", thresholds=made.thresholds(), theme=t),
    "forest": lambda n, t: plots.faithfulness_forest(made.faithful(*n), theme=t),
    "pairs": lambda n, t: plots.pair_matrix(made.pairs(*n), theme=t),
    "quantised": lambda n, t: plots.perturbation_scatter(several(made.points, n), "x", theme=t),
    "relearned": lambda n, t: plots.perturbation_scatter(
        several(made.points, n), "x", state="relearned", shift=(0.1, 0.05, 0.15), retain=(0.2, 0.3), theme=t
    ),
    "summary": lambda n, t: plots.metric_heatmap(made.summary(*n), theme=t),
    "slopes": lambda n, t: plots.filter_slopes(made.robustness(*n), theme=t),
    "dumbbell": lambda n, t: plots.method_dumbbell(made.ranking(*n), theme=t),
    "ranks": lambda n, t: plots.rank_probabilities(made.ranks(*n), theme=t),
    "published": lambda n, t: plots.differences_by_metric(made.compared(*n), theme=t),
    "frontier": lambda n, t: plots.utility_frontier(
        several(made.models, n), references=made.models(1), min_utility=0.8, theme=t
    ),
    "elicited": lambda n, t: plots.elicited_scores(made.elicited(*n), theme=t),
    "depth": lambda n, t: plots.depth_elicited(made.depth(*n), probe="cloze", theme=t),
    "transplants": lambda n, t: plots.host_depths(made.transplanted(*n), references=n[:1], theme=t),
    "bands": lambda n, t: plots.recovered_by_band(made.bands(*n), theme=t),
    "training": lambda n, t: plots.depth_by_step(made.steps(*n), theme=t),
    "budget": lambda n, t: plots.query_budget(made.budget(*n), probe=(*n, "")[0], theme=t),
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
    return {name: draw(inputs[name][0], "light") for name, draw in FIGURES.items()}


def never(constant):
    pytest.fail(f"{constant} is no JSON")


@pytest.mark.parametrize("name", FIGURES)
def test_wears_the_template_and_is_strict_json_of_the_palettes_colours(name, figures, inputs, monkeypatch):
    monkeypatch.setattr(plotly.io, "show", lambda *_, **__: pytest.fail("a figure was shown"))
    before = plotly.io.templates.default, sorted(plotly.io.templates), plotly.io.renderers.default
    dark = FIGURES[name](inputs[name][0], "dark")
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
        json.loads(FIGURES[name](empty, "light").to_json(), parse_constant=never)
    text = FIGURES[name](hostile, "light").to_json()
    assert "\\u003cb\\u003ebold" not in text and "<b>bold" not in text and "$1" not in text
    assert name not in OF_TABLES or "bold" in text


@pytest.mark.parametrize("name", FIGURES)
def test_heading_legend_and_axes(name, figures):
    figure = figures[name]
    assert 10 < len(figure.layout.title.text) < 90
    entries = [trace.name for trace in figure.data if trace.name and trace.showlegend is not False]
    assert figure.layout.showlegend is False or legend_rows(entries, width=640) == 1
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


def test_headings_state_what_the_numbers_say(audit, figures):
    layers = audit.layers_frame()
    most = layers.loc[layers["s1_mean"].idxmax()]
    for name, words in {
        "layers": f"Knowledge peaks at layer {most['layer']:.0f}; {most['ler_mean']:.0%} of it is erased there",
        "examples": f"UDS by example: mean {audit.uds:.2f}, half of the examples between",
        "heatmap": f"{int((audit.uds_per_example < 0.5).sum())} of 23 examples are less than half erased",
        "forest": "x is the most faithful metric (F 0.900)",
        "summary": "uds is best overall (0.700)",
        "pairs": "0 of 3 pairs differ significantly in F (Holm-adjusted)",
        "dumbbell": "With depth in the score, 2 of 3 methods change rank",
        "ranks": "x is first in 100% of resamples",
        "slopes": "Which metric has the highest Rob depends on the filter",
        "relearned": "By x, ",
        "histogram": "x: the two pools do not overlap",
        "elicited": "Elicitation: 1 of 3 probes extracts significantly more than from retain",
        "depth": "Depth and extraction: Spearman's rho",
        "budget": "From 1 to 2 samples: expected best recall 0.10 to 0.20",
    }.items():
        assert figures[name].layout.title.text.startswith(words), name
    assert audit.plot_layers().layout.title.subtitle.text
    untitled = plots.layer_profile(layers, title=None)
    assert not untitled.layout.title.text and untitled.layout.height < audit.plot_layers().layout.height
    assert plots.layer_profile(layers, title="Mine").layout.title.text == "Mine"


@pytest.mark.parametrize("name", OF_TABLES)
def test_a_frame_of_another_kind_is_refused(name, monkeypatch):
    makers = ("models", "faithful", "pairs", "summary", "points", "robustness", "ranking", "ranks")
    for maker in (*makers, "elicited", "depth", "budget", "steps", "compared", "transplanted", "bands"):
        monkeypatch.setattr(made, maker, lambda *_, **__: pd.DataFrame({"other": [1]}))
    with pytest.raises(DataError, match="the frame lacks"):
        OF_TABLES[name](("x",), "light")


def test_wrong_calls_name_what_was_expected(audit):
    with pytest.raises(DataError, match=r"lacks ke_share.*audit.layers_frame\(\)"):
        plots.layer_profile(audit.examples_frame().rename(columns={"row": "layer"}))
    with pytest.raises(DataError, match="expected a data frame"):
        plots.type_bars({"type": []})
    with pytest.raises(DataError, match="no scored example has the id 'e99'"):
        audit.plot_example("e99")


def test_components_are_of_one_trio_and_of_several_sites(audit, figures):
    lines = [trace.name for trace in figures["components"].data if trace.type == "scatter"]
    assert lines == ["resid_post", "mlp_out"]
    for others in ([], [audit]):
        with pytest.raises(ConfigError, match=r"each at a different site .* got sites resid_post"):
            audit.plot_components(others)
    other_tokens = dataclasses.replace(elsewhere(audit), provenance={"ids_hash": "1" * 32})
    with pytest.raises(ConfigError, match="on the same examples"):
        audit.plot_components([other_tokens])


@pytest.mark.parametrize("name", ["constructor", "__proto__", "toString"])
def test_members_of_javascript_objects_are_no_keys(name):
    assert shown(name) not in (name, "") and shown(name).startswith(name)
    assert shown(name + "s") == name + "s"


def test_labels_move_apart_as_little_as_they_must():
    places = apart([0.2, 0.9, 0.91, 0.92], gap=0.1, low=0.0, high=1.0)
    assert places[0] == 0.2 and places[-1] <= 1 + 1e-9
    assert all(after - before >= 0.1 - 1e-9 for before, after in pairwise(places))
