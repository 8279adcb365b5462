"""Does the wheel alone run? Build it, install it without extras into a clean environment, and audit the toy world.

    python benchmarks/wheel_install.py

Prints the size of the wheel and of what is largest in it, the number of packages installed, the time of each step,
and what `uds-lens demo` and `uds-lens doctor` say. Needs a package index, for torch and the rest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
EXTRAS = ("bitsandbytes", "kaleido", "peft", "rouge_score", "sklearn", "spacy", "submitit")


def step(what: str, words: list[str], *, folder: Path) -> str:
    """Run one command there, tell how long it took, and return what it printed."""
    begun = time.perf_counter()
    outside = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(words, cwd=folder, env=outside, capture_output=True, text=True, check=False)
    print(f"{what}: {time.perf_counter() - begun:.0f} s", flush=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def largest(wheel: Path) -> str:
    """What takes up room in the wheel, packed."""
    sizes: Counter[str] = Counter()
    for entry in zipfile.ZipFile(wheel).infolist():
        parts = entry.filename.split("/")
        sizes["/".join(parts[:2]) if len(parts) > 2 else parts[0]] += entry.compress_size
    return ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in sizes.most_common(4))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--keep", type=Path, help="copy the wheel there")
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        pip = [sys.executable, "-m", "pip"]
        step("build", [*pip, "wheel", "--no-deps", "--wheel-dir", place, str(REPOSITORY)], folder=folder)
        (wheel,) = folder.glob("*.whl")
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB ({largest(wheel)})")
        if asked.keep:
            asked.keep.mkdir(parents=True, exist_ok=True)
            (asked.keep / wheel.name).write_bytes(wheel.read_bytes())
        venv.create(folder / "clean", with_pip=True)
        python, command = (str(folder / "clean" / "bin" / name) for name in ("python", "uds-lens"))
        constraints = str(REPOSITORY / "constraints.txt")
        step("install", [python, "-m", "pip", "install", "--quiet", "-c", constraints, str(wheel)], folder=folder)
        listed = step("list", [python, "-m", "pip", "list", "--format", "freeze"], folder=folder)
        print(f"{len(listed.splitlines())} packages")
        probe = f"import importlib.util as u; print([n for n in {EXTRAS!r} if u.find_spec(n)])"
        print("of the extras:", step("look", [python, "-c", probe], folder=folder).strip())
        print(step("demo", [command, "demo"], folder=folder))
        print(step("doctor", [command, "doctor"], folder=folder))


if __name__ == "__main__":
    main()
