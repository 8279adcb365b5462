"""Every item of the papers has a row, and what a row names exists."""

import csv
import dataclasses
from collections import Counter
from pathlib import Path

import pytest
import typer.main

import uds_lens as ul
from uds_lens._cli.app import app

DOCS = Path(__file__).resolve().parents[1] / "docs"
ROWS = list(csv.DictReader((DOCS / "papers.csv").read_text(encoding="utf-8").splitlines()))


def test_each_item_has_a_row_and_the_page_counts_them() -> None:
    assert [int(row["item"]) for row in ROWS] == list(range(1, 199))
    counts = Counter(row["state"] for row in ROWS)
    told = (
        f"Of {len(ROWS)} items in them, {counts.pop('works')} work here, {counts.pop('differs')} differ, "
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


@pytest.mark.parametrize("name", sorted({row["shown by"] for row in ROWS}))
def test_what_shows_an_item_is_there(name: str) -> None:
    assert _exists(name)
