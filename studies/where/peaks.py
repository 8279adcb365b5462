"""Print what the study of planted facts decides: its tables, and each claim of claims.md with its numbers.

python studies/where/peaks.py --results studies/where/results
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

HERE = Path(__file__).resolve().parent
LEARNT, WHOLE, ROUNDING = 0.5, 6, 1e-5
"""Probability per token from which a fact counts as planted; models that the claims are about; nats that count as 0."""


def planted_layer(name: str) -> int:
    """Return the layer that a model's name has.

    >>> planted_layer("layer4-seed1")
    4
    """
    return int(name.removeprefix("layer").partition("-")[0])


def peak(maps: pd.DataFrame, model: str, site: str, position: str) -> tuple[int, float]:
    """Return the layer with the largest mean loss of a cell, and that loss."""
    rows = maps[(maps["model"] == model) & (maps["site"] == site) & (maps["position"] == position)]
    best = rows.loc[rows["lost"].idxmax()]
    return int(best["layer"]), float(best["lost"])


def counted(holds: Mapping[str, bool]) -> tuple[str, bool, bool]:
    """Return how many models a claim holds for, and whether that supports or contradicts it."""
    yes = sum(holds.values())
    whole = len(holds) == WHOLE
    return f"{yes} of {len(holds)}", whole and yes == WHOLE, whole and yes <= 2


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    given = parser.parse_args()
    maps = pd.read_csv(given.results / "maps.csv")
    summary = json.loads((given.results / "summary.json").read_text(encoding="utf-8"))
    taught = [name for name in summary if name != "no planting" and summary[name]["probability"] >= LEARNT]
    left_out = {n: round(s["probability"], 3) for n, s in summary.items() if n != "no planting" and n not in taught}
    print(f"{len(taught)} of {WHOLE} models were taught the facts; not taught: {left_out or 'none'}.\n")
    print("| model | probability | peak, MLP, all | peak, MLP, entity | S1 at planted / last layer | bypass there |")
    print("|---|---|---|---|---|---|")
    rows: dict[str, dict[str, Any]] = {}
    for name in taught:
        layer, one = planted_layer(name), summary[name]
        bypass = {row["layer"]: row["bypass"] for row in one["bypass"] if row["site"] == "resid_post"}
        below = maps[(maps["model"] == name) & (maps["site"] == "resid_post") & (maps["layer"] < layer)]
        rows[name] = {
            "layer": layer,
            "everywhere": peak(maps, name, "mlp_out", "all"),
            "entity": peak(maps, name, "mlp_out", "entity"),
            "below": float(below["lost"].abs().max()),
            "s1": one["s1"],
            "bypass": bypass[layer],
        }
        at, last = one["s1"][layer], one["s1"][-1]
        share = "none" if bypass[layer] is None else f"{bypass[layer]:.2f}"
        peaks = (
            f"layer {layer_of} ({lost:.2f})" for layer_of, lost in (rows[name]["everywhere"], rows[name]["entity"])
        )
        print(f"| {name} | {one['probability']:.3f} | {' | '.join(peaks)} | {at:.2f} / {last:.2f} | {share} |")
    print("\n| mean S1 at layer | " + " | ".join(str(i) for i in range(len(next(iter(summary.values()))["s1"]))) + " |")
    print("|---|" + "---|" * len(next(iter(summary.values()))["s1"]))
    for name in summary:
        print(f"| {name} | " + " | ".join(f"{value:.2f}" for value in summary[name]["s1"]) + " |")
    print()

    def say(claim: str, text: str, supported: bool, contradicted: bool) -> None:
        print(f"- **{claim}**: {'supported' if supported else 'contradicted' if contradicted else 'undecided'}. {text}")

    tests: dict[str, Callable[[dict[str, Any]], bool]] = {
        "a": lambda row: row["everywhere"][0] == row["layer"],
        "b": lambda row: row["entity"][0] == row["layer"],
        "e": lambda row: row["s1"][row["layer"]] < row["s1"][-1] / 2,
        "f": lambda row: row["bypass"] is not None and row["bypass"] >= 0.2,
    }
    for claim in ("a", "b"):
        say(claim, *counted({name: tests[claim](row) for name, row in rows.items()}))
    worst = max((row["below"] for row in rows.values()), default=0.0)
    say("c", f"largest mean loss below: {worst:.1g}", len(rows) == WHOLE and worst < ROUNDING, worst >= ROUNDING)
    if "no planting" in summary:
        null = maps[maps["model"] == "no planting"]
        differing = int((null["p_holm"] < 0.05).sum())
        lost, least = (
            float(null["lost"].abs().mean()),
            min((row["everywhere"][1] for row in rows.values()), default=0.0),
        )
        few, small = differing <= 5, lost <= least / 10
        text = (
            f"{differing} of {len(null)} cells differ; mean loss {lost:.3f}, smallest peak of a planted map {least:.2f}"
        )
        say("d", text, few and small, not few and not small)
    for claim in ("e", "f"):
        say(claim, *counted({name: tests[claim](row) for name, row in rows.items()}))


if __name__ == "__main__":
    main()
