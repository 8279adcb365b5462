"""Texts that would be markup if any step forgot to escape, in every field: the page has the elements it has without."""

import random
from dataclasses import replace

import pytest
from hostile_reports import PIECES, hostile_audit
from hypothesis import Phase, given, settings, strategies as st

from uds_lens.annotation._annotations import Annotations, Finding, review_page
from uds_lens.report import DashboardOptions, render
from uds_lens.report._dashboard import page_of
from uds_lens.report._dashboard_tables import gather
from uds_lens.results import DepthAudit

from . import model_tables as made
from .html_pages import Page

QUICK = {"derandomize": True, "database": None, "phases": [Phase.generate]}
"""A page takes a moment: what fails is shown as it was found."""

pytestmark = pytest.mark.usefixtures("figures")

WORDS = ("question", "answer", "prefix", "entity", "type", "subject")


def same_elements(page: str, plain: str) -> Page:
    """The page, which has the elements of the plain one."""
    found, expected = Page(page), Page(plain)
    assert found.elements == expected.elements
    assert found.active == expected.active
    assert found.others == expected.others
    assert found.scripts[1:] == expected.scripts[1:], "only the first, which is data, holds texts"
    return found


@pytest.fixture(scope="module", autouse=True)
def small_library():
    """A word in the place of plotly's script, which has four megabytes and no text of ours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("plotly.offline.get_plotlyjs", lambda: "plotly")
        yield


def harmless(audit: DepthAudit, known: dict[object, str]) -> DepthAudit:
    """The same audit with other texts, equal where texts are equal."""

    def word(text):
        return text if text is None else known.setdefault(text, f"word{len(known)}")

    told = audit.provenance
    return replace(
        audit,
        examples=[
            replace(each, id=word(each.id), **{name: word(getattr(each, name)) for name in WORDS})
            for each in audit.examples
        ],
        skipped=[
            replace(each, id=word(each.id), reason=word(each.reason), question=word(each.question))
            for each in audit.skipped
        ],
        models={
            role: replace(record, name=word(record.name), architecture=word(record.architecture))
            for role, record in audit.models.items()
        },
        provenance={
            **told,
            "command": word(told["command"]),
            "first_prompt": word(told["first_prompt"]),
            "host": {"x": "y"},
        },
    )


@settings(max_examples=3, **QUICK)
@given(
    seed=st.integers(0, 2**32),
    names=st.lists(st.sampled_from(PIECES) | st.text(min_size=1), min_size=1, max_size=2, unique=True),
    title=st.sampled_from(PIECES) | st.text(),
)
def test_no_text_of_an_audit_becomes_markup(seed: int, names: list[str], title: str) -> None:
    chance = random.Random(seed)
    audits = {name: hostile_audit(chance, number) for number, name in enumerate(names)}
    known: dict[object, str] = {}
    plain = {f"name{n}": harmless(audit, known) for n, audit in enumerate(audits.values())}
    page = same_elements(render(audits, title=title), render(plain, title="title"))
    assert title in page.texts
    data = page.data
    assert [model["name"] for model in data["models"]] == names
    for model, audit in zip(data["models"], audits.values(), strict=True):
        rows = data["sets"][model["set"]]
        at = [rows["fields"].index(name) for name in WORDS]
        assert [[row[i] for i in at] for row in rows["rows"]] == [
            [getattr(example, name) for name in WORDS] for example in audit.examples
        ]


@settings(max_examples=2, **QUICK)
@given(
    texts=st.lists(st.sampled_from(PIECES) | st.text(min_size=1), min_size=3, max_size=3, unique=True),
    title=st.sampled_from(PIECES),
)
def test_no_name_of_a_model_becomes_markup(texts: list[str], title: str) -> None:
    frame = made.models(12)
    plain = frame.assign(method="mine", config="set", model=[f"model {n}" for n in range(12)])
    hostile = frame.assign(method=f"m{texts[0]}", config=f"c{texts[1]}", model=[f"{texts[2]} {n}" for n in range(12)])
    page = same_elements(
        page_of(gather(hostile, options=DashboardOptions(title=title, n_resamples=5))),
        page_of(gather(plain, options=DashboardOptions(title="title", n_resamples=5))),
    )
    data = page.data
    column = data["models"]["fields"].index("model")
    assert sorted(row[column] for row in data["models"]["rows"]) == sorted(hostile["model"])


@settings(max_examples=10, **QUICK)
@given(seed=st.integers(0, 2**32))
def test_no_answer_under_review_becomes_markup(seed: int) -> None:
    examples = tuple(hostile_audit(random.Random(seed), 0).examples)
    ours = tuple(replace(each, **dict.fromkeys(WORDS, "word")) for each in examples)

    def page(rows):
        found = Annotations(rows, tuple(Finding("none", "<b>why</b>") for _ in rows), "answer")
        told = Page(review_page(found))
        return [each for each in told.elements if each[0] not in ("mark", "/mark", "span", "/span")], told

    (elements, told), (expected, _) = page(examples), page(ours)
    assert elements == expected
    assert not told.scripts and not told.active
