"""What holds for every figure, whatever it draws."""

import dataclasses
import inspect
import json
from itertools import pairwise

import plotly.graph_objects as go
import plotly.io
import pytest
import torch
from synthetic_audits import example, synthetic_audit, with_control

from uds_lens import plots
from uds_lens.errors import ConfigError, DataError
from uds_lens.metrics import LensComparison
from uds_lens.plots._style import legend_rows, palette
from uds_lens.results import DepthAudit, compare_all


def lens_comparison(audit: DepthAudit) -> LensComparison:
    layers = audit.layers_frame()
    s1, s2 = (torch.tensor(layers[f"{part}_mean"].to_numpy()) for part in ("s1", "s2"))
    asked = audit.examples[0] if audit.examples else example(0)
    return LensComparison(example=asked, tau=0.05, lens_s1=s1 / 2, lens_s2=s2 / 2, uds_s1=s1, uds_s2=s2)


def elsewhere(audit: DepthAudit) -> DepthAudit:
    """The same audit, said to be measured at another site."""
    return dataclasses.replace(audit, config=dataclasses.replace(audit.config, site="mlp_out"))


FIGURES = {
    "layers": lambda a, t: a.plot_layers(theme=t),
    "heatmap": lambda a, t: a.plot_heatmap(theme=t),
    "cluster": lambda a, t: a.plot_heatmap(order="cluster", theme=t),
    "examples": lambda a, t: a.plot_examples(theme=t),
    "example": lambda a, t: plots.example_profile(
        a.to_frame().head(a.n_layers), tau=0.05, question="Who?", theme=t
    ),
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
}
draw = pytest.mark.parametrize("draw", FIGURES.values(), ids=FIGURES.keys())


@draw
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_wears_its_own_template_in_both_themes(draw, theme, audit):
    figure = draw(audit, theme)
    assert isinstance(figure, go.Figure)
    assert figure.layout.template.layout.paper_bgcolor == palette(theme).paper
    assert figure.layout.title.text and figure.layout.height >= 200


@draw
def test_changes_no_global_state_and_shows_nothing(draw, audit, monkeypatch):
    monkeypatch.setattr(plotly.io, "show", lambda *_, **__: pytest.fail("a figure was shown"))
    before = plotly.io.templates.default, sorted(plotly.io.templates), plotly.io.renderers.default
    draw(audit, "light")
    assert (plotly.io.templates.default, sorted(plotly.io.templates), plotly.io.renderers.default) == before


@draw
@pytest.mark.parametrize("empty", ["nothing_measurable", "nothing_scored"])
def test_has_a_picture_of_nothing(draw, empty, request):
    figure = draw(request.getfixturevalue(empty), "light")
    assert '"data"' in figure.to_json()


def never(constant: str) -> None:
    pytest.fail(f"{constant} is no JSON")


@draw
@pytest.mark.parametrize("which", ["audit", "nothing_measurable", "nothing_scored"])
def test_is_strict_json_that_any_plotly_js_reads(draw, which, request):
    text = draw(request.getfixturevalue(which), "light").to_json()
    json.loads(text, parse_constant=never)
    assert "bdata" not in text, "base64 arrays are unknown to plotly.js before 2.35"


@pytest.mark.parametrize(("name", "columns"), [("layers", 1), ("example", 1), ("tau", 1), ("lens", 2)])
def test_panels_above_each_other_share_one_axis_so_that_hover_tells_all(name, columns, audit):
    figure = FIGURES[name](audit, "light")
    assert len({trace.xaxis for trace in figure.data}) == columns
    assert len({trace.yaxis for trace in figure.data}) == len(list(figure.select_yaxes())) > columns
    assert figure.layout.hovermode == "x unified" and figure.layout.template.layout.hoversubplots == "axis"
    heights = sorted(tuple(axis.domain) for axis in figure.select_yaxes())[::columns]
    assert heights[0][0] == 0 and heights[-1][1] == 1
    assert all(below[1] < above[0] for below, above in pairwise(heights))


@pytest.mark.parametrize("name", FIGURES)
def test_legend_takes_one_row_in_a_narrow_notebook(name, audit):
    figure = FIGURES[name](audit, "light")
    shown = [trace.name for trace in figure.data if trace.name and trace.showlegend is not False]
    assert figure.layout.showlegend is False or legend_rows(shown, width=510) == 1


@draw
def test_every_visible_axis_beneath_or_beside_data_has_a_title(draw, audit):
    figure = draw(audit, "light")
    for direction in ("xaxis", "yaxis"):
        titles = [axis.title.text for axis in figure.select_xaxes()] if direction == "xaxis" else [
            axis.title.text for axis in figure.select_yaxes()
        ]  # fmt: skip
        assert any(titles) or direction == "yaxis", direction


@draw
def test_only_colours_of_the_palette_so_that_a_page_can_swap_them(draw, audit):
    import re

    from uds_lens.plots._style import recolouring

    text = draw(audit, "light").to_json().lower()
    found = set(re.findall(r'"(#[0-9a-f]{3,8}|rgba?\([^"]*\))"', text)) - {"rgba(0,0,0,0)"}
    assert found and found <= set(recolouring())


@pytest.mark.parametrize("unit", ["layers", "components", "example", "lens"])
def test_deltas_are_in_nats_per_token(unit, audit):
    titles = [axis.title.text or "" for axis in FIGURES[unit](audit, "light").select_yaxes()]
    assert any("nats/token" in title or "nats per token" in title for title in titles)


def test_one_example_by_its_id(audit):
    figure = audit.plot_example("e3")
    assert list(figure.data[0].y) == audit.s1_delta[3].tolist()
    assert list(figure.data[1].y) == audit.s2_delta[3].tolist()
    assert figure.layout.title.subtitle.text == audit.examples[3].question
    with pytest.raises(DataError, match="no scored example has the id 'e99'"):
        audit.plot_example("e99")


def test_components_are_of_one_trio_and_of_several_sites(audit):
    figure = audit.plot_components([elsewhere(audit)])
    assert [trace.name for trace in figure.data if trace.type == "scatter"] == ["resid_post", "mlp_out"]
    for others in ([], [audit]):
        with pytest.raises(ConfigError, match=r"each with a site of its own.*got sites resid_post"):
            audit.plot_components(others)
    other_tokens = dataclasses.replace(elsewhere(audit), provenance={"ids_hash": "1" * 32})
    with pytest.raises(ConfigError, match="on the same examples"):
        audit.plot_components([other_tokens])


def test_comparison_and_ranking_name_the_unlearned_models(audit):
    other = synthetic_audit(seed=1, name="ckpt/rmu", erased=0.9)
    npo, rmu = audit.plot_comparison([other], value="s2").data
    assert [npo.name, rmu.name] == ["npo", "rmu"] and npo.line.width > rmu.line.width
    assert audit.plot_ranking([other]).layout.yaxis.ticktext == ("rmu", "npo")


def test_unknown_theme_is_refused():
    unchecked = inspect.unwrap(palette)
    with pytest.raises(ConfigError, match="theme must be one of 'light', 'dark'; got 'blue'"):
        unchecked("blue")


def test_a_frame_of_another_kind_is_refused_with_the_missing_names(audit):
    with pytest.raises(DataError, match=r"lacks ke_share.*audit.layers_frame\(\)"):
        plots.layer_profile(audit.examples_frame().rename(columns={"row": "layer"}))
    with pytest.raises(DataError, match="expected a data frame"):
        plots.type_bars({"type": []})


@draw
def test_texts_from_data_are_shown_letter_by_letter(draw):
    bad = "<b>bold</b><a href='x'>$1 and $2</a>"
    audit = synthetic_audit(n=6, questions=[bad] * 6, name=bad)
    text = draw(audit, "light").to_json()
    assert "\\u003cb\\u003ebold" not in text and "<b>bold" not in text and "$1" not in text
