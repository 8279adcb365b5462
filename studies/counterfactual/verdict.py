"""Print what the three studies decide: the tables of docs/results/scales.md, and each claim with its numbers.

python studies/counterfactual/verdict.py --results studies/counterfactual/results
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr

from uds_lens.results import ke_mask, layer_erasure_ratio, uds_per_example

HERE = Path(__file__).resolve().parent
TAU, FAR = 0.05, 0.15
SAME = 1e-3  # nats by which log-probabilities of the same fact under the same model may differ: rounding
ENOUGH = 9
"""Unlearned models that claims.md speaks of at least; claims about their scores are not judged from fewer."""
CANDIDATES = ("other-3", "invented-3", "other-8", "invented-8", "other-1", "invented-1", "no_question")
"""In the order of claims.md, which decides between equals."""


class Study:
    """The numbers of one study, on the facts that every scale can measure."""

    def __init__(self, results: Path, name: str, measured: Path | None = None) -> None:
        self.content = json.loads((results / f"audit-{name}.json").read_text(encoding="utf-8"))
        if measured is not None:
            self._join(measured)
        scales, ids = self.content["scales"], self.content["ids"]
        s1s = {name: dict(zip(scale["ids"], scale["s1"], strict=True)) for name, scale in scales.items()}
        there = [id_ for id_ in ids if all(id_ in s1 for s1 in s1s.values())]
        some = {id_ for id_ in there if all(max(s1[id_]) > TAU for s1 in s1s.values())}
        self.n, self.n_there, self._all = len(ids), len(there), s1s
        self.ids = [id_ for id_ in ids if id_ in some]
        self.s1 = {name: torch.tensor([s1[id_] for id_ in self.ids]).double() for name, s1 in s1s.items()}
        self.measurable = {name: sum(max(row) > TAU for row in s1.values()) for name, s1 in s1s.items()}
        rows = [ids.index(id_) for id_ in self.ids]
        self.s2 = {name: torch.tensor(s2).double()[rows] for name, s2 in self.content["s2"].items()}
        self.probability = {name: np.array(p)[rows] for name, p in self.content["probability"].items()}

    def _join(self, measured: Path) -> None:
        """Take S2, and S1 of true scales, from the audits of `../smollm2`; S2 is the same on each of its scales."""
        self._require_the_same_models(measured)
        layers = pd.read_parquet(measured / "layers.parquet")
        order = layers.sort_values(["scale", "model", "example_id", "layer"], key=_by_number)
        ids = list(dict.fromkeys(order["example_id"].astype(str)))
        n_layers = int(order["layer"].max()) + 1
        for scale, name in {"retain-0": "truth", "base": "base", "retains": "retain"}.items():
            rows = order[(order["scale"] == scale) & (order["model"] == "full")]
            s1 = rows["s1_delta"].to_numpy().reshape(-1, n_layers).tolist()
            self.content["scales"][name] = {"ids": ids, "s1": s1}
        of_truth = order[order["scale"] == "retain-0"]
        known = {"full", "base", "retain-0", "retain-1", "retain-2"}  # no unlearned models
        s2 = {
            model: rows["s2_delta"].to_numpy().reshape(-1, n_layers).tolist()
            for model, rows in of_truth.groupby("model")
            if model not in known
        }
        self.content |= {"ids": ids, "s2": s2, "probability": {}}

    def _require_the_same_models(self, measured: Path) -> None:
        """Stop unless `full` gives each fact the log-probability that it has here: there are two sets of models."""
        scores = pd.read_csv(measured / "scores.csv", dtype={"example_id": str})
        full = scores[(scores["scale"] == "retain-0") & (scores["model"] == "full")].set_index("example_id")["s_full"]
        here = dict(zip(self.content["ids"], self.content["s_full"], strict=True))
        apart = [abs(value - full.get(id_, np.inf)) for id_, value in here.items()]
        if max(apart) > SAME:
            raise SystemExit(
                f"audit-b.json and {measured} are about different models: full gives {sum(np.array(apart) > SAME)} of "
                f"{len(apart)} facts another log-probability. Study (b) was measured on the first set of models, whose "
                "audits commit 0f0eb016 has: git archive 0f0eb016 studies/smollm2/measured | tar x -C FOLDER, then "
                "--smollm2 FOLDER/studies/smollm2/measured."
            )

    def scores(self, scale: str, rows: Sequence[int] | None = None) -> dict[str, float]:
        """Return UDS of each model on a scale."""
        return {model: float(each.mean()) for model, each in self.each(scale, rows).items()}

    def each(self, scale: str, rows: Sequence[int] | None = None) -> dict[str, torch.Tensor]:
        """Return UDS of each model and fact on a scale."""
        s1 = self.s1[scale] if rows is None else self.s1[scale][list(rows)]
        ke = ke_mask(s1, TAU)
        out = {}
        for model, s2 in self.s2.items():
            part = s2 if rows is None else s2[list(rows)]
            out[model] = uds_per_example(s1, layer_erasure_ratio(s1, part, ke), ke)
        return out

    def on_its_own(self, scale: str, truth: str) -> Study:
        """Return the study on the facts that one scale and the truth can measure, whatever the others can."""
        alone, ids = copy(self), self.content["ids"]
        pair = {name: self._all[name] for name in (truth, scale)}
        alone.ids = [id_ for id_ in ids if all(max(s1.get(id_, [0.0])) > TAU for s1 in pair.values())]
        alone.s1 = {name: torch.tensor([s1[id_] for id_ in alone.ids]).double() for name, s1 in pair.items()}
        rows = [ids.index(id_) for id_ in alone.ids]
        alone.s2 = {name: torch.tensor(s2).double()[rows] for name, s2 in self.content["s2"].items()}
        return alone

    def distance(self, scale: str, truth: str) -> dict[str, float]:
        """Return how far the scores on a scale are from those on another."""
        one, other = (np.array(list(self.scores(name).values())) for name in (scale, truth))
        low, high = interval(one, other)
        return {
            "mean": float(np.abs(one - other).mean()),
            "largest": float(np.abs(one - other).max()),
            "rank": rank(one, other),
            "rank_low": low,
            "rank_high": high,
            "layers": float((ke_mask(self.s1[scale], TAU) == ke_mask(self.s1[truth], TAU)).double().mean()),
            "s1": float(np.corrcoef(self.s1[scale].flatten(), self.s1[truth].flatten())[0, 1]),
            "bias": float((one - other).mean()),
        }


def _by_number(column: pd.Series) -> pd.Series:
    return column.astype(int) if column.name == "example_id" else column


def rank(one: Sequence[float] | np.ndarray, other: Sequence[float] | np.ndarray) -> float:
    """Return Spearman's correlation; NaN where one side does not vary."""
    one, other = np.asarray(one, float), np.asarray(other, float)
    return float(spearmanr(one, other)[0]) if np.ptp(one) > 0 and np.ptp(other) > 0 else float("nan")


def interval(one: Any, other: Any, n: int = 2000) -> tuple[float, float]:
    """Return the percentile interval of `rank` over models."""
    one, other = np.asarray(one, float), np.asarray(other, float)
    draw = np.random.default_rng(0)
    values = [rank(one[at], other[at]) for at in draw.integers(0, len(one), (n, len(one)))]
    return tuple(np.nanquantile(values, [0.025, 0.975]).round(3).tolist())


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        cells = (f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row)
        yield "| " + " | ".join(cells) + " |"
    yield ""


def verdict(claim: str, text: str, supported: bool, contradicted: bool) -> str:
    """Say what becomes of a claim."""
    return f"- **{claim}**: {'supported' if supported else 'contradicted' if contradicted else 'undecided'}. {text}"


def with_truth(study: Study, others: Sequence[str]) -> tuple[list[str], dict[str, dict[str, float]]]:
    """Return the tables of a study that has a truth, and the distances."""
    names = [name for name in (*others, *CANDIDATES) if name in study.s1]
    distances = {name: study.distance(name, "truth") for name in names}
    own = {name: study.on_its_own(name, "truth") for name in names}
    alone = {name: (len(one.ids), one.distance(name, "truth")) for name, one in own.items()}
    lines = [
        f"{len(study.ids)} of {study.n} facts are measurable on every scale ({study.n_there} scored on every one).",
        "",
        *table(
            (
                "scale",
                "measurable",
                "mean difference",
                "largest",
                "bias",
                "rank correlation",
                "layers agree",
                "corr. of S1",
            ),
            [
                (
                    name,
                    study.measurable[name],
                    d["mean"],
                    d["largest"],
                    d["bias"],
                    f"{d['rank']:.2f} ({d['rank_low']:.2f} to {d['rank_high']:.2f})",
                    d["layers"],
                    d["s1"],
                )
                for name, d in distances.items()
            ],
        ),
        "Not in the claims: the same on the facts that a scale and the truth can measure, whatever the others can.",
        "",
        *table(
            ("scale", "facts", "mean difference", "largest", "bias", "rank correlation", "layers agree"),
            [
                (name, n, d["mean"], d["largest"], d["bias"], f"{d['rank']:.2f}", d["layers"])
                for name, (n, d) in alone.items()
            ],
        ),
        *model_table(study, ("truth", *names)),
        *s1_table(study, ("truth", *names)),
    ]
    return lines, distances


def model_table(study: Study, scales: Sequence[str]) -> Iterator[str]:
    """Yield UDS of each model on each scale, and the probability that it gives the entities."""
    scores = {name: study.scores(name) for name in scales}
    said = study.probability
    beside = ("probability",) if said else ()
    rows = [
        (model, *(float(said[model].mean()) for _ in beside), *(scores[name][model] for name in scales))
        for model in study.s2
    ]
    yield from table(("model", *beside, *scales), rows)


def s1_table(study: Study, scales: Sequence[str]) -> Iterator[str]:
    """Yield mean S1 by layer."""
    n = next(iter(study.s1.values())).shape[1]
    shown = range(n) if n <= 12 else sorted({*range(0, n, 3), n - 1})
    rows = [(name, *(float(study.s1[name][:, layer].mean()) for layer in shown)) for name in scales]
    yield from table(("S1 at layer", *map(str, shown)), rows)


def best_of(distances: Mapping[str, Mapping[str, float]]) -> str:
    """Return the candidate that claims.md makes the default."""
    there = [name for name in CANDIDATES if name in distances]
    least = min(distances[name]["mean"] for name in there)
    return next(name for name in there if distances[name]["mean"] <= least + 0.01)


def far_off(distances: Mapping[str, Mapping[str, float]]) -> str:
    """Name the scales that order models at most, by the last rules of claims.md."""
    names = [name for name, d in distances.items() if d["largest"] > FAR]
    return f"- Largest difference above {FAR}, so that scores order models at most: {', '.join(names) or 'none'}."


def study_a(results: Path) -> Iterator[str]:
    """Yield the page of the small Llamas."""
    study = Study(results, "a")
    lines, d = with_truth(study, ("base",))
    yield from ["## (a) Small TOFU Llamas", "", *lines]
    cf = [name for name in CANDIDATES if name in d]
    base, best = d["base"]["mean"], min(cf, key=lambda name: d[name]["mean"])
    nearer, enough = [base < d[name]["mean"] for name in cf], len(study.s2) >= ENOUGH
    if not enough:
        yield f"Only {len(study.s2)} unlearned models were measured: with fewer than {ENOUGH} a1 to a3 stay undecided."
        yield ""
    yield verdict(
        "a1",
        f"base {base:.3f}, best counterfactual {best} {d[best]['mean']:.3f}",
        enough and all(nearer),
        enough and not all(nearer),
    )
    top = max(cf, key=lambda name: d[name]["rank"])
    r = d[top]
    text = f"{top}: {r['rank']:.2f} ({r['rank_low']:.2f} to {r['rank_high']:.2f})"
    fits, fails = r["rank"] >= 0.8 and r["rank_low"] > 0.5, r["rank"] < 0.8 and r["rank_high"] < 0.9
    yield verdict("a2", text, enough and fits, enough and fails)
    largest = {name: round(d[name]["largest"], 3) for name in cf}
    least = min(largest.values())
    yield verdict("a3", str(largest), enough and least > 0.15, enough and least <= 0.15)
    below = {
        name: int((study.s1[name].mean(0) < study.s1["truth"].mean(0)).sum()) for name in ("other-3", "invented-3")
    }
    n = study.s1["truth"].shape[1]
    text = f"layers below retain90: {below} of {n}"
    yield verdict("a4", text, min(below.values()) == n, max(below.values()) <= n // 2)
    yield far_off(d)
    yield ""


def study_b(results: Path, measured: Path) -> Iterator[str]:
    """Yield the page of the planted facts."""
    study = Study(results, "b", measured)
    lines, d = with_truth(study, ("retain", "base"))
    best = best_of(d)
    yield from ["## (b) SmolLM2 with planted facts", "", *lines]
    b = d[best]
    usable = b["rank"] >= 0.8, b["largest"] <= 0.15
    text = (
        f"{best}: rank correlation {b['rank']:.2f} ({b['rank_low']:.2f} to {b['rank_high']:.2f}), largest difference "
    )
    yield verdict("b1", f"{text}{b['largest']:.3f}", all(usable), not any(usable))
    yield verdict("b2", f"{best}: {b['layers']:.2f}", b["layers"] >= 0.8, b["layers"] < 0.7)
    half, true = study.scores(best)["half"], study.scores("truth")["half"]
    inside, true_inside = (0.35 <= value <= 0.65 for value in (half, true))
    yield verdict(
        "b3", f"half: {half:.3f}, by the truth {true:.3f}", inside and true_inside, true_inside and not inside
    )
    kinds = [kind for kind in ("other", "invented") if {f"{kind}-1", f"{kind}-8"} <= {*d}]
    pairs = {kind: (d[f"{kind}-1"]["mean"], d[f"{kind}-8"]["mean"]) for kind in kinds}
    falls = [eight < one for one, eight in pairs.values()]
    text = ", ".join(f"{kind} {one:.3f} to {eight:.3f}" for kind, (one, eight) in pairs.items())
    whole = len(kinds) == 2
    yield verdict("b4", text or "not measured", whole and all(falls), whole and not any(falls))
    other = d["retain"]["mean"]
    yield verdict("b5", f"{other:.3f}", other <= 0.05, other > 0.1)
    nearer = {name: d["base"]["mean"] < d[name]["mean"] for name in CANDIDATES if name in d}
    text = f"base {d['base']['mean']:.3f}, best counterfactual {best} {d[best]['mean']:.3f}"
    yield verdict("b6", text, all(nearer.values()) and len(nearer) == len(CANDIDATES), not all(nearer.values()))
    missing = [name for name in CANDIDATES if name not in d]
    last = f"The rule is applied when {' and '.join(missing)} are measured, too." if missing else ""
    yield f"- The default candidate by the rule of claims.md: **{best}**. {last}"
    rows = {name: {id_ for id_, s1 in study._all[name].items() if max(s1) > TAU} for name in d}
    more = {name: len(rows[name] - rows[best]) for name in CANDIDATES if name in d and name != best}
    yield f"- Facts that another candidate can measure and {best} cannot: {more}."
    yield far_off(d)
    yield ""


def study_c(results: Path) -> Iterator[str]:
    """Yield the page of the facts that the model knows."""
    study = Study(results, "c")
    after = json.loads((results / "after-c.json").read_text(encoding="utf-8"))
    full = after["full"]
    forgotten = [i for i, id_ in enumerate(study.ids) if id_ in set(full["forget_ids"])]
    held = [i for i, id_ in enumerate(study.ids) if id_ in set(full["held_ids"])]
    scales = [name for name in CANDIDATES if name in study.s1]
    yield "## (c) SmolLM2, facts that it knows"
    yield ""
    yield f"{len(forgotten)} forgotten and {len(held)} held-out kept facts of {study.n} are measurable on every scale."
    yield ""

    def mean(name: str, what: str) -> float:
        return float(np.mean([p for p, _ in after[name][what]]))

    lost, kept = study.scores("other-3", forgotten), study.scores("other-3", held)
    models = [name for name in study.s2 if name in after]
    elicited = {name: float(np.mean(after[name]["elicited"])) for name in models}
    rows = [
        ("full", mean("full", "forget"), mean("full", "held"), "", "", mean("full", "relearned_forget"),
         float(np.mean(full["elicited"]))),
        *((name, mean(name, "forget"), mean(name, "held"), lost[name], kept[name], mean(name, "relearned_forget"),
           elicited[name]) for name in models),
    ]  # fmt: skip
    head = ("model", "prob. forgotten", "prob. kept", "UDS forgotten", "UDS kept", "prob. relearned", "elicited")
    yield from table(head, rows)
    yield "UDS of forgotten | kept facts on each scale:"
    yield ""
    by_scale = {name: (study.scores(name, forgotten), study.scores(name, held)) for name in scales}
    yield from table(
        ("model", *scales),
        [(m, *(f"{by_scale[s][0][m]:.3f} / {by_scale[s][1][m]:.3f}" for s in scales)) for m in models],
    )
    yield from table(("scale", "measurable"), [(name, study.measurable[name]) for name in scales])
    yield from s1_table(study, scales)
    keeping = [name for name in models if mean(name, "held") >= 0.8 * mean("full", "held")]
    scored = {name: round(kept[name], 3) for name in keeping}
    yield verdict(
        "c1",
        f"kept facts of the models that keep them: {scored}",
        len(keeping) >= 3 and max(scored.values(), default=9) <= 0.10,
        max(scored.values(), default=0) > 0.25,
    )
    depth = [lost[name] for name in models]

    def against(claim: str, values: Sequence[float]) -> str:
        r, (low, high) = rank(depth, values), interval(depth, values)
        return verdict(claim, f"{r:.2f} ({low:.2f} to {high:.2f}), {len(models)} models", r <= -0.5 and high < 0, r > 0)

    yield against("c2", [mean(name, "relearned_forget") for name in models])
    yield against("c3", [elicited[name] for name in models])
    for what in ("relearned_forget", "elicited"):
        values = [elicited[name] if what == "elicited" else mean(name, what) for name in models]
        said = rank([mean(name, "forget") for name in models], values)
        yield f"- Beside it: the probability before, with {what}: {said:.2f}."
    silent = [name for name in models if mean(name, "forget") < 0.1]
    spread = max((lost[n] for n in silent), default=0) - min((lost[n] for n in silent), default=0)
    text = f"{ {name: round(lost[name], 3) for name in silent} }"
    yield verdict("c4", text, len(silent) >= 3 and spread > 0.3, len(silent) >= 3 and spread < 0.1)
    gaps = {
        kind: float(np.mean([abs(by_scale[f"{kind}-3"][0][m] - by_scale[f"{kind}-8"][0][m]) for m in models]))
        for kind in ("other", "invented")
    }
    text = ", ".join(f"{kind} {gap:.3f}" for kind, gap in gaps.items())
    yield verdict("c5", text, max(gaps.values()) <= 0.03, max(gaps.values()) > 0.1)
    profile = study.s1["other-3"][forgotten].mean(0)
    first = int((profile >= profile.max() / 2).nonzero()[0, 0])
    yield verdict("c6", f"layer {first} of {len(profile)}", first >= 20, first < 15)
    yield ""
    yield "Beyond the claims, within models (rank correlation over forgotten facts, mean over models): UDS of a fact"
    yield "with its probability after relearning, and with being elicited."
    each = {name: values.numpy() for name, values in study.each("other-3", forgotten).items()}
    where = [full["forget_ids"].index(study.ids[i]) for i in forgotten]
    pairs: Mapping[str, Callable[[str], list[float]]] = {
        "relearned": lambda name: [after[name]["relearned_forget"][i][0] for i in where],
        "elicited": lambda name: [float(after[name]["elicited"][i]) for i in where],
        "said": lambda name: [after[name]["forget"][i][0] for i in where],
    }
    for what, of_model in pairs.items():
        yield f"- {what}: {np.nanmean([rank(each[name], of_model(name)) for name in models]):.2f}"
    yield ""


def follows(pages: Mapping[str, str]) -> Iterator[str]:
    """Yield what claims.md draws from the verdicts of the three studies."""
    text = "\n".join(pages.values())
    found = dict(re.findall(r"^- \*\*(\w+)\*\*: (\w+)", text, re.MULTILINE))

    def is_(claim: str, what: str) -> bool:
        return found.get(claim) == what

    yield "## When to use which"
    yield ""
    known = (is_("b1", "supported") or is_("b2", "supported")) and is_("c1", "supported")
    known = known and not (is_("c2", "contradicted") or is_("c3", "contradicted"))
    yield f"- Counterfactual, for what a model knew from pretraining: {'advised' if known else 'not advised'}."
    base = {
        "small models that recite": is_("a1", "supported"),
        "a language model with planted facts": is_("b6", "supported"),
    }
    advised = ", ".join(name for name, yes in base.items() if yes) or "nowhere yet (a1 and b6 are not decided)"
    yield f"- Base, where the start of the fine-tuning is at hand: advised for {advised}."
    against = [claim for claim, what in found.items() if what == "contradicted"]
    yield (
        "- Neither gives values to quote where a claim is contradicted "
        f"({', '.join(against) or 'none'}), or with the scales named last under (a) and (b)."
    )
    yield '- Readings such as "erased, as in retain" and comparisons with scores against a retain model stay refused.'
    yield ""


def main() -> None:
    """Print the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument(
        "--smollm2",
        type=Path,
        default=HERE.parent / "smollm2" / "measured",
        help="audits of the models that study (b) was measured on",
    )
    parser.add_argument("--studies", nargs="+", default=["a", "b", "c"], choices=("a", "b", "c"))
    given = parser.parse_args()
    pages = {}
    for name in given.studies:
        if not (given.results / f"audit-{name}.json").exists():
            print(f"Study ({name}) was not run: no audit-{name}.json in {given.results}.\n")
            continue
        b = partial(study_b, measured=given.smollm2)
        ways: dict[str, Callable[[Path], Iterator[str]]] = {"a": study_a, "b": b, "c": study_c}
        pages[name] = "\n".join(ways[name](given.results))
    head = ["# What the studies of scales without a retain model found", "", "Made by `verdict.py`.", ""]
    print("\n".join([*head, *pages.values(), *follows(pages)]))


if __name__ == "__main__":
    main()
