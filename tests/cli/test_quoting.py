"""Names from somebody's data reach terminals, cards and tables as texts, not as commands, markup or formulas."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, strategies as st
from synthetic_audits import record, synthetic_audit

from uds_lens import meta
from uds_lens._cli.terminal import echo, print_audits, print_json, print_table, print_wrapped, say
from uds_lens._quoting import _quoted, csv_text, markdown, printable, read_quoted, unquoted
from uds_lens.report import model_card

HOSTILE = "npo\x1b]0;owned\x07\x9b31m\u202etxt.exe\u2066"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
FORMULAS = ["=HYPERLINK(1)", "+1-2", "-2+3", "@SUM(1)", "\t=1", "'=1", "''-x", "'tis", "-0.5", "1e-3", "npo, 1", "-inf"]


def test_everything_that_is_printed_is_cleaned(capsys) -> None:
    echo(HOSTILE)
    echo(HOSTILE, err=True)
    say(HOSTILE)
    print_wrapped(HOSTILE)
    print_table(["model", HOSTILE], [[HOSTILE, HOSTILE]])
    print_json({HOSTILE: HOSTILE})
    print_audits({HOSTILE: synthetic_audit(name=HOSTILE)})
    printed = "".join(capsys.readouterr())
    assert not OBEYED.search(printed) and printed.count("owned") >= 8


def test_json_stays_json(capsys) -> None:
    print_json({HOSTILE: [HOSTILE]})
    assert json.loads(capsys.readouterr().out) == {HOSTILE: [HOSTILE]}


def test_the_command_line_prints_through_one_function() -> None:
    files = (Path(__file__).resolve().parents[2] / "uds_lens" / "_cli").glob("*.py")
    printing = re.compile(r"(typer|click)\.echo\(|(?<!>>> )(?<![\w.])print\(")  # not in examples
    calls = {file.name: len(printing.findall(file.read_text(encoding="utf-8"))) for file in files}
    assert {name: n for name, n in calls.items() if n} == {"terminal.py": 1}


def test_names_in_other_scripts_stay() -> None:
    text = "José 张伟 \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \U0001f469\u200d\U0001f52c\tx\n"
    assert printable(text) == text


def test_a_model_card_holds_no_control_characters_and_no_markup() -> None:
    hostile = f"{HOSTILE}<script>alert(1)<script>[x](javascript:alert(1))"
    audit = synthetic_audit(name=hostile)
    roles = {role: record(hostile, role[0] * 32, 6) for role in audit.models}
    audit = replace(audit, models=roles, provenance={**audit.provenance, "versions": {hostile: hostile}})
    card = model_card(audit, dataset=f"x {hostile}", config=HOSTILE)
    assert not OBEYED.search(str(card)) and "owned" in card.text
    assert "<script" not in card.text and "](javascript" not in card.text


def test_cells_are_no_formulas_and_come_back_as_they_were(tmp_path: Path) -> None:
    frame = pd.DataFrame({"model": FORMULAS, "es": [-0.25] * len(FORMULAS), "method": "=cmd|x"})
    text = csv_text(frame)
    raw = pd.read_csv(io.StringIO(text), dtype={"model": str}, keep_default_na=False)
    for cell in [*raw["model"], *raw["method"]]:
        assert cell in ("-0.5", "1e-3", "-inf") or cell[:1] not in tuple("=+-@\t\r")
    assert raw["es"].tolist() == frame["es"].tolist(), "a negative number stays a number"
    (tmp_path / "models.csv").write_text(text, encoding="utf-8")
    read = meta.read_csv(tmp_path / "models.csv").frame
    assert read["model"].tolist() == FORMULAS and set(read["method"]) == {"=cmd|x"}


def test_no_cell_begins_a_row() -> None:
    """Programs that read tables end a row at a bare carriage return, too."""
    texts = ["npo\r=cmd|x", "a\nb", "c,d", 'e"f']
    frame = pd.DataFrame({"model": texts, "es": range(4)})
    read = read_quoted(pd.read_csv(io.StringIO(csv_text(frame), newline="")))
    assert read["model"].tolist() == texts and read["es"].tolist() == [0, 1, 2, 3]


@given(st.text(max_size=6, alphabet="'=+-@\t1.e a"))
def test_a_quoted_cell_comes_back(text: str) -> None:
    assert unquoted(_quoted(text)) == text


def test_markdown_cells_hold_no_markup() -> None:
    cell = markdown("a|b\n<script>x</script> [y](javascript:z) `c` \\")
    assert not set("<>|`[]\\\n") & set(cell) and "&#124;" in cell


def test_a_table_of_models_is_quoted_in_every_form(uds_lens, tmp_path: Path) -> None:
    name = "=1+1 <script>x</script> [y](javascript:z)"
    pd.DataFrame({"model": [name, "npo"], "es": [0.5, -0.25]}).to_csv(tmp_path / "models.csv", index=False)
    code, out, _ = uds_lens("table", tmp_path / "models.csv")
    assert code == 0 and f"'{name}" in out and ",-0.25" in out
    out = uds_lens("table", tmp_path / "models.csv", "--format", "md").out
    assert "<script" not in out and "](" not in out and "| -0.250 |" in out
    told = json.loads(uds_lens("table", tmp_path / "models.csv", "--json").out)
    assert [row["model"] for row in told["models"]] == [name, "npo"] and told["models"][1]["es"] == -0.25
    out = uds_lens("table", tmp_path / "models.csv", "--out", tmp_path / "t.csv", "--json").out
    assert json.loads(out) == {"file": str(tmp_path / "t.csv"), "models": 2, "notes": []}
    assert meta.read_csv(tmp_path / "t.csv").frame["es"].tolist() == pytest.approx([0.5, -0.25])


def test_a_folder_that_cannot_be_written_is_named(uds_lens, tmp_path: Path, monkeypatch) -> None:
    """`export` said a bare "[Errno 13]"."""
    synthetic_audit().save(tmp_path / "audit")

    def refused(self: Path, *args: object, **given: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refused)
    code, _, err = uds_lens("export", tmp_path / "audit", "--to", "open-unlearning", "--out", tmp_path / "new")
    assert code == 1 and err.startswith("error: cannot write '") and "Permission denied" in err
    assert "Errno" not in err
