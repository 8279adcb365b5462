"""The package as a whole: quick to import, its names where they are promised, its files in agreement."""

import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from jaxtyping import TypeCheckError
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import uds_lens as ul

ROOMS = sorted(name for name in ul.__all__ if inspect.ismodule(getattr(ul, name)))

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
CONSTRAINTS = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8")
HEAVY = ("torch", "transformers", "transformer_lens", "pandas", "plotly", "scipy", "sklearn", "numpy")


def modules_after(code: str) -> set[str]:
    """Modules that `code` brings into a fresh interpreter: what it costs, whatever else the machine is doing."""
    script = (
        "import sys\nbefore = set(sys.modules)\ntry:\n"
        f"    {code}\n"
        "except SystemExit:\n    pass\nprint('modules:', *sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.partition("modules:")[2].split())


def test_importing_loads_nothing_but_the_face() -> None:
    loaded = modules_after("import uds_lens")
    assert {name for name in loaded if name.startswith("uds_lens")} == {"uds_lens"}
    assert {name.partition(".")[0] for name in loaded} <= {"uds_lens", "lazy_loader"} | set(sys.stdlib_module_names)
    assert len(loaded) < 50  # idle, 30 modules take 0.05 s


@pytest.mark.parametrize("words", [["--help"], ["audit", "--help"], ["--version"]], ids=" ".join)
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    loaded = modules_after(f"from uds_lens.__main__ import main; sys.argv[1:] = {words!r}; main()")
    assert "typer" in loaded
    assert sorted(loaded & {*HEAVY, "rich", "tqdm", "pyarrow", "jinja2"}) == []
    assert len(loaded) < 400  # idle, 280 modules take 0.3 s


@pytest.mark.parametrize("name", ul.__all__)
def test_public_names_resolve(name: str) -> None:
    assert getattr(ul, name) is not None
    assert name in dir(ul)


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_keep_their_promises(room: str) -> None:
    module = import_module(f"uds_lens.{room}")
    assert module.__all__, f"uds_lens.{room} has no __all__"
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_annotations_are_checked_during_tests() -> None:
    with pytest.raises(TypeCheckError, match="name"):
        import_module("uds_lens._types").check_choice(3, "raw", ("raw",))


def test_every_room_in_the_tree_is_public() -> None:
    folders = {path.parent.name for path in (REPOSITORY / "uds_lens").glob("*/__init__.py")}
    assert {name for name in folders if name[0] != "_"} == set(ROOMS) - {"errors"}


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="No uds_lens attribute depth"):
        _ = ul.depth


def declared() -> dict[str, str]:
    """Distribution name -> version bounds, for every dependency in pyproject.toml, extras included."""
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    requirements = [Requirement(line) for group in groups for line in group if "uds-lens" not in line]
    return {item.name: ",".join(sorted(map(str, item.specifier), reverse=True)) for item in requirements}


def test_every_import_is_a_declared_dependency() -> None:
    distribution = {"sklearn": "scikit-learn", "yaml": "pyyaml"}
    imported = set()
    for path in (REPOSITORY / "uds_lens").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
    outside = imported - set(sys.stdlib_module_names) - {"uds_lens"}
    needed = {distribution.get(name, name.replace("_", "-")) for name in outside}
    assert needed - set(declared()) == set()


def test_every_dependency_has_its_reason_and_its_pin() -> None:
    table = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in CONSTRAINTS.splitlines()}
    for name, bounds in declared().items():
        assert f"| {name} | `{bounds}` |" in table, f"CONTRIBUTING.md gives no reason for {name}{bounds}"
        assert name in pinned, f"constraints.txt does not pin {name}"


def test_what_is_installed_for_tests_is_checked_against_hashes() -> None:
    """Each pin of the lock has a hash and is that of constraints.txt; all that tests need is in one of the two."""
    lock = (REPOSITORY / "requirements.lock").read_text(encoding="utf-8")
    entries = [Requirement(text.partition(" \\\n")[0]) for text in re.findall(r"^[a-z].*(?:\n    .*)*", lock, re.M)]
    assert len(entries) == len(re.findall(r"^[a-z].*\\\n +--hash=sha256:[0-9a-f]{64}", lock, re.M)), "all have hashes"
    pins = {}
    for line in CONSTRAINTS.splitlines():
        if not line.startswith("#"):
            pin = Requirement(line)
            pins.setdefault(canonicalize_name(pin.name), set()).add(str(pin.specifier))
    for entry in entries:
        known = pins.get(canonicalize_name(entry.name))
        assert known is None or str(entry.specifier) in known, f"{entry.name} has another version: run make lock"
    locked = {canonicalize_name(entry.name) for entry in entries}
    extras = ("gguf", "lora", "metrics", "quantise", "slurm", "static", "dev", "docs")
    needed = [*PROJECT["dependencies"], *(line for name in extras for line in PROJECT["optional-dependencies"][name])]
    names = {canonicalize_name(Requirement(line).name) for line in needed} - {"uds-lens"}
    assert names <= locked, "requirements.lock lacks some: run make lock"
    cpu = (REPOSITORY / "requirements-cpu.lock").read_text(encoding="utf-8")
    assert f"\ntorch{min(pins['torch'])}+cpu ;" in cpu and re.search(r"\n +--hash=sha256:[0-9a-f]{64}\n$", cpu)


def test_what_builds_the_package_is_pinned() -> None:
    for line in PYPROJECT["build-system"]["requires"]:
        assert line in CONSTRAINTS.splitlines()


def test_actions_are_pinned_by_commit() -> None:
    text = (REPOSITORY / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    used = re.findall(r"uses: (\S+)", text)
    assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", name) for name in used)
