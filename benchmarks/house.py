"""Count what the package is held to: statements, promised names, dependencies, tracked files, words of the docs.

python benchmarks/house.py
"""

from __future__ import annotations

import ast
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "uds_lens"
HEART = ("patching/_states.py", "patching/_plain.py", "patching/_wave.py", "audit/_two_stage.py", "results/_scores.py")
"""What is read to understand the measurement itself."""


def statements(tree: ast.AST) -> int:
    """Return the number of statements; docstrings and other bare constants are none."""
    return sum(
        isinstance(node, ast.stmt) and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in ast.walk(tree)
    )


def spread_literals(tree: ast.AST) -> int:
    """Return how many literals spread a literal tuple, which keeps the formatter from one name a line."""
    return sum(
        isinstance(node, ast.Tuple | ast.List)
        and any(isinstance(item, ast.Starred) and isinstance(item.value, ast.Tuple) for item in node.elts)
        for node in ast.walk(tree)
    )


def listed(tree: ast.Module) -> list[str]:
    """Return the names that a file's `__all__` writes out, which promises them."""
    lists = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "__all__"
        and isinstance(node.value, ast.List)
    )
    return [name for written in lists for name in ast.literal_eval(written)]


def loose_names(path: Path, tree: ast.Module) -> Iterator[str]:
    """Yield functions and classes that look public, lie in no private file and are not listed."""
    if not any(part.startswith("_") and part != "__init__.py" for part in path.relative_to(PACKAGE).parts):
        promised = listed(tree)
        yield from (
            node.name
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            and not (node.name.startswith("_") or node.name in promised)
        )


def comments_and_code(path: Path) -> tuple[int, int]:
    """Return the lines that hold a comment, and those that hold code (docstrings included)."""
    with path.open("rb") as file:
        tokens = list(tokenize.tokenize(file.readline))
    noise = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER)
    comments = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    return len(comments), len({token.start[0] for token in tokens if token.type not in (*noise, tokenize.COMMENT)})


def tracked() -> list[Path]:
    """Return the files of the repository."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def words(paths: list[Path]) -> int:
    """Return the number of words of texts."""
    return sum(len(path.read_text("utf-8").split()) for path in paths)


def main() -> None:
    """Print each count with its goal."""
    files = sorted(PACKAGE.rglob("*.py"))
    trees = {path: ast.parse(path.read_text("utf-8")) for path in files}
    rooms: Counter[str] = Counter()
    for path, tree in trees.items():
        rooms[path.relative_to(PACKAGE).parts[0].removesuffix(".py")] += statements(tree)
    promised = sum(len(re.findall(r"\bas \w+", path.read_text("utf-8"))) for path in PACKAGE.rglob("__init__.pyi"))
    promised += sum(len(listed(tree)) for tree in trees.values())
    loose = [name for path, tree in trees.items() for name in loose_names(path, tree)]
    comments, code = map(sum, zip(*map(comments_and_code, files), strict=True))
    every = tracked()
    size = sum(path.stat().st_size for path in every) / 1e6
    docs = sorted((ROOT / "docs").rglob("*.md"))
    of_rooms = ", ".join(f"{room} {count}" for room, count in rooms.most_common())
    heart = sum(len((PACKAGE / name).read_text("utf-8").splitlines()) for name in HEART)
    print(f"statements of the package: {rooms.total()} (18,000) in {len(files)} files: {of_rooms}")
    print(f"promised names: {promised} (300); look public and are not: {len(loose)} (0) {' '.join(loose)}")
    print(f"literals that spread literals: {sum(map(spread_literals, trees.values()))} (0)")
    print(f"comments in 100 lines of code: {100 * comments / code:.1f}")
    print(f"tracked files: {len(every)} (850), {size:.1f} MB (25)")
    print(f"words: docs {words(docs)} (40,000), README {words([ROOT / 'README.md'])} (900)")
    print(f"heart: {len(HEART)} files, {heart} lines")


if __name__ == "__main__":
    main()
