"""The commands that a report prints under "What next" do what they say, in the folder where the audits were made."""

import html
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

import uds_lens as ul
from uds_lens._cli import main

SHORTER = {"elicit": ["--limit", "2", "--samples", "0", "--max-new-tokens", "4"]}
"""What is added to a command that would take long; every other one runs as printed."""


def run(command: str) -> None:
    program, *words = sys.argv[:] = shlex.split(command)  # results record the command they were made by
    assert program == "uds-lens"
    with pytest.raises(SystemExit) as done:
        main([*words, *SHORTER.get(words[0], ())])
    assert done.value.code in (0, None), command


def steps(report: str) -> list[str]:
    printed = re.findall(r'<pre class="command">(.*?)</pre>', Path(report).read_text(encoding="utf-8"), re.DOTALL)
    return [line for block in printed for line in html.unescape(re.sub(r"</?span>", "", block)).splitlines()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: None) -> Path:
    """A folder with two models, one of them in a path with a space, and six rows to forget and to retain."""
    world = ul.toy.load()
    (tmp_path / "my models").mkdir()
    for role, place in {"full": "full", "retain": "retain", "npo": "npo", "rmu": "my models/rmu"}.items():
        (tmp_path / place).symlink_to(world.checkpoints[role])
    for source, target in {"forget": "forget.json", "retain": "retained.json"}.items():
        rows = json.loads((world.path / f"{source}.json").read_text(encoding="utf-8"))
        (tmp_path / target).write_text(json.dumps(rows[::8][:6]), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [])
    return tmp_path


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::uds_lens.errors.UdsLensWarning")
def test_commands_after_audits_of_the_command_line_run_as_printed(folder: Path) -> None:
    run(
        "uds-lens audit --full full --retain retain --model npo --model 'my models/rmu' --examples forget.json "
        "--limit 4 --out 'my runs'"
    )
    run("uds-lens report 'my runs' --out first.html")
    commands = steps("first.html")
    assert {command.split()[1] for command in commands} == {"audit", "metrics", "elicit", "report"}
    for command in commands:
        run(command)
    run("uds-lens report audits-again --metrics metrics --elicitation elicited --out last.html")
    assert steps("last.html") == []


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::uds_lens.errors.UdsLensWarning")
def test_commands_after_an_audit_in_python_run_as_printed(folder: Path) -> None:
    audit = ul.DepthAudit.run("full", "retain", "my models/rmu", ul.load_examples("forget.json"))
    audit.save("audits")
    ul.report.write(audit, "first.html")
    for command in steps("first.html"):
        run(command)
