"""Nothing that this library did not write is overwritten, and that shows before any work is done."""

import os
import sys
from pathlib import Path

import pytest
from altered_results import results

import uds_lens as ul
from uds_lens._storage import files
from uds_lens._storage.files import atomic_write_marked, check_writable, format_of, generator, located
from uds_lens._storage.records import with_checksum
from uds_lens.errors import ResultFormatError, StorageError

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01"


def test_nothing_and_an_empty_directory_are_free(tmp_path):
    (tmp_path / "empty").mkdir()
    assert check_writable(tmp_path / "empty", directory=True) == tmp_path / "empty"
    check_writable(tmp_path / "new" / "deep", directory=True)
    check_writable(tmp_path / "new" / "a.json", directory=False)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"], "looking makes nothing"
    assert str(located("~nobody-of-that-name/x")) == "~nobody-of-that-name/x", "a home that does not exist is a name"


PAGE = b'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n%s\n<title>x</title></head></html>'
TAG = b'<meta name="generator" content="uds_lens 0.1.0">'
FOREIGN = [
    b"",
    b"hello",
    b'{"format": "mine"}',
    b'[{"question": "Who?"}]',
    PNG,
    b"# made with uds_lens\nmodel,uds\n",
    b"<p>made with uds_lens</p>" + TAG,
    PAGE % b"<script>'" + TAG,
    PAGE % b'<meta name="generator" content="uds_lens">',
    b'{"notes": {"format": "uds_lens.DepthAudit"}}',
    b"<head>" + b'<meta name="a">  \n ' * 400,
]


@pytest.mark.parametrize("content", FOREIGN)
def test_foreign_files_are_refused(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(
        ResultFormatError, match="not written by uds_lens, or was changed afterwards: choose another name"
    ):
        check_writable(tmp_path / "a", directory=False)
    with pytest.raises(ResultFormatError, match="exists and is not a saved result"):
        check_writable(tmp_path / "a", directory=True)


def test_what_was_written_here_is_known(tmp_path):
    (tmp_path / "a.html").write_bytes(PAGE % generator().encode())
    check_writable(tmp_path / "a.html", directory=False)
    content = with_checksum({"format": "uds_lens.MetricResults", "version": 2})
    (tmp_path / "a.json").write_bytes(content)
    check_writable(tmp_path / "a.json", directory=False, format="uds_lens.MetricResults")
    with pytest.raises(ResultFormatError, match="was not written by uds_lens"):
        check_writable(tmp_path / "a.json", directory=False)  # no page replaces a result


def test_the_working_directory_and_what_holds_it_are_no_places(tmp_path, monkeypatch):
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    for place in (".", "..", "../inner", tmp_path / "inner", "/"):
        with pytest.raises(StorageError, match="it contains the working directory"):
            check_writable(place, directory=True)
    assert check_writable(".", directory=True, replaced=False) == Path()


def test_a_result_of_another_kind_is_no_free_place(tmp_path):
    (tmp_path / "run").mkdir()
    for place, directory in ((tmp_path / "run" / "manifest.json", False), (tmp_path / "run", True)):
        (tmp_path / "run" / "manifest.json").write_bytes(with_checksum({"format": "uds_lens.Baseline", "version": 2}))
        assert format_of(place) == "uds_lens.Baseline"
        check_writable(place, directory=directory, format="uds_lens.Baseline")
        with pytest.raises(ResultFormatError, match="contains a saved Baseline: choose another path"):
            check_writable(place, directory=directory, format="uds_lens.DepthAudit")


@pytest.mark.parametrize("name", ["table.csv", "t" * 240 + ".csv"])
def test_a_table_is_known_by_the_mark_beside_it(tmp_path, name, monkeypatch):
    place = tmp_path / name
    for text in ("model,uds\nnpo,0.5\n", "model,uds\n"):
        atomic_write_marked(check_writable(place, directory=False), text)
    (mark,) = tmp_path.glob(".*.uds_lens")
    for spoil in (
        lambda: place.write_text("model,uds\nnpo,0.6\n"),  # edited
        lambda: mark.write_text('{"format": "uds_lens.written", "sha256": ' + "[" * 5000),
        mark.unlink,  # copied there without its mark
    ):
        atomic_write_marked(place, "model,uds\n")
        spoil()
        with pytest.raises(ResultFormatError, match="was not written by uds_lens, or was changed afterwards"):
            check_writable(place, directory=False)

    atomic_write_marked(place, "old")
    write = files.atomic_write_bytes
    monkeypatch.setattr(files, "atomic_write_bytes", lambda path, b: sys.exit(9) if path == place else write(path, b))
    with pytest.raises(SystemExit):  # killed between mark and table
        atomic_write_marked(place, "new")
    assert check_writable(place, directory=False).read_text() == "old"
    place.unlink()
    check_writable(tmp_path, directory=True)  # a mark alone is nothing


def test_a_table_that_two_processes_write_at_once_stays_known(tmp_path, monkeypatch):
    place, write, others = tmp_path / "table.csv", files.atomic_write_bytes, ["b"]

    def late(path, content):
        if path == place and others:  # the other is between our mark and our table
            atomic_write_marked(place, others.pop())
        write(path, content)

    monkeypatch.setattr(files, "atomic_write_bytes", late)
    known = files._known  # the other has read the mark before we wrote it
    monkeypatch.setattr(files, "_known", lambda path: known(path) if others or place.exists() else [])
    atomic_write_marked(place, "a")
    assert check_writable(place, directory=False).read_text() == "a"


def test_a_place_that_cannot_be_written_is_told_at_once(tmp_path, monkeypatch):
    with pytest.raises(ResultFormatError, match="is a directory: choose a file in it"):
        check_writable(tmp_path, directory=False)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(StorageError, match="no permission in"):
        check_writable(tmp_path / "run", directory=True)


NOWHERE = {"forget": [{"question": "Who?", "answer": "Ada."}]}
SAVES = {
    "audit": lambda made, place: made["audit"].save(place),
    "baseline": lambda made, place: made["baseline"].save(place),
    "metrics": lambda made, place: made["metrics.json"].save(place),
    "elicitation": lambda made, place: made["elicitation"].save(place),
    "study": lambda made, place: ul.study.run(made["study"], place),
    "unlearn": lambda made, place: ul.unlearning.unlearn("nowhere", **NOWHERE, method="ga", out=place),
    "relearn": lambda made, place: ul.unlearning.relearn("nowhere", **NOWHERE, out=place),
    "quantise": lambda made, place: ul.unlearning.quantise("nowhere", out=place),
    "report.html": lambda made, place: ul.report.write(made["audit"], place),
    "dashboard.html": lambda made, place: ul.report.dashboard(
        ul.meta.read_published(), place, options=ul.report.DashboardOptions(n_resamples=0)
    ),
    "figure.html": lambda made, place: ul.plots.save_figure(made["audit"].plot_tau(), place),
    "figure.png": lambda made, place: ul.plots.save_figure(made["audit"].plot_tau(), place),
    "annotations": lambda made, place: ul.annotate(NOWHERE["forget"], by="answer").save(place),
    "review": lambda made, place: ul.annotate(NOWHERE["forget"], by="answer").review(place),
}


@pytest.mark.parametrize("name", SAVES)
def test_no_save_writes_over_what_it_did_not_write(name, made_once, tmp_path, words_only):
    place = tmp_path / name
    place.write_text("mine")
    with pytest.raises(
        ResultFormatError, match=r"is not a saved result|was not written by uds_lens|save with overwrite=True"
    ):
        SAVES[name](made_once, place)
    assert place.read_text() == "mine"
    with pytest.raises(StorageError, match=r"is a file\. Choose another path"):
        SAVES[name](made_once, place / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    if name in ("report.html", "figure.html"):  # and over its like
        place.unlink()
        for _ in range(2):
            SAVES[name](made_once, place)


@pytest.fixture(scope="module")
def made_once():
    return results()
