"""The page in a real browser: no errors, no requests, and everything that can be clicked works."""

from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_audits import synthetic_audit, with_control

from uds_lens.report import write

from .chromium import Chromium
from .conftest import NASTY, compared

pytestmark = pytest.mark.long  # draws in a Chromium

QUESTIONS = "[...document.querySelectorAll('#table .open')].map((b) => b.textContent)"
DRAWN = """[...document.querySelectorAll('.plot[data-figure]')]
  .filter((plot) => !plot.closest('.figure').hidden).every((plot) => plot.querySelector('.main-svg'))"""
TOO_WIDE = """[...document.querySelectorAll('body *')].filter((e) => {
  if (e.closest('.scroll, svg, .js-plotly-plot, pre') && !e.matches('.scroll, .js-plotly-plot, pre')) return false;
  if (e.matches('.sr-only')) return false;
  const box = e.getBoundingClientRect();
  return box.width > 0 && (box.right > innerWidth + 0.5 || box.left < -0.5);
}).map((e) => `${e.tagName}.${e.className}`)"""


def draw_everything(browser: Chromium) -> None:
    browser.run("dispatchEvent(new Event('beforeprint'))")
    browser.wait_for(DRAWN)
    browser.run("dispatchEvent(new Event('afterprint'))")


def draw(browser: Chromium, *names: str) -> None:
    for name in names:
        browser.run(f"draw(document.querySelector('[data-figure={name}]'))")


def change(browser: Chromium, control: str, value: str, event: str = "change") -> None:
    found = f"document.getElementById('{control}')"
    browser.run(f"{found}.value = '{value}'; {found}.dispatchEvent(new Event('{event}'))")


def calm(browser: Chromium) -> None:
    """No error was logged, and nothing but the file itself was asked for."""
    assert browser.problems == []
    outside = [url for url in browser.requests if not url.startswith(("data:", "blob:", "about:"))]
    assert [Path(url).suffix for url in outside] == [".html"]


@pytest.mark.parametrize(
    ("report", "width", "dark"),
    [
        ("one", 390, True),
        ("several", 1280, False),
        pytest.param("several", 390, True, marks=pytest.mark.long),
        pytest.param("by_site", 390, False, marks=pytest.mark.long),
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
        browser.run(f"document.querySelector('{place}').offsetWidth") for place in ("td.question", "#table")
    )
    assert question > 180 and table > 0.85 * width - 200
    assert browser.run("document.querySelector('td.detail').offsetWidth") >= table - 2
    browser.run("document.querySelector('[data-figure=layers]').scrollIntoView()")
    paper = "#14171c" if dark else "#ffffff"
    browser.wait_for(f"document.querySelector('[data-figure=layers]')._fullLayout.paper_bgcolor === '{paper}'")
    calm(browser)


def test_texts_are_shown_and_do_not_run(browser, one):
    browser.show(one)
    draw_everything(browser)
    for place, question in enumerate(NASTY):
        assert browser.run(QUESTIONS)[place] == question
        browser.run(f"openExample({place})")
        assert browser.run("document.querySelector('.detail .q').textContent") == question
    browser.run("toggle(4)")
    assert browser.run("document.title") != "run"
    assert browser.run("document.querySelectorAll('img, b > script').length") == 0
    hover = browser.run("document.querySelector('[data-figure=heatmap]').layout.yaxis.ticktext.join(' ')")
    assert "<script" not in hover and "<img" not in hover and "&lt;script&gt;" in hover
    calm(browser)


def test_searching_and_filtering_narrow_the_table(browser, one):
    browser.show(one)
    assert browser.run(f"{QUESTIONS}.length") == 50
    assert browser.run("document.getElementById('more').textContent") == "Show all 70"
    change(browser, "search", "AUTHOR 3 entity 10", "input")
    assert browser.run(QUESTIONS) == ["Question number 10 about author 3?"]
    assert browser.run("document.getElementById('count').textContent") == "1 of 70 examples"
    change(browser, "search", "", "input")
    change(browser, "status", "none")
    assert browser.run(QUESTIONS) == ["Question number 69 about author 6?"]
    change(browser, "status", "all")
    calm(browser)


def test_sorting_by_score_puts_the_undefined_last_in_both_directions(browser, one):
    browser.show(one)
    last = "[...document.querySelectorAll('#table .row .meters')].map((cell) => cell.textContent)"
    browser.run("document.getElementById('more').click()")
    for direction in ("ascending", "descending"):
        browser.run("document.querySelector('#table [data-sort^=uds]').click()")
        sort = browser.run("document.querySelector('#table [aria-sort]').getAttribute('aria-sort')")
        scores = browser.run(last)
        assert sort == direction and len(scores) == 70 and scores[-1] == "n/m"
        assert scores[:-1] == sorted(scores[:-1], reverse=direction == "descending")
    browser.run("document.querySelector('#table [data-sort=question]').click()")
    assert browser.run("document.querySelector('#table [aria-sort] button').textContent") == "question"
    calm(browser)


def test_the_map_shows_no_knowledge_as_a_gap_and_can_be_reordered(browser, one):
    browser.show(one)
    cells = "document.querySelector('[data-figure=heatmap]').data[0].z"
    draw(browser, "heatmap")
    assert browser.run(f"{cells}[69].every((value) => value === null)")
    for choice in ("input", "cluster", "uds"):
        before = browser.run(f"JSON.stringify({cells})")
        change(browser, "order", choice)
        draw(browser, "heatmap")
        assert browser.run(f"JSON.stringify({cells})") != before
    browser.run("document.querySelector('[data-figure=heatmap]').scrollIntoView()")
    for height, words in ((0.002, "LER 0."), (0.998, "no knowledge, LER undefined")):
        box = "document.querySelector('[data-figure=heatmap] .nsewdrag').getBoundingClientRect()"
        browser.resize(1280, 1200)
        left, top = browser.run(f"[{box}.left + 0.75 * {box}.width, {box}.top + {height} * {box}.height]")
        for step in (0, 2):
            browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=left + step, y=top)
        label = "document.querySelector('[data-figure=heatmap] .hoverlayer').textContent"
        browser.wait_for(f"{label}.includes('{words}')")
    assert "Question number 69" in browser.run(label)
    browser.resize(1280)
    calm(browser)


def test_a_map_of_very_many_examples_draws_some_of_them(browser, one):
    browser.show(one)
    drawn = browser.run(
        "(() => { const many = { ...DATA.models[0], cluster: Array.from({ length: 5000 }, (_, i) => i) };"
        "  state.order = 'cluster'; const rows = mapRows(many); state.order = 'uds'; return rows; })()"
    )
    assert drawn == list(range(0, 5000, 3))


def test_an_example_opens_with_its_layers_and_closes(browser, several, audits):
    browser.show(several)
    chosen = int(browser.run("document.getElementById('model').value"))
    audit = list(audits.values())[chosen]
    browser.run("document.querySelectorAll('#table .open')[7].click()")
    browser.wait_for("document.querySelector('.detail .main-svg')")
    assert browser.run("document.querySelector('.detail mark').textContent") == "entity 7"
    cells = browser.run(
        "[...document.querySelectorAll('.split tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"
    )
    for layer, row in enumerate(cells):
        s1, s2 = float(audit.s1_delta[7, layer]), float(audit.s2_delta[7, layer])
        texts = [f"{s1:.3f}", f"{s2:.3f}", "\u2013", "\u2013"]
        if audit.ke_mask[7, layer]:
            texts[2:] = [f"{audit.ler[7, layer]:.3f}", f"{s2 / s1:.3f}"]
        assert row == [str(layer), *(text.replace("-", "\u2212") for text in texts)]
    assert browser.run("document.querySelectorAll('.strip > div:not(.head)').length") == 3
    browser.run("document.querySelectorAll('#table .open')[7].click()")
    assert browser.run("document.querySelectorAll('.detail').length") == 0
    calm(browser)


def test_choosing_a_model_changes_figures_and_table(browser, several):
    browser.show(several)
    lines = "document.querySelector('[data-figure=compare]').data.map((line) => [line.name, line.line.width])"
    labels = "document.querySelector('[data-figure=compare]').layout.annotations.map((label) => label.font.weight)"
    curve = "document.querySelector('[data-figure=layers]').data.find(({ name }) => name === 'LER').y"
    seen = []
    for chosen, place in (("npo", 0), ("ga", 2)):
        browser.run(f"document.querySelector('.models .pick[data-model=\"{place}\"]').click()")
        draw(browser, "compare", "layers")
        widths = dict(browser.run(lines))
        assert max(widths, key=widths.get) == chosen and len(set(widths.values())) == 2
        assert browser.run(labels).index(700) == place
        assert browser.run("document.querySelector('.current').textContent") == chosen
        assert browser.run("document.querySelector('.models [aria-current=true] .pick').textContent") == chosen
        seen.append(browser.run(f"JSON.stringify({curve})"))
    assert seen[0] != seen[1]
    calm(browser)


def test_differences_are_a_matrix_and_a_table(browser, large):
    matrix = "document.querySelector('[data-figure=differences]')"
    for width in (1280, 390):
        browser.show(large, width=width)
        draw(browser, "differences")
        words = browser.run(f"[...{matrix}.querySelectorAll('.ytick text')].map((label) => label.textContent)")
        assert words == ["m5", "m4", "m3", "m2", "m1", "m0"]
        cell = browser.run(f"{matrix}.data[0].text[0][5]")
        assert cell == "*" if width == 390 else cell.startswith("+0.") and cell.endswith("*")
        assert browser.run("document.querySelectorAll('#differences tbody tr').length") == 15
        calm(browser)


def test_a_phone_has_a_menu_of_sections_and_a_card_per_model(browser, several):
    browser.show(several, width=390)
    box = "document.querySelector('.models tbody tr {}').getBoundingClientRect()"
    top, bottom = (browser.run(f"{box.format('.score')}.{side}") for side in ("top", "bottom"))
    assert browser.run(f"{box.format('.interval')}.top") >= bottom - 2, "the interval under the score"
    assert top < browser.run(f"{box.format('.words .chip')}.top") < browser.run(f"{box.format('.bar')}.top")
    change(browser, "jump", "provenance")
    bar = "document.querySelector('.sections').getBoundingClientRect()"
    place = browser.run("document.querySelector('#provenance h2').getBoundingClientRect().top")
    assert browser.run(f"{bar}.bottom") <= place < 200
    browser.run("scrollTo(0, 0)")


@pytest.mark.parametrize("width", [1280, pytest.param(390, marks=pytest.mark.long)])
def test_opens_on_what_was_unlearned_and_the_bar_covers_no_heading(browser, audits, tmp_path, width):
    long = "Why is this question so long? " * 400
    audit = with_control(synthetic_audit(seed=1, erased=0.4, questions=[long]))
    skipped = [replace(audit.skipped[0], question=long, reason="no" * 3000)]
    npo = replace(audit, skipped=skipped, provenance={**audit.provenance, "command": "x" * 5000})
    retain = replace(npo, models={**npo.models, "unlearned": npo.models["retain"]}, s2_delta=npo.s1_delta)
    name = "npo_" + "unlearned_" * 30
    browser.open(write({"retain90": retain, name: npo}, tmp_path / "page.html"), width=width)
    assert browser.run("document.querySelector('.current').textContent") == name
    assert browser.run("document.querySelector('.models tbody tr').className") == "reference"
    assert browser.run("document.documentElement.scrollWidth") <= width
    tall = (
        "Math.max(...[...document.querySelectorAll('tr')].filter((row) => !row.closest('.models'))"
        ".map((row) => row.offsetHeight))"
    )
    assert browser.run(tall) < 170
    reason = "document.querySelector('#skipped td:last-child .clamp')"
    browser.run(f"{reason}.click()")
    assert browser.run(f"{reason}.offsetHeight") > 400
    bar = "document.querySelector('.sections').getBoundingClientRect()"
    for link in range(browser.run("document.querySelectorAll('.sections a').length")):
        if width == 1280:  # on a phone the menu has their place
            ends = browser.run(
                f"(({{ left, right }}) => [left, right])(document.querySelectorAll('.sections a')[{link}]"
                ".getBoundingClientRect())"
            )
            assert 0 <= ends[0] < ends[1] <= width, "reachable"
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


def test_a_large_report_opens_within_three_seconds(browser, large):
    browser.open(large)
    assert browser.work < 3
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
    browser.show(several)
    change(browser, "search", "entity 10", "input")
    words = browser.run("document.getElementById('printed').textContent")
    assert words.startswith('1 of 24 examples: those that match "entity 10". The others are not printed.')
    assert "choose another model in the file" in words
    assert browser.run("getComputedStyle(document.getElementById('printed')).display") == "none"
    change(browser, "search", "", "input")
    calm(browser)


def test_an_example_with_logit_lens_shows_both_views(browser, sites, tmp_path):
    lens = compared(sites[0], 5)
    browser.open(write(sites[0], tmp_path / "lens.html", lens=[lens]))
    browser.run("openExample(4)")
    browser.wait_for("document.querySelector('.detail .main-svg')")
    assert browser.run("document.querySelector('.detail .lens') === null")
    browser.run("openExample(5)")
    browser.wait_for("document.querySelector('.detail .lens .main-svg')")
    curves = browser.run("document.querySelector('.lens').data.map((trace) => trace.y)")
    s1, s2 = sites[0].s1_delta[5], sites[0].s2_delta[5]
    for place, deltas in {0: s1, 1: s2, 3: s1 / 2, 4: s2 / 8}.items():
        assert curves[place] == pytest.approx(deltas.tolist(), abs=1e-6)
    words = browser.run("document.querySelector('.lens').layout.annotations.map((note) => note.text)")
    assert f"UDS {sites[0].uds_per_example[5]:.2f}:" in words[0]
    assert f"Logit Lens {lens.lens_score:.2f}:" in words[1]
    calm(browser)
