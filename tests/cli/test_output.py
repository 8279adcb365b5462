"""The terminal table: right words, right numbers, 80 columns, each warning once."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from synthetic_audits import synthetic_audit, with_control, with_retains

from uds_lens._cli.terminal import print_audits, print_audits_as_json
from uds_lens.results._verdict import score_in_words


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]):
    """`printed(audits)`: what is printed of them."""

    def show(audits: dict, **options: object) -> str:
        print_audits(audits, **options)
        return capsys.readouterr().out

    return show


def test_table_holds_the_numbers_and_says_what_is_undefined(make_audit, printed) -> None:
    audit = make_audit(0.2)
    lines = printed({"npo": audit, "rmu": make_audit(0.7), "undefined": audit.with_tau(10.0)}).splitlines()
    assert [line.split() for line in (lines[0], *lines[2:5])] == [
        ["model", "UDS", "95%", "interval", "N", "NaN", "layers", "verdict"],
        ["npo", "0.200", "0.079", "to", "0.682", "3", "1", "1.5", "of", "2", "undecided"],
        ["rmu", "0.700", *lines[3].split()[2:]],
        ["undefined", "NaN", "-", "0", "4", "0.0", "of", "2", "withheld", "(!!)"],
    ]
    exact = replace(audit, config=replace(audit.config, confidence=0.995))
    assert "99.5% interval" in printed({"npo": exact}) and "99.5% interval" in score_in_words(exact)


def test_what_only_some_audits_have_gets_tables_of_its_own(printed) -> None:
    audit = synthetic_audit(n=40)
    assert "Retained facts" not in (out := printed({"npo": audit})) and "Against each" not in out
    more = with_retains(with_control(audit, lost=0.1))
    own, kept_own = (torch.full((n,), math.log(p), dtype=torch.float64) for n, p in ((40, 0.25), (12, 0.5)))
    more = replace(more, s_unlearned=own, control_s_unlearned=kept_own)
    out = printed({"npo": audit, "rmu": more})
    assert max(map(len, out.splitlines())) <= 80
    kept, against = out.split("\nRetained facts\n")[1].split("Against each retain model")
    (row,) = (line.split() for line in kept.splitlines() if line.startswith("rmu "))
    found = more.damage_estimate
    low, high = found.interval
    losses = [f"{value:.3f}" for value in (found.forget_loss, found.control_loss, found.retain_loss)]
    assert row == ["rmu", f"{found.value:.3f}", f"{low:.3f}", "to", f"{high:.3f}", *losses, "0.905", "->", "0.500"]
    lines = out.splitlines()
    assert lines[0].split()[:6] == ["model", "UDS", "95%", "interval", "Prob", "N"], "no output depth"
    (npo, rmu) = (line.split()[5] for line in lines[2:4])
    assert (npo, rmu) == ("NaN", "0.250") and "(full: 0.905)" in " ".join(out.split())
    rows = [line.split() for line in against.splitlines() if line.startswith("rmu")]
    assert [row[1:3] for row in rows] == [
        [f"ckpt/retain-{i}", f"{uds:.3f}"] for i, uds in enumerate(more.uds_by_retain, start=1)
    ]


def test_damage_that_is_undefined_has_its_reason(make_audit, printed) -> None:
    known = with_control(synthetic_audit(n=40), lost=0.1)
    unknown = replace(known, control=replace(known.control, s_full=known.control.s_full - 9))
    reason = unknown.damage_estimate.reason
    assert reason and math.isnan(unknown.damage)
    assert f"npo: damage is NaN, because {reason}." in " ".join(printed({"npo": unknown, "rmu": known}).split())
    assert "damage is NaN" not in printed({"rmu": known})


def test_names_stay_apart_in_80_columns_without_colour(make_audit, printed) -> None:
    name = "unlearn_tofu_Llama-3.2-1B-Instruct_forget10_{}_lr2e-05_alpha5_epoch5".format
    named = {name(method): make_audit(0.2) for method in ("NPO", "UNDIAL", "UNDO")} | {"b[red]": make_audit(0.7)}
    lines = printed(named).splitlines()
    starts = ("...NPO_", "...UNDIAL_", "...UNDO_", "b[red] ")
    assert all(line.startswith(start) for line, start in zip(lines[2:6], starts, strict=True))
    assert max(map(len, lines)) <= 80 and "\x1b" not in "".join(lines)


def test_warnings_come_once_with_the_names_they_are_about(make_audit, printed) -> None:
    audits = {"npo": make_audit(0.2), "rmu": make_audit(0.7)}
    text = " ".join(printed(audits).split())
    assert text.count("Only 3 examples are measurable") == 1 and "! all: Only 3 examples" in text
    assert "! rmu: Only 3 examples" in " ".join(printed(audits, cautions_of=["rmu"]).split())


def test_json_is_strict_and_names_the_directory(make_audit, capsys: pytest.CaptureFixture[str]) -> None:
    print_audits_as_json({"npo": make_audit(0.25).with_tau(10.0)}, {"npo": Path("runs/npo")})
    text = capsys.readouterr().out
    (audit,) = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))["audits"]
    assert audit["uds"] is None
    assert (audit["name"], audit["directory"]) == ("npo", str(Path("runs/npo")))
    assert audit["config"]["tau"] == 10.0


def test_no_color(make_audit, printed, monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    for word, marked in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", word)
        assert ("\x1b" in printed({"npo": make_audit(0.2)})) is marked
