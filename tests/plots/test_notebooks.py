"""Figures where people look at them: Jupyter, VS Code, Colab, and notebooks turned into HTML."""

import json
import os
import re

import nbformat
import plotly.io
import pytest
from nbclient import NotebookClient
from plotly.offline import get_plotlyjs
from report.chromium import Chromium
from synthetic_audits import synthetic_audit

from uds_lens.plots import save_figure

PLOTLY, HTML = "application/vnd.plotly.v1+json", "text/html"
CELL = """
import pandas as pd, plotly.io
import uds_lens.plots as plots
before = plotly.io.renderers.default, plotly.io.templates.default
frame = pd.DataFrame({"layer": [0, 1, 2], "ler_mean": [0.5, float("nan"), 1.0]})
figure = plots.compare_layers({"npo": frame})
assert (plotly.io.renderers.default, plotly.io.templates.default) == before
figure
"""


def test_a_large_figure_stays_small_enough_for_a_notebook():
    figure = synthetic_audit(n=400, layers=32).plot_heatmap()
    bundle = plotly.io.renderers["vscode"].to_mimebundle(figure.to_dict())
    assert 200_000 < len(json.dumps(bundle, allow_nan=False)) < 1_500_000


@pytest.fixture(scope="module")
def executed(tmp_path_factory) -> nbformat.NotebookNode:
    """A notebook, run by a real kernel: the second cell shows the figure as the classic notebook does."""
    cells = map(nbformat.v4.new_code_cell, (CELL, "plotly.io.renderers.default = 'notebook'\nfigure"))
    notebook = nbformat.v4.new_notebook(cells=list(cells))
    place = {"metadata": {"path": str(tmp_path_factory.mktemp("notebook"))}}
    clean = {name: value for name, value in os.environ.items() if name != "PLOTLY_RENDERER"}
    NotebookClient(notebook, timeout=600, resources=place).execute(env=clean)
    return notebook


@pytest.mark.long  # starts a kernel
def test_a_kernel_shows_the_figure_by_itself(executed):
    (output,) = executed.cells[0].outputs
    assert output.output_type == "display_data"
    curve = output.data[PLOTLY]["data"][0]
    assert (curve["name"], curve["y"]) == ("npo", [0.5, None, 1.0])


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    chromium = Chromium(tmp_path_factory.mktemp("profile"))
    yield chromium
    chromium.close()


DRAWN = "document.querySelector('.js-plotly-plot .main-svg .scatterlayer, .js-plotly-plot .heatmaplayer image')"


@pytest.mark.long  # draws in a Chromium
@pytest.mark.parametrize("made_by", ["colab", "nbconvert"])
def test_html_draws_offline(made_by, browser, audit, executed, tmp_path):
    """What Colab gets, and a notebook turned into HTML, without the scripts that they would load."""
    text = f"<!doctype html><meta charset=utf-8><link rel=icon href=data:,><script>{get_plotlyjs()}</script>"
    if made_by == "colab":
        text += plotly.io.renderers["colab"].to_mimebundle(audit.plot_layers().to_dict())[HTML]
    else:
        nbconvert = pytest.importorskip("nbconvert")
        notebook = nbformat.from_dict({**executed, "cells": executed.cells[1:]})
        exporter = nbconvert.HTMLExporter(require_js_url="", mathjax_url="", jquery_url="", mermaid_js_url="")
        text = exporter.from_notebook_node(notebook)[0]
    script = r'<script[^>]*src="(https?://[^"]+)"[^>]*></script>'
    loads = {"mathjax" if "mathjax" in url.lower() else "plotly" for url in re.findall(script, text)}
    assert loads == {"mathjax"} | ({"plotly"} if made_by == "colab" else set())  # plotly asks for MathJax anyway
    page = tmp_path / "page.html"
    page.write_text(re.sub(script, "", text), encoding="utf-8")
    browser.open(page, ready=DRAWN)
    box = "document.querySelector('.js-plotly-plot .main-svg').getBoundingClientRect()"
    assert browser.run(f"{box}.width") > 400 and browser.run(f"{box}.height") > 250
    assert browser.problems == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:", "blob:", "about:"))] == []


@pytest.mark.long  # draws in a Chromium
def test_hovering_shows_all_panels_at_once(browser, audit, tmp_path):
    browser.open(save_figure(audit.plot_layers(), tmp_path / "layers.html"), ready=DRAWN)
    for panel in (0, 1):
        box = f"document.querySelectorAll('.js-plotly-plot .nsewdrag')[{panel}].getBoundingClientRect()"
        left, top, width, height = browser.run(f"[{box}.left, {box}.top, {box}.width, {box}.height]")
        for step in (0, 2):
            browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=left + width / 2 + step, y=top + height / 2)
        hovered = "document.querySelector('.hoverlayer')?.textContent"  # a busy machine shows the first place first
        browser.wait_for(f"{hovered}?.includes('LER') && {hovered}?.includes('layer 3')")
        told = browser.run("document.querySelector('.hoverlayer').textContent")
        for words in ("layer 3", "S1 ", "S2 ", "LER 0.", "answer encoded: "):
            assert words in told, (panel, told)
