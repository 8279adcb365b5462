"""Who imports whom: no circle between rooms but one declared call, and only small ones between files."""

import ast
import functools
import inspect
import re
from pathlib import Path

import pytest

from uds_lens import plots

PACKAGE = Path(__file__).resolve().parents[1] / "uds_lens"

DECLARED = ("uds_lens.results.depth_audit", "uds_lens.audit.stages")
"""`DepthAudit.run` calls the room above: the one import upwards."""

LARGEST_CIRCLE = 5
"""Files."""


@functools.cache
def modules() -> dict[str, Path]:
    """Every file of the package by its dotted name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path, known: set[str]) -> set[str]:
    """Files a file imports, lazily or not, but for type checkers.

    A name from a package that only re-exports counts as the file it comes from: whoever imports the package's face
    does not depend on all of it.
    """
    found = set()
    for node in at_run_time(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in known}
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            found |= {home(node.module, alias.name, known) for alias in node.names}
    return found


def at_run_time(node: ast.AST):
    """All nodes outside `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        for_checkers = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        for each in child.orelse if for_checkers else [child]:
            yield each
            yield from at_run_time(each)


def home(module: str, name: str, known: set[str]) -> str:
    """The file that `from module import name` is about: through re-exports, as far as they go."""
    if f"{module}.{name}" in known:
        return f"{module}.{name}"
    path = modules()[module]
    if path.name != "__init__.py":
        return module
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return home(node.module, alias.name, known)
    return module


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Strongly connected components of more than one node: sets that reach each other."""

    def reached(start: str, edges: dict[str, set[str]]) -> set[str]:
        seen, left = {start}, [start]
        while left:
            for node in edges[left.pop()] - seen:
                seen.add(node)
                left.append(node)
        return seen

    back: dict[str, set[str]] = {node: set() for node in graph}
    for node, others in graph.items():
        for other in others:
            back[other].add(node)
    found, done = [], set()
    for node in graph:
        if node not in done:
            together = reached(node, graph) & reached(node, back)
            done |= together
            if len(together) > 1:
                found.append(together)
    return found


def import_graph() -> dict[str, set[str]]:
    found = modules()
    return {name: imports(path, set(found)) - {name} for name, path in found.items()}


def room(module: str) -> str:
    return ".".join(module.split(".")[:2])


def test_circles_of_files_are_small_and_stay_in_a_room():
    graph = import_graph()
    caller, called = DECLARED
    assert called in graph[caller]
    graph[caller] = graph[caller] - {called}
    for circle in circles(graph):
        assert len({room(module) for module in circle}) == 1, f"rooms import each other: {sorted(circle)}"
        assert len(circle) <= LARGEST_CIRCLE, f"{len(circle)} files in one circle: {sorted(circle)}"


def test_the_measure_finds_circles():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]
    tree = "if TYPE_CHECKING:\n    import one\nelse:\n    import two\ndef f():\n    import three"
    names = [node.names[0].name for node in at_run_time(ast.parse(tree)) if isinstance(node, ast.Import)]
    assert names == ["two", "three"]


TAKEN_TWICE: dict[str, str] = {}
"""Paths of files that may have a name that stands elsewhere too, with the reason: beside those of `cli`, whose files
are named after the commands."""


def test_a_file_name_tells_what_is_in_it_without_its_room():
    """Over all rooms: a command's file is called as the command, what it calls may be; nothing else stands twice."""
    places: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE).as_posix()
        if path.name != "__init__.py" and place.split("/")[0] != "cli" and place not in TAKEN_TWICE:
            places.setdefault(path.name, []).append(place)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_each_command_is_one_file_of_its_name():
    from uds_lens.cli.app import app

    declared = {
        path.stem
        for path in (PACKAGE / "cli").glob("*.py")
        if f"\ndef {path.stem}(" in path.read_text("utf-8")
    }
    assert {command.callback.__name__ for command in app.registered_commands} == declared


PRIVATE_WORDS = re.compile(r"\b(trio|passport|flying|rode|exhaustion)s?\b", re.IGNORECASE)
"""Words that only their author understood."""


def test_private_words_do_not_come_back():
    docs = PACKAGE.parent / "docs"
    found = [
        f"{path.name}: {match[0]}"
        for path in (*PACKAGE.rglob("*.py"), *docs.rglob("*.md"))
        for match in PRIVATE_WORDS.finditer(path.read_text("utf-8"))
        if path.name != "word_lists.py"
    ]
    assert found == []


@pytest.mark.parametrize("library", sorted(p.stem for p in (PACKAGE / "compat").glob("[a-z]*.py")))
def test_every_part_of_compat_has_its_test(library):
    tree = ast.parse((PACKAGE / "compat" / f"{library}.py").read_text("utf-8"))
    parts = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    tests = (PACKAGE.parent / "tests" / "compat" / f"test_{library}.py").read_text("utf-8")
    assert [part for part in parts if part[0] != "_" and not re.search(rf"\b{part}\b", tests)] == []


INTERNAL = {
    "cli": "its pages are --help",
    "compat": "for the library alone",
    "storage": "for the library alone",
}
"""Rooms that the reference leaves out, with the reason."""


def test_every_room_is_in_the_reference():
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    pages = {path.stem for path in (PACKAGE.parent / "docs" / "api").glob("*.md")}
    assert rooms - pages == set(INTERNAL)


def test_a_figure_is_found_by_its_name():
    for name in plots.__all__:
        if inspect.signature(getattr(plots, name)).return_annotation == "go.Figure":
            assert (PACKAGE / "plots" / f"{name}.py").is_file(), name
