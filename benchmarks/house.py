"""Count what the layout of the package is held to: files, lines, promised names, parameters, first lines.

python benchmarks/house.py
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import uds_lens as ul

ROOT = Path(__file__).resolve().parents[1]
HEART = ("patching/_states.py", "patching/_plain.py", "patching/_wave.py", "audit/_two_stage.py", "results/_scores.py")
"""What is read to understand the measurement itself."""


def lines(paths: Iterator[Path] | list[Path]) -> int:
    """Return the number of lines of files."""
    return sum(len(path.read_text("utf-8").splitlines()) for path in paths)


def loose_names(files: list[Path]) -> list[str]:
    """Return functions and classes that look public and lie in no private file."""
    return [
        f"{path.relative_to(ROOT)}:{node.name}"
        for path in files
        if not any(part.startswith("_") and part != "__init__.py" for part in path.parts)
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]


def wide_functions() -> list[str]:
    """Return promised functions with more than 8 parameters."""
    rooms = [getattr(ul, name) for name in dir(ul) if inspect.ismodule(getattr(ul, name))]
    promised = {
        f"{room.__name__}.{name}": getattr(room, name) for room in rooms for name in getattr(room, "__all__", ())
    }
    return [
        f"{name} ({n})"
        for name, function in promised.items()
        if inspect.isfunction(function) and (n := len(inspect.signature(function).parameters)) > 8
    ]


def first_lines(files: list[Path]) -> list[str]:
    """Return docstrings that begin with a question word instead of a verb."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    return [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, kinds) and (text := ast.get_docstring(node) or "").startswith("What ")
    ]


def main() -> None:
    """Print one line for each count, beside what it should come to."""
    package = sorted((ROOT / "uds_lens").rglob("*.py"))
    tests = sorted((ROOT / "tests").rglob("*.py"))
    heart = [ROOT / "uds_lens" / name for name in HEART]
    wide = wide_functions()
    print(f"heart: {len(heart)} files, {lines(heart)} lines (5, 600)")
    print(f"package: {len(package)} files, {lines(package)} lines (220, 36,000)")
    print(f"names that look public and are not promised: {len(loose_names(package))} (60)")
    print(f"tests: {len(tests)} files, {lines(tests)} lines (23,000)")
    print(f"promised functions above 8 parameters: {len(wide)} (0): {', '.join(wide)}")
    print(f"docstrings that begin with 'What': {len(first_lines(package))} (20)")


if __name__ == "__main__":
    main()
