"""Train newer methods in a world of the transplant study, measure depth, transplants and relearning, judge the claims.

    python studies/transplant/worlds.py small-1     # makes full and retain-0, among others
    python studies/methods/newer_methods.py                 # trains, and writes a row per model to results/models.csv
    python studies/methods/newer_methods.py --judge         # needs no model

What has a row is not measured again. claims.md says what is to be decided.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "transplant"))

from measure import CONFIGS, OPTIONS, Criterion, transplant_row  # noqa: E402
from worlds import COMMON, OUT, SMALL_OPTIONS, draw_rows, opened  # noqa: E402

import uds_lens as ul  # noqa: E402
from uds_lens.data import ForgetExample, answer_sequences  # noqa: E402
from uds_lens.transplants._measuring import each_transplant  # noqa: E402
from uds_lens.unlearning import answer_log_probs, make_config, unlearn  # noqa: E402

WORLD, FOLDER, FILE = "small-1", OUT / "small-1", HERE / "results" / "models.csv"
MODELS = FOLDER / "methods"
STEP, CONTROL_STEP = 3, 6
"""Every third row to forget is asked, and every sixth control fact."""

METHODS: Mapping[str, tuple[float, Mapping[str, Any]]] = {
    "graddiff": (2e-4, {}),
    "npo": (3e-4, {}),
    "rmu": (1e-3, {"layer": 4, "scale": 30}),
    "wga": (3e-4, {}),
    "satimp": (3e-4, {}),
    "ceu": (3e-4, {}),
    "pdu": (3e-4, {"dual_warmup_epochs": 2.5}),
    "rr": (1e-3, {"layer": 2, "top_layer": 4}),
    "rmulat": (1e-3, {"layer": 4, "scale": 30, "epsilon": 9, "alpha": 1, "steps": 6}),
    "undo-npo": (1e-3, {"epochs": 15}),
    "undo-rmu": (1e-3, {"epochs": 15}),
}
"""Rate and settings of each; the first three are references, and `undo-x` starts from the model of x."""

NOTHING = 0.15
"""Output depth below which nothing was unlearned."""


def trained(method: str, seed: int, rows: Mapping[str, Sequence[ForgetExample]], *, times: float = 1.0) -> Path:
    """Train a model, or find it trained."""
    word, _, start = method.partition("-")
    rate, settings = METHODS[method]
    config = make_config(word, {**COMMON, "batch_size": 16, **settings, "learning_rate": rate * times, "seed": seed})
    return unlearn(
        MODELS / f"{start}-{seed}" if start else FOLDER / "full",
        rows["forget"],
        rows["control"][: len(rows["forget"])],
        method=config,
        out=MODELS / f"{method}-{seed}{'' if times == 1 else '-faster'}",
        options=SMALL_OPTIONS,
    )


def prob(model: Any, tokenizer: Any, rows: Sequence[ForgetExample]) -> float:
    """Return the mean over whole answers of their probability per token."""
    texts = answer_sequences(tokenizer, [(row.question, row.answer) for row in rows], protocol="raw")
    found = answer_log_probs(model, texts, pad_token_id=tokenizer.pad_token_id)
    each = [math.exp(value / len(text.labelled)) for value, text in zip(found, texts, strict=True)]
    return math.fsum(each) / len(each)


def measure(seeds: Sequence[int], only: Sequence[str]) -> None:
    """Train and measure what has no row yet, a seed after the other."""
    rows, config = draw_rows(WORLD), CONFIGS[True]
    asked, control = rows["forget"][::STEP], rows["control"][::CONTROL_STEP]
    places = FOLDER / "full", FOLDER / "retain-0"
    criterion = Criterion(WORLD, *(opened(WORLD, place.name)[0] for place in places))
    epochs = json.loads((FOLDER / "relearning.json").read_text(encoding="utf-8"))["epochs"]  # of transplant/measure.py
    baseline = ul.Baseline.measure(*places, asked, config=config, options=OPTIONS)
    table = pd.read_csv(FILE) if FILE.exists() else pd.DataFrame()
    done = set(table["model"]) if len(table) else set()
    wanted: list[tuple[str, int, float, Path]] = []
    if "full" not in done:
        wanted.append(("full", 0, 1.0, places[0]))
    for seed in seeds:
        for method in only or METHODS:
            times, model = 1.0, trained(method, seed, rows)
            if criterion.depth(opened(WORLD, f"methods/{model.name}")[0], "tested") < NOTHING:
                times, model = 3.0, trained(method, seed, rows, times=3.0)
            if model.name not in done:
                wanted.append((method, seed, times, model))
    transplants = each_transplant(
        *places, [model for *_, model in wanted], asked, control=control, config=config, options=OPTIONS
    )
    for (method, seed, times, place), found in zip(wanted, transplants, strict=True):
        model, tokenizer = opened(WORLD, str(place.relative_to(FOLDER)))
        row = {"model": place.name, "method": method, "seed": seed, "times_the_rate": times}
        row |= {"forget_prob": prob(model, tokenizer, asked), "keep_prob": prob(model, tokenizer, control)}
        row |= {"uds": baseline.audit(place, options=OPTIONS).uds, **transplant_row(found)}
        row |= criterion.relearned(model, epochs) if method != "full" else {}
        table = pd.concat([table, pd.DataFrame([row])], ignore_index=True)
        table.to_csv(FILE, index=False, float_format="%.6f")
        shown = ("forget_prob", "keep_prob", "uds", "output_depth", "host_depth", "localisation_1", "returned")
        print(place.name, *(f"{name} {row.get(name, math.nan):.3f}" for name in shown), flush=True)


DEEP = ("rr", "rmulat", "undo-npo", "undo-rmu")
FLAT = ("wga", "satimp", "ceu", "pdu")


def verdict(supported: bool, contradicted: bool, *, seeds: int) -> str:
    """Return the word for a claim; one seed decides nothing."""
    if seeds < 2:
        return "anecdote"
    return "supported" if supported else "contradicted" if contradicted else "undecided"


def judge() -> pd.DataFrame:
    """Return each claim with the values it hangs on and its verdict."""
    table = pd.read_csv(FILE)
    full = table[table["method"] == "full"].iloc[0]
    table = table[(table["method"] != "full") & (table["output_depth"] >= NOTHING)]
    table = table.assign(kept=table["keep_prob"] / full["keep_prob"])
    wide = {name: table.pivot(index="method", columns="seed", values=name) for name in ("hidden", "returned", "kept")}

    def seeds_of(name: str, method: str) -> pd.Series:
        values = wide[name]
        return values.loc[method].dropna() if method in values.index else pd.Series(dtype=float)

    def gains(name: str, method: str, start: str) -> pd.Series:
        return (seeds_of(name, start) - seeds_of(name, method)).dropna()

    rows: list[tuple[str, str, str]] = []

    def told(claim: str, values: Mapping[str, pd.Series], supported: bool, contradicted: bool) -> None:
        text = "; ".join(f"{name} " + ", ".join(f"{value:.2f}" for value in found) for name, found in values.items())
        rows.append((claim, text, verdict(supported, contradicted, seeds=min(map(len, values.values())))))

    for claim, method in (("a", "rmulat"), ("b", "rr")):
        gain = gains("hidden", method, "rmu")
        told(claim, {f"rmu - {method}": gain}, bool((gain >= 0.1).all()), bool((gain <= 0).all()))
    for claim, name, bounds in (("c", "hidden", (0.05, 0.3)), ("e", "returned", (0.1, 0.1))):
        found = {f"{start} - undo": gains(name, f"undo-{start}", start) for start in ("npo", "rmu")}
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
    means = pd.DataFrame({name: wide[name].mean(axis=1) for name in ("hidden", "returned")}).dropna()
    rho = means["hidden"].corr(means["returned"], method="spearman")
    word = verdict(rho >= 0.6, rho <= 0.2, seeds=table["seed"].nunique())
    rows.append(("h", f"rho {rho:.2f} over {len(means)} methods", word))
    return pd.DataFrame(rows, columns=["claim", "values", "verdict"]).sort_values("claim")


def main() -> None:
    """Measure, or judge what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--only", nargs="+", default=[], choices=list(METHODS))
    parser.add_argument("--judge", action="store_true")
    given = parser.parse_args()
    if given.judge:
        found = judge()
        found.to_csv(FILE.with_name("verdicts.csv"), index=False)
        print(found.to_string(index=False))
        return
    measure(given.seeds, given.only)


if __name__ == "__main__":
    main()
