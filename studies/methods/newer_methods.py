"""Train newer methods in three worlds, measure depth, transplants and relearning, and judge the claims of claims.md.

    python studies/methods/newer_methods.py toy
    python studies/transplant/worlds.py small-1     # makes full and retain-0, among others
    python studies/methods/newer_methods.py small-1
    python studies/transplant/worlds.py smollm2-full
    python studies/methods/newer_methods.py smollm2-full --seeds 0
    python studies/methods/newer_methods.py --judge # needs no model

Writes a row per model to `results/WORLD.csv`, and what has a row is not measured again.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "transplant"))

from measure import (  # noqa: E402
    ASKED_STEP,
    CONFIGS,
    CONTROL_STEP,
    MOST_EPOCHS,
    OPTIONS,
    RELEARNING,
    RETURNED_AT,
    TAU,
    log_probs,
    transplant_row,
)
from worlds import BATCH, COMMON, FULL_RATES, OPTIONS as TRAINING, OUT, RUNS, SMALL_OPTIONS, TEACHING, draw_rows, learn  # noqa: E402

import uds_lens as ul  # noqa: E402
from uds_lens.data import ForgetExample, answer_sequences  # noqa: E402
from uds_lens.results import mean_uds, output_depth  # noqa: E402
from uds_lens.transplants._measuring import each_transplant  # noqa: E402
from uds_lens.unlearning import TrainOptions, answer_log_probs, make_config, unlearn  # noqa: E402

RESULTS, WORLDS = HERE / "results", ("toy", "small-1", "smollm2-full")
NOTHING = 0.15
"""Output depth below which nothing was unlearned."""

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class World:
    """Models to start from, rows to train on, rows that are asked, and settings."""

    full: Path
    retain: Path
    models: Path
    forget: Sequence[ForgetExample]
    keep: Sequence[ForgetExample]
    asked: Sequence[ForgetExample]
    control: Sequence[ForgetExample]
    relearned: Sequence[ForgetExample]
    tested: Sequence[ForgetExample]
    relearning: Settings
    common: Settings
    methods: Mapping[str, Settings]
    training: TrainOptions = SMALL_OPTIONS
    small: bool = True


def methods_of(
    *,
    output: float,
    states: float,
    retain_weight: float,
    scale: float,
    epochs: int,
    layer: int = 4,
    layers: tuple[int, int] = (2, 4),
    teaching: float = 1e-3,
) -> dict[str, Settings]:
    """Return the settings of the methods that `studies/transplant` did not have, from the rates of those it had.

    Args:
        output: Rate of methods that change the answer.
        states: Rate of methods that change states.
        retain_weight: Weight of RMU's retain term.
        scale: Length of RMU's target.
        epochs: Passes over the rows.
        layer: Layer of RMU and RMU-LAT.
        layers: Lowest and highest layer of RR.
        teaching: Rate of UNDO.
    """
    last = {"layer": layer, "scale": scale, "alpha": retain_weight, "learning_rate": states}
    return {
        "rmu": last,
        "rr": {"learning_rate": states, "layer": layers[0], "top_layer": layers[1]},
        "rmulat": {**last, "epsilon": scale * 2 / 6.5, "steps": 6},  # the authors' ratio
        "undo-rmu": {"learning_rate": teaching, "epochs": 3 * epochs},
        "wga": {"learning_rate": output},
        "satimp": {"learning_rate": output},
        "ceu": {"learning_rate": output},
        "pdu": {"learning_rate": output, "dual_warmup_epochs": epochs / 2},
        "undo-npo": {"learning_rate": teaching, "epochs": 3 * epochs},
    }


def world_of(name: str) -> World:
    """Return a world."""
    if name == "toy":
        toy = ul.toy.load()
        subjects = sorted({str(row.subject) for row in toy.examples})
        return World(
            toy.full,
            toy.retain,
            RUNS / "methods" / "toy",
            asked_twice(toy.examples),
            asked_twice(toy.retain_examples[: len(toy.examples)]),
            toy.examples,
            toy.retain_examples[:48:2],
            [row for row in toy.examples if row.subject in subjects[::2]],
            [row for row in toy.examples if row.subject in subjects[1::2]],
            {"rate": 1e-3, "batch_size": 8},
            {"epochs": 10, "batch_size": 16},
            {
                "npo": {"learning_rate": 5e-4, "alpha": 2},
                **methods_of(output=5e-4, states=5e-4, retain_weight=5, scale=10, epochs=10),
                "graddiff": {"learning_rate": 1e-4, "alpha": 2},
            },
        )
    rows = draw_rows(name)
    drawn = partial(
        World,
        full=OUT / name / "full",
        retain=OUT / name / "retain-0",
        models=RUNS / "methods" / name,
        forget=rows["forget"],
        keep=rows["control"][: len(rows["forget"])],
        relearned=rows["relearned"],
        tested=rows["tested"],
    )
    if name == "smollm2-full":
        return drawn(
            asked=rows["forget"][:: ASKED_STEP[False]],
            control=rows["control"][:: CONTROL_STEP[False]],
            relearning={"rate": RELEARNING[False], "batch_size": BATCH[name]},
            common={**COMMON, "batch_size": BATCH[name]},
            methods={
                "npo": {"learning_rate": FULL_RATES["npo"][0]},
                **methods_of(
                    output=FULL_RATES["npo"][0],
                    states=FULL_RATES["rmu-12"][0],
                    retain_weight=1,
                    scale=20,
                    epochs=5,
                    layer=12,
                    layers=(10, 20),
                    teaching=TEACHING[name]["learning_rate"],
                ),
                "graddiff": {"learning_rate": FULL_RATES["graddiff"][0]},
            },
            training=TRAINING[name],
            small=False,
        )
    return drawn(
        asked=rows["forget"][::3],
        control=rows["control"][::6],
        relearning={"rate": 3e-4, "batch_size": 16},
        common={"epochs": 5, "batch_size": 16, "schedule": "constant_with_warmup"},
        methods={
            "npo": {"learning_rate": 3e-4},
            **methods_of(output=3e-4, states=1e-3, retain_weight=1, scale=30, epochs=5),
            "graddiff": {"learning_rate": 2e-4},
        },
    )


def asked_twice(rows: Sequence[ForgetExample]) -> list[ForgetExample]:
    """Return each fact in its usual words, and asked and answered in other words."""
    other = [
        replace(row, id=f"{row.id}-other", question=row.paraphrased_question, answer=row.paraphrased_answers[0])
        for row in rows
        if row.paraphrased_question is not None
    ]
    return [*rows, *other]


def opened(place: Path) -> tuple[Any, Any]:
    """Open a model in float32, with its tokenizer."""
    with ul.open_model(place, device="cpu", dtype="float32") as model:
        return model.hf, model.tokenizer


class Criterion:
    """Relearning on half of the subjects, tested on the others, for as many epochs as retain needs."""

    def __init__(self, world: World) -> None:
        self.world = world
        full, self.tokenizer = opened(world.full)
        retain, _ = opened(world.retain)
        self.rows = {"relearned": world.relearned, "tested": world.tested}
        self.ends = {half: [self.scores(model, half) for model in (full, retain)] for half in self.rows}
        self.epochs = self.learn(retain, MOST_EPOCHS, until=RETURNED_AT)

    def scores(self, model: Any, half: str) -> torch.Tensor:
        """Return the log-probabilities of one half."""
        return log_probs(model, self.tokenizer, self.rows[half])

    def depth(self, model: Any, half: str) -> float:
        """Return the output depth on one half."""
        full, retain = self.ends[half]
        return mean_uds(output_depth(full, self.scores(model, half), retain, TAU))

    def learn(self, model: Any, epochs: int, *, until: float | None = None) -> int:
        """Relearn a model in memory; return the epochs made."""
        end = None if until is None else lambda: self.depth(model, "relearned") <= until
        return learn(
            model, self.tokenizer, self.rows["relearned"], epochs=epochs, after_epoch=end, **self.world.relearning
        )

    def returned(self, model: Any) -> dict[str, float]:
        """Relearn a model, and return its depths before and after."""
        before = self.depth(model, "tested")
        self.learn(model, self.epochs)
        after, taught = self.depth(model, "tested"), self.depth(model, "relearned")
        back = (before - after) / before if before >= NOTHING else math.nan
        return {
            "epochs": self.epochs,
            "tested_before": before,
            "tested_after": after,
            "relearned_after": taught,
            "returned": back,
        }


def trained(world: World, method: str, seed: int, *, times: float = 1.0) -> Path:
    """Train a model, or find it trained; `undo-x` starts from the model of x."""
    word, _, start = method.partition("-")
    settings = {**world.common, **world.methods[method], "seed": seed}
    settings["learning_rate"] *= times
    return unlearn(
        world.models / f"{start}-{seed}" if start else world.full,
        world.forget,
        world.keep,
        method=make_config(word, settings),
        out=world.models / f"{method}-{seed}{'' if times == 1 else '-faster'}",
        options=world.training,
    )


def prob(model: Any, tokenizer: Any, rows: Sequence[ForgetExample]) -> float:
    """Return the mean over whole answers of their probability per token."""
    texts = answer_sequences(
        tokenizer, [(row.question, row.answer) for row in rows], protocol="chat" if tokenizer.chat_template else "raw"
    )
    found = answer_log_probs(model, texts, pad_token_id=tokenizer.pad_token_id)
    each = [math.exp(value / len(text.labelled)) for value, text in zip(found, texts, strict=True)]
    return math.fsum(each) / len(each)


def measure(name: str, seeds: Sequence[int], only: Sequence[str]) -> None:
    """Train and measure what has no row yet, a seed after the other."""
    world, file = world_of(name), RESULTS / f"{name}.csv"
    config = CONFIGS[world.small]
    criterion = Criterion(world)
    baseline = ul.Baseline.measure(world.full, world.retain, world.asked, config=config, options=OPTIONS)
    table = pd.read_csv(file) if file.exists() else pd.DataFrame()
    done = set(table["model"]) if len(table) else set()
    wanted: list[tuple[str, int, float, Path]] = [("full", 0, 1.0, world.full)]
    for seed in seeds:
        for method in only or world.methods:
            times, place = 1.0, trained(world, method, seed)
            if criterion.depth(opened(place)[0], "tested") < NOTHING:
                times, place = 3.0, trained(world, method, seed, times=3.0)
            wanted.append((method, seed, times, place))
    wanted = [entry for entry in wanted if entry[-1].name not in done]
    transplants = each_transplant(
        world.full,
        world.retain,
        [place for *_, place in wanted],
        world.asked,
        control=world.control,
        config=config,
        options=OPTIONS,
    )
    for (method, seed, times, place), found in zip(wanted, transplants, strict=True):
        model, tokenizer = opened(place)
        row = {"world": name, "model": place.name, "method": method, "seed": seed, "times_the_rate": times}
        row |= {"forget_prob": prob(model, tokenizer, world.asked), "keep_prob": prob(model, tokenizer, world.control)}
        row |= {"uds": baseline.audit(place, options=OPTIONS).uds, **transplant_row(found)}
        row |= criterion.returned(model) if method != "full" else {}
        table = pd.concat([table, pd.DataFrame([row])], ignore_index=True)
        table.to_csv(file, index=False, float_format="%.6f")
        shown = ("forget_prob", "keep_prob", "uds", "output_depth", "host_depth", "localisation_1", "returned")
        print(place.name, *(f"{column} {row.get(column, math.nan):.3f}" for column in shown), flush=True)


DEEP = ("rr", "rmulat", "undo-npo", "undo-rmu")
FLAT = ("wga", "satimp", "ceu", "pdu")


def verdict(supported: bool, contradicted: bool, *, seeds: int) -> str:
    """Return the word for a claim; one seed decides nothing, and without a value there is none."""
    if seeds == 0:
        return "no value"
    if seeds < 2:
        return "anecdote"
    return "supported" if supported else "contradicted" if contradicted else "undecided"


def judge(name: str) -> pd.DataFrame:
    """Return each claim with the values it hangs on and its verdict, in one world."""
    table = pd.read_csv(RESULTS / f"{name}.csv")
    full = table[table["method"] == "full"].iloc[0]
    table = table[(table["method"] != "full") & (table["output_depth"] >= NOTHING)]
    table = table.assign(kept=table["keep_prob"] / full["keep_prob"])
    wide = {column: table.pivot(index="method", columns="seed", values=column) for column in COLUMNS}
    rows: list[tuple[str, str, str]] = []

    def seeds_of(column: str, method: str) -> pd.Series:
        values = wide[column]
        return values.loc[method].dropna() if method in values.index else pd.Series(dtype=float)

    def gains(column: str, method: str, start: str) -> pd.Series:
        return (seeds_of(column, start) - seeds_of(column, method)).dropna()

    def told(claim: str, values: Mapping[str, pd.Series], supported: bool, contradicted: bool) -> None:
        text = "; ".join(f"{key} " + ", ".join(f"{value:.2f}" for value in found) for key, found in values.items())
        rows.append((claim, text, verdict(supported, contradicted, seeds=min(map(len, values.values())))))

    for claim, method in (("a", "rmulat"), ("b", "rr")):
        gain = gains("hidden", method, "rmu")
        told(claim, {f"rmu - {method}": gain}, bool((gain >= 0.1).all()), bool((gain <= 0).all()))
    for claim, column, bounds in (("c", "hidden", (0.05, 0.3)), ("e", "returned", (0.1, 0.1))):
        found = {f"{start} - undo": gains(column, f"undo-{start}", start) for start in ("npo", "rmu")}
        enough = all(bool((gain >= bound).all()) for gain, bound in zip(found.values(), bounds, strict=True))
        told(claim, found, enough, all(bool((gain <= 0).all()) for gain in found.values()))
    back = {method: seeds_of("returned", method) for method in DEEP}
    hiding = sum(bool((values >= 0.5).all()) for values in back.values())
    told("d", back, all(bool((values <= 0.2).all()) for values in back.values()), hiding >= 3)
    back = {method: seeds_of("returned", method) for method in FLAT}
    forgot = any(bool((values <= 0.2).all()) for values in back.values())
    told("f", back, all(bool((values > 0.2).all()) for values in back.values()), forgot)
    kept = seeds_of("kept", "ceu")
    told("g", {"ceu": kept}, bool((kept < 0.8).all()), bool((kept > 0.9).all()))
    means = pd.DataFrame({column: wide[column].mean(axis=1) for column in ("hidden", "returned")}).dropna()
    rho = means["hidden"].corr(means["returned"], method="spearman")
    word = verdict(rho >= 0.6, rho <= 0.2, seeds=table["seed"].nunique())
    rows.append(("h", f"rho {rho:.2f} over {len(means)} methods", word))
    return pd.DataFrame(rows, columns=["claim", "values", "verdict"]).sort_values("claim")


COLUMNS = ("hidden", "returned", "kept")


def main() -> None:
    """Measure a world, or judge what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("world", nargs="?", choices=WORLDS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--only", nargs="+", default=[], metavar="METHOD")
    parser.add_argument("--judge", action="store_true")
    given = parser.parse_args()
    if given.world is not None:
        measure(given.world, given.seeds, given.only)
    elif given.judge:
        there = [name for name in WORLDS if (RESULTS / f"{name}.csv").exists()]
        found = pd.concat([judge(name).assign(world=name) for name in there])
        found.to_csv(RESULTS / "verdicts.csv", index=False)
        print(found.to_string(index=False))
    else:
        parser.error("which world? Or --judge")


if __name__ == "__main__":
    main()
