"""`uds-lens report`: saved audits, or folders of them, as one page."""

import json
from pathlib import Path

import pytest


@pytest.fixture
def saved(tmp_path: Path, make_audit) -> Path:
    for name, uds in (("npo", 0.25), ("rmu", 0.75)):
        make_audit(uds).save(tmp_path / "runs" / name)
    (tmp_path / "runs" / "notes").mkdir()
    return tmp_path / "runs"


def test_named_audits_go_on_one_page(saved: Path, uds_lens) -> None:
    out = saved / "page.html"
    code, printed, err = uds_lens(
        "report", saved / "npo", saved / "rmu", "--out", out, "--title", "Two & more"
    )
    assert (code, err) == (0, "")
    assert printed == f"2 audits in {out}: open it in a browser.\n"
    page = out.read_text(encoding="utf-8")
    assert "0.250" in page and "0.750" in page and "<h1>Two &amp; more</h1>" in page


def test_a_folder_stands_for_the_audits_in_it(saved: Path, uds_lens) -> None:
    code, printed, _ = uds_lens("report", saved, saved / "npo", "--out", saved / "page.html", "--json")
    assert code == 0
    assert list(json.loads(printed)["audits"]) == ["npo", "rmu"]


def test_a_folder_without_audits_is_named(saved: Path, uds_lens) -> None:
    code, _, err = uds_lens("report", saved / "notes", "--out", saved / "page.html")
    assert code == 1 and "no saved audit in" in err and err.count("\n") == 1
    assert not (saved / "page.html").exists()
