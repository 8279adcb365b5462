"""Figures of an elicitation: what stands where, in both themes, with nothing to draw, with names that are markup."""

import math

import pandas as pd
import pytest

from uds_lens.errors import DataError
from uds_lens.plots import depth_elicited, elicited_scores, query_budget
from uds_lens.plots._style import palette

SUMMARY = pd.DataFrame(
    {
        "probe": ["plain", "aoa"],
        "decoding": "greedy",
        "statistic": "mean",
        "unlearned": [0.4, 0.1],
        "retain": [0.2, 0.1],
        "full": [0.9, 0.12],
        "beyond_low": [0.1, -0.05],
        "beyond_high": [0.3, 0.05],
        "share_reason": [None, "no power: nothing"],
    }
)
BUDGET = pd.DataFrame(
    {
        "model": ["full", "full", "unlearned", "unlearned"],
        "probe": "plain",
        "k": [1, 2, 1, 2],
        "best_of_k": [0.5, 0.6, 0.1, 0.2],
        "leak_at_k": 0.0,
    }
)
DEPTH = pd.DataFrame(
    {
        "probe": "cloze",
        "decoding": "greedy",
        "uds": [0.1, 0.5, math.nan, 0.9],
        "beyond_retain": [0.8, 0.5, 0.3, 0.0],
        "question": ["<b>Who?</b>", "Where?", "When?", "Why?"],
    }
)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_themes(theme):
    figures = (
        elicited_scores(SUMMARY, theme=theme),
        query_budget(BUDGET, probe="plain", theme=theme),
        depth_elicited(DEPTH, probe="cloze", theme=theme),
    )
    for figure in figures:
        assert figure.layout.template.layout.paper_bgcolor == palette(theme).paper


def test_dots_and_the_interval_stand_where_they_were_measured():
    figure = elicited_scores(SUMMARY)
    by_name = {trace.name: trace for trace in figure.data}
    assert list(by_name["unlearned"].x) == [0.4, 0.1]
    assert list(by_name["unlearned"].y) == ["plain", "aoa (no power)"]
    assert list(by_name["retain + interval of the difference"].x)[:2] == pytest.approx([0.3, 0.5])
    assert "full" not in {t.name for t in elicited_scores(SUMMARY.drop(columns="full")).data}


def test_curves_and_points():
    assert [trace.name for trace in query_budget(BUDGET, probe="plain").data] == ["full", "unlearned"]
    assert query_budget(BUDGET, probe="plain").data[1].y == (0.1, 0.2)
    figure = depth_elicited(DEPTH, probe="cloze")
    assert len(figure.data[0].x) == 3 and "&lt;b&gt;" in figure.data[0].customdata[0]
    assert "\u22121.00 over 3" in figure.layout.title.subtitle.text


def test_nothing_to_draw_is_said():
    assert elicited_scores(SUMMARY, decoding="sampled").layout.annotations
    assert query_budget(BUDGET, probe="aoa").layout.annotations
    assert depth_elicited(DEPTH, probe="plain").layout.annotations


def test_a_missing_column_is_named():
    with pytest.raises(DataError, match="share_reason"):
        elicited_scores(SUMMARY.drop(columns="share_reason"))
