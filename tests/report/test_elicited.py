"""What came out, beside how deep it lies: which audit an elicitation belongs to, what the page holds, how it looks."""

import json
from dataclasses import replace

import pytest
from synthetic_audits import synthetic_audit
from synthetic_elicitations import synthetic_elicitation

from uds_lens.errors import ConfigError
from uds_lens.report import render, write
from uds_lens.report._payload import elicited_beside, elicited_figures, elicited_values

from .conftest import NASTY
from .test_browser import TOO_WIDE, calm, draw_everything

ROWS = "[...document.querySelectorAll('#elicited-rows tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"


@pytest.fixture(scope="session")
def elicitation(audits):
    return synthetic_elicitation(audits["npo"], hostile=NASTY)


@pytest.fixture(scope="session")
def with_elicitation(audits, elicitation, tmp_path_factory):
    return write(audits, tmp_path_factory.mktemp("report") / "elicited.html", elicitations=[elicitation])


def test_an_elicitation_belongs_to_the_audit_of_its_model(audits, elicitation, unchecked):
    assert elicited_beside(audits, [elicitation]) == {"npo": elicitation}
    others = [replace(row, question=f"Not {row.question}") for row in elicitation.examples]
    for stranger, words in (
        (synthetic_elicitation(synthetic_audit(seed=99)), "belongs to none"),
        (replace(elicitation, examples=others), "belongs to none"),
        ({}, "got dict"),
    ):
        with pytest.raises(ConfigError, match=words):
            elicited_beside(audits, [stranger])


def test_numbers_of_the_page_are_those_of_the_tables(audits, elicitation):
    told = elicited_values(audits["npo"], elicitation)
    table = elicitation.summary()
    assert [row["probe"] for row in told["rows"]] == table["probe"].tolist()
    for row, known in zip(told["rows"], table.to_dict("records"), strict=True):
        assert row["scores"] == [f"{known[role]:.2f}" for role in ("full", "retain", "unlearned")]
        assert row["beyond"].startswith(f"+{known['beyond_retain']:.2f} (")
        assert row["real"] == (known["p_holm"] < 0.05)
    assert "softgcg(target=answer)" not in {row["probe"] for row in told["rows"]}
    assert [line[0] for line in told["ledger"]] == [probe.name for probe in elicitation.probes]
    assert told["ledger"][1][4] == "1: the entity cannot be located"
    assert set(told["said"]) == {str(place) for place in range(len(audits["npo"].examples))}
    first = {block["name"]: block["texts"] for block in told["said"]["1"]}
    assert [role for role, *_ in first["plain, greedy"]] == ["unlearned", "retain", "full"]
    assert first["plain, greedy"][0][1] == " ".join(NASTY[1].split())
    best = max(elicitation.recall("full", "cloze", "sampled")[1])
    assert first["cloze, best of 3 samples"][2][2] == f"{best:.2f}"
    assert "softgcg(target=answer), greedy (given the answer)" in first


def test_without_retain_there_is_nothing_beyond_it(audits, elicitation):
    alone = replace(
        elicitation,
        models={"unlearned": elicitation.models["unlearned"]},
        parts=[part for part in elicitation.parts if part.role == "unlearned"],
    )
    told = elicited_values(audits["npo"], alone)
    assert told["rows"][0]["beyond"] == "" and told["rows"][0]["share"] == "none"
    assert told["warnings"][0].startswith("No retain model: ")
    assert elicited_figures(audits["npo"], alone)["depth_elicited"] is None


def test_a_page_without_elicitation_has_no_such_section(audits, one):
    assert 'id="elicited"' not in one.read_text(encoding="utf-8")
    assert json.dumps(NASTY[0])[1:-1] not in render(audits["npo"], elicitations=[synthetic_elicitation(audits["npo"])])


@pytest.mark.long  # draws in a Chromium
@pytest.mark.parametrize(("width", "dark"), [pytest.param(1280, False, marks=pytest.mark.long), (390, True)])
def test_the_section_fits_and_goes_with_the_model(browser, with_elicitation, elicitation, width, dark):
    browser.open(with_elicitation, width=width, dark=dark)
    link = "getComputedStyle(document.querySelector('.sections a[href=\"#elicited\"]')).display"
    browser.run("chooseModel(1)")
    assert browser.run("document.getElementById('elicited').hidden") and browser.run(link) == "none"
    browser.run("chooseModel(0)")
    assert browser.run(link) != "none"
    draw_everything(browser)
    rows = browser.run(ROWS)
    assert [row[0] for row in rows] == elicitation.summary()["probe"].tolist()
    assert browser.run("document.querySelectorAll('#elicited-notes li').length") == len(elicitation.warnings)
    browser.run("document.querySelector('#elicited details').open = true")
    browser.run("openExample(0)")
    said = browser.run("[...document.querySelectorAll('.said dd')].map((e) => e.textContent)")
    assert said[0] == " ".join(NASTY[0].split())
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(TOO_WIDE) == []
    assert browser.run("document.title") != "run"
    calm(browser)
