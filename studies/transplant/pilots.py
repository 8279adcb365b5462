"""Measure the models of the pilots again, those that still exist, and compare with what the pilots gave.

    python studies/transplant/pilots.py

The pilots, from which the definitions came, took the share of what `retain` lacks that stays lost, left(U[b <- R]) /
left(R), at the best band and with the attention of all blocks, each chosen on the examples it is scored on. c(b), what
the blocks cost `full` itself, was not subtracted. Host depth as it is now stands next to it. Of the small TOFU Llamas
`full`, `retain90` and `retain95` are left, and what is a mixture of their weights; NPO, GradDiff and RMU are gone. The
toy world is in the package. Writes `results/pilots.csv` and prints it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from worlds import HERE, SHARED, noised

import uds_lens as ul
from uds_lens.results import RunOptions, mean_uds
from uds_lens.transplants import Transplant

STEP = 3  # every third of TOFU's 367 rows
PILOT: Mapping[str, Mapping[str, tuple[float | None, float | None, float | None]]] = {
    "toy": {
        "half": (0.47, 0.48, 0.55),
        "lerp-0.4": (0.47, 0.52, None),
        "npo": (0.79, 0.32, 0.29),
        "rmu": (0.75, 0.10, 0.21),
        "idkdpo": (0.45, 0.20, 0.19),
        "noise in block 0": (None, 0.09, None),
    },
    "tofu-small": {"retain95": (0.48, 0.50, 0.51), "lerp-0.4": (0.47, 0.51, None)},
}
"""Output depth, best band, attention."""


def saved(model: Any, source: Path, place: Path) -> Path:
    """Save a model with the tokenizer of its source."""
    model.save_pretrained(place)
    AutoTokenizer.from_pretrained(source).save_pretrained(place)
    return place


def lerp(retain: Path, full: Path, place: Path) -> Path:
    """Move a retain model's weights two fifths of the way towards those of `full`."""
    model, other = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in (retain, full))
    with torch.no_grad():
        for weight, aim in zip(model.parameters(), other.parameters(), strict=True):
            weight.lerp_(aim, 0.4)
    return saved(model, retain, place)


def noise(full: Path, place: Path) -> Path:
    """Add noise of its own size to block 0."""
    model = AutoModelForCausalLM.from_pretrained(full, dtype=torch.float32)
    torch.manual_seed(0)
    with torch.no_grad():
        noised([0])(model)
    return saved(model, full, place)


def row_of(world: str, model: str, found: Transplant) -> dict[str, Any]:
    """Return what the pilot gave for a model, the same again, and the depth by the definition."""
    lacks = found.answers.left("s_retain")[0]
    left = found.answers.left("unlearned_with_retain")[0]
    share = (left / lacks[:, None]).clamp(0, 1)[lacks > found.config.tau].mean(0)
    bands = [float(share[i]) for i, of in enumerate(found.candidates) if not of.attention]
    names = ("output_depth", "band", "attention")
    again = dict(zip(names, (found.output_depth, min(bands), float(share[-1])), strict=True))
    pilot = {f"pilot_{name}": value for name, value in zip(names, PILOT[world][model], strict=True)}
    return {"world": world, "model": model, **pilot, **again, "host_depth": mean_uds(found.host_depth_per_example)}


def main() -> None:
    """Measure, compare, write."""
    toy, tofu = ul.toy.load(), SHARED / "models" / "tofu-small"
    rows = []
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        of_toy = {name: Path(toy.unlearned[name]) for name in ("npo", "rmu", "idkdpo")}
        of_toy |= {"half": Path(toy.half), "noise in block 0": noise(Path(toy.full), place / "noise")}
        of_toy |= {"lerp-0.4": lerp(Path(toy.retain), Path(toy.full), place / "toy-lerp")}
        of_tofu = {"retain95": tofu / "retain95"}
        of_tofu |= {"lerp-0.4": lerp(tofu / "retain90", tofu / "full", place / "tofu-lerp")}
        few = ul.load_examples(SHARED / "data" / "tofu" / "forget10_filtered.json")[::STEP]
        for world, full, retain, models, examples in (
            ("toy", toy.full, toy.retain, of_toy, toy.examples),
            ("tofu-small", tofu / "full", tofu / "retain90", of_tofu, few),
        ):
            found = ul.transplants.transplant_all(
                full, retain, list(models.values()), examples, options=RunOptions(device="cpu", progress=False)
            )
            rows += [row_of(world, name, one) for name, one in zip(models, found, strict=True)]
    table = pd.DataFrame(rows)
    table.to_csv(HERE / "results" / "pilots.csv", index=False, float_format="%.4f")
    print(table.round(2).to_string(index=False))


if __name__ == "__main__":
    main()
