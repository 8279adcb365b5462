"""Judge host depth as a metric, next to those it would stand with: faithfulness, and robustness to NF4 and relearning.

    python studies/transplant/as_metric.py small-1       # needs the models of worlds.py, and measure.py before it
    python studies/transplant/as_metric.py --judge       # needs no model
    python studies/transplant/as_metric.py small-1 --probe  # the trained linear probe, in a table of its own

Measures `full` and `retain` of three seeds and the unlearned models at one rate in three states: as made, in NF4, and
relearned on half of the subjects as in measure.py. Writes a row per model and state to `results/WORLD_states.csv`, and
what has a row is not measured again. The probe was added when the other results were known; it is asked about all rows,
as its subjects are few.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
from measure import OPTIONS, RELEARNING, RESULTS
from worlds import BATCH, OUT, RATES, SEEDS, SHARED, SMALL, draw_rows, learn, opened

import uds_lens as ul
from uds_lens.data import ForgetExample
from uds_lens.meta import Tables
from uds_lens.meta._direction import Points
from uds_lens.metrics import MetricCache, MetricData
from uds_lens.study._measuring import unpacked_four_bit

STATES = ("as made", "nf4", "relearned")
ASKED_STEP = 3  # every third row to forget is asked
METRICS = ("host_depth", "uds", "logit_lens", "em", "es")
PROBES = ("linear_probe", "probe_selectivity")
DIRECTION: dict[str, Points] = {
    "host_depth": "erasure",
    "hidden": "knowledge",
    "output_depth": "erasure",
    "uds": "erasure",
    "logit_lens": "erasure",
    "em": "knowledge",
    "es": "knowledge",
    "linear_probe": "erasure",
    "probe_selectivity": "knowledge",
}


def names() -> list[str]:
    """Return the models of a world that are measured."""
    return ["full", *(f"full-{seed}" for seed in SEEDS[1:]), *(f"retain-{seed}" for seed in SEEDS), *RATES]


def in_state(world: str, name: str, state: str) -> Path:
    """Return where a model in a state lies; perturbed ones are made, and removed after their measurement."""
    place = OUT / world / name
    if state == "as made":
        return place
    out = OUT / world / "perturbed" / f"{name}-{state}"
    shutil.rmtree(out, ignore_errors=True)
    if state == "nf4":
        return unpacked_four_bit(place, out)  # in float32, as the references are
    model, tokenizer = opened(world, name)
    epochs = json.loads((OUT / world / "relearning.json").read_text(encoding="utf-8"))["epochs"]  # of measure.py
    relearned, rate = draw_rows(world)["relearned"], RELEARNING[True]
    learn(model, tokenizer, relearned, epochs=epochs, rate=rate, batch_size=BATCH[world])
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def with_wrong_answers(rows: Sequence[ForgetExample]) -> list[ForgetExample]:
    """Return the rows with TOFU's perturbed answers, which the probe needs."""
    perturbed = ul.load_examples(SHARED / "data" / "tofu" / "forget10_perturbed.json")
    wrong = {row.question: row.perturbed_answers for row in perturbed}
    return [replace(row, perturbed_answers=wrong[row.question]) for row in rows]


def measure(world: str, file: Path, metrics: Sequence[str], asked: Sequence[ForgetExample]) -> None:
    """Measure what has no row yet."""
    cache = MetricCache()
    table = pd.read_csv(file) if file.exists() else pd.DataFrame(columns=["model", "state"])
    done = set(zip(table["model"], table["state"], strict=True))
    todo = [(name, state) for state in STATES for name in names() if (name, state) not in done]
    full, retain = OUT / world / "full", OUT / world / "retain-0"
    for name, state in todo:
        place = in_state(world, name, state)
        found = ul.metrics.evaluate(
            place, MetricData(forget=asked), metrics=metrics, full=full, retain=retain, run=OPTIONS, cache=cache
        )
        row: dict[str, object] = {"model": name, "state": state}
        row |= {metric: found[metric].value for metric in metrics}
        if "host_depth" in metrics:
            said = float(found["host_depth"].details["output_depth"])
            row |= {"output_depth": said, "hidden": said - found["host_depth"].value}
        table = pd.concat([table, pd.DataFrame([row])], ignore_index=True)
        table.to_csv(file, index=False, float_format="%.6f")
        print(world, *(f"{value:.3f}" if isinstance(value, float) else value for value in row.values()), flush=True)
    shutil.rmtree(OUT / world / "perturbed", ignore_errors=True)


def judged(table: pd.DataFrame) -> pd.DataFrame:
    """Return F, Q, R, Rob and Overall of every metric.

    F over `full` and `retain` of three seeds as made, and over all their states (`f_states`); Q and R over the
    unlearned models, all of them.
    """
    direction = {name: points for name, points in DIRECTION.items() if name in table}
    known = table[~table["model"].isin(RATES)].assign(knows=lambda frame: frame["model"].str.startswith("full"))
    states = dict(iter(table.groupby("state")))
    unlearned = {state: part[part["model"].isin(RATES)].assign(method=part["model"]) for state, part in states.items()}
    retain = {state: part[part["model"].str.startswith("retain")] for state, part in states.items()}
    tables = Tables(
        before=unlearned["as made"],
        quantised=unlearned["nf4"],
        relearned=unlearned["relearned"],
        retain_before=retain["as made"],
        retain_relearned=retain["relearned"],
    )
    pools = {"auc": known[known["state"] == "as made"], "f_states": known}
    faithful = {
        name: ul.meta.faithfulness(frame, direction=direction, n_resamples=200) for name, frame in pools.items()
    }
    robust = ul.meta.robustness(tables, direction=direction, min_utility=None)
    found = ul.meta.summary(faithful["auc"], robust).set_index("metric")
    found["f_states"] = faithful["f_states"].set_index("metric")["auc"]
    found["r_at_shift"] = robust.set_index("metric")["r_at_shift"]
    return found[["auc", "f_states", "q", "r", "r_at_shift", "rob", "overall", "n", "reason"]].reset_index()


def states_of(kind: str = "states") -> pd.DataFrame | None:
    """Return the rows of the world that was measured, of the metrics or of the probe; None where none was."""
    files = [file for world in SMALL if (file := RESULTS / f"{world}_{kind}.csv").exists()]
    return pd.read_csv(files[0]) if files else None


def main() -> None:
    """Measure a world, or judge what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("world", nargs="?", choices=SMALL)
    parser.add_argument("--judge", action="store_true", help="only judge")
    parser.add_argument("--probe", action="store_true", help="the trained linear probe alone")
    given = parser.parse_args()
    kind = "probe" if given.probe else "states"
    if given.world:
        asked = draw_rows(given.world)["forget"]
        file = RESULTS / f"{given.world}_{kind}.csv"
        if given.probe:
            measure(given.world, file, PROBES, with_wrong_answers(asked))
        else:
            measure(given.world, file, METRICS, asked[::ASKED_STEP])
    if (table := states_of(kind)) is not None:
        print(judged(table).round(3).to_string())


if __name__ == "__main__":
    main()
