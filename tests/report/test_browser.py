"""The page in a real browser: no errors, no requests, and everything that can be clicked works."""

from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_audits import synthetic_audit

from uds_lens.report import write

from .chromium import Chromium
from .conftest import NASTY, compared

QUESTIONS = "[...document.querySelectorAll('#table .open')].map((b) => b.textContent)"
DRAWN = """[...document.querySelectorAll('.plot[data-figure]')]
  .filter((plot) => !plot.closest('.figure').hidden).every((plot) => plot.querySelector('.main-svg'))"""
TOO_WIDE = """[...document.querySelectorAll('body *')].filter((e) => {
  if (e.closest('.scroll, svg, .js-plotly-plot') && !e.matches('.scroll, .js-plotly-plot')) return false;
  const box = e.getBoundingClientRect();
  return box.width > 0 && (box.right > innerWidth + 0.5 || box.left < -0.5);
}).map((e) => `${e.tagName}.${e.className}`)"""


def draw_everything(browser: Chromium) -> None:
    browser.run("dispatchEvent(new Event('beforeprint'))")
    browser.wait_for(DRAWN)
    browser.run("dispatchEvent(new Event('afterprint'))")


def calm(browser: Chromium) -> None:
    """No error was logged, and nothing but the file itself was asked for."""
    assert browser.problems == []
    outside = [url for url in browser.requests if not url.startswith(("data:", "blob:", "about:"))]
    assert [Path(url).suffix for url in outside] == [".html"]


@pytest.mark.parametrize(
    ("report", "width", "dark"),
    [  # every page at both widths and in both themes; all four together for the one with most on it
        ("one", 1280, False),
        ("one", 390, True),
        ("several", 1280, False),
        ("several", 1280, True),
        ("several", 390, False),
        ("several", 390, True),
        ("by_site", 1280, True),
        ("by_site", 390, False),
    ],
)
def test_opens_quietly_and_fits(browser, report, width, dark, request):
    browser.open(request.getfixturevalue(report), width=width, dark=dark)
    draw_everything(browser)
    browser.run("document.querySelector('#table .open').click()")
    browser.wait_for("document.querySelector('.detail .main-svg')")
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(TOO_WIDE) == []
    question, table = (
        f"document.querySelector('{place}').offsetWidth" for place in ("td.question", "#table")
    )
    assert browser.run(question) > 180 and browser.run(table) > 0.85 * width - 200
    assert browser.run("document.querySelector('td.detail').offsetWidth") >= browser.run(table) - 2
    browser.run("document.querySelector('[data-figure=layers]').scrollIntoView()")
    paper = "#14171c" if dark else "#ffffff"
    browser.wait_for(
        f"document.querySelector('[data-figure=layers]')._fullLayout.paper_bgcolor === '{paper}'"
    )
    calm(browser)


def test_texts_are_shown_and_do_not_run(browser, one):
    browser.open(one)
    draw_everything(browser)
    for place, question in enumerate(NASTY):
        assert browser.run(QUESTIONS)[place] == question
        browser.run(f"openExample({place})")
        assert browser.run("document.querySelector('.detail .q').textContent") == question
    assert browser.run("document.title") != "run"
    assert browser.run("document.querySelectorAll('img, b > script').length") == 0
    hover = browser.run("document.querySelector('[data-figure=heatmap]').layout.yaxis.ticktext.join(' ')")
    assert "<script" not in hover and "<img" not in hover and "&lt;script&gt;" in hover
    calm(browser)


def test_sorting_by_score_puts_the_undefined_last_in_both_directions(browser, one):
    browser.open(one)
    last = "[...document.querySelectorAll('#table .row .meters')].map((cell) => cell.textContent)"
    browser.run("document.getElementById('more').click()")
    for direction in ("ascending", "descending"):
        browser.run("document.querySelector('#table [data-sort^=uds]').click()")
        assert (
            browser.run("document.querySelector('#table [aria-sort]').getAttribute('aria-sort')") == direction
        )
        scores = browser.run(last)
        assert len(scores) == 70 and scores[-1] == "n/m"
        assert scores[:-1] == sorted(scores[:-1], reverse=direction == "descending")
    browser.run("document.querySelector('#table [data-sort=question]').click()")
    assert browser.run("document.querySelector('#table [aria-sort] button').textContent") == "question"
    calm(browser)


def test_searching_and_filtering_narrow_the_table(browser, one):
    browser.open(one)
    assert browser.run(f"{QUESTIONS}.length") == 50
    assert browser.run("document.getElementById('more').textContent") == "Show all 70"
    search = "document.getElementById('search')"
    browser.run(f"{search}.value = 'AUTHOR 3 entity 10'; {search}.dispatchEvent(new Event('input'))")
    assert browser.run(QUESTIONS) == ["Question number 10 about author 3?"]
    assert browser.run("document.getElementById('count').textContent") == "1 of 70 examples"
    browser.run(f"{search}.value = ''; {search}.dispatchEvent(new Event('input'))")
    status = "document.getElementById('status')"
    browser.run(f"{status}.value = 'none'; {status}.dispatchEvent(new Event('change'))")
    assert browser.run(QUESTIONS) == ["Question number 69 about author 6?"]
    calm(browser)


def test_an_example_opens_with_its_layers_and_closes(browser, several, audits):
    browser.open(several)
    chosen = int(browser.run("document.getElementById('model').value"))
    audit = list(audits.values())[chosen]
    browser.run("document.querySelectorAll('#table .open')[7].click()")
    browser.wait_for("document.querySelector('.detail .main-svg')")
    assert browser.run("document.querySelector('.detail mark').textContent") == "entity 7"
    cells = browser.run(
        "[...document.querySelectorAll('.split tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"
    )
    for layer, row in enumerate(cells):
        s1, s2, ke = (
            float(audit.s1_delta[7, layer]),
            float(audit.s2_delta[7, layer]),
            bool(audit.ke_mask[7, layer]),
        )
        texts = [
            f"{s1:.3f}",
            f"{s2:.3f}",
            *([f"{audit.ler[7, layer]:.3f}", f"{s2 / s1:.3f}"] if ke else "\u2013\u2013"),
        ]
        assert row == [str(layer), *(text.replace("-", "\u2212") for text in texts)]
    assert browser.run("document.querySelectorAll('.strip > div:not(.head)').length") == 3
    browser.run("document.querySelectorAll('#table .open')[7].click()")
    assert browser.run("document.querySelectorAll('.detail').length") == 0
    calm(browser)


@pytest.mark.parametrize("width", [1280, 390])
def test_opens_on_what_was_unlearned_and_the_bar_covers_no_heading(browser, audits, tmp_path, width):
    long = "Why is this question so long? " * 400
    audit = synthetic_audit(seed=1, erased=0.4, questions=[long])
    skipped = [replace(audit.skipped[0], question=long, reason="no" * 3000)]
    npo = replace(audit, skipped=skipped, provenance={**audit.provenance, "command": "x" * 5000})
    retain = replace(npo, models={**npo.models, "unlearned": npo.models["retain"]}, s2_delta=npo.s1_delta)
    page = write({"retain90": retain, "npo": npo}, tmp_path / "page.html")
    browser.open(page, width=width)
    assert browser.run("document.querySelector('.current').textContent") == "npo"
    assert browser.run("document.querySelector('.models tbody tr').className") == "reference"
    assert browser.run("document.documentElement.scrollWidth") <= width
    tall = (
        "[...document.querySelectorAll('tr')].map((row) => row.offsetHeight).reduce((a, b) => Math.max(a, b))"
    )
    assert browser.run(tall) < 170
    reason = "document.querySelector('#skipped td:last-child .clamp')"
    browser.run(f"{reason}.click()")
    assert browser.run(f"{reason}.offsetHeight") > 400
    bar = "document.querySelector('.sections').getBoundingClientRect()"
    for link in range(browser.run("document.querySelectorAll('.sections a').length")):
        browser.run(f"document.querySelectorAll('.sections a')[{link}].click()")
        heading = browser.run("document.querySelector(location.hash + ' h2').getBoundingClientRect().top")
        assert heading >= browser.run(f"{bar}.bottom"), browser.run("location.hash")
    browser.run("openExample(5)")
    row = "document.querySelector('#table tr[data-example=\"5\"]').getBoundingClientRect().top"
    assert browser.run(row) >= browser.run(f"{bar}.bottom") - 1
    head = browser.run("document.querySelector('.strip .head').innerText").split()
    assert head == ["UDS", *map(str, range(6))]
    assert "0 intact" in browser.run("document.querySelector('.strip-of-models .key').innerText")
    calm(browser)


def test_the_chosen_model_stands_out_among_the_others(browser, several):
    browser.open(several)
    draw_everything(browser)
    curves = (
        "document.querySelector('[data-figure=compare]').data.map((line) => [line.name, line.line.width])"
    )
    labels = (
        "document.querySelector('[data-figure=compare]').layout.annotations.map((label) => label.font.weight)"
    )
    for chosen, place in (("npo", 0), ("ga", 2)):
        browser.run(f"chooseModel({place})")
        draw_everything(browser)
        widths = dict(browser.run(curves))
        assert max(widths, key=widths.get) == chosen and len(set(widths.values())) == 2
        assert browser.run(labels).index(700) == place
    calm(browser)


def test_choosing_a_model_changes_figures_and_table(browser, several):
    browser.open(several)
    draw_everything(browser)
    figure = "document.querySelector('[data-figure=layers]')"
    curve = f"JSON.stringify({figure}.data.find((trace) => trace.name?.startsWith('LER')).y)"
    before = browser.run(curve), browser.run("document.querySelector('.current').textContent")
    browser.run("document.querySelectorAll('.pick')[2].click()")
    draw_everything(browser)
    assert browser.run("document.querySelector('.current').textContent") == "npo" != before[1]
    assert browser.run(curve) != before[0]
    assert browser.run("document.querySelector('.models [aria-current=true] .pick').textContent") == "npo"
    calm(browser)


@pytest.mark.parametrize("width", [1280, 390])
def test_differences_are_a_matrix_and_a_table(browser, several, width):
    browser.open(several, width=width)
    draw_everything(browser)
    matrix = "document.querySelector('[data-figure=differences]')"
    browser.run(f"{matrix}.scrollIntoView()")
    browser.wait_for(f"{matrix}.querySelector('.main-svg')")
    words = browser.run(f"[...{matrix}.querySelectorAll('.ytick text')].map((label) => label.textContent)")
    assert words == ["ga", "</script>&<b>rmu", "npo"]
    cell = browser.run(f"{matrix}.data[0].text[0][2]")
    assert cell == "*" if width == 390 else cell.startswith("+0.") and cell.endswith("*")
    assert browser.run("document.querySelectorAll('#differences tbody tr').length") == 3
    calm(browser)


def test_the_map_shows_no_knowledge_as_a_gap_and_can_be_reordered(browser, one):
    browser.open(one)
    draw_everything(browser)
    cells = "document.querySelector('[data-figure=heatmap]').data[0].z"
    assert browser.run(f"{cells}[69].every((value) => value === null)")
    order = "document.getElementById('order')"
    for choice in ("input", "cluster"):
        before = browser.run(f"JSON.stringify({cells})")
        browser.run(f"{order}.value = '{choice}'; {order}.dispatchEvent(new Event('change'))")
        draw_everything(browser)
        assert browser.run(f"JSON.stringify({cells})") != before
    calm(browser)


def test_pointing_at_the_map_tells_the_example_and_what_is_undefined(browser, one):
    browser.open(one)
    browser.run("document.querySelector('[data-figure=heatmap]').scrollIntoView()")
    browser.wait_for("document.querySelector('[data-figure=heatmap] .nsewdrag')")
    for height, layer_words in ((0.002, "LER 0."), (0.998, "no knowledge, LER undefined")):
        box = "document.querySelector('[data-figure=heatmap] .nsewdrag').getBoundingClientRect()"
        browser.resize(1280, 1200)
        left, top = browser.run(f"[{box}.left + 0.75 * {box}.width, {box}.top + {height} * {box}.height]")
        for step in (0, 2):
            browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=left + step, y=top)
        browser.wait_for(
            f"document.querySelector('[data-figure=heatmap] .hoverlayer').textContent.includes('{layer_words}')"
        )
    assert "Question number 69" in browser.run(
        "document.querySelector('[data-figure=heatmap] .hoverlayer').textContent"
    )
    calm(browser)


def test_the_largest_report_opens_within_three_seconds(browser, largest):
    assert min(browser.open(largest) for _ in range(2)) < 3
    assert browser.run(f"{QUESTIONS}.length") == 50
    calm(browser)


PAPER = 703
"""Width of A4 between the margins, in pixels."""
ROOM_ON_PAPER = """[...document.querySelectorAll('.plot .main-svg')]
  .filter((svg) => svg.getBoundingClientRect().width)
  .map((svg) => {
    const box = svg.getBoundingClientRect(), frame = svg.closest('.figure').getBoundingClientRect();
    return [frame.right - box.right, box.left - frame.left, 960 - frame.height];
  })"""
"""Left and right of each figure in its frame, and between the frame and the height of a Letter page; pixels."""


def test_printing_shows_every_row_and_cuts_no_figure(browser, one):
    browser.open(one)
    browser.run(
        "addEventListener('beforeprint', () => { globalThis.paper = document.querySelectorAll('#table .row').length; })"
    )
    pdf = browser.send("Page.printToPDF", seconds=60)["data"]
    assert len(pdf) > 100_000 and browser.run("globalThis.paper") == 70
    browser.wait_for("document.querySelectorAll('#table .row').length === 50")
    browser.send("Emulation.setEmulatedMedia", media="print")
    browser.resize(PAPER)
    browser.run("dispatchEvent(new Event('beforeprint'))")
    browser.wait_for(DRAWN)
    assert browser.run("document.getElementById('printed').innerText") == "All 70 examples."
    assert browser.run("document.querySelectorAll('#table button').length") == 0, "not repeated on each page"
    assert browser.run("document.documentElement.scrollWidth") <= PAPER
    assert browser.run(TOO_WIDE) == []
    sizes = browser.run(ROOM_ON_PAPER)
    assert len(sizes) >= 7 and all(min(size) >= 0 for size in sizes), sizes
    browser.run("dispatchEvent(new Event('afterprint'))")
    browser.send("Emulation.setEmulatedMedia", media="")
    calm(browser)


def test_paper_says_what_is_left_out(browser, several):
    browser.open(several)
    search = "document.getElementById('search')"
    browser.run(f"{search}.value = 'entity 10'; {search}.dispatchEvent(new Event('input'))")
    told = browser.run("document.getElementById('printed').textContent")
    assert told.startswith('1 of 24 examples, because they match "entity 10"; the others are not printed.')
    assert "choose another model in the file" in told
    assert browser.run("getComputedStyle(document.getElementById('printed')).display") == "none"
    calm(browser)


@pytest.mark.parametrize("width", [1280, 390])
def test_long_names_do_not_widen_the_page(browser, audits, tmp_path, width):
    page = write({f"{'unlearned_' * 30}{name}": a for name, a in audits.items()}, tmp_path / "long.html")
    browser.open(page, width=width)
    assert browser.run("document.documentElement.scrollWidth") <= width


def test_an_example_with_logit_lens_shows_both_views(browser, sites, tmp_path):
    page = write(sites[0], tmp_path / "lens.html", lens=[compared(sites[0], 5)])
    browser.open(page)
    browser.run("document.querySelectorAll('#table .open')[4].click()")
    browser.wait_for("document.querySelector('.detail .main-svg')")
    assert browser.run("document.querySelector('.detail .lens') === null")
    browser.run("openExample(5)")
    browser.wait_for("document.querySelector('.detail .lens .main-svg')")
    curves = browser.run("document.querySelector('.lens').data.map((trace) => trace.y)")
    for curve, deltas in zip(
        [curves[0], curves[1], curves[3], curves[4]],
        (sites[0].s1_delta[5], sites[0].s2_delta[5], sites[0].s1_delta[5] / 2, sites[0].s2_delta[5] / 8),
        strict=True,
    ):
        assert curve == pytest.approx(deltas.tolist(), abs=1e-6)
    words = browser.run("document.querySelector('.lens').layout.annotations.map((note) => note.text)")
    assert f"UDS {sites[0].uds_per_example[5]:.2f}:" in words[0]
    assert f"Logit Lens {compared(sites[0], 5).lens_score:.2f}:" in words[1]
    calm(browser)
