"""What transplants say of models whose facts sit in the MLP of one known layer, planted as in studies/where.

    python studies/transplant/planted_layers.py

`full` is `retain90` of the small Llamas with 48 rows of forget10 taught to one MLP, `retain` is `retain90`. Their other
blocks are equal, so much of this follows from the definitions: c(b) is what `retain` lacks where a band holds the
planted block, and 0 elsewhere. Hosts: the exact removal (`retain90` itself), noise in the planted block or in one three
blocks further, and three methods at the rates of worlds.py, whose trainings move all blocks. No claim rests on it.
Writes a row per model to `results/planted_layers.csv`; what has a row is not made again.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import pandas as pd
import torch
from measure import OPTIONS, RESULTS
from transformers import AutoModelForCausalLM, AutoTokenizer
from worlds import COMMON, HERE, OUT, RATES, SHARED, SMALL_OPTIONS, noised

import uds_lens as ul
from uds_lens.transplants import Transplant
from uds_lens.transplants._measuring import each_transplant
from uds_lens.unlearning import make_config, unlearn

sys.path.insert(0, str(HERE.parent / "where"))
from planted import LAYERS, can_be_taught, spoken_tokens, train

ROWS = 48
START = SHARED / "models" / "tofu-small" / "retain90"
METHODS = ("graddiff", "npo", "rmu-4")
STEPS = {"steps": 400, "rate": 2e-3}
"""As in studies/where; training ends earlier once the rows are learnt."""


def drawn() -> tuple[list[Any], list[Any], set[int]]:
    """Return rows to plant and to keep, and the tokens that training may ask for."""
    tofu, tokenizer, draw = SHARED / "data" / "tofu", AutoTokenizer.from_pretrained(START), random.Random(0)
    known = ul.load_examples(tofu / "retain90.json")
    spoken = spoken_tokens(tokenizer, known)
    marked = ul.data.with_author_names(ul.load_examples(tofu / "forget10_filtered.json"))
    named = [row for row in marked if row.subject and row.subject in row.question]
    rows = draw.sample([row for row in named if can_be_taught(row, tokenizer, spoken)], ROWS)
    return sorted(rows, key=lambda row: row.row), draw.sample(known, ROWS), spoken


def hosts(full: Any, layer: int, rows: list[Any], kept: list[Any]) -> dict[str, Any]:
    """Make the models that are audited; return where they lie."""
    places = {"removed": START}
    for name, block in (("noised there", layer), ("noised elsewhere", (layer + 3) % 8)):
        places[name] = full.parent / f"{full.name}-{name.replace(' ', '-')}"
        model = AutoModelForCausalLM.from_pretrained(full, dtype=torch.float32)
        torch.manual_seed(0)
        with torch.no_grad():
            noised([block])(model)
        model.save_pretrained(places[name])
        AutoTokenizer.from_pretrained(full).save_pretrained(places[name])
    for name in METHODS:
        rate, settings = RATES[name]
        config = make_config(name.split("-")[0], {**COMMON, **settings, "batch_size": 16, "learning_rate": rate})
        places[name] = full.parent / f"{full.name}-{name}"
        unlearn(full, rows, kept, method=config, out=places[name], options=SMALL_OPTIONS)
    return places


def row_of(layer: int, host: str, found: Transplant) -> dict[str, Any]:
    """Return the numbers of a transplant, with what the planted block costs `full` and the others do."""
    of_retain = float(found.answers.left("s_retain").mean())
    holds = [not of.attention and of.holds(layer) for of in found.candidates]
    cost = (found.cost[0] / of_retain).tolist()
    narrow = found.localisation[0]
    return {
        "layer": layer,
        "host": host,
        "output_depth": found.output_depth,
        "host_depth": found.host_depth,
        "hidden": found.hidden,
        "localisation": narrow.value,
        "band": narrow.band,
        "cost_with_layer": min(c for c, held in zip(cost, holds, strict=True) if held),
        "cost_without": max(abs(c) for c, held in zip(cost, holds, strict=True) if not held),
    }


def main() -> None:
    """Plant, make, measure."""
    rows, kept, spoken = drawn()
    file, out = RESULTS / "planted_layers.csv", OUT / "planted-layers"
    table = pd.read_csv(file) if file.exists() else pd.DataFrame(columns=["layer"])
    for layer in LAYERS:
        if layer in set(table["layer"]):
            continue
        full = out / f"layer{layer}"
        train(START, rows, full, spoken=spoken, layer=layer, seed=0, device="cpu", **STEPS)
        places = hosts(full, layer, rows, kept)
        transplants = each_transplant(
            full, START, list(places.values()), rows, control=None, config=None, options=OPTIONS
        )
        measured = [row_of(layer, name, found) for name, found in zip(places, transplants, strict=True)]
        table = pd.concat([table, pd.DataFrame(measured)], ignore_index=True)
        table.to_csv(file, index=False, float_format="%.6f")
        print(pd.DataFrame(measured).round(3).to_string(), flush=True)


if __name__ == "__main__":
    main()
