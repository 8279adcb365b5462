"""The dashboard in a real browser: no errors, no requests, and what can be switched gives what the library computes."""

import json
from pathlib import Path

import pandas as pd
import pytest

from uds_lens import meta
from uds_lens.report import DashboardOptions, dashboard

from . import model_tables as made
from .test_browser import TOO_WIDE, calm

pytestmark = pytest.mark.long  # draws in a Chromium

RANKED = """rankMethods().map((row) => ({
  method: row.method, model: row.model?.model ?? null, tied: row.choice?.tied.length ?? 0,
  without: row.score_without, with: row.score_with, rank_without: row.rank_without, rank_with: row.rank_with}))"""
ROWS = """[...document.querySelectorAll('#model-table tbody tr:not(.pinned):not(.inside)')]
  .map((row) => row.dataset.model)"""


@pytest.fixture(scope="module")
def study() -> made.Study:
    return made.study()


@pytest.fixture(scope="module")
def own(study, tmp_path_factory) -> Path:
    frame = pd.concat([study.models, made.models(2, seed=5).assign(model=["full", "retain"], method=None)])
    path = tmp_path_factory.mktemp("dashboard") / "own.html"
    return dashboard(frame.reset_index(drop=True), path, **study.given(), options=DashboardOptions(n_resamples=30))


def unfold(browser):
    browser.run("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    browser.run("document.querySelector('#metric-table .name').click()")
    browser.run("document.querySelector('#model-table .name').click()")


TABLE = "document.querySelector('#rank-table tbody').textContent"


def choose(browser, name, value):
    browser.run(f"""(() => {{ const control = document.getElementById('{name}'); control.value = '{value}';
      control.dispatchEvent(new Event('{"input" if name in ("search", "utility") else "change"}')); }})()""")


@pytest.mark.parametrize(("width", "dark"), [pytest.param(1280, False, marks=pytest.mark.long), (390, True)])
def test_opens_quietly_and_fits(browser, own, width, dark):
    browser.open(own, width=width, dark=dark)
    unfold(browser)
    browser.run("document.querySelectorAll('.plot').forEach((plot) => draw(plot))")
    assert browser.run("[...document.querySelectorAll('.figure')].filter((figure) => figure.hidden).length") == 0
    assert browser.run("[...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('.main-svg'))")
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(TOO_WIDE) == []
    paper = "#14171c" if dark else "#ffffff"
    assert browser.run("document.querySelector('[data-figure=forest]')._fullLayout.paper_bgcolor") == paper
    calm(browser)


@pytest.fixture(scope="module")
def page(browser, own):
    """The page once open, for all tests that leave it as they found it."""
    browser.open(own)
    return browser


def test_names_are_shown_and_do_not_run(page, study):
    assert page.run("document.title") != "run" and page.run("document.images.length") == 0
    names = page.run("[...document.querySelectorAll('#rank-table tbody th')].map((cell) => cell.textContent)")
    assert set(names) == {"NPO", "RMU", "mine", made.HOSTILE}
    page.run("draw(document.querySelector('[data-figure=frontier]'))")
    assert page.run("document.querySelector('[data-figure=frontier] .legend').textContent").count("</script>") == 1


@pytest.mark.parametrize("least", [None, 0.9])
@pytest.mark.parametrize("by", ["without", "with"])
@pytest.mark.parametrize("view", ["without", "with"])
def test_the_ranking_is_that_of_the_library(page, study, view, by, least):
    page.run(f"Object.assign(state, {{view: '{view}', by: '{by}', minUtility: {json.dumps(least)}}})")
    found = page.run(RANKED)
    page.run("Object.assign(state, {view: 'with', by: 'without', minUtility: null})")
    expected = meta.rank(study.models, with_uds=view == "with", select_by=by, min_utility=least)
    assert [row["method"] for row in found] == list(expected["method"])
    for row, own in zip(found, expected.to_dict("records"), strict=True):
        assert (row["model"], row["tied"]) == (own["model"], own["n_tied"])
        for key in ("without", "with"):
            assert row[key] == pytest.approx(own[f"score_{key}"], abs=1e-12)
            assert row[f"rank_{key}"] == own[f"rank_{key}"]


def test_shifts_are_those_of_the_library(page, study):
    moved = meta.shifts(study.models)
    moved = moved[moved["moved"].astype(bool)]
    assert len(moved)
    found = page.run("shiftsOf(rankMethods()).map((row) => [row.method, row.to.model])")
    assert dict(found) == dict(zip(moved["method"], moved["model_with"], strict=True))


def test_switches_change_table_and_figures(page):
    first = page.run(TABLE)
    for name, other, usual in (("by", "with", "without"), ("view", "without", "with")):
        page.run(f"document.querySelector('input[name={name}][value={other}]').click()")
        assert page.run(TABLE) != first
        page.run(f"document.querySelector('input[name={name}][value={usual}]').click()")
    choose(page, "utility", "0.9")
    assert page.run("document.getElementById('utility-value').textContent") == "0.90"
    assert page.run("frontierSpec().layout.shapes[0].x0") == 0.9
    choose(page, "utility", "0")
    assert page.run(TABLE) == first


def test_the_filter_switch_changes_q_r_and_n(page, study):
    cells = "[...document.querySelector('#metric-table tr[data-metric=uds]').cells].map((cell) => cell.textContent)"
    for setting in ("utility+threshold", "none"):
        choose(page, "setting", f"{setting} own")
        rows = study.robust[(study.robust["filter"] == setting) & (study.robust["models"] == "own")]
        expected = rows.set_index("metric").loc["uds"]
        told = page.run(cells)
        assert told[6:9] == [f"{expected['q']:.3f}", f"{expected['r']:.3f}", f"{expected['n']:.0f}"]
    choose(page, "setting", "utility+threshold own")


def test_best_and_worst_of_each_column_are_marked(page):
    aucs = page.run("METRICS.filter(isMain).map((metric) => metric.auc)")
    marks = "[...document.querySelectorAll('#metric-table td:nth-child(3) .rank')]"
    marked = page.run(f"{marks}.map((mark) => [mark.className, mark.textContent])")
    levels = sorted(set(aucs))
    expected = {"rank best": levels[-1], "rank good": levels[-2], "rank poor": levels[1], "rank worst": levels[0]}
    assert dict(marked) == {kind: f"{auc:.3f}" for kind, auc in expected.items()}


def test_sorting_puts_what_is_missing_last_in_both_directions(page, study):
    missing = study.models["model"][0]
    page.run("document.getElementById('more').click()")
    for direction in ("descending", "ascending"):
        page.run("document.querySelector('#model-table [data-sort=depth]').click()")
        assert page.run("document.querySelector('#model-table [aria-sort]').getAttribute('aria-sort')") == direction
        names = page.run(ROWS)
        values = study.models.set_index("model")["uds"][names].tolist()
        assert names[-1] == missing and len(names) == len(study.models)
        assert values[:-1] == sorted(values[:-1], reverse=direction == "descending")
    page.run("document.querySelector('#model-table [data-sort=score_with]').click()")


def test_epochs_methods_and_names_narrow_the_table_and_the_ranking(page, study):
    count = "document.getElementById('count').textContent"
    assert page.run(count) == "64 of 64 models, 4 methods; full and retain stay on top."
    page.run("document.querySelector('#epochs input').click()")
    assert page.run(count).startswith("32 of 64 models, 4 methods")
    assert page.run("rankMethods().every((row) => row.configs === 8)")
    page.run("document.querySelector('#epochs input').click()")
    page.run("document.querySelector('#method-filter [data-all=none]').click()")
    assert page.run(count).startswith("0 of 64 models, 0 methods") and page.run("rankMethods()") == []
    assert page.run("frontierSpec().data.slice(1, -1).every((trace) => !trace.visible)")
    page.run("document.querySelector('#method-filter [data-all=all]').click()")
    choose(page, "search", "RMU_lr1e5_a1")
    assert all("rmu_lr1e5_a1" in name for name in page.run(ROWS)) and page.run(f"{ROWS}.length") > 0
    choose(page, "search", "")


@pytest.mark.parametrize("criterion", ["score_without", "utility_rel", "depth", "logit_lens"])
def test_the_best_of_each_method_by_a_criterion(page, study, criterion):
    choose(page, "show", "best")
    choose(page, "criterion", criterion)
    found = page.run(ROWS)
    choose(page, "show", "all")
    scored = study.models.assign(**meta.score_models(study.models)[["score_without", "depth"]])
    best = scored.groupby("method")[criterion].max()
    chosen = scored.set_index("model").loc[found]
    assert len(found) == 4 and dict(zip(chosen["method"], chosen[criterion], strict=True)) == best.to_dict()


def test_a_model_opens_to_its_parts_by_keyboard_and_keeps_the_focus(page, study):
    page.run("document.querySelector('#model-table tbody tr:not(.pinned) .name').focus()")
    for kind in ("keyDown", "keyUp"):
        page.send("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r", windowsVirtualKeyCode=13)
    assert page.run("document.activeElement.getAttribute('aria-expanded')") == "true"
    name = page.run("document.activeElement.textContent")
    parts = page.run("[...document.querySelectorAll('tr.inside h4')].map((head) => head.firstChild.textContent)")
    assert parts == ["Memorization", "Privacy", "Utility"]
    shown = page.run("document.querySelector('tr.inside dd').textContent")
    es = study.models.set_index("model")["es"]
    assert name in es.index and shown == f"{1 - es[name]:.3f}"
    page.run("document.activeElement.click()")
    assert page.run("document.querySelectorAll('tr.inside').length") == 0


def test_nothing_went_wrong_on_the_way(page):
    calm(page)


def test_a_method_without_values_takes_no_other_methods_marks(browser, tmp_path):
    frame = made.models(16)
    frame.loc[frame["method"] == "npo", "uds"] = float("nan")
    browser.open(dashboard(frame, tmp_path / "d.html", options=DashboardOptions(n_resamples=10)))
    found = browser.run("frontierSpec().data.slice(1).map((trace) => [trace.name, trace.x])")
    for name, across in found[1:]:
        own = frame[frame["method"] == name.lower()]
        assert across == own["utility_rel"].tolist()
    assert [name for name, _ in found[1:]] == ["RMU", "mine"]
    calm(browser)


def test_the_papers_152_models_open_within_three_seconds(browser, tmp_path):
    found = meta.read_published()
    path = dashboard(found, tmp_path / "paper.html", options=DashboardOptions(n_resamples=30))
    assert path.stat().st_size < 15e6
    browser.open(path)
    assert browser.work < 3
    ranked = browser.run(RANKED)
    expected = meta.rank(found.frame)
    assert [(row["method"], row["model"]) for row in ranked] == list(
        zip(expected["method"], expected["model"], strict=True)
    )
    assert "18-way tie" in browser.run("document.getElementById('rank-table').textContent")
    shifts = browser.run("document.getElementById('shifts').textContent")
    assert "AltPO would be lr5e5_b01_a2_ep10 (depth +0.016); NPO would be lr5e5_b01_a5_ep10 (depth +0.199)" in shifts
    unfold(browser)
    assert browser.run("document.querySelectorAll('#pool-means tr').length") == 22
    assert browser.run("document.querySelectorAll('[data-means=r] tr').length") == 20
    assert browser.run("document.querySelectorAll('.sources li').length") == 22
    calm(browser)
