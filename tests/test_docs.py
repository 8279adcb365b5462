"""What the documentation shows is true: its code runs, its commands and names exist, its messages are the real ones."""

import ast
import contextlib
import csv
import dataclasses
import io
import json
import os
import re
import shlex
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
import typer
from open_unlearning_saves import write_saves
from tiny_models import some_now

import uds_lens as ul
from uds_lens._cli.app import app
from uds_lens.models._anatomy import FINAL_NORM_NAMES

REPOSITORY = Path(__file__).resolve().parents[1]
DOCS = REPOSITORY / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if page.parent.name != "api"]
TEXTS = [*PAGES, REPOSITORY / "README.md"]
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWING = [page for page in TEXTS if BLOCK.search(page.read_text(encoding="utf-8"))]
"""Pages with code or commands."""

PARSED_ONLY = {
    "audit --open-unlearning": "models from the Hub",
    "audit --watch": "waits for checkpoints of a training",
    "dashboard models.csv": "tables that only a reader has",
    "dashboard published --measured": "a run of published models",
    "doctor --full my/full": "its class comes with the checkpoint",
    "doctor --full package:": "a package that need not be there",
    "meta": "tables that only a reader has",
    "metrics --model ckpt/npo --retain ckpt/retain --full ckpt/full --examples tofu:": "TOFU, which is not in a clone",
    "published compare": "a run of published models",
    "published run": "models from the Hub",
    "rank published --measured": "a run of published models",
    "rank saves/eval": "evaluations of the reader's own",
    "relearn --model ckpt/npo --retain": "TOFU, which is not in a clone",
    "sweep": "trains for minutes; tests/cli/test_sweep.py runs one",
}
"""Commands that are not run, by their first words, and why: their words are parsed, to the last value."""

SHORTER = {
    "elicit": ["--limit", "1", "--max-new-tokens", "2"],
    "finetune": ["--epochs", "1", "--warmup-epochs", "0"],
    "metrics --model ckpt/npo --model ckpt/rmu": ["--limit", "2", "--max-new-tokens", "2", "--fluency", "heuristic"],
}
"""What is added to a command that would take long; every other one runs as printed."""

AUDIT = "uds-lens audit --full ckpt/full --retain ckpt/retain --model ckpt/npo --examples forget10.json"
FIRST = {
    "report": [f"{AUDIT} --model ckpt/rmu --out runs"],
    "saved": ["uds-lens elicit --model ckpt/npo --examples forget10.json --probe plain --out runs/npo-texts"],
}
"""Commands of other pages that a page builds on."""


def name(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: None, words_only: None) -> Path:
    """A folder with the files the pages speak of, made of the toy world."""
    world = ul.toy.load()
    (tmp_path / "ckpt").mkdir()
    stand_ins = {"base": "retain", "seed2": "half", "seed3": "half", "before": "full", "edited": "altpo"}
    for role in ("full", "retain", "npo", "rmu", "idknll", *stand_ins):
        (tmp_path / "ckpt" / role).symlink_to(world.checkpoints[stand_ins.get(role, role)])
    for name, role in {"full": "full", "retain": "retain", "half": "half", "candidate": "npo"}.items():
        (tmp_path / name).symlink_to(world.checkpoints[role])
    (tmp_path / "user").symlink_to(tmp_path / "ckpt")
    files = {"forget": "forget10 forget some others edited", "retain": "retain90 retain kept keep"}
    for source, targets in files.items():
        rows = json.loads((world.path / f"{source}.json").read_text(encoding="utf-8"))
        for target in targets.split():
            (tmp_path / f"{target}.json").write_text(json.dumps(rows[::10]), encoding="utf-8")
    write_saves(tmp_path / "saves")
    small = dataclasses.replace(world, examples=world.examples[::10])
    monkeypatch.setattr("uds_lens.toy.load", lambda: small)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("page", some_now([DOCS / "guide" / "audit.md"], of=SHOWING), ids=name)
@pytest.mark.filterwarnings("ignore::uds_lens.errors.UdsLensWarning")
def test_a_page_runs_from_top_to_bottom(page: Path, workplace: Path) -> None:
    shared: dict[str, object] = {}
    for line in FIRST.get(page.stem, ()):
        run(line)
    for place, (language, block) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8"))):
        if language == "python":
            exec(compile(block, f"{page.name}, block {place}", "exec"), shared)
            continue
        for line in lines_of(block):
            run(line.strip())


def lines_of(block: str) -> list[str]:
    return block.replace("\\\n", " ").splitlines()


def run(line: str) -> None:
    """Run a command of ours, in this process; of others only the words are there."""
    from uds_lens._cli import main
    from uds_lens._cli.app import app

    program, *words = shlex.split(line, comments=True) or [""]
    if program != "uds-lens":
        return
    words = [os.path.expanduser(word) for word in words]  # as a shell does
    if any(" ".join(words).startswith(start) for start in PARSED_ONLY):
        command = typer.main.get_command(app).commands[words[0]]
        command.make_context(words[0], words[1:])
        return
    if "--out" in words and (out := Path(words[words.index("--out") + 1])).is_symlink():
        out.unlink()  # not into the toy world
    more = [option for start, options in SHORTER.items() if " ".join(words).startswith(start) for option in options]
    with pytest.raises(SystemExit) as done:
        main([*words, *more])
    assert done.value.code in (0, None), line


@pytest.mark.parametrize("page", [page for page in TEXTS if "uds-lens " in page.read_text(encoding="utf-8")], ids=name)
def test_commands_have_such_options_and_python_compiles(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from uds_lens._cli.app import app

    text = page.read_text(encoding="utf-8")
    within = re.findall(r"`uds-lens ([^`\n]+)`", text)
    lines = [*within]
    for language, block in BLOCK.findall(text):
        if language == "python":
            compile(block, name(page), "exec")
            continue
        words = (shlex.split(line, comments=True) for line in lines_of(block))
        lines += [shlex.join(rest) for program, *rest in filter(None, words) if program == "uds-lens"]

    monkeypatch.chdir(tmp_path)
    for data in ("forget.json", "keep.json"):
        Path(data).write_text("[]", encoding="utf-8")
    group = typer.main.get_command(app)
    for line in lines:
        program, *words = shlex.split(line.replace(" ...", ""))
        command = group if program.startswith("--") else group.commands[program]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert {word for word in (program, *words) if word.startswith("--")} <= known, line
        if line in within and "--out" in words and "--model" in words:  # a whole command: its values are parsed, too
            command.make_context(program, words)


def literals() -> str:
    """All texts of the package, with an ellipsis for each value that is put in."""
    texts = []
    for path in (REPOSITORY / "uds_lens").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                texts.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(" ".join(text.split()) for text in texts)


MESSAGES = re.findall(r"^### `(.+)`$", (DOCS / "faq.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_error_messages_are_the_real_ones() -> None:
    said = literals()
    assert len(MESSAGES) > 15
    parts = [part.strip() for message in MESSAGES for part in message.split("…") if len(part.strip()) > 3]
    assert [part for part in parts if part not in said] == []


@pytest.mark.parametrize("page", TEXTS, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
    for target in re.findall(r'\b(?:src|srcset)="([^":]+)"', page.read_text(encoding="utf-8")):
        assert (page.parent / target).is_file(), target


def test_every_page_is_in_the_navigation() -> None:
    navigation = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        assert f": {page.relative_to(DOCS)}" in navigation


def test_the_page_on_own_models_names_every_final_norm() -> None:
    told = (DOCS / "guide" / "own-model.md").read_text(encoding="utf-8")
    assert [name for name in FINAL_NORM_NAMES if f"`{name}`" not in told] == []


def test_number_of_the_metrics() -> None:
    compared = ul.meta.read_published().metrics["metric"].tolist()
    readme, guide = REPOSITORY / "README.md", DOCS / "guide" / "metrics.md"
    assert f"What do {len(compared) - 1} other unlearning metrics say?" in readme.read_text(encoding="utf-8")
    assert f"The {len(compared)} metrics of unlearning" in guide.read_text(encoding="utf-8")
    assert f"(UDS and {len(compared) - 1} others)" in guide.read_text(encoding="utf-8")
    assert "uds" in compared


@pytest.mark.long
def test_numbers_of_the_readme() -> None:
    told = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    program, printed = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", told, re.DOTALL).groups()
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(program, "README.md", "exec"), {})
    assert output.getvalue() == printed
    results = REPOSITORY / "studies" / "transplant" / "results" / "smollm2.csv"
    if results.is_file():
        rows = pd.read_csv(results).set_index("model")
        for name, start in (
            ("half", "`half`, never"),
            ("undial", "UNDIAL"),
            ("rmu-12", "RMU"),
            ("noised-1-at-10", "`full`, one of 30"),
        ):
            cells = re.search(rf"^\| {start}[^|]*\|(.*)\|$", told, re.MULTILINE)[1].replace("*", "").split("|")
            measured = rows.loc[name, ["uds", "output_depth", "host_depth", "returned"]]
            for cell, value in zip(cells, measured, strict=True):
                assert float(cell.replace("none", "0")) == pytest.approx(max(value, 0), abs=0.006)


PAPERS = list(csv.DictReader((DOCS / "papers.csv").read_text(encoding="utf-8").splitlines()))


def test_each_item_has_a_row_and_the_page_counts_them() -> None:
    assert [int(row["item"]) for row in PAPERS] == list(range(1, 199))
    counts = Counter(row["state"] for row in PAPERS)
    told = (
        f"Of {len(PAPERS)} items in them, {counts.pop('works')} work here, {counts.pop('differs')} differ, "
        f"{counts.pop('not tried')} were not tried because they need the published models, and "
        f"{counts.pop('not here')} are not here"
    )
    assert not counts and told in (DOCS / "papers.md").read_text(encoding="utf-8")


def _exists(name: str) -> bool:
    if name.startswith("docs/"):
        return (DOCS.parent / name).is_file()
    if name.startswith("uds-lens "):
        _, command, *words = name.split()
        params = typer.main.get_command(app).commands[command].params  # type: ignore[attr-defined]
        options = {option for parameter in params for option in parameter.opts}
        return {word for word in words if word.startswith("--")} <= options
    thing: object = ul
    for part in name.split(".")[1:]:
        if not hasattr(thing, part) and dataclasses.is_dataclass(thing):
            return part in {field.name for field in dataclasses.fields(thing)}
        thing = getattr(thing, part)
    return True


@pytest.mark.parametrize("name", sorted({row["shown by"] for row in PAPERS}))
def test_what_shows_an_item_is_there(name: str) -> None:
    assert _exists(name)
