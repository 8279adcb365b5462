"""Figures of an elicitation show the numbers of their frames."""

import pytest

from uds_lens.plots import depth_elicited, elicited_scores, query_budget

from . import meta_frames as made


def test_dots_and_the_interval_stand_where_they_were_measured():
    frame = made.elicited("plain", "aoa")
    by_name = {trace.name: trace for trace in elicited_scores(frame).data}
    assert list(by_name["unlearned"].x) == [0.4, 0.1]
    assert list(by_name["unlearned"].y) == ["plain", "aoa (no power)"]
    assert list(by_name["retain + interval of the difference"].x)[:2] == pytest.approx([0.3, 0.5])
    assert "full" not in {trace.name for trace in elicited_scores(frame.drop(columns="full")).data}
    assert elicited_scores(frame, decoding="sampled").layout.annotations


def test_curves_and_points():
    figure = query_budget(made.budget("plain"), probe="plain")
    assert [trace.name for trace in figure.data] == ["full", "unlearned"]
    assert figure.data[1].y == (0.1, 0.2)
    assert query_budget(made.budget("plain"), probe="aoa").layout.annotations
    figure = depth_elicited(made.depth("Who?"), probe="cloze")
    assert len(figure.data[0].x) == 3 and "\u22121.00 over 3" in figure.layout.title.text
    assert depth_elicited(made.depth("Who?"), probe="plain").layout.annotations
