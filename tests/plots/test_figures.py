"""What holds for every figure, whatever it draws."""

import inspect

import plotly.graph_objects as go
import plotly.io
import pytest
from synthetic_audits import synthetic_audit

from uds_lens import plots
from uds_lens.audit import DepthAudit, models_frame
from uds_lens.errors import ConfigError, DataError
from uds_lens.plots.palette import palette


def lens_frame(audit: DepthAudit):
    layers = audit.layers_frame()
    parts = {f"{view}_{p}": layers[f"{p}_mean"] for view in ("uds", "lens") for p in ("s1", "s2", "ler")}
    return layers[["layer"]].assign(**parts)


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
    "components": lambda a, t: plots.component_profile({"resid_post": a.layers_frame()}, theme=t),
    "comparison": lambda a, t: plots.compare_layers(
        {"npo": a.layers_frame(), "rmu": a.layers_frame()}, theme=t
    ),
    "ranking": lambda a, t: plots.ranking(models_frame({"npo": a, "rmu": a}), theme=t),
    "lens": lambda a, t: plots.lens_against_uds(lens_frame(a), theme=t),
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

    from uds_lens.plots.palette import recolouring

    text = draw(audit, "light").to_json().lower()
    found = set(re.findall(r'"(#[0-9a-f]{3,8}|rgba?\([^"]*\))"', text)) - {"rgba(0,0,0,0)"}
    assert found and found <= set(recolouring())


@pytest.mark.parametrize("unit", ["layers", "components"])
def test_deltas_are_in_nats_per_token(unit, audit):
    titles = [axis.title.text or "" for axis in FIGURES[unit](audit, "light").select_yaxes()]
    assert any("nats per token" in title for title in titles)


def test_one_example_by_its_id(audit):
    figure = audit.plot_example("e3")
    assert list(figure.data[0].y) == audit.s1_delta[3].tolist()
    assert list(figure.data[1].y) == audit.s2_delta[3].tolist()
    assert figure.layout.title.subtitle.text == audit.examples[3].question
    with pytest.raises(DataError, match="no scored example has the id 'e99'"):
        audit.plot_example("e99")


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
