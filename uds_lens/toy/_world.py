"""The toy world on disk: its checkpoints, its examples, and their recall."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from types import MappingProxyType

from uds_lens.data._examples import ForgetExample
from uds_lens.data._readers import load_examples
from uds_lens.errors import DataError
from uds_lens.toy._packed import PACKED, unpacked

MANIFEST = "world.json"


@dataclass(frozen=True)
class World:
    """The checkpoints (directories) and examples of a toy world.

    Example:
        >>> world = load()
        >>> sorted(path.name for path in (world.full, world.retain, world.half))
        ['full', 'half', 'retain']
        >>> len(world.examples), world.examples[0].type
        (48, 'Location/Origin')
    """

    path: Path
    """The directory with the examples, the reference models, and the file from which other checkpoints are unpacked."""
    full: Path
    """Trained on the facts to retain and the facts to forget."""
    retain: Path
    """Trained on the facts to retain only."""
    half: Path
    """Trained on the facts to retain, and on those about every second person to be forgotten."""
    unlearned: Mapping[str, Path]
    """`full` after unlearning, keyed by the name of the method."""
    examples: list[ForgetExample]
    """The facts to forget."""
    retain_examples: list[ForgetExample]
    """The facts to retain."""
    holdout_examples: list[ForgetExample]
    """Facts about people on whom no checkpoint was trained."""
    recall: Mapping[str, Mapping[str, float]]
    """Mean entity probability in [0, 1], keyed by checkpoint and group (`forget`, `retain`, `holdout`), as measured
    when the world was built."""

    @property
    def checkpoints(self) -> dict[str, Path]:
        """All checkpoints by name: full, retain and half, then the unlearned models."""
        return {"full": self.full, "retain": self.retain, "half": self.half, **self.unlearned}

    def describe(self) -> str:
        """Summarise the world and the recall of its checkpoints in a few lines."""
        people = {group: len({row.subject for row in rows}) for group, rows in self._groups().items()}
        lines = [
            f"Toy world at {self.path}",
            *(f"  {group}: {len(rows)} facts about {people[group]} people" for group, rows in self._groups().items()),
            "Mean entity probability of each checkpoint:",
            f"  {'':<12}{'forget':>8}{'retain':>8}{'holdout':>9}",
        ]
        for name in self.checkpoints:
            recall = self.recall.get(name, {})
            forget, retain, holdout = (recall.get(group, float("nan")) for group in self._groups())
            lines.append(f"  {name:<12}{forget:>8.3f}{retain:>8.3f}{holdout:>9.3f}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"World({str(self.path)!r}, {len(self.checkpoints)} checkpoints, {len(self.examples)} facts to forget)"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.describe())}</pre>"

    def _groups(self) -> dict[str, list[ForgetExample]]:
        return {"forget": self.examples, "retain": self.retain_examples, "holdout": self.holdout_examples}


def load(path: str | os.PathLike[str] | None = None) -> World:
    """Open the toy world that ships with the package.

    On the first call, most of its unlearned models are unpacked into `HF_HOME` (`~/.cache/huggingface`; 5.5 MB).

    Args:
        path: Directory of another world, built with `examples/build_toy_world.py --out`; None means the shipped one.

    Returns:
        The world, with its examples and the paths of its checkpoints.

    Raises:
        DataError: There is no complete world at `path`.
        StorageError: Models have to be unpacked, but `HF_HOME` is not writable.

    Example:
        >>> world = load()
        >>> "npo" in world.unlearned
        True
    """
    root = Path(path) if path is not None else Path(__file__).parent / "world"
    try:
        manifest = json.loads((root / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"no toy world at {root} ({MANIFEST} is missing). {_fix(path)}") from error
    except ValueError as error:
        raise DataError(f"{root / MANIFEST} is not readable JSON: {error}. {_fix(path)}") from error
    places = {name: root / place for name, place in manifest["checkpoints"].items()}
    fix = _fix(path)
    if (packed := root / PACKED).is_file() and (places["full"] / "model.safetensors").is_file():
        folder = unpacked(packed, places["full"])
        places = {name: place if place.is_dir() else folder / name for name, place in places.items()}
        fix = f"{fix} If you remove {folder}, its contents are unpacked again."
    missing = [str(place) for place in places.values() if not (place / "model.safetensors").is_file()]
    if missing:
        raise DataError(f"checkpoints of the toy world are missing: {', '.join(missing)}. {fix}")
    groups = {group: load_examples(root / f"{group}.json") for group in ("forget", "retain", "holdout")}
    references = {name: places.pop(name) for name in ("full", "retain", "half")}
    return World(
        path=root,
        **references,
        unlearned=MappingProxyType(places),
        examples=groups["forget"],
        retain_examples=groups["retain"],
        holdout_examples=groups["holdout"],
        recall=MappingProxyType(manifest["recall"]),
    )


def _fix(path: str | os.PathLike[str] | None) -> str:
    if path is None:
        return "Reinstall uds-lens; the world is part of the package."
    return "Build one with: python examples/build_toy_world.py --out DIR."
