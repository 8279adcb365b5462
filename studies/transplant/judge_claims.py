"""Judge every claim of claims.md from `results/WORLD.csv`, and write `results/README.md`; needs no model.

python studies/transplant/judge_claims.py
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from as_metric import judged, states_of
from scipy.stats import rankdata

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
SMALL, LORA, WHOLE = ("small-0", "small-1"), ("smollm2",), ("smollm2-full",)
HIDING, FORGOTTEN = 0.5, 0.2
LEAST_DEPTH = 0.15
RESAMPLES = 2000


class Verdict(NamedTuple):
    """What became of a claim, and why."""

    claim: str
    verdict: str
    why: str


def read() -> pd.DataFrame:
    """Return the rows of all worlds that were measured; `is_hiding` is NaN where the criterion does not decide."""
    files = [RESULTS / f"{world}.csv" for world in (*SMALL, *LORA, *WHOLE)]
    table = pd.concat(
        [pd.read_csv(file, keep_default_na=False, na_values=[""]) for file in files if file.exists()], ignore_index=True
    )
    table = table[~table["model"].str.endswith("-by-0")].copy()  # the same as without: retain-0 is everybody's donor
    # only models that unlearned something, and whose answers on the tested half can come back
    counts = (table["output_depth"] >= LEAST_DEPTH) & (table["tested_before"] >= LEAST_DEPTH)
    returned = table["returned"].where(counts)
    # a model that answers is in no claim; one that is only a pair of references has no relearning, and stays
    table["counts"] = (table["output_depth"] >= LEAST_DEPTH) & ~(table["tested_before"] < LEAST_DEPTH)
    table["is_hiding"] = np.where(returned >= HIDING, 1.0, np.where(returned <= FORGOTTEN, 0.0, np.nan))
    table["hidden_by_attention"] = table["output_depth"] - table["host_depth_attention"]
    table["hidden_by_bands"] = table["output_depth"] - table["host_depth_bands"]
    return table


def auc(table: pd.DataFrame, score: str) -> float:
    """Return the probability that a hiding model scores above a forgotten one; NaN without both."""
    values = table[["is_hiding", score]].to_numpy(dtype=float)
    values = values[~np.isnan(values).any(1)]
    hiding = values[:, 0] == 1
    if not hiding.any() or hiding.all():
        return math.nan
    ranks = rankdata(values[:, 1])
    n = hiding.sum()
    return float((ranks[hiding].sum() - n * (n + 1) / 2) / (n * (~hiding).sum()))


def resampled(table: pd.DataFrame, statistic: Callable[[pd.DataFrame], float]) -> tuple[float, float]:
    """Return the 95 % interval of a statistic over resamples of the units, within world."""
    rng = np.random.default_rng(0)
    table = table.reset_index(drop=True)
    numbers = table.select_dtypes("number")
    places = [
        [world.index.to_numpy()[rows] for rows in world.groupby("unit").indices.values()]
        for _, world in table.groupby("world")
    ]
    values = []
    for _ in range(RESAMPLES):
        drawn = [units[i] for units in places for i in rng.integers(len(units), size=len(units))]
        values.append(statistic(numbers.take(np.concatenate(drawn))))
    found = np.array(values)
    found = found[~np.isnan(found)]
    return (float(np.quantile(found, 0.025)), float(np.quantile(found, 0.975))) if len(found) else (math.nan, math.nan)


def separated(table: pd.DataFrame, claim: str) -> Verdict:
    """Judge claims a, b and j: an AUC of at least .95 with an interval above .8."""
    value = auc(table, "hidden")
    low, high = resampled(table, lambda drawn: auc(drawn, "hidden"))
    sides = {name: table[table["is_hiding"] == side] for side, name in ((1, "hiding"), (0, "forgotten"))}
    counts = ", ".join(f"{len(rows)} {name} of {rows['unit'].nunique()} kinds" for name, rows in sides.items())
    enough = all(len(rows) >= 5 and rows["unit"].nunique() >= 3 for rows in sides.values())
    word = "undecided"
    if value >= 0.95 and low > 0.8 and enough:
        word = "supported"
    elif value < 0.8:
        word = "contradicted"
    return Verdict(claim, word, f"AUC {value:.3f} [{low:.3f}, {high:.3f}]; {counts}")


def within(table: pd.DataFrame, claim: str, *, limit: float, beyond: float, share: float) -> Verdict:
    """Judge claims of models that are to stay within a bound: every one, or more than a share beyond another."""
    if not len(table):
        return Verdict(claim, "not measured", "no such model")
    sizes = table["hidden_difference"].abs()
    named = ", ".join(
        f"{row.world} {row.model} {row.hidden_difference:+.3f}"
        for row in table.itertuples()
        if abs(row.hidden_difference) > limit
    )
    word = "supported" if (sizes <= limit).all() else "undecided"
    if (sizes > beyond).mean() > share:
        word = "contradicted"
    return Verdict(
        claim, word, f"{(sizes <= limit).sum()} of {len(sizes)} within {limit:g}" + (f"; beyond: {named}" * bool(named))
    )


def partial_rank_correlation(table: pd.DataFrame, one: str, other: str, given: Sequence[str]) -> float:
    """Return Spearman's correlation of two columns, with the ranks of others taken out of both."""
    rows = table.dropna(subset=[one, other, *given])
    if len(rows) < len(given) + 4:
        return math.nan
    ranks = {name: rankdata(rows[name]) for name in (one, other, *given)}
    base = np.column_stack([np.ones(len(rows)), *(ranks[name] for name in given)])

    def rest(name: str) -> np.ndarray:
        return ranks[name] - base @ np.linalg.lstsq(base, ranks[name], rcond=None)[0]

    a, b = rest(one), rest(other)
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / size if size > 1e-9 else math.nan


def verdicts(table: pd.DataFrame, small_worlds: Sequence[str] = SMALL) -> list[Verdict]:
    """Judge the claims that transplants and relearning decide, all but m; some concern the small worlds, or others."""
    small, lora, whole = (table[table["world"].isin(worlds)] for worlds in (small_worlds, LORA, WHOLE))
    references = table[table["kind"] == "reference"]
    largest = references.groupby("world")["hidden_difference"].max()
    out = [
        separated(small, "a: hidden separates hiding from forgotten models, small Llamas"),
        separated(lora, "b: the same, SmolLM2") if len(lora) else Verdict("b", "not measured", ""),
        within(references, "c: references stay within .05", limit=0.05, beyond=0.1, share=1 / 3),
    ]
    removed = table[table["model"] == "removed"]
    word = "undecided"
    if len(removed) and (removed["hidden_difference"] <= 0.1).all():
        word = "supported" if set(removed["world"]) == set(SMALL) else "undecided"
    elif (removed["hidden_difference"] > 0.2).any():
        word = "contradicted"
    shown = ", ".join(f"{row.world} O {row.output_depth:.2f}, h {row.host_depth:.2f}" for row in removed.itertuples())
    out.append(Verdict("d: what was exactly removed stays", word, shown or "not measured"))
    spoiled = table[table["counts"] & table["model"].str.match(r"(noised-1-at|rotated|ablated)")]
    seen = spoiled["hidden_difference"] > spoiled["world"].map(largest).astype(float)
    words = {
        True: "supported",
        False: "contradicted" if (seen.groupby(spoiled["world"]).mean() < 0.5).any() else "undecided",
    }
    missed = ", ".join(
        f"{row.world} {row.model} (O {row.output_depth:.2f}, {row.hidden_difference:+.2f})"
        for row in spoiled[~seen].itertuples()
    )
    out.append(
        Verdict(
            "e: one spoiled block is seen",
            words[bool(seen.all())],
            f"{seen.sum()} of {len(seen)}" + f"; not {missed}" * bool(missed),
        )
    )

    def gain(drawn: pd.DataFrame) -> float:
        return auc(drawn, "hidden") - auc(drawn.assign(low=-drawn["uds"]), "low")

    low, high = resampled(table, gain)
    of_uds = auc(table.assign(low=-table["uds"]), "low")
    word = (
        "supported" if of_uds < 0.8 and low > 0 else "contradicted" if max(of_uds, 1 - of_uds) >= 0.95 else "undecided"
    )
    out.append(
        Verdict(
            "f: UDS does not separate them",
            word,
            f"AUC of a low UDS for hiding {of_uds:.3f}; hidden {gain(table):+.3f} [{low:+.3f}, {high:+.3f}] above it",
        )
    )
    given = ["distance", "output_depth"]
    value = partial_rank_correlation(small, "hidden_difference", "returned", given)
    low, high = resampled(small, lambda drawn: partial_rank_correlation(drawn, "hidden_difference", "returned", given))
    word = "supported" if low > 0 else "contradicted" if high < 0 else "undecided"
    out.append(
        Verdict(
            "g: hidden says more than distance and output depth",
            word,
            f"partial rho {value:.3f} [{low:.3f}, {high:.3f}], {small['returned'].notna().sum()} models",
        )
    )
    differences = {
        name: auc(rows, "hidden_by_attention") - auc(rows, "hidden_by_bands")
        for name, rows in (("small", small), ("smollm2", lora), ("smollm2-full", whole))
        if len(rows) or name != "smollm2-full"
    }
    values = np.array(list(differences.values()))
    word = "contradicted" if (values < -0.1).any() else "supported" if (values >= -0.02).all() else "undecided"
    out.append(
        Verdict(
            "h: attention alone is as good as bands",
            word,
            ", ".join(f"{name} {value:+.3f}" for name, value in differences.items()),
        )
    )
    made = table[table["counts"] & (table["kind"] == "made: retain")]
    out.append(within(made, "i: lerp and distilled are as references", limit=0.1, beyond=0.2, share=0.5))
    out.append(separated(small[small["unit"] != "rmu"], "j: claim a without RMU"))
    left = {unit: auc(small[small["unit"] != unit], "hidden") for unit in sorted(small["unit"].unique())}
    left = {unit: value for unit, value in left.items() if not math.isnan(value)}
    worst = min(left, key=lambda unit: left[unit], default="")
    word = "contradicted" if left.get(worst, 1) < 0.7 else "supported" if left.get(worst, 0) >= 0.9 else "undecided"
    shown = f"lowest AUC {left[worst]:.3f}, without {worst}" if left else "no AUC"
    out.append(Verdict("k: with any one method left out", word, shown))
    every = table[table["model"] == "noised-all"]
    unseen = (every["hidden_difference"] < 0.1) & (every["localisation_1"] < 0.3)
    word = (
        "contradicted"
        if (every["hidden_difference"] > 0.3).any()
        else "supported"
        if len(every) and unseen.all()
        else "undecided"
    )
    out.append(
        Verdict(
            "l: noise in all blocks is seen by neither donor",
            word,
            ", ".join(
                f"{row.world}: hidden {row.hidden_difference:+.2f}, "
                f"localisation {row.localisation_1:.2f}, returned {row.returned:.2f}"
                for row in every.itertuples()
            ),
        )
    )
    claim = "n: hidden separates hiding from forgotten models, SmolLM2 with all weights"
    out.append(separated(whole, claim) if len(whole) else Verdict(claim, "not measured", ""))
    return out


def as_a_metric() -> Verdict:
    """Judge claim m from the table of as_metric.py."""
    claim = "m: as a metric of the meta-evaluation"
    if (table := states_of()) is None:
        return Verdict(claim, "not measured", "cut first, as claims.md says")
    auc_of = judged(table).set_index("metric")["auc"]
    gain = auc_of["host_depth"] - auc_of["uds"]
    word = "supported" if gain >= 0 else "contradicted" if gain <= -0.1 else "undecided"
    return Verdict(claim, word, f"AUC of h {auc_of['host_depth']:.3f}, of UDS {auc_of['uds']:.3f}; 3 models each")


COLUMNS = (
    "model",
    "kind",
    "uds",
    "output_depth",
    "host_depth",
    "hidden_difference",
    "hidden_low",
    "hidden_high",
    "host_depth_bands",
    "host_depth_attention",
    "localisation_1",
    "localisation_1_retain",
    "localisation_2",
    "control_loss",
    "n_admitted",
    "distance",
    "returned",
)


def markdown(table: pd.DataFrame) -> list[str]:
    """Return a table as Markdown lines."""

    def cell(value: object) -> str:
        if isinstance(value, float):
            return "" if math.isnan(value) else f"{value:.2f}"
        return str(value)

    head = [name.replace("_", " ") for name in table.columns]
    rows = [[cell(value) for value in row] for row in table.itertuples(index=False)]
    return ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]


def main() -> None:
    """Judge, print, write."""
    table = read()
    fresh, last = table["world"] == "small-1", table["world"].isin(WHOLE)
    ruled = [*verdicts(table), as_a_metric()]
    lines = [
        "# What the study of transplants found",
        "",
        "Computed by `judge_claims.py` from the tables in this folder. The claims, and when they were made: claims.md.",
        "",
    ]
    # As they stood before `smollm2-full` and before `small-1` were measured, and on each alone.
    apart_in = {
        "before `smollm2-full`": (table[~last], SMALL),
        "before `small-1`": (table[~last & ~fresh], SMALL),
        "`small-1` alone": (table[fresh], SMALL),
        "`smollm2-full` alone (a, g, j, k: on it, though they concern the small worlds)": (table[last], WHOLE),
    }
    parts = [
        dict(zip("abcdefghijkln", verdicts(part, worlds), strict=True)) if len(part) else {}
        for part, worlds in apart_in.values()
    ]
    lines += [f"| claim | verdict | why | {' | '.join(apart_in)} |", "|---" * (3 + len(apart_in)) + "|"]
    for each in ruled:
        apart = (part.get(each.claim[0]) for part in parts)
        cells = (f"{other.verdict}: {other.why}".removesuffix(": ") if other else "" for other in apart)
        lines.append(f"| {each.claim} | {each.verdict} | {each.why} | {' | '.join(cells)} |")
    lines += [
        "",
        "Post hoc, AUC of scores for hiding against forgotten models; on the right without the models made to fool: "
        "relearning on half of the subjects calls them forgotten although most of their blocks are those of `full`.",
        "",
        "| score | small | SmolLM2 | SmolLM2, all weights | small, unspoiled | SmolLM2, unspoiled "
        "| SmolLM2, all weights, unspoiled |",
        "|---" * 7 + "|",
    ]
    scored = table.assign(
        low_uds=-table["uds"], relative=1 - table["host_depth"] / table["output_depth"], near=-table["distance"]
    )
    for name, told in (
        ("hidden_difference", "hidden, O - h"),
        ("relative", "1 - h / O"),
        ("hidden_by_bands", "by bands"),
        ("hidden_by_attention", "by attention"),
        ("localisation_1", "localisation, narrow"),
        ("near", "nearness to full in weights"),
        ("low_uds", "low UDS"),
    ):
        values = [
            auc(rows[rows["world"].isin(worlds)], name)
            for rows in (scored, scored[scored["kind"] != "made: spoiled"])
            for worlds in (SMALL, LORA, WHOLE)
        ]
        lines.append(f"| {told} | " + " | ".join(f"{value:.3f}" for value in values) + " |")
    if (states := states_of()) is not None:
        lines += ["", "## As a metric (claim m, as_metric.py)", "", *markdown(judged(states))]
    if (probed := states_of("probe")) is not None:
        lines += ["", "The trained linear probe, on all rows; added when the above was known:", ""]
        lines += markdown(judged(probed))
    if (pilots := RESULTS / "pilots.csv").exists():
        lines += [
            "",
            "## The pilots again (pilots.py)",
            "",
            "Without c(b), as the pilots were computed, next to host depth as defined. The toy world's models and "
            "these two of the small TOFU Llamas still exist; the pilots' NPO, GradDiff, RMU and planted facts do not. "
            "All bands of `retain95` lie between .48 and .53, on every third row as on all 367, so the pilot's .50 "
            "is another band than the least one.",
            "",
            *markdown(pd.read_csv(pilots)),
        ]
    for world, rows in table.groupby("world", sort=False):
        lines += ["", f"## {world}", "", *markdown(rows[list(COLUMNS)])]
    (RESULTS / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for each in ruled:
        print(f"{each.verdict:12} {each.claim}: {each.why}")


if __name__ == "__main__":
    main()
