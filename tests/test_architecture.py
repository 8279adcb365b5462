"""Who imports whom: no circle between rooms but one declared call, and only small ones between files."""

import ast
import functools
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

PACKAGE = Path(__file__).resolve().parents[1] / "uds_lens"

DECLARED = ("uds_lens.results._depth_audit", "uds_lens.audit._two_stage")
"""`DepthAudit.run` calls the room above: the one import upwards."""

LARGEST_CIRCLE = 3
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
    """The file that `from module import name` is about: through the stub of a room's face."""
    if f"{module}.{name}" in known:
        return f"{module}.{name}"
    stub = modules()[module].with_suffix(".pyi")
    if not stub.is_file():
        return module
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            return home(f"{module}.{node.module}", name, known)
    return module


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Strongly connected components of more than one node: sets that reach each other."""
    edges = np.array([[other in others for other in graph] for others in graph.values()])
    _, labels = connected_components(edges, connection="strong")
    found: dict[int, set[str]] = defaultdict(set)
    for node, label in zip(graph, labels, strict=True):
        found[label].add(node)
    return [together for together in found.values() if len(together) > 1]


def room(module: str) -> str:
    return ".".join(module.split(".")[:2])


def test_circles_of_files_are_small_and_stay_in_a_room():
    known = set(modules())
    graph = {name: imports(path, known) - {name} for name, path in modules().items()}
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


@pytest.mark.parametrize("library", sorted(p.stem for p in (PACKAGE / "_compat").glob("[a-z]*.py")))
def test_every_part_of_compat_has_its_test(library):
    tree = ast.parse((PACKAGE / "_compat" / f"{library}.py").read_text("utf-8"))
    parts = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    tests = (PACKAGE.parent / "tests" / "compat" / f"test_{library}.py").read_text("utf-8")
    assert [part for part in parts if part[0] != "_" and not re.search(rf"\b{part}\b", tests)] == []


def test_names_with_an_underscore_stay_in_their_room():
    """Modules `_module.py` are private to the package; names `_name` are private to the room they are in."""
    strays = [
        f"{name}: {node.module}.{alias.name}"
        for name, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("uds_lens")
        for alias in node.names
        if alias.name.startswith("_")
        and not alias.name.startswith("__")
        and f"{node.module}.{alias.name}" not in modules()
        and room(node.module) != room(name)
    ]
    assert strays == []


def test_public_files_hold_promises_only():
    """A name that looks public is promised by its room, or lies in a private module."""
    loose = [
        f"{name}.{node.name}"
        for name, path in modules().items()
        if not any(part.startswith("_") for part in name.split("."))
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]
    assert {name.rsplit(".", 1)[0] for name in loose} <= {"uds_lens.errors"}


@pytest.mark.parametrize(
    ("made", "places"),
    [
        (r"\bCaution\(\s*[\w\"]", {"uds_lens.results._cautions", "uds_lens.results._other_cautions"}),
        (r"\b(Soft)?FileLock\(\w", {"uds_lens._storage.locks"}),
    ],
    ids=["warnings about results", "locks"],
)
def test_one_place_makes(made: str, places: set[str]):
    assert {name for name, path in modules().items() if re.search(made, path.read_text("utf-8"))} == places
