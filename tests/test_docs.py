"""What the documentation shows is true: its code runs, its commands exist, its error messages are the real ones."""

import ast
import contextlib
import dataclasses
import io
import json
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest
import typer

import uds_lens as ul

REPOSITORY = Path(__file__).resolve().parents[1]
DOCS = REPOSITORY / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if page.parent.name != "api"]
TEXTS = [*PAGES, REPOSITORY / "README.md"]
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BASH = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: None, words_only: None) -> Path:
    """A folder with the files the pages speak of, made of the toy world."""
    world = ul.toy.load()
    (tmp_path / "ckpt").mkdir()
    for role in ("full", "retain", "npo", "rmu", "idknll"):
        (tmp_path / "ckpt" / role).symlink_to(world.checkpoints[role])
    (tmp_path / "ckpt" / "base").symlink_to(world.checkpoints["retain"])  # stands in for a model before fine-tuning
    (tmp_path / "ckpt" / "seed2").symlink_to(world.checkpoints["half"])  # stands in for a retain of another seed
    (tmp_path / "ckpt" / "edited").symlink_to(world.checkpoints["altpo"])  # stands in for a model with an edit
    for name, target in (("forget", "forget10"), ("retain", "retain90")):
        rows = json.loads((world.path / f"{name}.json").read_text(encoding="utf-8"))
        (tmp_path / f"{target}.json").write_text(json.dumps(rows[::10]), encoding="utf-8")
    small = dataclasses.replace(world, examples=world.examples[::10])
    monkeypatch.setattr("uds_lens.toy.load", lambda: small)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", [page for page in TEXTS if PYTHON.search(page.read_text(encoding="utf-8"))], ids=name)
@pytest.mark.filterwarnings("ignore::uds_lens.errors.UdsLensWarning")
def test_python_runs(page: Path, workplace: Path) -> None:
    shared: dict[str, object] = {}
    for place, block in enumerate(PYTHON.findall(page.read_text(encoding="utf-8"))):
        exec(compile(block, f"{page.name}, block {place}", "exec"), shared)


def commands() -> list[tuple[str, str]]:
    found = []
    for page in TEXTS:
        for block in BASH.findall(page.read_text(encoding="utf-8")):
            lines = block.replace("\\\n", " ").splitlines()
            found += [(name(page), line.strip()) for line in lines if line.startswith("uds-lens ")]
    return found


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_exist(page: str, line: str) -> None:
    from uds_lens._cli.app import app

    _, command, *words = shlex.split(line)
    known = typer.main.get_command(app).commands
    assert command in known
    options = {flag for parameter in known[command].params for flag in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options


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


def test_every_picture_has_one_for_dark_surroundings() -> None:
    pictures = {path.name for path in (DOCS / "images").iterdir() if path.suffix in (".png", ".svg")}
    light = {name for name in pictures if "_dark." not in name}
    assert pictures - light == {name.replace(".", "_dark.") for name in light}


def test_every_page_is_in_the_navigation() -> None:
    navigation = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        assert f": {page.relative_to(DOCS)}" in navigation


def test_number_of_the_metrics() -> None:
    compared = ul.meta.read_published().metrics["metric"].tolist()
    readme, guide = REPOSITORY / "README.md", DOCS / "guide" / "metrics.md"
    assert f"What do {len(compared) - 1} other unlearning metrics say?" in readme.read_text(encoding="utf-8")
    assert f"The {len(compared)} metrics of unlearning" in guide.read_text(encoding="utf-8")
    assert f"(UDS and {len(compared) - 1} others)" in guide.read_text(encoding="utf-8")
    assert "uds" in compared


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
            ("noised-1-at-10", "noise"),
        ):
            cells = re.search(rf"^\| {start}[^|]*\|(.*)\|$", told, re.MULTILINE)[1].replace("*", "").split("|")
            measured = rows.loc[name, ["uds", "output_depth", "host_depth", "returned"]]
            for cell, value in zip(cells, measured, strict=True):
                assert float(cell.replace("none", "0")) == pytest.approx(max(value, 0), abs=0.006)
